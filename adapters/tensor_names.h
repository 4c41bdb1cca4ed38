// Names of tensors as PEFT writes them: which part of the model, and what of it.
//
//   base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight      -> q_proj of layer 3, A
//   base_model.model.model.embed_tokens.modules_to_save.default.weight  -> the embedding, all of it
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "model/config.h"

namespace lorad::adapters {

// A matrix as adapter files name it: the seven linear layers and the two fused ones.
struct FileModule {
    std::string_view name;
    bool fused = false;
    model::LinearModule first, last;  // fused: rows of these, in order
};
inline constexpr std::array<FileModule, 9> kFileModules = {{
    {"self_attn.q_proj", false, model::LinearModule::kQ, model::LinearModule::kQ},
    {"self_attn.k_proj", false, model::LinearModule::kK, model::LinearModule::kK},
    {"self_attn.v_proj", false, model::LinearModule::kV, model::LinearModule::kV},
    {"self_attn.o_proj", false, model::LinearModule::kO, model::LinearModule::kO},
    {"mlp.gate_proj", false, model::LinearModule::kGate, model::LinearModule::kGate},
    {"mlp.up_proj", false, model::LinearModule::kUp, model::LinearModule::kUp},
    {"mlp.down_proj", false, model::LinearModule::kDown, model::LinearModule::kDown},
    {"self_attn.qkv_proj", true, model::LinearModule::kQ, model::LinearModule::kV},
    {"mlp.gate_up_proj", true, model::LinearModule::kGate, model::LinearModule::kUp},
}};

enum class PlaceKind : uint8_t { kLinear, kEmbedding, kHead, kInputNorm, kPostAttentionNorm, kQNorm, kKNorm, kFinalNorm };

// A part of the base model that adapters can change.
struct Place {
    PlaceKind kind = PlaceKind::kLinear;
    uint32_t layer = 0;
    uint32_t linear = 0;  // index in kFileModules
    auto operator<=>(const Place&) const = default;
};
// "model.layers.3.self_attn.q_proj", "lm_head"; is_bare: as in the bare decoder, without "model."
std::string name_of(const Place& place, bool is_bare = false);
bool is_norm(PlaceKind kind);

enum class TensorRole : uint8_t {
    kA,           // lora_A.weight [rank][k]
    kB,           // lora_B.weight [n][rank]
    kBBias,       // lora_B.bias [n]
    kMagnitude,   // lora_magnitude_vector [n]: DoRA
    kBias,        // the layer's own bias, trained [n]
    kEmbeddingA,  // lora_embedding_A [rank][vocab]
    kEmbeddingB,  // lora_embedding_B [hidden][rank]
    kTokenRows,   // token_adapter.trainable_tokens_delta [tokens][hidden]
    kWeight,      // all of it: a copy beside the base's (modules_to_save), or the base's own replaced
    kBaseWeight,  // base_layer.weight: the base's own weights, saved along
    kOriginal,    // original_module.weight: the base's own beside the copy of modules_to_save, which stands in for it
};
inline constexpr size_t kTensorRoles = 11;

struct ParsedName {
    Place place;
    TensorRole role = TensorRole::kA;
    bool is_bare = false;  // the name lacks "model."
    // What was expected and found where the name means nothing; empty: it means the above.
    std::string expected, found;
    bool unsupported = false;
};
// `name` with or without PEFT's prefix, the adapter name "default" and "model.", which adapters of AutoModel lack.
ParsedName parse_tensor_name(std::string_view name, const model::ModelConfig& config);

// "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight"
std::string tensor_name(const Place& place, TensorRole role);

// n and k of a linear place, fused ones whole.
model::LinearShape shape_of(const model::ModelConfig& config, const FileModule& module);

}  // namespace lorad::adapters
