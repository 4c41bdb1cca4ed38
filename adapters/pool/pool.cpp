#include "adapters/pool/pool.h"

#include "proto/base/mutex.h"

namespace lorad::adapters {

void Generation::change(StateChange by) {
    const std::optional<AdapterState> to = next_state(state, by);
    CHECK(to.has_value());
    state = *to;
}

Error Generation::damage() const {
    return load_error.value_or(make_error(ErrorCode::kStorageFailed, "the adapter's files are damaged"));
}

Pool::Pool(WeightStore& weight_store, const PoolOptions& pool_options) : store(weight_store), options(pool_options) {
    CHECK(options.n_slots > 0 && options.n_slots <= store.n_slots());
    by_slot_.resize(options.n_slots);
    for (uint32_t slot = 0; slot < options.n_slots; ++slot) free_slots_.push(slot);
}

void Pool::take(LeaseState& lease) {
    for (const GenerationPtr& generation : lease.generations) ++generation->n_refs;
    leases.insert(&lease);
}

void Pool::give_back(LeaseState& lease) {
    Freed freed;
    {
        const MutexLock lock(mutex);
        if (leases.erase(&lease) == 0) return;  // never taken
        for (const GenerationPtr& generation : lease.generations) {
            --generation->n_refs;
            if (lease.granted) --generation->n_uses;
            generation->last_use = ++clock_;
            drop_if_unused(generation, freed);
        }
        wake_first();
        lease_ended.notify_all();
    }
    free(std::move(freed));
}

void Pool::free(Freed freed) {
    freed.images.clear();
    if (freed.placed.empty()) return;
    uint64_t bytes = 0;
    for (const PlacedAdapter& placed : freed.placed) bytes += placed.device_bytes;
    freed.placed.clear();
    const MutexLock lock(mutex);
    device_bytes -= bytes;
    wake_first();
}

void Pool::leave_slot(Generation& generation) {
    by_slot_[generation.slot] = nullptr;
    free_slots_.push(std::exchange(generation.slot, kNoAdapterSlot));
}

// Takes the weights away; their bytes count until they are freed.
void Pool::evict(Generation& generation, Freed& freed) {
    generation.change(StateChange::kEvicted);
    leave_slot(generation);
    generation.door_closed = false;
    counters.n_evictions.fetch_add(1, std::memory_order_relaxed);
    counters.bytes_evicted.fetch_add(generation.placed.device_bytes, std::memory_order_relaxed);
    events.add(EventKind::kEvicted, {}, generation.record.id);
    freed.placed.push_back(std::exchange(generation.placed, {}));
}

void Pool::drop_if_unused(const GenerationPtr& generation, Freed& freed) {
    if (generation->n_uses > 0 || generation->n_names > 0) return;
    if (generation->state == AdapterState::kResident) evict(*generation, freed);
    if (generation->n_refs > 0) return;  // somebody waits for its place
    drop_image(*generation, freed);
    if (generation->in_catalogue || generation->state == AdapterState::kGone) return;
    generation->change(StateChange::kDropped);
    events.add(EventKind::kFreed, {}, generation->record.id);
    dead_.push_back(generation->record);
    generations.erase(generation->record.id);
    dead_added.notify_all();
}

void Pool::drop_unnamed(Freed& freed) {
    std::vector<GenerationPtr> all;
    for (const auto& [id, generation] : generations) all.push_back(generation);
    for (const GenerationPtr& generation : all) drop_if_unused(generation, freed);
}

std::vector<GenerationRecord> Pool::take_dead() {
    const MutexLock lock(mutex);
    return std::exchange(dead_, {});
}

bool Pool::evict_idle(const GenerationPtr& generation) {
    Freed freed;
    {
        const MutexLock lock(mutex);
        if (generation->state != AdapterState::kResident || generation->n_uses > 0 || generation->n_pins > 0)
            return false;
        evict(*generation, freed);
    }
    free(std::move(freed));
    return true;
}

bool Pool::may_keep_image(const Generation& generation, uint64_t n_bytes, ImageRoom room) const {
    const uint64_t used = room == ImageRoom::kFree ? ram_bytes_ : 0;
    return !generation.image && used <= options.ram_bytes_max && n_bytes <= options.ram_bytes_max - used;
}

// Under the mutex. Within the budget.
void Pool::keep_image(Generation& generation, std::shared_ptr<const PackedImage> image, ImageRoom room, Freed& freed) {
    if (!may_keep_image(generation, image->n_bytes, room)) return;
    while (ram_bytes_ + image->n_bytes > options.ram_bytes_max) {
        GenerationPtr oldest;
        for (const auto& [id, other] : generations) {
            if (other->image && (!oldest || other->last_use < oldest->last_use)) oldest = other;
        }
        if (!oldest) return;
        drop_image(*oldest, freed);
    }
    ram_bytes_ += image->n_bytes;
    generation.image = std::move(image);
    generation.last_use = ++clock_;
}

bool Pool::wants_image(std::string_view generation, ImageRoom room) {
    const MutexLock lock(mutex);
    const auto found = generations.find(generation);
    return found != generations.end() && found->second->state == AdapterState::kStored &&
           may_keep_image(*found->second, found->second->record.device_bytes, room);
}

void Pool::give_image(std::string_view generation, PackedImage image, ImageRoom room) {
    auto shared = std::make_shared<const PackedImage>(std::move(image));
    Freed freed;  // after the lock
    const MutexLock lock(mutex);
    const auto found = generations.find(generation);
    if (found != generations.end()) keep_image(*found->second, std::move(shared), room, freed);
}

void Pool::drop_image(Generation& generation, Freed& freed) {
    if (!generation.image) return;
    ram_bytes_ -= generation.image->n_bytes;
    freed.images.push_back(std::exchange(generation.image, nullptr));
}

}  // namespace lorad::adapters
