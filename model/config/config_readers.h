// Readers of the families whose layers are more than Llama's: Family::read_layers. Internal to the reading of
// config.json.
#pragma once

#include <vector>

#include "model/config/config_families.h"

namespace lorad::model {

// A key's number within bounds; absent or null: the fallback.
Result<float> float_or(const JsonValue& text, std::string_view key, double fallback, double min, double max);
Result<uint32_t> uint_or(const JsonValue& text, std::string_view key, uint32_t fallback, uint32_t max);
// Returns the window of the layers that have one; 0: none that a context can fill.
Result<uint32_t> window_of(const JsonValue& text, const Family& family, const ModelConfig& config);
// Reads layer_types: true for a full layer. Without the key layer i is full if (i + 1) % every == 0.
Result<std::vector<bool>> full_layers(const JsonValue& text, uint32_t n_layers, uint32_t every);
// Says what is wrong with the sizes of heads; empty: nothing is.
std::string head_size_error(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim);
// Refuses numbers of experts that the kernels do not take (kInvalidModel).
Status check_experts(const JsonValue& text, const ExpertFacts& experts);
// The layers that ModelConfig::layer() makes from the common keys.
std::vector<LayerFacts> usual_layers(const ModelConfig& config);

// The layers of Gemma 3, with config.rope of the full ones and config.more_ropes[0] of the others.
void make_gemma3_layers(const std::vector<bool>& full, uint32_t window, float scale, ModelConfig& config);

// config_gemma.cpp
Status read_gemma2(const JsonValue& text, const Family& family, ModelConfig& config);
Status read_gemma3(const JsonValue& text, const Family& family, ModelConfig& config);
Status read_gemma4(const JsonValue& text, const Family& family, ModelConfig& config);
// config_readers.cpp
Status read_smollm3(const JsonValue& text, const Family& family, ModelConfig& config);
Status read_olmo2(const JsonValue& text, const Family& family, ModelConfig& config);
Status read_olmo3(const JsonValue& text, const Family& family, ModelConfig& config);
Status read_granite(const JsonValue& text, const Family& family, ModelConfig& config);
Status read_ministral3(const JsonValue& text, const Family& family, ModelConfig& config);
// config_granite_hybrid.cpp
Status read_granite_hybrid(const JsonValue& text, const Family& family, ModelConfig& config);
// config_hybrid.cpp
Status read_qwen35(const JsonValue& text, const Family& family, ModelConfig& config);
Status read_qwen35_moe(const JsonValue& text, const Family& family, ModelConfig& config);
Status read_qwen3_next(const JsonValue& text, const Family& family, ModelConfig& config);
Status read_qwen3_moe(const JsonValue& text, const Family& family, ModelConfig& config);
Status read_mixtral(const JsonValue& text, const Family& family, ModelConfig& config);
Status read_gpt_oss(const JsonValue& text, const Family& family, ModelConfig& config);
Status read_lfm2(const JsonValue& text, const Family& family, ModelConfig& config);
Status read_lfm2_moe(const JsonValue& text, const Family& family, ModelConfig& config);

}  // namespace lorad::model
