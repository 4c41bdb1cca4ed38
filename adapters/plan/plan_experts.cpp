// Adapters on experts, in each of the ways that files have them: all experts of a layer in one pair of tensors (PEFT's
// target_parameters), or a pair for each.
#include <algorithm>
#include <charconv>
#include <optional>

#include "adapters/plan/plan_checks.h"
#include "model/weights/lora_table.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::adapters {
namespace {

using model::LinearModule;
using model::Tensor;

constexpr std::string_view kGateUpParameter = "gate_up_proj", kDownParameter = "down_proj";

// PEFT from this version on lays out what it learns of a parameter by inputs and outputs of its product, before by the
// parameter's sizes as they lie.
bool knows_inputs(std::string_view version) {
    constexpr std::array<int, 3> kSince = {0, 19, 1};
    std::array<int, 3> parts{};
    const char* at = version.data();
    for (int& part : parts) {
        const auto [end, error] = std::from_chars(at, version.data() + version.size(), part);
        if (error != std::errc()) break;
        at = end;
        if (at != version.data() + version.size() && *at == '.') ++at;
    }
    return parts >= kSince;
}

class ExpertPlanner {
  public:
    explicit ExpertPlanner(PlanChecks& checks) : checks_(checks), config_(checks.base.config) {}

    Status plan(std::vector<LayerPlan>& layers) {
        bool has_experts = false;
        for (uint32_t layer = 0; layer < config_.n_layers; ++layer)
            has_experts = has_experts || config_.layer(layer).ffn.experts.n != 0;
        if (!checks_.peft.target_parameters.empty() && !has_experts) {
            checks_.misfit("target_parameters", "a base with experts", "one without");
            return ok_status();
        }
        // Large bases have tens of thousands of single experts' layers, whose names are compared with the config's
        // patterns only where the file has such tensors.
        const bool has_single = checks_.has_single_experts();
        for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
            if (config_.layer(layer).ffn.experts.n == 0) continue;
            TRY(plan_stacked(layer, layers[layer]));
            if (has_single) TRY(plan_single(layer, layers[layer]));
        }
        return ok_status();
    }

  private:
    static bool names(const std::vector<std::string>& parameters, std::string_view parameter) {
        return std::ranges::any_of(parameters, [&](const std::string& name) {
            return name == parameter || (name.ends_with(parameter) && name[name.size() - parameter.size() - 1] == '.');
        });
    }

    // If both parameters are adapted their names nest, with the one that the module declares first inside; a single one
    // has the outer name.
    Status plan_stacked(uint32_t layer, LayerPlan& plan) {
        const bool gate_up = names(checks_.peft.target_parameters, kGateUpParameter),
                   down = names(checks_.peft.target_parameters, kDownParameter);
        const Place outer{PlaceKind::kLinear, layer, kExpertsOuter}, inner{PlaceKind::kLinear, layer, kExpertsInner};
        const bool has_any = checks_.found.contains(outer) || checks_.found.contains(inner);
        if (!has_any && !gate_up && !down) return ok_status();
        if (!gate_up && !down) {
            checks_.misfit(first_tensor(outer, inner),
                           "target_parameters that say which of the experts' parameters these are", "none");
            return ok_status();
        }
        if (gate_up) TRY(plan_parameter(layer, gate_up && down ? inner : outer, LinearModule::kExpertGateUp, plan));
        if (down) TRY(plan_parameter(layer, outer, LinearModule::kExpertDown, plan));
        if (gate_up != down && checks_.found.contains(inner))
            checks_.misfit(first_tensor(inner, inner), "one pair of tensors, as target_parameters names one parameter",
                           "two");
        return ok_status();
    }

    std::string first_tensor(const Place& a, const Place& b) const {
        for (const Place& place : {a, b}) {
            const auto found = checks_.found.find(place);
            if (found == checks_.found.end()) continue;
            for (const Tensor* tensor : found->second) {
                if (tensor != nullptr) return tensor->name;
            }
        }
        return "target_parameters";
    }

    Status plan_parameter(uint32_t layer, const Place& place, LinearModule module, LayerPlan& plan) {
        const model::LinearShape one = config_.shape(layer, module);
        const model::ExpertFacts experts = config_.layer(layer).ffn.experts;
        Place named{PlaceKind::kLinear, layer, file_module_of(module)};
        TRY_ASSIGN(const uint32_t rank, checks_.peft.rank_of(checks_.peft_name(named), checks_.budget));
        TRY_ASSIGN(const double scale, checks_.peft.scale_of(checks_.peft_name(named), rank, checks_.budget));
        const Tensor *a = checks_.find(place, TensorRole::kA), *b = checks_.find(place, TensorRole::kB);
        if (a == nullptr || b == nullptr) {
            checks_.misfit(tensor_name(place, a == nullptr ? TensorRole::kA : TensorRole::kB),
                           "a tensor, as target_parameters names the parameter", "none");
            return ok_status();
        }
        const uint64_t columns = a->shape.size() == 2 ? a->shape[1] : 0;
        bool is_swapped = columns != one.k && columns == one.n;
        if (one.k == one.n && !experts.by_inputs) {
            if (checks_.peft.peft_version.empty()) {
                checks_.misfit(
                    a->name,
                    "peft_version in the config, which says which way round experts with as many inputs as outputs are",
                    "none");
                return ok_status();
            }
            is_swapped = !knows_inputs(checks_.peft.peft_version);
        }
        const uint64_t all = uint64_t{experts.n} * rank;
        a = checks_.fitting(place, TensorRole::kA, {all, is_swapped ? one.n : one.k});
        b = checks_.fitting(place, TensorRole::kB, {is_swapped ? one.k : one.n, all});
        if (a == nullptr || b == nullptr) return ok_status();
        ModulePlan& entry = begin(plan, module, one, rank, scale, experts.n);
        for (uint32_t expert = 0; expert < experts.n; ++expert) {
            entry.experts.push_back({.a = a,
                                     .b = b,
                                     .expert = expert,
                                     .n_experts = experts.n,
                                     .rank = rank,
                                     .n = one.n,
                                     .form = is_swapped ? ExpertForm::kStackedSwapped : ExpertForm::kStacked});
        }
        refuse_others(place);
        return ok_status();
    }

    // gate and up keep ranks of their own: A of both one below the other, B in two blocks.
    Status plan_single(uint32_t layer, LayerPlan& plan) {
        const model::ExpertFacts experts = config_.layer(layer).ffn.experts;
        std::vector<Single> gates, ups, downs;
        for (uint32_t expert = 0; expert < experts.n; ++expert) {
            TRY(find_single(layer, expert, kExpertGate, {experts.size, config_.hidden_size}, gates));
            TRY(find_single(layer, expert, kExpertUp, {experts.size, config_.hidden_size}, ups));
            TRY(find_single(layer, expert, kExpertDown, {config_.hidden_size, experts.size}, downs));
        }
        if (gates.empty() && ups.empty() && downs.empty()) return ok_status();
        if (!plan[static_cast<size_t>(LinearModule::kExpertGateUp)].experts.empty() ||
            !plan[static_cast<size_t>(LinearModule::kExpertDown)].experts.empty()) {
            const Single& first = !gates.empty() ? gates.front() : !ups.empty() ? ups.front() : downs.front();
            checks_.misfit(first.a->name, "experts in one tensor or one by one", "both");
            return ok_status();
        }
        if (experts.gate_up_interleaved) {
            const Single& first = !gates.empty() ? gates.front() : !ups.empty() ? ups.front() : downs.front();
            checks_.misfit(first.a->name, "the experts of this base in one tensor, by target_parameters",
                           "an expert by itself", true);
            return ok_status();
        }
        const uint32_t gate_rank = rank_max(gates), up_rank = rank_max(ups);
        if (gate_rank + up_rank > 0) {
            ModulePlan& entry =
                begin(plan, LinearModule::kExpertGateUp, config_.shape(layer, LinearModule::kExpertGateUp),
                      gate_rank + up_rank, 1.0, experts.n);
            for (const Single& gate : gates) add(entry, gate, 0, 0);
            for (const Single& up : ups) add(entry, up, gate_rank, experts.size);
            check_rank(entry, gate_rank > 0 ? gates.front() : ups.front());
            take_common_scale(entry);
        }
        if (!downs.empty()) {
            ModulePlan& entry = begin(plan, LinearModule::kExpertDown, config_.shape(layer, LinearModule::kExpertDown),
                                      rank_max(downs), 1.0, experts.n);
            for (const Single& down : downs) add(entry, down, 0, 0);
            take_common_scale(entry);
        }
        return ok_status();
    }

    struct Single {
        const Tensor *a, *b;
        uint32_t expert, rank, n;
        double scale;
    };
    Status find_single(uint32_t layer, uint32_t expert, uint32_t linear, model::LinearShape shape,
                       std::vector<Single>& to) {
        const Place place{PlaceKind::kLinear, layer, linear, expert};
        if (!checks_.has_low_rank(place)) {
            if (!checks_.peft.target_parameters.empty()) return ok_status();  // it may be what targets the experts
            // A target that names expert layers by their kind names those of all experts.
            TRY_ASSIGN(const std::optional<bool> targeted,
                       checks_.peft.targets(checks_.peft_name(place), checks_.budget));
            if (targeted.value_or(false))
                checks_.misfit(tensor_name(place, TensorRole::kA), "a tensor, as target_modules names the module",
                               "none");
            return ok_status();
        }
        TRY_ASSIGN(const uint32_t rank, checks_.peft.rank_of(checks_.peft_name(place), checks_.budget));
        TRY_ASSIGN(const double scale, checks_.peft.scale_of(checks_.peft_name(place), rank, checks_.budget));
        const Tensor* a = checks_.fitting(place, TensorRole::kA, {rank, shape.k});
        const Tensor* b = checks_.fitting(place, TensorRole::kB, {shape.n, rank});
        refuse_others(place);
        if (a != nullptr && b != nullptr) to.push_back({a, b, expert, rank, shape.n, scale});
        return ok_status();
    }

    static uint32_t rank_max(const std::vector<Single>& of) {
        uint32_t most = 0;
        for (const Single& one : of) most = std::max(most, one.rank);
        return most;
    }

    static void add(ModulePlan& entry, const Single& of, uint32_t rank_begin, uint32_t row_begin) {
        entry.experts.push_back({.a = of.a,
                                 .b = of.b,
                                 .expert = of.expert,
                                 .rank = of.rank,
                                 .rank_begin = rank_begin,
                                 .row_begin = row_begin,
                                 .n = of.n,
                                 .scale = static_cast<float>(of.scale)});
    }

    // A scale that all share becomes the module's; else each is multiplied into its B.
    static void take_common_scale(ModulePlan& entry) {
        const float first = entry.experts.front().scale;
        if (!std::ranges::all_of(entry.experts, [&](const ExpertPiece& piece) { return piece.scale == first; })) return;
        entry.scale = first;
        for (ExpertPiece& piece : entry.experts) piece.scale = 1.0f;
    }

    void check_rank(const ModulePlan& entry, const Single& first) {
        if (entry.rank <= model::kLoraRankMax) return;
        checks_.misfit(first.a->name, format("ranks of gate and up of {} together", model::kLoraRankMax),
                       std::to_string(entry.rank), true);
    }

    static ModulePlan& begin(LayerPlan& plan, LinearModule module, model::LinearShape shape, uint32_t rank,
                             double scale, uint32_t n_experts) {
        ModulePlan& entry = plan[static_cast<size_t>(module)];
        entry.n = shape.n;
        entry.k = shape.k;
        entry.rank = rank;
        entry.scale = static_cast<float>(scale);
        entry.n_experts = n_experts;
        return entry;
    }

    // Refuses tensors that PEFT never makes for experts.
    void refuse_others(const Place& place) {
        for (const auto& [role, what] :
             {std::pair(TensorRole::kMagnitude, "DoRA"), std::pair(TensorRole::kBBias, "a bias"),
              std::pair(TensorRole::kBias, "a bias")}) {
            if (const Tensor* tensor = checks_.find(place, role))
                checks_.misfit(tensor->name, "LoRA of A and B on experts", what, true);
        }
        if (checks_.peft.use_dora)
            checks_.misfit(tensor_name(place, TensorRole::kMagnitude), "use_dora = false for experts", "true", true);
    }

    PlanChecks& checks_;
    const model::ModelConfig& config_;
};

}  // namespace

Status plan_experts(PlanChecks& checks, std::vector<LayerPlan>& layers) { return ExpertPlanner(checks).plan(layers); }

}  // namespace lorad::adapters
