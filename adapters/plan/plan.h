// An adapter's changes, tensor by tensor, after every tensor has been compared with the base and the config.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "adapters/files/files.h"
#include "adapters/files/peft_config.h"
#include "adapters/plan/base_model.h"
#include "adapters/plan/misfit.h"
#include "model/config/config.h"
#include "model/files/safetensors.h"
#include "proto/base/ids.h"
#include "proto/base/result.h"

namespace lorad::adapters {

// The layout of an expert's A and B in their tensors.
enum class ExpertForm : uint8_t {
    kOwn,  // a [rank][k], b [n][rank] of one expert
    // a [experts * rank][k], an expert's rows side by side; b [n][rank * experts], column rank * experts + expert
    kStacked,
    kStackedSwapped,  // the same of the transposed matrix: a [experts * rank][n], b [k][rank * experts]
};
// One expert of a module: where its A and B come from, and which ranks and outputs of the module they are.
struct ExpertPiece {
    const model::Tensor *a = nullptr, *b = nullptr;
    uint32_t expert = 0, n_experts = 1;  // n_experts: of stacked tensors
    uint32_t rank = 0, rank_begin = 0;
    uint32_t row_begin = 0, n = 0;
    ExpertForm form = ExpertForm::kOwn;
    float scale = 1.0f;  // on B, where a module's experts have several
};

// One adapted linear module. Fused names give several of them that share A, B and magnitude and take row ranges of the
// last two.
struct ModulePlan {
    const model::Tensor* a = nullptr;          // [rank][k]; nullptr: no low-rank part
    const model::Tensor* b = nullptr;          // [n or more][rank]
    const model::Tensor* magnitude = nullptr;  // [n or more]; DoRA
    uint32_t row_begin = 0;                    // in b and magnitude
    std::vector<model::RowRange> rows = {};    // replaces row_begin where the rows are not adjacent
    uint32_t n = 0, k = 0;
    uint32_t rank = 0;
    float scale = 0.0f;
    std::vector<ExpertPiece> experts = {};  // for a module of experts, in place of a and b; n and k are one expert's
    uint32_t n_experts = 1;                 // experts in the layer
    // [n] or empty: added to the module's output: scale * lora_B.bias, and a trained bias minus the base's.
    std::vector<float> bias;

    bool is_used() const { return a != nullptr || !bias.empty() || !experts.empty(); }
};
using LayerPlan = std::array<ModulePlan, model::kModuleKinds>;  // by LinearModule

struct LowRankPlan {
    const model::Tensor* a = nullptr;
    const model::Tensor* b = nullptr;
    uint32_t rank = 0;
    float scale = 0.0f;
};

// The changes outside of the layers' linear modules.
struct ExtrasPlan {
    const model::Tensor* embed_table = nullptr;  // [vocab][hidden] instead of the base's
    LowRankPlan embed;                           // a [rank][vocab], b [hidden][rank]
    std::vector<uint32_t> token_ids;             // ascending
    std::vector<uint32_t> token_order;           // row of token_rows of each
    const model::Tensor* token_rows = nullptr;   // [tokens][hidden]: rows of the embedding instead of the base's
    bool tokens_in_head = false;                 // tied: those rows of the output layer too
    const model::Tensor* head_table = nullptr;   // [vocab][hidden]
    LowRankPlan head;                            // a [rank][hidden], b [vocab][rank]
    std::vector<float> head_bias;                // [vocab] or empty, scale in it
    struct LayerNorms {
        const model::Tensor *input = nullptr, *mixer_after = nullptr, *ffn = nullptr, *ffn_after = nullptr,
                            *q = nullptr, *k = nullptr, *mixer = nullptr;
    };
    std::vector<LayerNorms> norms;  // [n_layers], or empty
    const model::Tensor* final_norm = nullptr;
    bool one_plus_norms = false;  // see ModelConfig::one_plus_norms
    // post_attention_layernorm norms the output of the mixer, not the input of the feed-forward
    bool has_norms_after = false;

    bool has_replaced_parts() const { return embed_table || head_table || token_rows || final_norm || !norms.empty(); }
    bool is_used() const { return has_replaced_parts() || embed.a || head.a || !head_bias.empty(); }
};

struct AdapterPlan {
    std::vector<LayerPlan> layers;
    uint32_t n_modules = model::kLinearModules;  // per layer in the device's table: ModelConfig::lora_stride()
    ExtrasPlan extras;
    std::vector<TokenId> invocation_tokens;  // aLoRA: the adapter acts from their last occurrence on; empty: everywhere

    // Parts that stand in for the base's and cannot be scaled or summed: requests that mix or scale such an adapter are
    // refused.
    bool has_replaced_parts() const { return extras.has_replaced_parts(); }
};

// The tensors of an adapter under PEFT's names and in PEFT's layout, whatever file they come from.
struct AdapterTensors {
    std::vector<model::Tensor> tensors;
    std::vector<FileBytes> owned;                   // tensors that are not spans of the file
    std::map<std::string, std::string> file_names;  // where the file's names differ
    std::string base_fingerprint;                   // recorded in the file; empty: not
};

struct PlanOutcome {
    AdapterPlan plan;                   // the part that fits; points into the tensors
    std::vector<Misfit> misfits;        // empty: the adapter fits
    std::vector<std::string> warnings;  // it fits, but somebody may have meant something else
};

// Compares every tensor with the base's shapes and the config. An error only where the config's expressions cost too
// much.
Result<PlanOutcome> compare_with_base(const PeftConfig& peft, std::span<const model::Tensor> tensors,
                                      const BaseModel& base);

// The same, with everything that does not fit in one error.
Result<AdapterPlan> plan_adapter(const PeftConfig& peft, std::span<const model::Tensor> tensors, const BaseModel& base);

}  // namespace lorad::adapters
