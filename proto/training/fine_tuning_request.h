// Body of POST /v1/fine_tuning/jobs: OpenAI's, and beside its fields those that LoRA has.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/base/result.h"
#include "proto/known_fields.h"

namespace lorad::proto {

// A LoRA adapter's shape and training settings. The server chooses absent values.
struct TrainingRecipe {
    // The adapter.
    uint32_t lora_r = 16;
    std::optional<double> lora_alpha;  // absent: twice the rank
    double lora_dropout = 0.0;
    // "all-linear", or names of modules: q_proj, lm_head, or PEFT's patterns
    std::vector<std::string> lora_trainable_modules = {"all-linear"};
    std::vector<std::string> exclude_modules;  // of lora_trainable_modules
    std::vector<std::string> modules_to_save;
    std::vector<std::pair<std::string, uint32_t>> rank_pattern;
    std::vector<std::pair<std::string, double>> alpha_pattern;
    std::vector<uint32_t> layers_to_transform;  // empty: all
    bool use_rslora = false, use_dora = false;
    std::string bias = "none";  // or lora_only, all
    bool lora_bias = false;

    // The optimizer.
    std::optional<uint32_t> n_epochs, batch_size;    // absent: by the number of examples
    std::optional<double> learning_rate_multiplier;  // times 2e-4; absent: 1
    std::optional<double> learning_rate;             // instead of the multiplier
    std::string lr_scheduler = "cosine";
    double warmup_ratio = 0.03;
    std::optional<uint32_t> warmup_steps;  // instead of the ratio
    double weight_decay = 0.0;
    double max_grad_norm = 1.0;  // 0: gradients are not clipped
    double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
    uint64_t seed = 0;

    // The data.
    std::optional<uint32_t> max_steps;       // instead of epochs
    std::optional<uint32_t> max_seq_length;  // absent: the context, at most 4096
    std::string train_on = "assistant";
    bool refuse_overlong = false;
    bool skip_bad_lines = false;
    bool shuffle = true;

    // Evaluation and checkpoints.
    double validation_split = 0.0;
    std::optional<uint32_t> eval_steps;        // absent: at the ends of epochs alone
    std::optional<uint32_t> checkpoint_steps;  // absent: each two minutes or so
    uint32_t n_checkpoints = 3;
    std::optional<uint32_t> early_stopping_patience;
    bool use_best = true;
};

// Limits of a recipe, whoever makes it.
inline constexpr uint32_t kLoraRankMax = 512;
inline constexpr uint32_t kEpochsMax = 50;
inline constexpr uint32_t kTrainingBatchMax = 4096;
inline constexpr uint32_t kTrainingStepsMax = 100'000'000;
inline constexpr uint32_t kSequenceTokensMin = 2, kSequenceTokensMax = 1u << 24;
inline constexpr double kDropoutMax = 0.95, kLearningRateMax = 10.0, kWeightDecayMax = 10.0, kGradNormMax = 1e9;
inline constexpr double kBeta1Max = 0.999999, kBeta2Max = 0.9999999, kAdamEpsilonMin = 1e-20, kAdamEpsilonMax = 1.0;
inline constexpr double kLoraAlphaMin = 1e-6, kLoraAlphaMax = 1e6;
inline constexpr double kValidationSplitMax = 0.5;

struct FineTuningRequest {
    std::string model, training_file, validation_file, suffix, init_from;
    std::vector<std::pair<std::string, std::string>> metadata;
    TrainingRecipe recipe;
    std::optional<uint64_t> seed;  // absent: drawn
    bool replace = true, activate = true;
    std::vector<std::string> form_fields;  // that say what a new adapter is like: nothing for one that is there
    std::vector<std::string> ignored_fields;
};

std::span<const KnownField> fine_tuning_fields();
// Returns the fields of method.supervised.hyperparameters.
std::span<const KnownField> hyperparameter_fields();

// kInvalidRequest, kUnsupportedParameter with the field: dpo and reinforcement, integrations, and what else is known
// and not done.
Result<FineTuningRequest> parse_fine_tuning_request(std::string_view body);

// The recipe as JSON with the names of the request, and back; for what is kept of a job.
std::string recipe_json(const TrainingRecipe& recipe);
Result<TrainingRecipe> parse_recipe(std::string_view json);

}  // namespace lorad::proto
