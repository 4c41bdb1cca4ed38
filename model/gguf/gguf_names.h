// The names and layouts that llama.cpp's converters give to what Hugging Face's folders call otherwise: of base models
// and of adapters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lorad::model {

// An architecture as both sides know it.
struct GgufArchitecture {
    std::string_view ours, gguf;  // "LlamaForCausalLM", general.architecture
    // The rows of each head of q and k: pairs that RoPE turns lie beside each other in GGUF, half a head apart in ours.
    bool permutes_q_and_k = false;
    bool fused = false;            // q, k and v are one matrix; gate and up are one, which is called ffn_up
    bool has_norms_after = false;  // what a part gives is normed: ffn_norm is pre_feedforward_layernorm then
    bool is_by_layer = false;      // layers are more than Llama's: gguf_family.h reads the fields
};
// Finds general.architecture, the first of those that share it; nullptr: lorad knows none of this name.
const GgufArchitecture* gguf_architecture(std::string_view gguf);
// Finds our name; nullptr: GGUF has no architecture for it.
const GgufArchitecture* gguf_architecture_of(std::string_view ours);
std::string gguf_architectures();  // "llama, qwen2, ..."

// "blk.3.attn_q" -> "model.layers.3.self_attn.q_proj", "token_embd" -> "model.embed_tokens": without ".weight" or
// ".bias". Nothing: no part of a decoder.
std::optional<std::string> name_from_gguf(std::string_view name, bool is_fused, bool has_norms_after = false);

// The other way round, "model.layers.3.self_attn.q_proj" -> "blk.3.attn_q".
std::optional<std::string> name_in_gguf(std::string_view module, bool has_norms_after = false);

// Maps a row of the file's q or k, of heads of 2 * half rows, to its place in ours; and back.
uint64_t row_from_gguf(uint64_t row, uint64_t half);
uint64_t row_in_gguf(uint64_t row, uint64_t half);

}  // namespace lorad::model
