#include "server/engine/state_snapshots.h"

#include <algorithm>

#include "proto/base/check.h"

namespace lorad::server {

StateSnapshots::StateSnapshots(uint32_t first_slot, uint32_t n_slots) : first_slot_(first_slot), slots_(n_slots) {
    for (uint32_t i = n_slots; i > 0; --i) free_.push_back(first_slot + i - 1);
}

StateSnapshots::Slot& StateSnapshots::at(uint32_t slot) {
    CHECK(slot >= first_slot_ && slot - first_slot_ < slots_.size());
    return slots_[slot - first_slot_];
}

uint32_t StateSnapshots::find(const Name& name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? gpu::kNoState : found->second;
}

void StateSnapshots::hold(uint32_t slot) {
    Slot& held = at(slot);
    CHECK(held.name != nullptr);
    ++held.n_holders;
    touch(held);
}

void StateSnapshots::touch(Slot& named) {
    named.is_used = true;
    high_.splice(high_.end(), order_of(named.worth), named.place);
    named.worth = Worth::kHigh;
}

void StateSnapshots::release(uint32_t slot) {
    Slot& held = at(slot);
    CHECK(held.n_holders > 0);
    if (--held.n_holders == 0 && held.name == nullptr) free_.push_back(slot);
}

uint32_t StateSnapshots::reserve() {
    if (free_.empty() && !evict_first(low_) && !evict_first(high_)) return gpu::kNoState;
    const uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
}

bool StateSnapshots::evict_first(const std::list<uint32_t>& order) {
    const auto first = std::ranges::find_if(order, [&](uint32_t slot) { return at(slot).n_holders == 0; });
    if (first == order.end()) return false;
    ++n_evicted_;
    unname(*first);
    return true;
}

void StateSnapshots::publish(uint32_t slot, const Name& name, Worth worth) {
    Slot& made = at(slot);
    CHECK(made.name == nullptr && made.n_holders == 0);
    const auto [named, is_new] = index_.emplace(name, slot);
    if (!is_new) {
        touch(at(named->second));
        drop(slot);
        return;
    }
    made.name = &named->first;
    made.is_used = false;
    made.worth = worth;
    made.place = order_of(worth).insert(order_of(worth).end(), slot);
}

void StateSnapshots::drop(uint32_t slot) {
    CHECK(at(slot).name == nullptr && at(slot).n_holders == 0);
    free_.push_back(slot);
}

void StateSnapshots::replace(const Name& name) {
    const uint32_t slot = find(name);
    if (slot != gpu::kNoState && !at(slot).is_used && at(slot).n_holders == 0) unname(slot);
}

void StateSnapshots::forget(const Name& name) {
    const uint32_t slot = find(name);
    if (slot != gpu::kNoState) unname(slot);
}

// Free at once, or when its last holder lets go.
void StateSnapshots::unname(uint32_t slot) {
    Slot& named = at(slot);
    order_of(named.worth).erase(named.place);
    index_.erase(index_.find(*named.name));
    named.name = nullptr;
    if (named.n_holders == 0) free_.push_back(slot);
}

}  // namespace lorad::server
