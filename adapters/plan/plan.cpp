// The linear modules of the layers; the rest is in plan_extras.cpp.
#include "adapters/plan/plan.h"

#include <algorithm>
#include <optional>

#include "adapters/plan/plan_checks.h"
#include "model/weights/lora_table.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::adapters {

namespace {

using model::LinearModule;
using model::Tensor;

// in kFileModules
constexpr uint32_t kQ = 0, kO = 3, kGate = 4, kDown = 6, kQkv = 7, kGateUp = 8, kDeltaQkv = 12, kDeltaB = 14,
                   kRouter = 19, kDeltaQkvz = 21, kDeltaBa = 22, kSharedGate = 23, kSharedGateUp = 26;
static_assert(kFileModules[kDeltaQkv].first == LinearModule::kDeltaQkv &&
              kFileModules[kRouter].first == LinearModule::kRouter &&
              kFileModules[kDeltaBa].first == LinearModule::kDeltaB &&
              kFileModules[kSharedGate].first == LinearModule::kGate && kFileModules[kSharedGateUp].fused);

class LinearPlanner {
  public:
    explicit LinearPlanner(PlanChecks& checks) : checks_(checks), config_(checks.base.config) {}

    Status plan(std::vector<LayerPlan>& layers) {
        TRY(compare_with_targets());
        layers.resize(config_.n_layers);
        for (const auto& [place, found] : checks_.found) {
            if (place.kind != PlaceKind::kLinear || place.linear >= kExpertsFirst) continue;
            if (checks_.has_low_rank(place)) {
                TRY(plan_low_rank(place, layers[place.layer]));
            } else {
                refuse_without_low_rank(place);
            }
            plan_trained_bias(place, layers[place.layer]);
        }
        return ok_status();
    }

  private:
    bool file_has(uint32_t linear) const {
        return std::ranges::any_of(checks_.found, [&](const auto& entry) {
            return entry.first.kind == PlaceKind::kLinear && entry.first.linear == linear &&
                   checks_.has_low_rank(entry.first);
        });
    }

    // The names under which the file's modules are looked for: fused or split per group, as the file has them.
    std::vector<uint32_t> group_names(uint32_t fused, uint32_t first, uint32_t last, bool base_is_fused) const {
        bool has_split = false;
        for (uint32_t linear = first; linear <= last; ++linear) has_split |= file_has(linear);
        const bool has_fused = file_has(fused);
        std::vector<uint32_t> names;
        if (has_fused || (!has_split && base_is_fused)) names.push_back(fused);
        if (has_split || (!has_fused && !base_is_fused)) {
            for (uint32_t linear = first; linear <= last; ++linear) names.push_back(linear);
        }
        return names;
    }

    // The modules that the config names must be in the file, and the other way round.
    Status compare_with_targets() {
        std::vector<uint32_t> modules = group_names(kQkv, kQ, kQ + 2, config_.fused_qkv);
        for (const uint32_t linear : group_names(kGateUp, kGate, kGate + 1, config_.fused_gate_up)) {
            modules.push_back(linear);
        }
        modules.push_back(kO);
        modules.push_back(kDown);
        for (uint32_t linear = kGateUp + 1; linear < kExpertsFirst; ++linear) {
            const bool is_of_delta =
                (linear >= kDeltaQkv && linear <= kDeltaB + 1) || linear == kDeltaQkvz || linear == kDeltaBa;
            const bool is_of_shared = linear == kSharedGate || linear == kSharedGate + 1 || linear == kSharedGateUp;
            // a router is no linear layer to PEFT
            if (!is_of_delta && !is_of_shared && linear != kRouter) modules.push_back(linear);
        }
        for (const uint32_t linear : group_names(kSharedGateUp, kSharedGate, kSharedGate + 1, config_.fused_gate_up))
            modules.push_back(linear);
        for (const auto& [fused, first] : {std::pair(kDeltaQkvz, kDeltaQkv), std::pair(kDeltaBa, kDeltaB)}) {
            for (const uint32_t linear : group_names(fused, first, first + 1, config_.fused_delta))
                modules.push_back(linear);
        }
        for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
            for (const uint32_t linear : modules) {
                if (shape_of(config_, layer, kFileModules[linear]).n != 0)
                    TRY(compare_with_target({PlaceKind::kLinear, layer, linear}, TensorRole::kA));
            }
        }
        TRY(compare_with_target({PlaceKind::kEmbedding}, TensorRole::kEmbeddingA));
        TRY(compare_with_target({PlaceKind::kHead}, TensorRole::kA));
        tell_left_out();
        return ok_status();
    }

    // Modules with all tensors in the file count, whatever the config says: lorad may not know what it means, and
    // nobody saves what was not trained. A config that names nothing of the base at all is one for another base.
    void tell_left_out() {
        if (left_out_.empty()) return;
        if (is_any_targeted_) {
            checks_.warnings.push_back(format("target_modules, exclude_modules or layers_to_transform leave out {} of "
                                              "the file's modules, such as {}; they are applied, "
                                              "since the file has their tensors",
                                              left_out_.size(), one_line(left_out_.front()->name)));
            return;
        }
        for (const Tensor* tensor : left_out_) {
            checks_.misfit(tensor->name, "a module that target_modules and layers_to_transform name",
                           "one that they leave out");
        }
    }

    Status compare_with_target(const Place& place, TensorRole first_role) {
        TRY_ASSIGN(std::optional<bool> targeted, checks_.peft.targets(checks_.peft_name(place), checks_.budget));
        if (place.kind != PlaceKind::kLinear && checks_.ties_lora) targeted = true;
        const bool is_there = checks_.has_low_rank(place);
        is_any_targeted_ = is_any_targeted_ || targeted.value_or(true);
        if (!targeted || *targeted == is_there) return ok_status();
        if (*targeted) {
            checks_.misfit(tensor_name(place, first_role), "a tensor, as target_modules names the module", "none");
            return ok_status();
        }
        for (const Tensor* tensor : checks_.found.at(place)) {
            if (tensor == nullptr) continue;
            left_out_.push_back(tensor);
            break;
        }
        return ok_status();
    }

    // Parts of LoRA that need an A and a B beside them.
    void refuse_without_low_rank(const Place& place) {
        for (const TensorRole role : {TensorRole::kMagnitude, TensorRole::kBBias}) {
            if (const Tensor* tensor = checks_.find(place, role)) {
                checks_.misfit(tensor->name, "lora_A and lora_B beside it", "none");
            }
        }
    }

    Status plan_low_rank(const Place& place, LayerPlan& layer) {
        const FileModule& module = kFileModules[place.linear];
        const model::LinearShape shape = shape_of(config_, place.layer, module);
        TRY_ASSIGN(const uint32_t rank, checks_.peft.rank_of(checks_.peft_name(place), checks_.budget));
        TRY_ASSIGN(const double scale, checks_.peft.scale_of(checks_.peft_name(place), rank, checks_.budget));
        if (place.linear == kRouter && is_swapped_router(place, rank, shape))
            return plan_swapped_router(place, rank, scale, shape, layer);
        const Tensor* a = checks_.fitting(place, TensorRole::kA, {rank, shape.k});
        const Tensor* b = checks_.fitting(place, TensorRole::kB, {shape.n, rank});
        const Tensor* magnitude =
            optional_vector(place, TensorRole::kMagnitude, shape.n, checks_.peft.use_dora, "use_dora");
        const Tensor* b_bias = optional_vector(place, TensorRole::kBBias, shape.n, checks_.peft.lora_bias, "lora_bias");
        if (a == nullptr || b == nullptr) return ok_status();
        std::vector<float> bias;
        if (b_bias != nullptr) {
            bias = model::numbers_of(*b_bias);
            for (float& value : bias) value = static_cast<float>(scale * value);
        }
        for_each_part(place.layer, module,
                      [&](LinearModule part, uint32_t row_begin, const model::LinearShape& part_shape) {
                          std::vector<model::RowRange> rows;
                          if (place.linear == kDeltaQkvz || place.linear == kDeltaBa)
                              rows = model::fused_delta_rows(config_.layer(place.layer).delta, part).rows;
                          ModulePlan& entry = layer[static_cast<size_t>(part)];
                          if (entry.a != nullptr) {
                              checks_.misfit(a->name, "either fused or split names for a matrix",
                                             format("also {}", entry.a->name));
                              return;
                          }
                          entry.a = a;
                          entry.b = b;
                          entry.magnitude = magnitude;
                          entry.row_begin = row_begin;
                          entry.rows = rows;
                          entry.n = part_shape.n;
                          entry.k = part_shape.k;
                          entry.rank = rank;
                          entry.scale = static_cast<float>(scale);
                          if (bias.empty()) return;
                          if (rows.empty()) rows.push_back({row_begin, part_shape.n});
                          std::vector<float> own;
                          for (const model::RowRange& range : rows)
                              own.insert(own.end(), bias.begin() + range.begin, bias.begin() + range.begin + range.n);
                          add_to_bias(entry, own);
                      });
        return ok_status();
    }

    // A router's pair as PEFT had it before it told inputs from outputs: of the transposed matrix.
    bool is_swapped_router(const Place& place, uint32_t rank, const model::LinearShape& shape) const {
        const Tensor* a = checks_.find(place, TensorRole::kA);
        return shape.n != shape.k && a != nullptr && a->shape == std::vector<uint64_t>{rank, shape.n};
    }
    Status plan_swapped_router(const Place& place, uint32_t rank, double scale, const model::LinearShape& shape,
                               LayerPlan& layer) {
        const Tensor* a = checks_.fitting(place, TensorRole::kA, {rank, shape.n});
        const Tensor* b = checks_.fitting(place, TensorRole::kB, {shape.k, rank});
        if (a == nullptr || b == nullptr) return ok_status();
        ModulePlan& entry = layer[static_cast<size_t>(LinearModule::kRouter)];
        entry.n = shape.n;
        entry.k = shape.k;
        entry.rank = rank;
        entry.scale = static_cast<float>(scale);
        entry.experts.push_back({.a = a, .b = b, .rank = rank, .n = shape.n, .form = ExpertForm::kStackedSwapped});
        return ok_status();
    }

    // A vector that is there if, and only if, the config says so.
    const Tensor* optional_vector(const Place& place, TensorRole role, uint64_t n, bool is_configured,
                                  std::string_view field) {
        const Tensor* tensor = checks_.find(place, role);
        if (tensor != nullptr && !is_configured) {
            checks_.misfit(tensor->name, format("{} = true in the config", field), "false");
            return nullptr;
        }
        return is_configured ? checks_.fitting(place, role, {n}) : nullptr;
    }

    // take(part, its first row in the file's matrix, its shape)
    void for_each_part(uint32_t layer, const FileModule& module, const auto& take) const {
        uint32_t row = 0;
        for (auto part = static_cast<uint8_t>(module.first); part <= static_cast<uint8_t>(module.last); ++part) {
            const auto linear = static_cast<LinearModule>(part);
            const model::LinearShape shape = config_.shape(layer, linear);
            take(linear, row, shape);
            row += shape.n;
        }
    }

    static void add_to_bias(ModulePlan& entry, std::span<const float> values) {
        entry.bias.resize(values.size(), 0.0f);
        for (size_t i = 0; i < values.size(); ++i) entry.bias[i] += values[i];
    }

    bool base_has_bias(uint32_t layer, LinearModule module) const {
        const model::LayerFacts facts = config_.layer(layer);
        if (module == LinearModule::kConvIn || module == LinearModule::kConvOut)
            return facts.mixer == model::Mixer::kMamba ? facts.mamba.proj_bias : facts.conv.bias;
        if (module == LinearModule::kRouter) return facts.ffn.experts.bias;
        if (module > LinearModule::kDown) return false;
        if (module <= LinearModule::kV) return facts.attention.qkv_bias;
        return module == LinearModule::kO ? facts.attention.o_bias : facts.ffn.bias;
    }

    // bias = all, lora_only: the layer's bias as it was after training; what is applied is the difference to the
    // base's.
    void plan_trained_bias(const Place& place, LayerPlan& layer) {
        const Tensor* tensor = checks_.find(place, TensorRole::kBias);
        if (tensor == nullptr) return;
        const FileModule& module = kFileModules[place.linear];
        if (checks_.peft.bias == BiasKind::kNone) {
            return checks_.misfit(tensor->name, "bias = all or lora_only in the config", "bias = none");
        }
        if (!base_has_bias(place.layer, module.first)) {
            return checks_.misfit(tensor->name, "a layer of the base with a bias", "one without");
        }
        tensor = checks_.fitting(place, TensorRole::kBias, {shape_of(config_, place.layer, module).n});
        if (tensor == nullptr) return;
        const std::vector<float> trained = model::numbers_of(*tensor);
        for_each_part(place.layer, module, [&](LinearModule part, uint32_t row_begin, const model::LinearShape& shape) {
            Place part_place = place;
            if (module.fused) part_place.linear = file_module_of(part);
            const auto base_bias = checks_.base.biases.find(name_of(part_place) + ".bias");
            if (base_bias == checks_.base.biases.end() || base_bias->second.size() != shape.n) {
                return checks_.misfit(tensor->name, "the base's bias to compare with",
                                      "a base of which only the config is known");
            }
            ModulePlan& entry = layer[static_cast<size_t>(part)];
            entry.n = shape.n;
            entry.k = shape.k;
            std::vector<float> difference(shape.n);
            for (size_t i = 0; i < shape.n; ++i) difference[i] = trained[row_begin + i] - base_bias->second[i];
            add_to_bias(entry, difference);
        });
    }

    PlanChecks& checks_;
    const model::ModelConfig& config_;
    std::vector<const Tensor*> left_out_;  // one of each module that the config does not name
    bool is_any_targeted_ = false;         // or may be
};

// Warns of expressions in the config that nobody here can read.
void warn_unreadable(PlanChecks& checks) {
    const auto warn = [&](std::string_view field, const ModuleSelector& selector) {
        if (selector.kind != ModuleSelector::Kind::kUnreadableRegex) return;
        checks.warnings.push_back(format("{}: the expression {} is not read ({}); what the file has is applied, and "
                                         "whether all that it should have is there "
                                         "is not checked",
                                         field, json_quote_short(selector.pattern), selector.unreadable));
    };
    warn("target_modules", checks.peft.target_modules);
    warn("exclude_modules", checks.peft.exclude_modules);
}

// aLoRA: rows before the invocation run without the adapter, which only parts that are summed can do.
void plan_invocation(PlanChecks& checks, AdapterPlan& plan) {
    const PeftConfig& peft = checks.peft;
    for (const int64_t token : peft.invocation_tokens) {
        if (token < 0 || token >= int64_t{checks.base.config.vocab_size}) {
            return checks.misfit("alora_invocation_tokens", format("tokens 0 to {}", checks.base.config.vocab_size - 1),
                                 std::to_string(token));
        }
        plan.invocation_tokens.push_back(static_cast<TokenId>(token));
    }
    if (plan.invocation_tokens.empty()) return;
    const bool has_bias = peft.bias != BiasKind::kNone || peft.lora_bias;
    if (plan.extras.is_used() || has_bias || peft.use_dora) {
        checks.misfit("alora_invocation_tokens", "an activated LoRA of A and B on linear layers only",
                      plan.extras.is_used() ? "also a trained embedding, output layer or norm"
                      : has_bias            ? "also biases"
                                            : "also DoRA",
                      true);
    }
}

bool changes_something(const AdapterPlan& plan) {
    if (plan.extras.is_used()) return true;
    return std::ranges::any_of(plan.layers,
                               [](const LayerPlan& layer) { return std::ranges::any_of(layer, &ModulePlan::is_used); });
}

}  // namespace

Result<PlanOutcome> compare_with_base(const PeftConfig& peft, std::span<const Tensor> tensors, const BaseModel& base) {
    PlanChecks checks(peft, base);
    for (const Tensor& tensor : tensors) checks.sort_in(tensor);
    if (base.config.tied_embeddings && !checks.prefix.empty()) {
        TRY_ASSIGN(checks.ties_lora, peft.ties_lora(checks.budget));
    }
    warn_unreadable(checks);
    if (checks.n_elsewhere > 0) {
        checks.warnings.push_back(format(
            "{} tensors are of a part that reads pictures or sound, which is not loaded; for text they change nothing",
            checks.n_elsewhere));
    }
    PlanOutcome outcome;
    outcome.plan.n_modules = base.config.lora_stride();
    TRY(LinearPlanner(checks).plan(outcome.plan.layers));
    TRY(plan_experts(checks, outcome.plan.layers));
    TRY(plan_extras(checks, outcome.plan.extras));
    plan_invocation(checks, outcome.plan);
    if (checks.misfits.empty() && !changes_something(outcome.plan) && checks.found.empty()) {
        checks.misfit("the file", "tensors lora_A and lora_B of linear layers", "none");
    }
    outcome.misfits = std::move(checks.misfits);
    for (std::string& warning : checks.warnings) outcome.warnings.push_back(one_line(std::move(warning)));
    return outcome;
}

Result<AdapterPlan> plan_adapter(const PeftConfig& peft, std::span<const Tensor> tensors, const BaseModel& base) {
    TRY_ASSIGN(PlanOutcome outcome, compare_with_base(peft, tensors, base));
    if (!outcome.misfits.empty()) return misfit_error(std::move(outcome.misfits));
    return std::move(outcome.plan);
}

}  // namespace lorad::adapters
