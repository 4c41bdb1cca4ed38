// The adapters of a running server: names, their weights on the device, and who still uses them.
//
//   load   HTTP thread: read, check, pack, upload, wait for the copies, take a slot, publish. Decoding goes on meanwhile.
//   lease  what a request holds from admission until its last step has finished: a generation of weights and its slot.
//   unload the name is gone at once; memory and slot are free when the last lease has ended.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "adapters/base_model.h"
#include "adapters/weight_store.h"
#include "proto/base/result.h"

namespace lorad::adapters {

enum class AdapterState : uint8_t {
    kLoading,   // being read, checked or copied; not yet to be used
    kReady,     // requests may name it
    kDraining,  // unloaded or replaced; lives until its last lease ends
};
std::string_view name_of(AdapterState state);  // "loading", "ready", "draining"

// One line of the list, one card of /v1/models.
struct AdapterInfo {
    std::string name;
    std::string path;        // as it was given to load()
    std::string generation;  // 64 hex digits: SHA-256 over the contents of its files; empty while loading
    AdapterState state = AdapterState::kLoading;
    uint32_t rank = 0;          // the largest of any module
    uint32_t n_modules = 0;     // adapted matrices over all layers
    uint64_t device_bytes = 0;
    uint32_t slot = 0;
    uint32_t n_leases = 0;
    int64_t loaded_at_s = 0;    // Unix time
};

struct CheckedAdapter;
struct ResidentAdapter;

// Keeps one generation of an adapter's weights and its slot alive. Copied and moved freely, from any thread; the engine
// lets go of it only after the last step that names the slot has finished. Empty for the base model.
class AdapterLease {
  public:
    AdapterLease() = default;
    ~AdapterLease();
    AdapterLease(const AdapterLease& other);
    AdapterLease(AdapterLease&& other) noexcept;
    AdapterLease& operator=(AdapterLease other) noexcept;

    explicit operator bool() const { return resident_ != nullptr; }
    uint32_t slot() const;  // kNoAdapterSlot for an empty lease
    const std::string& name() const;
    const std::string& generation() const;

  private:
    friend class Registry;
    explicit AdapterLease(std::shared_ptr<ResidentAdapter> resident);
    std::shared_ptr<ResidentAdapter> resident_;
};

struct LoadOptions {
    bool load_inplace = false;        // replace the name if it exists; running requests keep the old weights
    std::string expected_generation;  // with load_inplace: only if this is the present one; empty: whatever it is
};

struct RegistryOptions {
    std::string base_name;           // no adapter may have it
    uint32_t n_adapters_max = 0;     // names at a time; 0: as many as the store has slots
};

// Thread-safe. Loads of different names run beside each other; calls about one name take turns.
class Registry {
  public:
    // `store` outlives the registry and every lease.
    Registry(BaseModel base, WeightStore& store, const RegistryOptions& options);
    ~Registry();
    Registry(const Registry&) = delete;
    Registry& operator=(const Registry&) = delete;

    // `folder` holds adapter_config.json and adapter_model.safetensors. On any error nothing has changed.
    // kInvalidRequest (name), kAdapterExists, kAdapterNotFound (no such folder; generation mismatch is kInvalidRequest),
    // kAdapterInvalid and kAdapterUnsupported (with all that does not fit), kOutOfMemory (bytes, or slots).
    Result<AdapterInfo> load(std::string_view name, const std::filesystem::path& folder, const LoadOptions& options = {});

    // kAdapterNotFound if no adapter has the name.
    Result<AdapterInfo> unload(std::string_view name);

    // kAdapterNotFound if no ready adapter has the name. Never waits for a load.
    Result<AdapterLease> acquire(std::string_view name) const;

    // Ready and loading ones by name, then draining ones.
    std::vector<AdapterInfo> list() const;
    std::optional<AdapterInfo> find(std::string_view name) const;  // the ready one
    uint64_t device_bytes() const;                                 // of all, draining ones included
    uint32_t n_slots() const;

    struct Pool;  // slots and draining generations; outlives the registry while leases do

  private:
    class NameTurn;
    Result<std::shared_ptr<ResidentAdapter>> make_resident(const CheckedAdapter& checked);
    AdapterInfo let_drain(std::shared_ptr<ResidentAdapter> resident);  // already without a name

    const BaseModel base_;
    const RegistryOptions options_;
    std::shared_ptr<Pool> pool_;

    mutable std::mutex mutex_;
    std::condition_variable turn_ended_;
    std::unordered_map<std::string, std::shared_ptr<ResidentAdapter>> ready_;
    struct Loading {
        std::string path;
        bool takes_place = false;  // under n_adapters_max; a replacement has its predecessor's
    };
    std::unordered_map<std::string, Loading> loading_;
    std::unordered_set<std::string> busy_;  // names that a call works on
};

// 1 to 128 bytes of printable UTF-8: no control characters, no white space at either end, no '/' at the beginning, no
// ".." part, and not the base model's name. kInvalidRequest, param "lora_name".
Status check_adapter_name(std::string_view name, std::string_view base_name);

}  // namespace lorad::adapters
