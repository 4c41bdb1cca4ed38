// State that the parts of planning share: the tensors by place and role, and the list of misfits.
#pragma once

#include <array>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "adapters/files/tensor_names.h"
#include "adapters/plan/plan.h"

namespace lorad::adapters {

// For one thread and one adapter.
class PlanChecks {
  public:
    PlanChecks(const PeftConfig& peft_config, const BaseModel& base_model) : peft(peft_config), base(base_model) {}

    // Puts a tensor to its place, or says why it has none.
    void sort_in(const model::Tensor& tensor);

    const model::Tensor* find(const Place& place, TensorRole role) const;
    bool has_single_experts() const;              // some tensor is of one expert
    bool has_low_rank(const Place& place) const;  // any of A, B, embedding A and B
    // PEFT's name of the module, which the config's expressions match: as in the base's files, with the prefix of the
    // adapter's names.
    std::string peft_name(const Place& place) const;

    void misfit(std::string tensor, std::string expected, std::string found, bool unsupported = false);
    // Returns the tensor of this place and role if it has this shape, a float type and finite values; else adds a
    // misfit and returns nullptr.
    const model::Tensor* fitting(const Place& place, TensorRole role, std::initializer_list<uint64_t> shape);

    const PeftConfig& peft;
    const BaseModel& base;
    RegexBudget budget;
    using Found = std::array<const model::Tensor*, kTensorRoles>;  // by role
    std::map<Place, Found> found;
    std::vector<Misfit> misfits;
    std::vector<std::string> warnings;
    std::string_view prefix = "model.";  // of the decoder in the adapter's names; empty: an adapter of the bare decoder
    uint32_t n_elsewhere = 0;            // tensors of parts that read pictures or sound
    bool ties_lora = false;              // the output layer has the embedding's A and B, transposed
};

// Returns true if both have one type, one shape and the same bits.
bool is_same(const model::Tensor& a, const model::Tensor& b);

// Returns true if both have float types and b is a transposed, number by number.
bool is_transposed(const model::Tensor& a, const model::Tensor& b);

// Modules kExpertGateUp and kExpertDown.
Status plan_experts(PlanChecks& checks, std::vector<LayerPlan>& layers);

// Embedding, output layer, norms, tokens.
Status plan_extras(PlanChecks& checks, ExtrasPlan& plan);

}  // namespace lorad::adapters
