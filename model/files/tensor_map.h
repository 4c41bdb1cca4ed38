// Maps the names that a checkpoint gives its tensors to ours: "model.layers.3.self_attn.q_proj.weight", with any prefix
// of the decoder and any words that a family has for its parts.
#pragma once

#include <string>
#include <string_view>

#include "model/config/config.h"
#include "model/files/safetensors.h"
#include "proto/base/result.h"

namespace lorad::model {

// The same tensors under our names, without those that no text needs (towers that read pictures or sound, heads that
// draft several tokens, keys and values of layers that share them): TensorFiles::left_out() says what is.
// kInvalidModel: two of one name.
Result<TensorFiles> map_tensors(TensorFiles files, const ModelConfig& config);

// The prefix in front of "layers.", "embed_tokens" or "norm" in a name: "model.language_model.",
// "language_model.model.", "model.", or empty. The view never expires.
std::string_view decoder_prefix_of(std::string_view name);

// Returns true if the name is of a part that text does not need, "vision_tower. ...".
bool is_other_tower(std::string_view name);

// Maps a name by ModelConfig::spellings.
std::string name_from_files(std::string_view name, const ModelConfig& config);
std::string name_in_files(std::string_view ours, const ModelConfig& config);

}  // namespace lorad::model
