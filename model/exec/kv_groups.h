// Groups of layers: some need a sequence's keys and values of all tokens, others of a window. Blocks of the latter are
// given back behind the window, so each group numbers its own, in a table for each sequence. Layers that read another's
// keys and values belong to its group and hold none.
#pragma once

#include <cstdint>
#include <vector>

#include "model/exec/kv_cache.h"

namespace lorad::model {

struct KvGroups {
    // tokens that the layers of the window group see at most, the current one included; 0: there are none
    uint32_t window = 0;
    bool has_full = true;        // some layer keeps all
    std::vector<bool> windowed;  // [n_layers]

    // All layers in one group, which keeps all.
    static KvGroups none(const ModelConfig& config);
    static KvGroups of(const ModelConfig& config);

    bool has_windows() const { return window != 0; }
    bool has_both() const { return has_windows() && has_full; }
    // Device bytes of one block of one of them.
    uint64_t block_bytes(const ModelConfig& config, const KvFormat& kv, bool of_windows) const;
    // The first block that the row at `position`, or a later one, sees.
    uint32_t first_block(uint32_t position) const {
        return position + 1 > window ? (position + 1 - window) / kBlockTokens : 0;
    }
    // The most blocks of the window group that n_sequences hold at once, with n_rows of a step together and another
    // step in flight.
    uint64_t window_blocks_max(uint32_t n_sequences, uint32_t n_rows) const {
        return uint64_t{n_sequences} * (blocks_for_tokens(window) + 3) + 2 * blocks_for_tokens(n_rows);
    }
};

}  // namespace lorad::model
