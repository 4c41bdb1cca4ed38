// The fields of a fine-tuning job's body that are known.
#include <array>

#include "proto/training/fine_tuning_request.h"

namespace lorad::proto {
namespace {

constexpr std::array kFineTuningFields = {
    KnownField{"model"},
    KnownField{"training_file"},
    KnownField{"validation_file"},
    KnownField{"suffix"},
    KnownField{"seed"},
    KnownField{"metadata"},
    KnownField{"method"},
    KnownField{"hyperparameters"},
    KnownField{"integrations", false, Neutral::kEmpty},
    KnownField{"init_from"},
    KnownField{"replace"},
    KnownField{"activate"},
    KnownField{"lora_r"},
    KnownField{"r"},
    KnownField{"lora_alpha"},
    KnownField{"lora_dropout"},
    KnownField{"lora_trainable_modules"},
    KnownField{"target_modules"},
    KnownField{"exclude_modules"},
    KnownField{"modules_to_save"},
    KnownField{"rank_pattern"},
    KnownField{"alpha_pattern"},
    KnownField{"layers_to_transform"},
    KnownField{"use_rslora"},
    KnownField{"use_dora"},
    KnownField{"learning_rate"},
    KnownField{"lr_scheduler"},
    KnownField{"warmup_ratio"},
    KnownField{"warmup_steps"},
    KnownField{"weight_decay"},
    KnownField{"max_grad_norm"},
    KnownField{"adam_beta1"},
    KnownField{"adam_beta2"},
    KnownField{"adam_epsilon"},
    KnownField{"max_steps"},
    KnownField{"max_seq_length"},
    KnownField{"overlong"},
    KnownField{"skip_bad_lines"},
    KnownField{"shuffle"},
    KnownField{"train_on"},
    KnownField{"packing", true},
    KnownField{"validation_split"},
    KnownField{"eval_steps"},
    KnownField{"checkpoint_steps"},
    KnownField{"n_checkpoints"},
    KnownField{"early_stopping_patience"},
    KnownField{"use_best"},
    // What PEFT's LoraConfig has beside these, and others' fields, that is not done here.
    KnownField{"bias"},
    KnownField{"lora_bias"},
    KnownField{"init_lora_weights", false, Neutral::kTrue},
    KnownField{"fan_in_fan_out", false, Neutral::kFalse},
    KnownField{"layers_pattern", false, Neutral::kEmpty},
    KnownField{"layer_replication", false, Neutral::kEmpty},
    KnownField{"trainable_token_indices", false, Neutral::kEmpty},
    KnownField{"target_parameters", false, Neutral::kEmpty},
    KnownField{"ensure_weight_tying", false, Neutral::kFalse},
    KnownField{"alora_invocation_tokens", false, Neutral::kEmpty},
    KnownField{"loftq_config", false, Neutral::kEmpty},
    KnownField{"use_qalora", false, Neutral::kFalse},
    KnownField{"lora", false},
    KnownField{"training_type", false},
    KnownField{"training_method", false},
    KnownField{"wandb_api_key", false, Neutral::kEmpty},
    KnownField{"hf_api_token", false, Neutral::kEmpty},
};

constexpr std::array kHyperparameterFields = {KnownField{"n_epochs"},
                                              KnownField{"batch_size"},
                                              KnownField{"learning_rate_multiplier"},
                                              KnownField{"beta", false},
                                              KnownField{"compute_multiplier", false},
                                              KnownField{"reasoning_effort", false}};

}  // namespace

std::span<const KnownField> fine_tuning_fields() { return kFineTuningFields; }
std::span<const KnownField> hyperparameter_fields() { return kHyperparameterFields; }

}  // namespace lorad::proto
