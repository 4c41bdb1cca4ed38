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

#include "model/config/config.h"

namespace lorad::adapters {

// A matrix with its name in adapter files: the linear layers, and those that files fuse. shape_of() tells which of them
// a model's layer has.
struct FileModule {
    std::string_view name;
    bool fused = false;
    model::LinearModule first, last;  // fused: rows of these, in order
};
inline constexpr std::array<FileModule, 36> kFileModules = {{
    {"self_attn.q_proj", false, model::LinearModule::kQ, model::LinearModule::kQ},
    {"self_attn.k_proj", false, model::LinearModule::kK, model::LinearModule::kK},
    {"self_attn.v_proj", false, model::LinearModule::kV, model::LinearModule::kV},
    {"self_attn.o_proj", false, model::LinearModule::kO, model::LinearModule::kO},
    {"mlp.gate_proj", false, model::LinearModule::kGate, model::LinearModule::kGate},
    {"mlp.up_proj", false, model::LinearModule::kUp, model::LinearModule::kUp},
    {"mlp.down_proj", false, model::LinearModule::kDown, model::LinearModule::kDown},
    {"self_attn.qkv_proj", true, model::LinearModule::kQ, model::LinearModule::kV},
    {"mlp.gate_up_proj", true, model::LinearModule::kGate, model::LinearModule::kUp},
    {"per_layer_input_gate", false, model::LinearModule::kPleGate, model::LinearModule::kPleGate},
    {"per_layer_projection", false, model::LinearModule::kPleProjection, model::LinearModule::kPleProjection},
    {"per_layer_model_projection", false, model::LinearModule::kPleModel, model::LinearModule::kPleModel},
    {"linear_attn.in_proj_qkv", false, model::LinearModule::kDeltaQkv, model::LinearModule::kDeltaQkv},
    {"linear_attn.in_proj_z", false, model::LinearModule::kDeltaZ, model::LinearModule::kDeltaZ},
    {"linear_attn.in_proj_b", false, model::LinearModule::kDeltaB, model::LinearModule::kDeltaB},
    {"linear_attn.in_proj_a", false, model::LinearModule::kDeltaA, model::LinearModule::kDeltaA},
    {"linear_attn.out_proj", false, model::LinearModule::kDeltaOut, model::LinearModule::kDeltaOut},
    {"conv.in_proj", false, model::LinearModule::kConvIn, model::LinearModule::kConvIn},
    {"conv.out_proj", false, model::LinearModule::kConvOut, model::LinearModule::kConvOut},
    {"mlp.gate", false, model::LinearModule::kRouter, model::LinearModule::kRouter},
    {"mlp.shared_expert_gate", false, model::LinearModule::kSharedGate, model::LinearModule::kSharedGate},
    {"linear_attn.in_proj_qkvz", true, model::LinearModule::kDeltaQkv, model::LinearModule::kDeltaZ},
    {"linear_attn.in_proj_ba", true, model::LinearModule::kDeltaB, model::LinearModule::kDeltaA},
    {"mlp.shared_expert.gate_proj", false, model::LinearModule::kGate, model::LinearModule::kGate},
    {"mlp.shared_expert.up_proj", false, model::LinearModule::kUp, model::LinearModule::kUp},
    {"mlp.shared_expert.down_proj", false, model::LinearModule::kDown, model::LinearModule::kDown},
    {"mlp.shared_expert.gate_up_proj", true, model::LinearModule::kGate, model::LinearModule::kUp},
    {"mamba.in_proj", false, model::LinearModule::kConvIn, model::LinearModule::kConvIn},
    {"mamba.out_proj", false, model::LinearModule::kConvOut, model::LinearModule::kConvOut},
    // Experts. First the two parameters by their own names, which no tensor has; what PEFT writes for one of them, or
    // for the outer of both, and for the inner; then the layers of one expert, which is Place::expert.
    {"mlp.experts.gate_up_proj", false, model::LinearModule::kExpertGateUp, model::LinearModule::kExpertGateUp},
    {"mlp.experts.down_proj", false, model::LinearModule::kExpertDown, model::LinearModule::kExpertDown},
    {"mlp.experts", false, model::LinearModule::kExpertDown, model::LinearModule::kExpertDown},
    {"mlp.experts.base_layer", false, model::LinearModule::kExpertGateUp, model::LinearModule::kExpertGateUp},
    {"mlp.experts.#.gate_proj", false, model::LinearModule::kExpertGateUp, model::LinearModule::kExpertGateUp},
    {"mlp.experts.#.up_proj", false, model::LinearModule::kExpertGateUp, model::LinearModule::kExpertGateUp},
    {"mlp.experts.#.down_proj", false, model::LinearModule::kExpertDown, model::LinearModule::kExpertDown},
}};
// in kFileModules
inline constexpr uint32_t kExpertsFirst = 29, kExpertsOuter = 31, kExpertsInner = 32, kExpertGate = 33, kExpertUp = 34,
                          kExpertDown = 35;
static_assert(kFileModules[kExpertsOuter].name == "mlp.experts" &&
              kFileModules[kExpertDown].name == "mlp.experts.#.down_proj");

// The entry that is this module alone, in a layer of this mixer where mixers have it by several names.
uint32_t file_module_of(model::LinearModule module, model::Mixer mixer = model::Mixer::kAttention);

// Norms by their names; which norm of a layer has which name: ExtrasPlanner::plan_norms().
enum class PlaceKind : uint8_t {
    kLinear,
    kEmbedding,
    kHead,
    kInputNorm,
    kPostAttentionNorm,
    kPreFeedForwardNorm,
    kPostFeedForwardNorm,
    kQNorm,
    kKNorm,
    kDeltaNorm,  // on the output of a delta net,
    kMambaNorm,  // on that of Mamba 2
    kFinalNorm
};

// A part of the base model that adapters can change.
struct Place {
    PlaceKind kind = PlaceKind::kLinear;
    uint32_t layer = 0;
    uint32_t linear = 0;  // index in kFileModules
    uint32_t expert = 0;  // for tensors of one expert
    auto operator<=>(const Place&) const = default;
};
// "model.layers.3.self_attn.q_proj", "lm_head"; with the prefix of an adapter's own names instead of "model."
std::string name_of(const Place& place, std::string_view prefix = "model.");
bool is_norm(PlaceKind kind);
// Returns true if a layer has a norm of this name.
bool has_norm(const model::LayerFacts& layer, PlaceKind kind);

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
    std::string_view prefix = "model.";  // of the decoder in this name; empty: the bare decoder
    bool is_elsewhere = false;           // part of a picture or sound reader: no effect on text
    // Set if the name means nothing: what was expected and what was found.
    std::string expected, found;
    bool unsupported = false;
};
// `name` with or without PEFT's prefix, the adapter name "default" and "model.", which adapters of AutoModel lack, and
// with what models that read more than text have instead: "model.language_model.", "language_model.model.". In the
// family's words or in Llama's (ModelConfig::spellings).
ParsedName parse_tensor_name(std::string_view name, const model::ModelConfig& config);

// "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight"
std::string tensor_name(const Place& place, TensorRole role);
// A layer's own bias as PEFT saves it: beside a pair it is that of the layer within.
std::string bias_tensor_name(const Place& place, bool has_pair);

// n and k of a linear place, fused ones whole; n 0: the layer has no such module.
model::LinearShape shape_of(const model::ModelConfig& config, uint32_t layer, const FileModule& module);

}  // namespace lorad::adapters
