// The rotary embedding's part of config.json.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "proto/base/result.h"
#include "proto/json.h"

namespace lorad::model {

// What the attention and the sampling kernels take.
inline constexpr uint32_t kHeadDimMax = 256;
inline constexpr uint32_t kHeadDimMultiple = 8;
inline constexpr uint32_t kVocabMax = 1u << 20;

// Reads rope_parameters, or rope_scaling with rope_theta beside it (both only if they agree), and partial_rotary_factor. `root` is config.json;
// original_positions_default: of original_max_position_embeddings beside the rope object; 0: there is none.
Result<RopeConfig> read_rope(const JsonValue& root, uint32_t head_dim, uint32_t max_positions, uint32_t original_positions_default);

// Values that pass one by one may still give angles that are no numbers: kInvalidModel. `where` begins the message.
Status check_rope(const ModelConfig& config, std::string_view where);

}  // namespace lorad::model
