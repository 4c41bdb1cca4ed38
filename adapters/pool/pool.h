// The adapters on the device: slots, bytes, leases, and waiting requests. Names and files are not known here.
//
// A request takes a place for all of its adapters at once, or waits. Waiting tickets stand in a queue; only the first
// one evicts and reserves, so no ticket holds some places while it waits for others, except the first, which waits for
// no other ticket of the queue. A ticket that has reserved a place loads into it on its own thread, with the queue open
// again; others that want the same adapter wait for that load. A request whose adapters are all resident passes the
// queue, unless a door is closed: when the first ticket has waited for `starvation_bound`, no new leases are given on
// enough busy adapters, which then drain.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "adapters/plan/pack.h"
#include "adapters/pool/events.h"
#include "adapters/pool/lease.h"
#include "adapters/pool/weight_store.h"
#include "adapters/store/catalogue.h"
#include "proto/base/mutex.h"
#include "proto/base/result.h"

namespace lorad::adapters {

class Pool;

// A generation at run time. All but `record` under Pool::mutex.
struct Generation {
    explicit Generation(GenerationRecord own_record) : record(std::move(own_record)) {}
    void change(StateChange by);  // along the table; anything else is a bug
    Error damage() const;         // why it is not served, of a damaged one
    Tier tier() const { return state == AdapterState::kResident ? Tier::kGpu : image ? Tier::kRam : Tier::kDisk; }

    const GenerationRecord record;
    AdapterState state = AdapterState::kStored;
    uint32_t slot = kNoAdapterSlot;
    PlacedAdapter placed;                      // when resident
    std::shared_ptr<const PackedImage> image;  // in host memory, also while it is resident
    bool in_catalogue = false;                 // a name stands or stood for it
    uint32_t n_names = 0;      // names that stand for it now; without one it leaves the device after its last lease
    uint32_t n_pins = 0;       // names among them that are pinned
    uint32_t n_refs = 0;       // leases, granted or waiting
    uint32_t n_uses = 0;       // granted leases, and tickets that hold its place
    bool door_closed = false;  // no new leases until it was evicted
    uint64_t last_use = 0;     // LRU order
    uint64_t resident_since = 0;
    std::optional<Error> load_error;  // why its last load failed
};
using GenerationPtr = std::shared_ptr<Generation>;

// A name as a request used it, and what it stood for then.
struct UsedName {
    std::string name;
    std::string generation;
};

// Made when the request's names are resolved; keeps the content from then on, and the slots once it is granted.
struct LeaseState {
    explicit LeaseState(std::shared_ptr<Pool> own_pool) : pool(std::move(own_pool)) {}
    ~LeaseState();
    LeaseState(const LeaseState&) = delete;
    LeaseState& operator=(const LeaseState&) = delete;

    std::shared_ptr<Pool> pool;
    std::vector<GenerationPtr> generations;  // one for each use
    std::vector<LoraUse> uses;
    std::vector<LeasedContent> content;
    std::vector<UsedName> names;
    std::string name, generation;
    bool granted = false;  // under Pool::mutex
    std::atomic<bool> revoked{false};
};

// Parts that have left the pool, to be freed without its lock.
struct Freed {
    std::vector<PlacedAdapter> placed;
    std::vector<std::shared_ptr<const PackedImage>> images;
};

struct WaitOptions {
    std::chrono::milliseconds timeout{0};
    std::function<bool()> cancelled;  // asked now and then; may be empty
};

struct PoolOptions {
    uint32_t n_slots = 0;
    uint64_t device_bytes_max = 0;  // 0: only what the store has
    uint64_t ram_bytes_max = 0;     // for images
    std::chrono::milliseconds starvation_bound{1000};
};

struct PoolCounters {
    std::atomic<uint64_t> n_loads{0}, n_loads_from_ram{0}, n_load_failures{0}, n_evictions{0}, n_waits{0},
        n_wait_timeouts{0};
    std::atomic<uint64_t> bytes_loaded{0}, bytes_evicted{0};
    std::atomic<uint64_t> load_us{0}, wait_us{0};  // sums
};

class Pool {
  public:
    // Reads, checks and packs a generation's files; on the calling thread, without the lock.
    using Loader = std::function<Result<PackedImage>(const GenerationRecord&)>;

    Pool(WeightStore& store, const PoolOptions& options);

    // Waits until all of the lease's generations are resident, loads those that no other request loads, and grants the
    // lease. kOutOfMemory: they never fit. kAdapterBusy: not within the time, or cancelled. Else the error of loading.
    Status grant(LeaseState& lease, const Loader& load, const WaitOptions& options);
    // Makes an idle generation leave the device now. False if it is in use or not there.
    bool evict_idle(const GenerationPtr& generation);

    // Making room for images in host memory: evict the least recently used ones, or use only what is free.
    enum class ImageRoom : uint8_t { kMade, kFree };
    // Returns true if give_image() would keep one: the generation exists, will need it, and has none. Any thread.
    bool wants_image(std::string_view generation, ImageRoom room);
    // An image that was made before the generation comes to the device; its load then reads no files. May be dropped
    // again.
    void give_image(std::string_view generation, PackedImage image, ImageRoom room);

    WeightStore& store;
    const PoolOptions options;
    PoolCounters counters;
    EventLog events;

    Mutex mutex;  // also guards the fields in `generations`, and fields of leases that say so
    std::map<std::string, GenerationPtr, std::less<>> generations GUARDED_BY(mutex);
    std::set<LeaseState*> leases GUARDED_BY(mutex);
    uint64_t device_bytes GUARDED_BY(mutex) = 0;  // resident and reserved
    uint64_t n_pinned GUARDED_BY(mutex) = 0, n_pinned_bytes GUARDED_BY(mutex) = 0;

    void take(LeaseState& lease) REQUIRES(mutex);  // refs; the pool's list
    void give_back(LeaseState& lease);             // any thread
    // Called after names have changed: removes generations without names that nobody uses.
    void drop_unnamed(Freed& freed) REQUIRES(mutex);
    void free(Freed freed);             // without the lock
    void wake_first() REQUIRES(mutex);  // of the waiting tickets: something has changed
    // Generations that are gone and whose files may go, since the last call.
    std::vector<GenerationRecord> take_dead();
    Condition dead_added;
    Condition lease_ended;
    uint64_t ram_bytes() const REQUIRES(mutex) { return ram_bytes_; }
    bool has_dead() const REQUIRES(mutex) { return !dead_.empty(); }

  private:
    struct Ticket;
    uint64_t device_bytes_max() const { return options.device_bytes_max == 0 ? UINT64_MAX : options.device_bytes_max; }
    bool all_resident(const LeaseState& lease) const REQUIRES(mutex);
    Status fits_ever(const LeaseState& lease) const REQUIRES(mutex);
    Status wait_for_place(Ticket& ticket, MutexLock& lock) REQUIRES(mutex);
    Status claim(Ticket& ticket, bool& complete) REQUIRES(mutex);
    GenerationPtr idle_victim(const Ticket* ticket) const REQUIRES(mutex);
    void evict(Generation& generation, Freed& freed) REQUIRES(mutex);
    void close_doors(Ticket& ticket) REQUIRES(mutex);
    bool may_keep_image(const Generation& generation, uint64_t n_bytes, ImageRoom room) const REQUIRES(mutex);
    void keep_image(Generation& generation, std::shared_ptr<const PackedImage> image, ImageRoom room, Freed& freed)
        REQUIRES(mutex);
    void drop_image(Generation& generation, Freed& freed) REQUIRES(mutex);
    void leave_slot(Generation& generation) REQUIRES(mutex);
    Status load_claimed(Ticket& ticket, const Loader& load, MutexLock& lock) REQUIRES(mutex);
    Result<PlacedAdapter> load_one(Ticket& ticket, const GenerationPtr& generation, uint32_t slot, const Loader& load);
    void unclaim(Ticket& ticket) REQUIRES(mutex);
    void drop_if_unused(const GenerationPtr& generation, Freed& freed) REQUIRES(mutex);

    std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> free_slots_
        GUARDED_BY(mutex);  // the lowest first
    std::vector<GenerationPtr> by_slot_ GUARDED_BY(mutex);
    std::deque<Ticket*> queue_ GUARDED_BY(mutex);
    std::set<Ticket*> loading_ GUARDED_BY(mutex);  // admitted, not granted yet
    std::vector<GenerationRecord> dead_ GUARDED_BY(mutex);
    uint64_t ram_bytes_ GUARDED_BY(mutex) = 0;
    uint64_t clock_ GUARDED_BY(mutex) = 0;
};

}  // namespace lorad::adapters
