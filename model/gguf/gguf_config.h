// Reads a model's config from the fields of a GGUF file.
#pragma once

#include "model/config/config.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/gguf_names.h"
#include "proto/base/result.h"

namespace lorad::model {

// kInvalidModel where the file holds something other than a decoder that lorad runs: an adapter, a part for pictures,
// an embedding model, an architecture that it does not know. The message says what it is, without the file's name, as
// all messages here.
Result<const GgufArchitecture*> check_is_gguf_model(const GgufFile& file);

// For a file of this architecture. Sizes come from its fields, the vocabulary's size and the biases from its tensors,
// whose other shapes are compared later (gguf_tensors.h).
Result<ModelConfig> config_from_gguf(const GgufFile& file, const GgufArchitecture& architecture);

// The defaults of requests: where answers end, and how tokens are drawn.
Result<GenerationDefaults> generation_from_gguf(const GgufFile& file, uint32_t vocab_size);

// A field that changes what the model computes, where somebody has to read it; whether it says anything but "as usual".
bool changes_arithmetic(std::string_view own_key);
bool says_something(const GgufValue& value);

// The factors of RoPE lie in the file as tensors of these names.
inline constexpr std::string_view kRopeFreqs = "rope_freqs.weight", kRopeShort = "rope_factors_short.weight",
                                  kRopeLong = "rope_factors_long.weight";

}  // namespace lorad::model
