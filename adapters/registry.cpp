#include "adapters/registry.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <queue>

#include "adapters/check.h"
#include "adapters/pack.h"
#include "proto/base/format.h"
#include "proto/base/ids.h"
#include "proto/base/log.h"
#include "proto/json.h"

namespace lorad::adapters {

namespace {

constexpr size_t kNameBytesMax = 128;

int64_t unix_time_s() {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Error unknown_adapter(std::string_view name) {
    return make_error(ErrorCode::kAdapterNotFound, format("no adapter is called {}", json_quote(name)), "lora_name");
}

}  // namespace

std::string_view name_of(AdapterState state) {
    switch (state) {
        case AdapterState::kLoading: return "loading";
        case AdapterState::kReady: return "ready";
        case AdapterState::kDraining: return "draining";
    }
    return "";
}

Status check_adapter_name(std::string_view name, std::string_view base_name) {
    const auto refuse = [](std::string_view what) {
        return make_error(ErrorCode::kInvalidRequest, format("lora_name: {}", what), "lora_name");
    };
    if (name.empty() || name.size() > kNameBytesMax) {
        return refuse(format("expected 1 to {} bytes, found {}", kNameBytesMax, name.size()));
    }
    if (replace_invalid_utf8(name) != name) return refuse("expected UTF-8");
    for (size_t i = 0; i < name.size(); ++i) {
        const auto byte = static_cast<uint8_t>(name[i]);
        // C0, DEL, and C1 (U+0080 to U+009F, C2 80 to C2 9F).
        const bool c1 = byte == 0xc2 && static_cast<uint8_t>(name[i + 1]) < 0xa0;
        if (byte < 0x20 || byte == 0x7f || c1) return refuse("expected no control characters");
    }
    if (name.front() == ' ' || name.back() == ' ') return refuse("expected no space at either end");
    if (name.front() == '/') return refuse("expected no / at the beginning");
    for (size_t begin = 0; begin <= name.size();) {
        const size_t end = std::min(name.find('/', begin), name.size());
        if (name.substr(begin, end - begin) == "..") return refuse("expected no part \"..\"");
        begin = end + 1;
    }
    if (name == base_name) return refuse(format("{} is the base model", json_quote(name)));
    return ok_status();
}

// Slots, and the generations that live on without a name.
struct Registry::Pool {
    explicit Pool(WeightStore& weight_store) : store(weight_store), n_slots(weight_store.n_slots()) {
        for (uint32_t slot = 0; slot < n_slots; ++slot) free_slots.push(slot);
    }

    std::optional<uint32_t> take_slot() {
        const std::lock_guard lock(mutex);
        if (free_slots.empty()) return std::nullopt;
        const uint32_t slot = free_slots.top();
        free_slots.pop();
        return slot;
    }
    void give_back_slot(uint32_t slot) {
        const std::lock_guard lock(mutex);
        free_slots.push(slot);
    }

    WeightStore& store;
    const uint32_t n_slots;
    std::atomic<uint64_t> device_bytes{0};
    std::mutex mutex;
    std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> free_slots;  // the lowest first
    std::vector<std::weak_ptr<ResidentAdapter>> draining;
};

// One generation on the device. Whoever drops the last reference frees its memory, then its slot.
struct ResidentAdapter {
    ResidentAdapter(std::shared_ptr<Registry::Pool> shared_pool, uint32_t own_slot)
        : pool(std::move(shared_pool)), slot(own_slot) {}
    ~ResidentAdapter() {
        pool->device_bytes -= placed.device_bytes;
        placed.blocks.clear();
        pool->give_back_slot(slot);
    }
    ResidentAdapter(const ResidentAdapter&) = delete;
    ResidentAdapter& operator=(const ResidentAdapter&) = delete;

    AdapterInfo info_now() const {
        AdapterInfo now = info;
        now.n_leases = n_leases.load(std::memory_order_relaxed);
        now.state = draining.load(std::memory_order_relaxed) ? AdapterState::kDraining : AdapterState::kReady;
        return now;
    }

    std::shared_ptr<Registry::Pool> pool;
    const uint32_t slot;
    PlacedAdapter placed;
    AdapterInfo info;
    std::atomic<uint32_t> n_leases{0};
    std::atomic<bool> draining{false};
};

AdapterLease::AdapterLease(std::shared_ptr<ResidentAdapter> resident) : resident_(std::move(resident)) {
    if (resident_) resident_->n_leases.fetch_add(1, std::memory_order_relaxed);
}
AdapterLease::~AdapterLease() {
    if (resident_) resident_->n_leases.fetch_sub(1, std::memory_order_relaxed);
}
AdapterLease::AdapterLease(const AdapterLease& other) : AdapterLease(other.resident_) {}
AdapterLease::AdapterLease(AdapterLease&& other) noexcept : resident_(std::move(other.resident_)) {}
AdapterLease& AdapterLease::operator=(AdapterLease other) noexcept {
    std::swap(resident_, other.resident_);
    return *this;
}
uint32_t AdapterLease::slot() const { return resident_ ? resident_->slot : kNoAdapterSlot; }
const std::string& AdapterLease::name() const {
    CHECK(resident_ != nullptr);
    return resident_->info.name;
}
const std::string& AdapterLease::generation() const {
    CHECK(resident_ != nullptr);
    return resident_->info.generation;
}

// The right to change one name; others wait for it.
class Registry::NameTurn {
  public:
    NameTurn(Registry& registry, std::string name) : registry_(registry), name_(std::move(name)) {
        std::unique_lock lock(registry_.mutex_);
        registry_.turn_ended_.wait(lock, [&] { return !registry_.busy_.contains(name_); });
        registry_.busy_.insert(name_);
    }
    ~NameTurn() {
        {
            const std::lock_guard lock(registry_.mutex_);
            registry_.busy_.erase(name_);
            registry_.loading_.erase(name_);
        }
        registry_.turn_ended_.notify_all();
    }
    NameTurn(const NameTurn&) = delete;
    NameTurn& operator=(const NameTurn&) = delete;

  private:
    Registry& registry_;
    const std::string name_;
};

Registry::Registry(BaseModel base, WeightStore& store, const RegistryOptions& options)
    : base_(std::move(base)), options_(options), pool_(std::make_shared<Pool>(store)) {}

Registry::~Registry() = default;

Result<std::shared_ptr<ResidentAdapter>> Registry::make_resident(const CheckedAdapter& checked) {
    const std::optional<uint32_t> slot = pool_->take_slot();
    if (!slot) {
        return make_error(ErrorCode::kOutOfMemory,
                          format("all {} adapter slots are in use; unload an adapter first", pool_->n_slots));
    }
    // From here on the slot goes back when this is dropped.
    auto resident = std::make_shared<ResidentAdapter>(pool_, *slot);
    TRY_ASSIGN(const PackedImage image, pack(checked));
    TRY_ASSIGN(PlacedAdapter placed, place(image, pool_->store));
    pool_->device_bytes += placed.device_bytes;
    resident->placed = std::move(placed);
    TRY(pool_->store.set_slot(*slot, resident->placed.view));
    resident->info.generation = checked.generation();
    resident->info.state = AdapterState::kReady;
    resident->info.rank = checked.rank_max;
    resident->info.n_modules = checked.n_modules;
    resident->info.device_bytes = resident->placed.device_bytes;
    resident->info.slot = *slot;
    return resident;
}

Result<AdapterInfo> Registry::load(std::string_view name, const std::filesystem::path& folder,
                                   const LoadOptions& options) {
    TRY(check_adapter_name(name, options_.base_name));
    const std::string key(name);
    std::string present_generation;
    const NameTurn turn(*this, key);
    {
        const std::lock_guard lock(mutex_);
        const auto present = ready_.find(key);
        if (present != ready_.end()) {
            if (!options.load_inplace) {
                return make_error(ErrorCode::kAdapterExists,
                                  format("an adapter called {} is loaded already; unload it, or set load_inplace to replace it",
                                         json_quote(name)),
                                  "lora_name");
            }
            present_generation = present->second->info.generation;
        }
        if (!options.expected_generation.empty() && options.expected_generation != present_generation) {
            return make_error(ErrorCode::kInvalidRequest,
                              format("expected_generation: expected {}, found {}", options.expected_generation,
                                     present_generation.empty() ? "no such adapter" : present_generation),
                              "expected_generation");
        }
        // A load in progress holds its place, so that the limit is never passed.
        const bool takes_place = present == ready_.end();
        size_t n_places = ready_.size();
        for (const auto& [other, loading] : loading_) n_places += loading.takes_place;
        const size_t n_max = options_.n_adapters_max ? options_.n_adapters_max : pool_->n_slots;
        if (takes_place && n_places >= n_max) {
            return make_error(ErrorCode::kOutOfMemory,
                              format("{} adapters are loaded, as many as there may be; unload one first", n_places));
        }
        loading_.emplace(key, Loading{folder.string(), takes_place});
    }

    TRY_ASSIGN(const std::unique_ptr<CheckedAdapter> checked, check_adapter(folder, base_));
    if (checked->generation() == present_generation) return *find(name);
    TRY_ASSIGN(std::shared_ptr<ResidentAdapter> resident, make_resident(*checked));
    resident->info.name = key;
    resident->info.path = folder.string();
    resident->info.loaded_at_s = unix_time_s();
    AdapterInfo info = resident->info;

    std::shared_ptr<ResidentAdapter> replaced;  // freed outside of the lock
    {
        const std::lock_guard lock(mutex_);
        replaced = std::exchange(ready_[key], std::move(resident));
    }
    if (replaced) let_drain(std::move(replaced));
    log_info("adapter loaded name={} generation={} rank={} modules={} bytes={} slot={}", json_quote(name),
             info.generation.substr(0, 12), info.rank, info.n_modules, info.device_bytes, info.slot);
    return info;
}

Result<AdapterInfo> Registry::unload(std::string_view name) {
    const std::string key(name);
    const NameTurn turn(*this, key);
    std::shared_ptr<ResidentAdapter> removed;
    {
        const std::lock_guard lock(mutex_);
        const auto found = ready_.find(key);
        if (found == ready_.end()) return unknown_adapter(name);
        removed = std::move(found->second);
        ready_.erase(found);
    }
    const AdapterInfo info = let_drain(std::move(removed));
    log_info("adapter unloaded name={} leases={}", json_quote(name), info.n_leases);
    return info;
}

AdapterInfo Registry::let_drain(std::shared_ptr<ResidentAdapter> resident) {
    resident->draining = true;
    {
        const std::lock_guard lock(pool_->mutex);
        std::erase_if(pool_->draining, [](const auto& gone) { return gone.expired(); });
        pool_->draining.push_back(resident);
    }
    return resident->info_now();
}

Result<AdapterLease> Registry::acquire(std::string_view name) const {
    const std::lock_guard lock(mutex_);
    const auto found = ready_.find(std::string(name));
    if (found == ready_.end()) return unknown_adapter(name);
    return AdapterLease(found->second);
}

std::vector<AdapterInfo> Registry::list() const {
    std::vector<AdapterInfo> infos;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [name, resident] : ready_) infos.push_back(resident->info_now());
        for (const auto& [name, loading] : loading_) {
            if (!loading.takes_place) continue;  // its predecessor is listed
            AdapterInfo info;
            info.name = name;
            info.path = loading.path;
            infos.push_back(std::move(info));
        }
    }
    const auto by_name = [](const AdapterInfo& a, const AdapterInfo& b) { return a.name < b.name; };
    std::sort(infos.begin(), infos.end(), by_name);
    // Held outside of the lock: dropping the last reference takes it.
    std::vector<std::shared_ptr<ResidentAdapter>> held;
    {
        const std::lock_guard lock(pool_->mutex);
        for (const auto& draining : pool_->draining) {
            if (auto resident = draining.lock()) held.push_back(std::move(resident));
        }
    }
    const auto n_named = static_cast<std::ptrdiff_t>(infos.size());
    for (const auto& resident : held) {
        // One without leases is only held by a call that is just freeing it.
        if (resident->n_leases.load(std::memory_order_relaxed) > 0) infos.push_back(resident->info_now());
    }
    std::sort(infos.begin() + n_named, infos.end(), by_name);
    return infos;
}

std::optional<AdapterInfo> Registry::find(std::string_view name) const {
    const std::lock_guard lock(mutex_);
    const auto found = ready_.find(std::string(name));
    if (found == ready_.end()) return std::nullopt;
    return found->second->info_now();
}

uint64_t Registry::device_bytes() const { return pool_->device_bytes; }
uint32_t Registry::n_slots() const { return pool_->n_slots; }

}  // namespace lorad::adapters
