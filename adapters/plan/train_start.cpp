// Where training begins without an adapter: PEFT's start, from a recipe.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <optional>
#include <span>
#include <utility>

#include "adapters/files/peft_config.h"
#include "adapters/files/tensor_names.h"
#include "adapters/plan/recipe_config.h"
#include "adapters/plan/trainable.h"
#include "model/files/model_files.h"
#include "model/quant/matrix_decoder.h"
#include "model/train/philox.h"
#include "model/weights/lora_table.h"
#include "proto/base/format.h"

namespace lorad::adapters {
namespace {

using model::Tensor;
using model::TrainedTensor;

constexpr uint64_t kRowsAtOnce = 1024;

class TrainStart {
  public:
    // has_numbers: false for the shapes alone, of a recipe that nobody has begun with yet. Only then is refused what
    // would be of no effect: a run that is under way goes on with what it has.
    TrainStart(const LoraRecipe& recipe, const BaseModel& base, const PeftConfig& peft, bool has_numbers)
        : recipe_(recipe), base_(base), config_(base.config), peft_(peft), has_numbers_(has_numbers) {}

    Result<model::TrainableAdapter> make() {
        if (!has_numbers_) TRY(check_layers());
        if (!base_.folder.empty()) {
            TRY_ASSIGN(model_files_, model::ModelFiles::open(base_.folder));
            TRY_ASSIGN(files_, model_files_->tensors());
        }
        for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
            for (uint32_t linear = 0; linear < kFileModules.size(); ++linear)
                TRY(add_linear({PlaceKind::kLinear, layer, linear}));
        }
        for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
            for (const PlaceKind kind :
                 {PlaceKind::kInputNorm, PlaceKind::kPostAttentionNorm, PlaceKind::kQNorm, PlaceKind::kKNorm}) {
                const bool is_of_head = kind == PlaceKind::kQNorm || kind == PlaceKind::kKNorm;
                if (!is_of_head || config_.qk_norm)
                    TRY(add_saved({kind, layer}, {is_of_head ? config_.head_dim : config_.hidden_size}));
            }
        }
        TRY(add_saved({PlaceKind::kFinalNorm}, {config_.hidden_size}));
        for (const PlaceKind kind : {PlaceKind::kEmbedding, PlaceKind::kHead}) {
            TRY(add_saved({kind}, {config_.vocab_size, config_.hidden_size}));
            TRY(add_outer({kind}));
        }
        TRY(check_all_found());
        return std::move(made_);
    }

  private:
    // Returns true if the base's files have the module under this name.
    bool has(uint32_t linear) const {
        const FileModule& module = kFileModules[linear];
        if (module.first <= model::LinearModule::kV) return module.fused == config_.fused_qkv;
        if (module.first == model::LinearModule::kO || module.first == model::LinearModule::kDown) return true;
        return module.fused == config_.fused_gate_up;
    }

    Result<bool> is_target(const std::string& module) {
        TRY_ASSIGN(const std::optional<bool> targeted, peft_.targets(module, budget_));
        if (!targeted)
            return make_error(ErrorCode::kInvalidRequest,
                              format("target_modules: {}: an expression that is not read",
                                     json_quote_short(peft_.target_modules.pattern)),
                              "target_modules");
        return *targeted;
    }

    Status add_linear(const Place& place) {
        if (!has(place.linear) || shape_of(config_, place.layer, kFileModules[place.linear]).n == 0) return ok_status();
        const std::string module = name_of(place);
        all_modules_.push_back(module);
        TRY_ASSIGN(const bool is_targeted, is_target(module));
        add_bias(place, is_targeted);
        if (!is_targeted) return ok_status();
        const FileModule& linear = kFileModules[place.linear];
        TRY_ASSIGN(model::TrainedPair pair, start_of(place, shape_of(config_, place.layer, linear)));
        if (recipe_.use_dora) {
            TRY_ASSIGN(pair.magnitude, row_norms(place, shape_of(config_, place.layer, linear)));
        }
        if (recipe_.lora_bias) {
            const uint32_t n = shape_of(config_, place.layer, linear).n;
            pair.b_bias = {tensor_name(place, TensorRole::kBBias), {n}, {}};
            if (has_numbers_) pair.b_bias->values.resize(n);
        }
        made_.linears.push_back(
            {.layer = place.layer, .first = linear.first, .last = linear.last, .pair = std::move(pair)});
        return ok_status();
    }

    // A layer's own bias, if the recipe wants it trained and the base has one; beside a pair by the name that it has
    // there.
    void add_bias(const Place& place, bool is_targeted) {
        const bool is_wanted = recipe_.bias == BiasKind::kAll || (recipe_.bias == BiasKind::kLoraOnly && is_targeted);
        const auto found = base_.biases.find(name_of(place) + ".bias");
        if (!is_wanted || found == base_.biases.end()) return;
        const FileModule& linear = kFileModules[place.linear];
        made_.biases.push_back({.layer = place.layer,
                                .first = linear.first,
                                .last = linear.last,
                                .bias = {bias_tensor_name(place, is_targeted), {found->second.size()}, {}}});
        if (has_numbers_) made_.biases.back().bias.values = found->second;
    }

    Status add_outer(const Place& place) {
        const std::string module = name_of(place);
        all_modules_.push_back(module);
        TRY_ASSIGN(const bool is_targeted, is_target(module));
        if (!is_targeted) return ok_status();
        if (recipe_.use_dora)
            return make_error(ErrorCode::kInvalidRequest, format("use_dora: DoRA of {} is not trained", module),
                              "use_dora");
        if (recipe_.lora_bias)
            return make_error(ErrorCode::kInvalidRequest, format("lora_bias: a bias on {} is not trained", module),
                              "lora_bias");
        const bool is_embedding = place.kind == PlaceKind::kEmbedding;
        const model::LinearShape shape = is_embedding ? model::LinearShape{config_.hidden_size, config_.vocab_size}
                                                      : model::LinearShape{config_.vocab_size, config_.hidden_size};
        TRY_ASSIGN((is_embedding ? made_.embedding : made_.head), start_of(place, shape));
        return ok_status();
    }

    // A uniform within the inverse root of the inputs, B zero; of an embedding A zero and B normal.
    Result<model::TrainedPair> start_of(const Place& place, model::LinearShape shape) {
        const std::string module = name_of(place);
        modules_.push_back(module);
        TRY_ASSIGN(const uint32_t rank, peft_.rank_of(module, budget_));
        TRY_ASSIGN(const double scale, peft_.scale_of(module, rank, budget_));
        const bool is_embedding = place.kind == PlaceKind::kEmbedding;
        model::TrainedPair pair{
            .scale = static_cast<float>(scale),
            .a = {tensor_name(place, is_embedding ? TensorRole::kEmbeddingA : TensorRole::kA), {rank, shape.k}, {}},
            .b = {tensor_name(place, is_embedding ? TensorRole::kEmbeddingB : TensorRole::kB), {shape.n, rank}, {}}};
        if (!has_numbers_) return pair;
        pair.a.values.resize(size_t{rank} * shape.k);
        pair.b.values.resize(size_t{shape.n} * rank);
        std::vector<float>& drawn = is_embedding ? pair.b.values : pair.a.values;
        const float bound = 1.0f / std::sqrt(static_cast<float>(shape.k));
        for (size_t i = 0; i < drawn.size(); i += 2) {
            const auto words =
                model::philox({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), n_drawn_, 0},
                              {static_cast<uint32_t>(recipe_.seed), static_cast<uint32_t>(recipe_.seed >> 32)});
            const float u = model::uniform_of(words[0]), v = model::uniform_of(words[1]);
            const float radius = std::sqrt(-2.0f * std::log(u)), angle = 2.0f * std::numbers::pi_v<float> * v;
            const float pair_of[2] = {is_embedding ? radius * std::cos(angle) : (2.0f * u - 1.0f) * bound,
                                      is_embedding ? radius * std::sin(angle) : (2.0f * v - 1.0f) * bound};
            for (size_t j = i; j < std::min(i + 2, drawn.size()); ++j) drawn[j] = pair_of[j - i];
        }
        ++n_drawn_;
        return pair;
    }

    Status add_saved(const Place& place, std::vector<uint64_t> shape) {
        const std::string module = name_of(place);
        bool is_saved = false;
        for (const std::string& end : recipe_.modules_to_save) is_saved |= module.ends_with(end);
        if (!is_saved) return ok_status();
        const bool is_tied_head = place.kind == PlaceKind::kHead && config_.tied_embeddings;
        TRY_ASSIGN(const Tensor* tensor,
                   base_tensor(name_of(is_tied_head ? Place{PlaceKind::kEmbedding} : place) + ".weight"));
        model::TrainedWhole whole;
        switch (place.kind) {
            case PlaceKind::kEmbedding: whole.part = model::TrainedPart::kEmbedding; break;
            case PlaceKind::kHead: whole.part = model::TrainedPart::kHead; break;
            case PlaceKind::kInputNorm: whole.part = model::TrainedPart::kInputNorm; break;
            case PlaceKind::kPostAttentionNorm: whole.part = model::TrainedPart::kPostAttentionNorm; break;
            case PlaceKind::kQNorm: whole.part = model::TrainedPart::kQNorm; break;
            case PlaceKind::kKNorm: whole.part = model::TrainedPart::kKNorm; break;
            case PlaceKind::kFinalNorm: whole.part = model::TrainedPart::kFinalNorm; break;
            case PlaceKind::kPreFeedForwardNorm:
            case PlaceKind::kPostFeedForwardNorm:
            case PlaceKind::kDeltaNorm:
            case PlaceKind::kMambaNorm:
            case PlaceKind::kLinear: return ok_status();
        }
        whole.layer = place.layer;
        whole.weight = {tensor_name(place, TensorRole::kWeight), std::move(shape), {}};
        if (!has_numbers_) {
            made_.wholes.push_back(std::move(whole));
            return ok_status();
        }
        if (tensor->source != nullptr) {
            whole.weight.values.resize(tensor->n_elements());
            TRY(model::decode_rows(*tensor, 0, tensor->shape[0], gpu::ScalarType::kF32,
                                   std::as_writable_bytes(std::span(whole.weight.values))));
        } else {
            whole.weight.values = model::numbers_of(*tensor);
        }
        made_.wholes.push_back(std::move(whole));
        return ok_status();
    }

    Result<const Tensor*> base_tensor(const std::string& name) const {
        const Tensor* tensor = files_ ? files_->find(name) : nullptr;
        if (tensor == nullptr)
            return make_error(
                ErrorCode::kInvalidRequest,
                format("{}: the base's files do not have it, and training begins from its numbers", name));
        return tensor;
    }

    Result<TrainedTensor> row_norms(const Place& place, model::LinearShape shape) const {
        TRY_ASSIGN(const Tensor* tensor, base_tensor(name_of(place) + ".weight"));
        TrainedTensor norms{tensor_name(place, TensorRole::kMagnitude), {shape.n}, {}};
        if (!has_numbers_) return norms;
        std::vector<float> rows(kRowsAtOnce * shape.k);
        for (uint64_t row = 0; row < shape.n; row += kRowsAtOnce) {
            const uint64_t n = std::min(kRowsAtOnce, shape.n - row);
            TRY(model::decode_rows(*tensor, row, n, gpu::ScalarType::kF32,
                                   std::as_writable_bytes(std::span(rows).first(n * shape.k))));
            for (uint64_t i = 0; i < n; ++i) {
                double squares = 0;
                for (uint32_t j = 0; j < shape.k; ++j) squares += double{rows[i * shape.k + j]} * rows[i * shape.k + j];
                norms.values.push_back(static_cast<float>(std::sqrt(squares)));
            }
        }
        return norms;
    }

    // A name that is no module's is a mistake.
    Status check_all_found() const {
        std::vector<std::string> trained;
        for (const model::TrainedTensor* tensor : std::as_const(made_).tensors()) trained.push_back(tensor->name);
        const bool is_one_expression = recipe_.target_modules.size() == 1 && is_expression(recipe_.target_modules[0]);
        const bool is_strict = !has_numbers_;
        if (trained.empty() ||
            (is_strict && is_one_expression && made_.linears.empty() && !made_.embedding && !made_.head))
            return make_error(
                ErrorCode::kInvalidRequest,
                format("target_modules: none of them is a module of the model: expected {}", expected_names(kTargets)),
                "target_modules");
        const auto check = [&](const std::vector<std::string>& names, const char* field,
                               std::span<const PlaceKind> kinds) -> Status {
            for (const std::string& name : names) {
                const bool is_found = (name == "all-linear" && (names.size() == 1 || !is_strict)) ||
                                      (is_expression(name) && !is_strict) ||
                                      std::ranges::any_of(trained, [&](const auto& tensor) {
                                          return tensor.find(name + ".") != std::string::npos;
                                      });
                if (is_found) continue;
                return make_error(ErrorCode::kInvalidRequest,
                                  format("{}: {}: not a module of the model that is trained: expected {}", field,
                                         json_quote_short(name), expected_names(kinds)),
                                  field);
            }
            return ok_status();
        };
        if (!is_one_expression) TRY(check(recipe_.target_modules, "target_modules", kTargets));
        TRY(check(recipe_.modules_to_save, "modules_to_save", kSaved));
        if (is_strict) TRY(check_excluded());
        if (recipe_.bias != BiasKind::kNone && made_.biases.empty())
            return make_error(ErrorCode::kInvalidRequest,
                              "bias: the model has no biases where they are to be trained; leave it at none", "bias");
        return is_strict ? check_patterns() : ok_status();
    }

    Status check_excluded() const {
        if (recipe_.exclude_modules.size() == 1 && is_expression(recipe_.exclude_modules[0])) return ok_status();
        for (const std::string& name : recipe_.exclude_modules) {
            const bool is_found = std::ranges::any_of(all_modules_, [&](const std::string& module) {
                return module == name || module.ends_with("." + name);
            });
            if (is_found) continue;
            return make_error(ErrorCode::kInvalidRequest,
                              format("exclude_modules: {}: not a module of the model: expected {}",
                                     json_quote_short(name), expected_names(kTargets)),
                              "exclude_modules");
        }
        return ok_status();
    }

    // Patterns that fit no module that is trained would silently do nothing.
    Status check_patterns() const {
        RegexBudget budget;  // what is made is not refused for what its checks take
        const auto check = [&](const auto& pattern, const char* field) -> Status {
            for (const auto& entry : pattern.entries) {
                bool is_found = false;
                for (const std::string& module : modules_) {
                    if (is_found) break;
                    TRY_ASSIGN(is_found, entry.regex.full_match(module, budget));
                }
                if (!is_found)
                    return make_error(
                        ErrorCode::kInvalidRequest,
                        format("{}: {}: no module that is trained has such a name", field, json_quote_short(entry.key)),
                        field);
            }
            return ok_status();
        };
        TRY(check(peft_.rank_pattern, "rank_pattern"));
        return check(peft_.alpha_pattern, "alpha_pattern");
    }

    Status check_layers() const {
        if (!recipe_.layers_to_transform) return ok_status();
        for (const int64_t layer : *recipe_.layers_to_transform) {
            if (layer >= 0 && layer < int64_t{config_.n_layers}) continue;
            return make_error(
                ErrorCode::kInvalidRequest,
                format("layers_to_transform: {}: the model has the layers 0 to {}", layer, config_.n_layers - 1),
                "layers_to_transform");
        }
        return ok_status();
    }

    static constexpr std::array kTargets = {PlaceKind::kLinear, PlaceKind::kEmbedding, PlaceKind::kHead};
    static constexpr std::array kSaved = {PlaceKind::kInputNorm, PlaceKind::kPostAttentionNorm, PlaceKind::kQNorm,
                                          PlaceKind::kKNorm,     PlaceKind::kFinalNorm,         PlaceKind::kEmbedding,
                                          PlaceKind::kHead};

    // The last parts of the model's names of such modules.
    std::string expected_names(std::span<const PlaceKind> kinds) const {
        std::vector<std::string> names;
        const auto add = [&](const Place& place) {
            const std::string name = name_of(place);
            names.push_back(name.substr(name.rfind('.') + 1));
        };
        for (const PlaceKind kind : kinds) {
            const bool is_of_head = kind == PlaceKind::kQNorm || kind == PlaceKind::kKNorm;
            if (kind != PlaceKind::kLinear) {
                if (!is_of_head || config_.qk_norm) add({kind});
                continue;
            }
            names.emplace_back("all-linear");
            for (uint32_t linear = 0; linear < kFileModules.size(); ++linear) {
                if (has(linear) && shape_of(config_, 0, kFileModules[linear]).n != 0)
                    add({PlaceKind::kLinear, 0, linear});
            }
        }
        return format("{}", fmt::join(names, ", "));
    }

    const LoraRecipe& recipe_;
    const BaseModel& base_;
    const model::ModelConfig& config_;
    const PeftConfig& peft_;
    RegexBudget budget_;
    std::unique_ptr<const model::ModelFiles> model_files_;
    std::optional<model::TensorFiles> files_;
    const bool has_numbers_;
    uint32_t n_drawn_ = 0;                            // tensors
    std::vector<std::string> all_modules_, modules_;  // the latter have pairs
    model::TrainableAdapter made_;
};

Result<model::TrainableAdapter> start_of(const LoraRecipe& recipe, const BaseModel& base, bool has_numbers) {
    if (recipe.lora_bias && recipe.use_dora)
        return make_error(ErrorCode::kInvalidRequest, "lora_bias: with use_dora there is none, as in PEFT",
                          "lora_bias");
    const auto peft = parse_peft_config(peft_config_of(recipe));
    if (!peft.ok()) {
        constexpr std::string_view kFile = "adapter_config.json: ";
        std::string_view message = peft.error().message;
        if (message.starts_with(kFile)) message.remove_prefix(kFile.size());
        return make_error(ErrorCode::kInvalidRequest, std::string(message), peft.error().param);
    }
    return TrainStart(recipe, base, *peft, has_numbers).make();
}

}  // namespace

Result<model::TrainableAdapter> make_trainable(const LoraRecipe& recipe, const BaseModel& base) {
    return start_of(recipe, base, true);
}

Result<model::TrainableAdapter> trainable_shape(const LoraRecipe& recipe, const BaseModel& base) {
    return start_of(recipe, base, false);
}

}  // namespace lorad::adapters
