// The rotary embedding's part of config.json.
#pragma once

#include <cstdint>

#include "model/config/config.h"
#include "proto/base/result.h"
#include "proto/json/json.h"

namespace lorad::model {

// The largest head that the attention and sampling kernels take.
inline constexpr uint32_t kHeadDimMax = 512;
inline constexpr uint32_t kHeadDimMultiple = 8;
inline constexpr uint32_t kVocabMax = 1u << 20;

// Defaults for keys that config.json does not have.
struct RopeDefaults {
    double theta = 10000.0;
    double rotary_share = 1.0;        // partial_rotary_factor
    bool is_partial = false;          // whether transformers turns a part of each head if that key says so
    uint32_t original_positions = 0;  // original_max_position_embeddings beside the rope object; 0: there is none
    double sliding_theta = 10000.0;   // of the layers with a window, where these have a table of their own
};

// The object of rotary parameters: rope_parameters, or rope_scaling as older files call it; both only if they agree.
Result<std::optional<JsonValue>> rope_object(const JsonValue& root);

// Reads rope_parameters, or rope_scaling with rope_theta beside it (both only if they agree), and
// partial_rotary_factor. `root` is the text part of config.json.
Result<RopeConfig> read_rope(const JsonValue& root, uint32_t head_dim, uint32_t max_positions,
                             const RopeDefaults& defaults);

// For a family whose layers with a window have a table of their own. Either rope_parameters has full_attention and
// sliding_attention, or rope_theta and rope_scaling are for the full layers and rope_local_base_freq for the others,
// which without it use rope_theta too.
struct RopePair {
    RopeConfig full, sliding;
};
Result<RopePair> read_rope_pair(const JsonValue& root, uint32_t full_head_dim, uint32_t sliding_head_dim,
                                uint32_t max_positions, const RopeDefaults& defaults);

// Values that pass one by one may still give angles that are no numbers: kInvalidModel. `where` begins the message.
Status check_rope(const ModelConfig& config, std::string_view where);

}  // namespace lorad::model
