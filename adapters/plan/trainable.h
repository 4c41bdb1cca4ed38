// Makes the tensors that a model::Trainer trains, from a recipe or an existing adapter, and writes them as a PEFT
// folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "adapters/files/peft_config.h"
#include "adapters/plan/base_model.h"
#include "adapters/plan/check.h"
#include "model/train/trainable.h"
#include "proto/base/result.h"

namespace lorad::adapters {

// The fields of PEFT's LoraConfig that training honours, with its meaning.
struct LoraRecipe {
    uint32_t r = 16;
    double lora_alpha = 32.0;
    bool use_rslora = false;
    bool use_dora = false;
    // names or ends of names at a dot; one with any of ^$*+?()[]{}|\ is an expression
    std::vector<std::string> target_modules = {"all-linear"};
    std::vector<std::string> exclude_modules;
    std::vector<std::pair<std::string, uint32_t>> rank_pattern;
    std::vector<std::pair<std::string, double>> alpha_pattern;
    std::optional<std::vector<int64_t>> layers_to_transform;
    std::vector<std::string> modules_to_save;
    BiasKind bias = BiasKind::kNone;  // whose own biases are trained: none's, targets', all linears'
    bool lora_bias = false;           // a bias of lora_B on each target
    uint64_t seed = 0;                // for the random values of A
};

// PEFT's start: A uniform in +-1/sqrt(k) by Philox4x32-10 from the seed, B zero, magnitudes the norms of the base's
// rows, saved modules the base's. Reads of the base's files what that needs. kInvalidRequest with the field: a target
// that names nothing of the model, a rank of 0 or beyond 512, what is not trained.
Result<model::TrainableAdapter> make_trainable(const LoraRecipe& recipe, const BaseModel& base);

// Without numbers, for a new recipe: how much it trains; refused, too, if a part is of no effect. Reads headers alone.
Result<model::TrainableAdapter> trainable_shape(const LoraRecipe& recipe, const BaseModel& base);

// The tensors of an adapter that was checked against the same base, to be trained on. kAdapterUnsupported: parts that
// are not trained (trained tokens, aLoRA, a bias of the output layer), by name.
Result<model::TrainableAdapter> to_trainable(const CheckedAdapter& adapter, const BaseModel& base);

struct PeftFileOptions {
    std::string base_name;                   // base_model_name_or_path
    model::DType type = model::DType::kF32;  // of the tensors: F32, F16 or BF16
    // what the config says of the scales, which are the same numbers either way
    bool use_rslora = false;
};
struct PeftFiles {
    std::string config;              // adapter_config.json
    std::vector<std::byte> tensors;  // adapter_model.safetensors, with the base's fingerprint in its metadata
};
// Makes the files that PEFT's save_pretrained() would write; lorad and PEFT read them.
PeftFiles peft_files(const model::TrainableAdapter& adapter, const BaseModel& base, const PeftFileOptions& options);
// Into a folder, which is made if it is not there: each file is written beside its place, synced and renamed.
// kStorageFull, kStorageFailed.
Status write_peft_folder(const PeftFiles& files, const std::filesystem::path& folder);

}  // namespace lorad::adapters
