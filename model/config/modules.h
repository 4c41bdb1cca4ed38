// The linear layers that adapters can change, as a table of the model: which a layer has, their sizes, and which of
// them share an input.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace lorad::model {

struct ModelConfig;

// The order is that of the device's LoRA table, LoraModule[slot][layer][ModelConfig::lora_stride()]. A model whose
// layers are all attention and a dense feed-forward has only the first seven.
enum class LinearModule : uint8_t {
    kQ,
    kK,
    kV,
    kO,
    kGate,
    kUp,
    kDown,
    kPleGate,
    kPleProjection,  // of the embeddings per layer,
    kPleModel,       // of all layers at once: a module of layer 0
    kDeltaQkv,
    kDeltaZ,
    kDeltaB,
    kDeltaA,
    kDeltaOut,
    kConvIn,
    kConvOut,  // of short convolutions and of Mamba 2
    kRouter,
    kSharedGate,
    kExpertGateUp,
    kExpertDown,  // of each expert; sizes are one expert's
};
inline constexpr uint32_t kModuleKinds = 21;
inline constexpr uint32_t kLinearModules = 7;  // of a layer of attention and a dense feed-forward

// Modules that share an input and a product, whose rows they are in this order. Also the index of their ShrinkDispatch
// in the step header.
enum LoraGroup : uint32_t {
    kQkv,
    kO,
    kGateUp,
    kDown,
    kPleGateGroup,
    kPleProjectionGroup,
    kPleModelGroup,
    kDeltaIn,
    kDeltaOutGroup,
    kConvInGroup,
    kConvOutGroup,
    kRouterGroup,
    kSharedGateGroup,
    kExpertGateUpGroup,
    kExpertDownGroup,
};
inline constexpr uint32_t kModuleGroups = 15;
// The groups of attention and a dense feed-forward. The kernels for several adapters at once (AdapterMethod::kJoined)
// know no others.
inline constexpr uint32_t kDenseGroups = 4;

struct ModuleGroup {
    LinearModule first;
    uint32_t n_modules;
};
inline constexpr std::array<ModuleGroup, kModuleGroups> kModuleRanges = {{
    {LinearModule::kQ, 3},
    {LinearModule::kO, 1},
    {LinearModule::kGate, 2},
    {LinearModule::kDown, 1},
    {LinearModule::kPleGate, 1},
    {LinearModule::kPleProjection, 1},
    {LinearModule::kPleModel, 1},
    {LinearModule::kDeltaQkv, 4},
    {LinearModule::kDeltaOut, 1},
    {LinearModule::kConvIn, 1},
    {LinearModule::kConvOut, 1},
    {LinearModule::kRouter, 1},
    {LinearModule::kSharedGate, 1},
    {LinearModule::kExpertGateUp, 1},
    {LinearModule::kExpertDown, 1},
}};
LoraGroup group_of(LinearModule module);
// The groups of a mixer's input and output projections.
enum class Mixer : uint8_t;
LoraGroup input_group_of(Mixer mixer);
LoraGroup output_group_of(Mixer mixer);

// y[n] = W[n][k] x[k]; n 0: the layer has no such module.
struct LinearShape {
    uint32_t n = 0;  // outputs
    uint32_t k = 0;  // inputs
};

// The rows of a delta net's module in in_proj_qkvz and in_proj_ba, where files fuse them: these hold for each key head
// its rows q, k, v and z, and b and a.
struct DeltaFacts;
struct RowRange {
    uint32_t begin = 0, n = 0;
};
struct FusedDelta {
    std::string_view name;       // "in_proj_qkvz"
    uint32_t n = 0;              // its rows
    std::vector<RowRange> rows;  // of the module, in its order
};
FusedDelta fused_delta_rows(const DeltaFacts& facts, LinearModule module);

// "q_proj", "in_proj_qkv", ...
std::string_view name_of(LinearModule module);

}  // namespace lorad::model
