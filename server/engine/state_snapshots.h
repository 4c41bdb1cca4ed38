// Recurrent states of prefixes that others may go on from: which slots hold them, under which names. A state at the end
// of a full block has the name of that block (prefix_identity.h), which says all that it depends on, and is_merged
// tells states of merged weights apart, as in prefix_cache.h.
//
//    free --reserve--> reserved --publish--> named --hold--> held, named
//     ^                   |                    |  ^              |
//     +-------drop--------+                    |  +---release----+
//     +-------- reserve, where none is free ---+
//
// A step writes a reserved slot; it is named once that step is submitted and its tokens are known. Steps run in order,
// so whoever goes on from it in a later step reads what was written; it is held from then until its first step is
// submitted, and copied by nobody: that step reads this slot and writes the sequence's own.
// Named ones that nobody holds make way for others, those that save least first, then those not used for longest.
//
// Bookkeeping only; engine thread only.
#pragma once

#include <cstdint>
#include <cstring>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "gpu/kernels/step_state.h"
#include "server/engine/prefix_identity.h"

namespace lorad::server {

class StateSnapshots {
  public:
    struct Name {
        BlockIdentity identity;
        bool is_merged = false;
        bool operator==(const Name&) const = default;
    };
    enum class Worth { kLow, kHigh };  // low: evicted before all others, until it is used

    // Slots first_slot .. first_slot + n_slots - 1.
    StateSnapshots(uint32_t first_slot, uint32_t n_slots);

    uint32_t find(const Name& name) const;  // its slot, or gpu::kNoState
    // A named slot stays unchanged until it is released as often; it counts as used.
    void hold(uint32_t slot);
    void release(uint32_t slot);

    // A slot to write, or gpu::kNoState where all are held or reserved.
    uint32_t reserve();
    // Names a reserved slot; where there is one of that name already this one is free, and the other has been used.
    void publish(uint32_t slot, const Name& name, Worth worth);
    void drop(uint32_t slot);  // a reserved one
    // Drops the named one, unless it is held or others than its maker have used it.
    void replace(const Name& name);
    // The state of that name must not be used again.
    void forget(const Name& name);

    uint32_t n_slots() const { return static_cast<uint32_t>(slots_.size()); }
    uint32_t n_named() const { return static_cast<uint32_t>(index_.size()); }
    uint64_t n_evicted() const { return n_evicted_; }

  private:
    struct NameHash {
        size_t operator()(const Name& name) const {
            size_t hash = 0;
            std::memcpy(&hash, name.identity.data(), sizeof hash);
            return hash + name.is_merged;
        }
    };
    struct Slot {
        const Name* name = nullptr;  // the key in index_
        uint32_t n_holders = 0;
        bool is_used = false;
        Worth worth = Worth::kHigh;
        std::list<uint32_t>::iterator place;  // of a named one, in order_of(worth)
    };
    Slot& at(uint32_t slot);
    std::list<uint32_t>& order_of(Worth worth) { return worth == Worth::kLow ? low_ : high_; }
    void touch(Slot& named);
    bool evict_first(const std::list<uint32_t>& order);
    void unname(uint32_t slot);

    const uint32_t first_slot_;
    std::vector<Slot> slots_;
    std::vector<uint32_t> free_;
    std::list<uint32_t> low_, high_;  // named ones; the first makes way first
    std::unordered_map<Name, uint32_t, NameHash> index_;
    uint64_t n_evicted_ = 0;
};

}  // namespace lorad::server
