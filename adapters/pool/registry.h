// The adapters of a running server: what names stand for, where the weights are, and who uses them.
//
//   register  HTTP thread: the files go to the store, are read, checked, and the name stands for them once that is
//       durable
//   acquire   HTTP thread: pins what the names stand for now, and waits until that is on the device; decoding goes on
//   lease     what a request holds until its last step has finished (lease.h)
//   remove    the name is gone at once; content that no name needs goes when its last lease has ended
//
// adapter.h has the states, catalogue.h what is stored, pool.h who is on the device, store.h the files.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "adapters/files/adapter.h"
#include "adapters/files/chat_files.h"
#include "adapters/plan/base_model.h"
#include "adapters/plan/check.h"
#include "adapters/plan/report.h"
#include "adapters/pool/events.h"
#include "adapters/pool/fifo_mutex.h"
#include "adapters/pool/lease.h"
#include "adapters/pool/pool.h"
#include "adapters/pool/weight_store.h"
#include "adapters/store/catalogue.h"
#include "adapters/store/store.h"
#include "proto/base/result.h"

namespace lorad::adapters {

struct RegistryOptions {
    std::string base_name;          // no adapter may have it
    uint32_t n_adapters_max = 0;    // on the device at a time; 0: as many as the table has slots
    uint64_t device_bytes_max = 0;  // for all adapters on the device; 0: all that the device has
    uint64_t ram_bytes_max = 0;     // for packed adapters in host memory, ready to be copied
    uint32_t n_names_max = 50'000;
    std::chrono::milliseconds wait_timeout{60'000};     // for a place on the device, where a call gives no other
    std::chrono::milliseconds starvation_bound{1'000};  // pool.h
};

struct AcquireOptions {
    std::chrono::milliseconds timeout{-1};  // negative: RegistryOptions::wait_timeout
    std::function<bool()> cancelled;        // asked every 50 ms or so while waiting; may be empty
};

struct LoadOptions {
    bool load_inplace = false;        // replace the name if it exists; running requests keep the old weights
    std::string expected_generation;  // with load_inplace: only if this is the present one; empty: whatever it is
};

enum class RemoveMode : uint8_t {
    kDrain,  // running requests go on to their end
    kNow,    // running requests end as soon as the engine sees it
};
struct RemoveOptions {
    RemoveMode mode = RemoveMode::kDrain;
    std::chrono::milliseconds timeout{0};  // how long the call waits for the last request to end
    std::string expected_generation;
    std::function<bool()> cancelled;  // asked every 50 ms or so while waiting; may be empty
};

struct ActivateOptions {
    ActivationMode mode = ActivationMode::kUnmerged;
    bool pin = false;  // stays on the device
};

// A file of an adapter to be registered: one that was uploaded.
struct UploadedFile {
    std::string name;    // "adapter_config.json"
    std::string sha256;  // 64 hex digits, lower case
};

// Merging, which the server does (HTTP threads).
class MergeControl {
  public:
    virtual ~MergeControl() = default;
    // Computes merged weights of the lease's mix and keeps the lease; an earlier mix is no longer merged.
    // kInvalidLoadPolicy where the server does not merge, kOutOfMemory with the bytes.
    virtual Status merge(const std::string& name, MixLease lease) = 0;
    // Merged when it dominates the traffic, until release().
    virtual Status consider(const std::string& name, MixLease lease) = 0;
    // Undoes merge() and consider() of this name; nothing where there was none.
    virtual void release(const std::string& name) = 0;
};

struct RegistryStats {
    uint64_t n_names = 0, n_generations = 0, n_on_device = 0, n_in_ram = 0, n_pinned = 0, n_leases = 0, n_waiting = 0;
    uint64_t device_bytes = 0, device_bytes_max = 0, ram_bytes = 0, stored_bytes = 0;
    uint64_t n_loads = 0, n_loads_from_ram = 0, n_load_failures = 0, n_evictions = 0, n_waits = 0, n_wait_timeouts = 0;
    uint64_t bytes_loaded = 0, bytes_evicted = 0;
    double load_s = 0, wait_s = 0;  // sums
};

// Thread-safe. Changes take turns; none of them stops requests, and no lock is held over files or copies but that turn.
class Registry {
  public:
    // Keeps nothing beyond its life. `weights` outlives the registry and every lease.
    Registry(BaseModel base, WeightStore& weights, const RegistryOptions& options);
    // Starts with the catalogue in `files`. Names come back; weights come to the device when they are used, pinned ones
    // with restore_active().
    Registry(BaseModel base, WeightStore& weights, const RegistryOptions& options, std::unique_ptr<Store> files);
    ~Registry();
    Registry(const Registry&) = delete;
    Registry& operator=(const Registry&) = delete;

    // Set before requests come, not owned; nullptr: merged and auto are refused.
    void set_merge_control(MergeControl* merge) { merge_ = merge; }
    // Brings adapters back to the device that were pinned or activated when the server stopped. Failures are logged,
    // and those adapters stay stored.
    void restore_active();

    // Pins what the names stand for now, with mixes resolved and terms at scale 0 dropped; nothing left: an empty
    // lease.
    // Waits until all of it is on the device. kAdapterNotFound; kInvalidRequest (terms); kAdapterUnsupported (adapters
    // that replace parts of the base, mixed or scaled); kOutOfMemory if it can never fit; kAdapterBusy after the
    // timeout or when cancelled; what loading its files gave.
    Result<MixLease> acquire(std::span<const AdapterTerm> terms, const AcquireOptions& options = {});
    Result<MixLease> acquire(std::string_view name, const AcquireOptions& options = {});

    // An upload, durable after finish(); see BlobUpload. With a holder it stays for that one, whatever others do, until
    // it registers an adapter of it or a day has gone (blob_holds.h). Blobs that no adapter was made of go away after a
    // day. `may_know`: Store::begin().
    Result<std::unique_ptr<BlobUpload>> put_blob(std::string_view sha256, std::optional<uint64_t> bytes,
                                                 const Holder* holder = nullptr, bool may_know = false);
    std::optional<uint64_t> blob_bytes(std::string_view sha256) const;
    bool holds_blob(std::string_view sha256, std::string_view holder) const;
    // Deletes uploads whose time is over; the registry does so every minute.
    void expire_uploads(int64_t now_s);
    // While the result lives, no discard_blobs() or removal of an adapter deletes these blobs, stored already or not.
    std::shared_ptr<const void> hold_blobs(std::vector<std::string> blobs);
    // Deletes uploads without an adapter, unless they are held, or an adapter or a call under way needs them.
    void discard_blobs(const std::vector<std::string>& blobs) { discard_files(blobs); }

    // Dry runs: what the files are, and all that does not fit. Nothing changes and no device memory is taken.
    // kAdapterFileNotFound; kAdapterNotFound, and kInvalidRequest for the name of a mix.
    Result<AdapterReport> inspect(std::span<const UploadedFile> files);
    Result<AdapterReport> inspect(std::string_view name);
    AdapterReport inspect(const AdapterLocation& location) const { return inspect_adapter(location, base_); }

    // Returns the chat files of the name's adapter; nothing for mixes and unknown names. A generation's id works as
    // well.
    ChatFiles chat_files(std::string_view name_or_generation) const;
    // Its templates, read from the store; none where its files have none. kAdapterFileNotFound once no adapter needs
    // them;
    // kStorageFailed, kIo.
    Result<std::vector<model::NamedTemplate>> templates(const ChatFiles& chat) const;

    // The adapter that a name or a generation's id stands for, in host memory and whole. kAdapterNotFound;
    // kInvalidRequest for the name of a mix; what reading its files gives.
    Result<std::unique_ptr<CheckedAdapter>> read(std::string_view name_or_generation) const;

    // Makes the name stand for uploaded files, once they are checked and this is durable. They need not be on the
    // device.
    // kInvalidAdapterName, kAdapterExists, kGenerationMismatch, kAdapterFileNotFound, kAdapterInvalid and
    // kAdapterUnsupported (with all that does not fit; the blobs are gone then, but for those that somebody holds),
    // kAdapterLimit, kStorageFailed.
    Result<AdapterInfo> register_adapter(std::string_view name, std::span<const UploadedFile> files,
                                         const ChangeOptions& options = {}, std::string_view holder = {});
    // The name stands for this sum of what the terms' names stand for now; names that change later do not change it.
    Result<AdapterInfo> register_mix(std::string_view name, std::span<const AdapterTerm> terms,
                                     const ChangeOptions& options = {});
    // Copies a folder's files into the store, checks them, brings them to the device, and makes the name stand for
    // them.
    // On any error nothing has changed. As register_adapter; kAdapterNotFound: no such folder; kOutOfMemory.
    Result<AdapterInfo> load(std::string_view name, const AdapterLocation& location, const LoadOptions& options = {});

    // The name is gone when this returns, whatever the timeout; n_leases of the answer still run. kAdapterNotFound,
    // kGenerationMismatch.
    Result<AdapterInfo> remove(std::string_view name, const RemoveOptions& options = {});

    // Brings it to the device and keeps to the mode until deactivate(), also over a restart. kInvalidLoadPolicy.
    Result<AdapterInfo> activate(std::string_view name, const ActivateOptions& options);
    // Unpins, unmerges, and lets it leave the device.
    Result<AdapterInfo> deactivate(std::string_view name);
    // Returns to the generation before, or to that one of the history. kGenerationConflict where there is none.
    Result<AdapterInfo> rollback(std::string_view name, std::string_view generation = {});

    // Lists by name, then generations kept by leases alone. Taken page by page, so that a long list blocks nobody;
    // changes meanwhile may be in it or not.
    std::vector<AdapterInfo> list() const;
    // The next n_max by name after that one; with the last of them also what only leases keep, and `more` is false.
    struct Page {
        std::vector<AdapterInfo> adapters;
        bool more = false;
    };
    Page page(std::string_view after, size_t n_max) const;
    std::optional<AdapterInfo> find(std::string_view name) const;
    RegistryStats stats() const;
    const EventLog& events() const { return pool_->events; }
    uint64_t device_bytes() const;
    uint32_t n_slots() const { return pool_->options.n_slots; }
    // The base that adapters are compared with. Lives as long as the registry.
    const BaseModel& base() const { return base_; }
    // Returns false if the store has moved from where a restart looks for it, a few seconds ago at most. Costs nothing.
    bool is_store_in_place() const { return store_in_place_; }

  private:
    struct Counts;
    class BlobHold;
    class HeldUpload;
    Result<std::vector<FileRecord>> uploaded(std::span<const UploadedFile> files) const;
    Result<AdapterReport> inspect_records(const std::vector<FileRecord>& records);
    Result<std::shared_ptr<LeaseState>> resolve(std::span<const AdapterTerm> terms) const;
    Status grant(LeaseState& lease, const AcquireOptions& options);
    Result<PackedImage> load_image(const GenerationRecord& record);
    Result<std::vector<Part>> parts_of(std::span<const AdapterTerm> terms, std::vector<UsedName>* names) const;
    std::shared_ptr<LeaseState> lease_of(const GenerationRecord& record, std::string name);
    Result<AdapterInfo> set_name(const std::string& name, Target target, const GenerationRecord* record,
                                 const ChangeOptions& options);
    // Returns the name's new state; its last one if it is gone.
    Result<AdapterInfo> commit(const std::string& name, const std::function<Status(Catalogue&)>& change);
    void publish(Catalogue next);
    const GenerationPtr& known_generation(const GenerationRecord& record) REQUIRES(pool_->mutex);
    void collect_files();
    void discard_files(const std::vector<std::string>& blobs);
    void delete_unwanted() REQUIRES(commit_mutex_);
    void keep_active(const std::string& name);
    void store_again(const std::string& generation);
    void give_image(const std::string& generation, std::unique_ptr<CheckedAdapter> checked, Pool::ImageRoom room);
    void housekeeping();
    AdapterInfo info_of(const std::string& name, const Alias& alias, const Counts& counts) const REQUIRES(pool_->mutex);
    Counts count_leases() const REQUIRES(pool_->mutex);
    std::shared_ptr<const Catalogue> catalogue() const;

    const BaseModel base_;
    const RegistryOptions options_;
    const std::unique_ptr<Store> files_;
    std::shared_ptr<Pool> pool_;  // leases keep it alive
    MergeControl* merge_ = nullptr;

    FifoMutex commit_mutex_;                                           // one change at a time; taken before Pool::mutex
    std::multiset<std::string> held_blobs_ GUARDED_BY(commit_mutex_);  // by calls under way
    std::set<std::string> unwanted_blobs_ GUARDED_BY(commit_mutex_);   // to be deleted once nobody holds or needs them
    std::shared_ptr<const Catalogue> catalogue_;                       // written under both mutexes, read under either
    bool stopping_ GUARDED_BY(pool_->mutex) = false;
    std::atomic<bool> store_in_place_{true};
    std::thread housekeeper_;
};

}  // namespace lorad::adapters
