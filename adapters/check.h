// An adapter compared with a base model, before a byte of device memory is taken.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adapters/base_model.h"
#include "adapters/peft_config.h"
#include "adapters/source.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "proto/base/result.h"

namespace lorad::adapters {

// One thing that does not fit.
struct Misfit {
    std::string tensor;  // or the module, where a tensor is missing
    std::string expected;
    std::string found;
    bool unsupported = false;  // well formed, but of a variant that is not applied
};
// "2 problems: TENSOR: expected X, found Y; ...", at most 20 of them.
Error misfit_error(std::vector<Misfit> misfits);

// One adapted matrix. Fused names give several of them that share A and take row ranges of B.
struct ModulePlan {
    const model::Tensor* a = nullptr;  // [rank][k]; nullptr: not adapted
    const model::Tensor* b = nullptr;  // [n or more][rank]
    uint32_t b_row_begin = 0;
    uint32_t n = 0, k = 0;
    uint32_t rank = 0;
    float scale = 0.0f;
};
using LayerPlan = std::array<ModulePlan, model::kLinearModules>;

// Compares every tensor with the base's shapes and the config's ranks. All misfits come in one error: kAdapterInvalid, or
// kAdapterUnsupported if that is all there is. The plan points into `tensors`.
Result<std::vector<LayerPlan>> plan_adapter(const PeftConfig& peft, std::span<const model::Tensor> tensors,
                                            const model::ModelConfig& config);

// An adapter that fits, in host memory: ready to be packed.
struct CheckedAdapter {
    PeftConfig peft;
    std::vector<LayerPlan> layers;
    uint32_t rank_max = 0;
    uint32_t n_modules = 0;  // adapted matrices

    AdapterSource source;  // `tensors` points into its files
    std::vector<model::Tensor> tensors;

    const std::string& generation() const { return source.generation; }
};

// What is checked is what was hashed and what is uploaded, whatever happens to files meanwhile. Messages are one line.
Result<std::unique_ptr<CheckedAdapter>> check_adapter(AdapterSource source, const BaseModel& base);

// read_adapter_source() and the above.
Result<std::unique_ptr<CheckedAdapter>> check_adapter(const std::filesystem::path& path, const BaseModel& base);

}  // namespace lorad::adapters
