#include "adapters/pool/lease.h"

#include "adapters/pool/pool.h"

namespace lorad::adapters {

LeaseState::~LeaseState() { pool->give_back(*this); }

const std::vector<LoraUse>& MixLease::uses() const {
    static const std::vector<LoraUse> none;
    return state_ ? state_->uses : none;
}

uint32_t MixLease::slot() const { return state_ ? state_->uses.front().slot : kNoAdapterSlot; }

const std::string& MixLease::name() const {
    static const std::string none;
    return state_ ? state_->name : none;
}

const std::string& MixLease::generation() const {
    static const std::string none;
    return state_ ? state_->generation : none;
}

std::span<const LeasedContent> MixLease::content() const {
    return state_ ? std::span<const LeasedContent>(state_->content) : std::span<const LeasedContent>();
}

// While the lease holds the slot nobody writes what it points to.
const model::AdapterView& MixLease::view(size_t use) const {
    CHECK(state_ != nullptr && use < state_->generations.size());
    return state_->generations[use]->placed.view;
}

std::span<const TokenId> MixLease::invocation_tokens() const {
    if (!state_ || state_->generations.size() != 1) return {};
    return state_->generations.front()->record.invocation_tokens;
}

bool MixLease::revoked() const { return state_ && state_->revoked.load(std::memory_order_relaxed); }

}  // namespace lorad::adapters
