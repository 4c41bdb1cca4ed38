#include "adapters/check.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "proto/base/format.h"
#include "proto/json.h"

namespace lorad::adapters {

namespace {

using model::LinearModule;
using model::ModelConfig;
using model::Tensor;

constexpr size_t kMisfitsShown = 20;
constexpr size_t kMessageBytesMax = 8000;

// A matrix as adapter files name it: the seven linear layers and the two fused ones.
struct FileModule {
    std::string_view name;
    bool fused = false;
    LinearModule first, last;  // fused: rows of these, in order
};
constexpr std::array<FileModule, 9> kFileModules = {{
    {"self_attn.q_proj", false, LinearModule::kQ, LinearModule::kQ},
    {"self_attn.k_proj", false, LinearModule::kK, LinearModule::kK},
    {"self_attn.v_proj", false, LinearModule::kV, LinearModule::kV},
    {"self_attn.o_proj", false, LinearModule::kO, LinearModule::kO},
    {"mlp.gate_proj", false, LinearModule::kGate, LinearModule::kGate},
    {"mlp.up_proj", false, LinearModule::kUp, LinearModule::kUp},
    {"mlp.down_proj", false, LinearModule::kDown, LinearModule::kDown},
    {"self_attn.qkv_proj", true, LinearModule::kQ, LinearModule::kV},
    {"mlp.gate_up_proj", true, LinearModule::kGate, LinearModule::kUp},
}};
constexpr size_t kQkv = 7, kGateUp = 8;
constexpr size_t kQ = 0, kGate = 4;

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kLayers = "model.layers.";

// Parts of names that belong to something other than plain LoRA on a linear layer.
struct NamePart {
    std::string_view part, meaning;
};
constexpr std::array<NamePart, 15> kUnsupportedParts = {{
    {".lora_magnitude_vector", "a DoRA magnitude"},
    {".lora_embedding_", "LoRA on the embedding"},
    {".trainable_tokens_", "trained token embeddings"},
    {".base_layer.", "weights of the base model saved along"},
    {".modules_to_save.", "a fully trained module"},
    {".lora_B.bias", "a bias on lora_B"},
    {"lm_head.lora_", "LoRA on the output layer"},
    {"lm_head.", "a fully trained output layer"},
    {"embed_tokens.", "a fully trained embedding"},
    {".bias", "a trained bias"},
    {"norm.weight", "a trained norm"},
    {".ia3_l", "IA3"},
    {".vera_lambda_", "VeRA"},
    {".hada_w", "LoHa"},
    {".lokr_w", "LoKr"},
}};

struct Found {
    const Tensor* a = nullptr;
    const Tensor* b = nullptr;
};

struct ParsedName {
    uint32_t layer = 0;
    size_t module = 0;  // in kFileModules
    bool is_a = false;
};

std::string module_path(uint64_t layer, size_t module) {
    return format("{}{}.{}", kLayers, layer, kFileModules[module].name);
}

std::string tensor_name(uint64_t layer, size_t module, char which) {
    return format("{}{}.lora_{}.weight", kPrefix, module_path(layer, module), which);
}

// n and k of a module under its file name.
model::LinearShape shape_of(const ModelConfig& config, const FileModule& module) {
    model::LinearShape shape = config.shape(module.first);
    for (auto part = static_cast<uint8_t>(module.first) + 1; part <= static_cast<uint8_t>(module.last); ++part) {
        shape.n += config.shape(static_cast<LinearModule>(part)).n;
    }
    return shape;
}

// Where a value that is not finite sits, as element index.
std::optional<uint64_t> first_non_finite(const Tensor& tensor) {
    const auto scan = [&]<typename Word>(Word exponent) -> std::optional<uint64_t> {
        for (uint64_t begin = 0; begin < tensor.data.size(); begin += 4096) {
            Word words[4096 / sizeof(Word)] = {};
            const size_t bytes = std::min<size_t>(4096, tensor.data.size() - begin);
            std::memcpy(words, tensor.data.data() + begin, bytes);
            bool any = false;
            for (const Word word : words) any |= (word & exponent) == exponent;
            if (!any) continue;
            for (size_t i = 0; i < bytes / sizeof(Word); ++i) {
                if ((words[i] & exponent) == exponent) return begin / sizeof(Word) + i;
            }
        }
        return std::nullopt;
    };
    switch (tensor.dtype) {
        case model::DType::kF32: return scan(uint32_t{0x7f800000});
        case model::DType::kF16: return scan(uint16_t{0x7c00});
        case model::DType::kBF16: return scan(uint16_t{0x7f80});
        default: return std::nullopt;
    }
}

// Collects what does not fit while the plan is made.
class Planner {
  public:
    Planner(const PeftConfig& peft, std::span<const Tensor> tensors, const ModelConfig& config)
        : peft_(peft), tensors_(tensors), config_(config) {}

    Result<std::vector<LayerPlan>> plan() {
        for (const Tensor& tensor : tensors_) sort_in(tensor);
        TRY(compare_with_targets());
        std::vector<LayerPlan> layers(config_.n_layers);
        for (const auto& [place, found] : found_) {
            TRY(plan_module(place.first, place.second, found, layers[place.first]));
        }
        if (found_.empty() && misfits_.empty()) {
            misfit(std::string(kPeftFile), "tensors lora_A and lora_B of linear layers", "none");
        }
        if (!misfits_.empty()) return misfit_error(std::move(misfits_));
        return layers;
    }

  private:
    void misfit(std::string tensor, std::string expected, std::string found, bool unsupported = false) {
        misfits_.push_back({std::move(tensor), std::move(expected), std::move(found), unsupported});
    }

    // Puts a tensor to its module, or says why it has none.
    void sort_in(const Tensor& tensor) {
        for (const NamePart& known : kUnsupportedParts) {
            if (tensor.name.find(known.part) == std::string::npos) continue;
            misfit(tensor.name, "LoRA on linear layers", format("{}, which is not supported", known.meaning), true);
            return;
        }
        std::string_view name = tensor.name;
        if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
        ParsedName parsed;
        bool has_kind = false;
        for (const bool is_a : {true, false}) {
            for (const std::string_view infix : {"", ".default"}) {
                const std::string suffix = format(".lora_{}{}.weight", is_a ? 'A' : 'B', infix);
                if (has_kind || !name.ends_with(suffix)) continue;
                name.remove_suffix(suffix.size());
                parsed.is_a = is_a;
                has_kind = true;
            }
        }
        if (!has_kind) return misfit(tensor.name, "a name ending in .lora_A.weight or .lora_B.weight", "another name");
        if (!name.starts_with(kLayers)) {
            return misfit(tensor.name, format("a linear layer under {}N", kLayers), "a module the base does not have there");
        }
        name.remove_prefix(kLayers.size());
        const size_t dot = name.find('.');
        const std::string_view digits = name.substr(0, dot);
        const bool is_number = !digits.empty() && digits.find_first_not_of("0123456789") == std::string_view::npos;
        if (dot == std::string_view::npos || !is_number) {
            return misfit(tensor.name, format("a linear layer under {}N", kLayers), "a module the base does not have there");
        }
        const uint64_t layer = digits.size() < 10 ? std::stoull(std::string(digits)) : UINT64_MAX;
        if (layer >= config_.n_layers) {
            return misfit(tensor.name, format("layers 0 to {}", config_.n_layers - 1), format("layer {}", digits));
        }
        const std::string_view module = name.substr(dot + 1);
        const auto known = std::find_if(kFileModules.begin(), kFileModules.end(),
                                        [&](const FileModule& candidate) { return candidate.name == module; });
        if (known == kFileModules.end()) {
            return misfit(tensor.name, format("a linear layer of {}", config_.architecture),
                          format("{}, which the base does not have", module));
        }
        parsed.layer = static_cast<uint32_t>(layer);
        parsed.module = static_cast<size_t>(known - kFileModules.begin());
        Found& found = found_[{parsed.layer, parsed.module}];
        const Tensor*& place = parsed.is_a ? found.a : found.b;
        if (place != nullptr) return misfit(tensor.name, "one tensor for this matrix", format("also {}", place->name));
        place = &tensor;
    }

    bool file_has(size_t module) const {
        return std::any_of(found_.begin(), found_.end(), [&](const auto& entry) { return entry.first.second == module; });
    }

    // The names under which the file's modules are looked for: fused or split per group, as the file has them.
    std::vector<size_t> names_of_group(size_t fused, size_t first, size_t last, bool base_is_fused) const {
        bool has_split = false;
        for (size_t module = first; module <= last; ++module) has_split |= file_has(module);
        const bool has_fused = file_has(fused);
        std::vector<size_t> names;
        if (has_fused || (!has_split && base_is_fused)) names.push_back(fused);
        if (has_split || (!has_fused && !base_is_fused)) {
            for (size_t module = first; module <= last; ++module) names.push_back(module);
        }
        return names;
    }

    // What the config names must be in the file, and the other way round.
    Status compare_with_targets() {
        if (peft_.target_modules.kind == ModuleSelector::Kind::kNames) {
            for (const std::string_view module : {"lm_head", "model.embed_tokens"}) {
                TRY_ASSIGN(const std::optional<bool> targeted, peft_.targets(module, budget_));
                if (targeted.value_or(false)) {
                    misfit(format("target_modules: {}", module), "linear layers of the decoder",
                           "LoRA on the embedding or output layer, which is not supported", true);
                }
            }
        }
        std::vector<size_t> modules = names_of_group(kQkv, kQ, kQ + 2, config_.fused_qkv);
        for (const size_t module : names_of_group(kGateUp, kGate, kGate + 1, config_.fused_gate_up)) {
            modules.push_back(module);
        }
        modules.push_back(3);
        modules.push_back(6);
        for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
            for (const size_t module : modules) {
                TRY_ASSIGN(const std::optional<bool> targeted, peft_.targets(module_path(layer, module), budget_));
                const auto found = found_.find({layer, module});
                if (!targeted || *targeted == (found != found_.end())) continue;
                if (*targeted) {
                    misfit(tensor_name(layer, module, 'A'), "a tensor, as target_modules names the module", "none");
                } else {
                    const Tensor* tensor = found->second.a ? found->second.a : found->second.b;
                    misfit(tensor->name, "a module that target_modules and layers_to_transform name",
                           "one that they leave out");
                }
            }
        }
        return ok_status();
    }

    bool check_matrix(const Tensor* tensor, const std::string& name, uint64_t rows, uint64_t columns) {
        const std::array<uint64_t, 2> shape{rows, columns};
        if (tensor == nullptr) {
            misfit(name, model::shape_text(shape), "none");
            return false;
        }
        if (!model::is_weight_type(tensor->dtype)) {
            misfit(tensor->name, "type F32, F16 or BF16", std::string(model::name_of(tensor->dtype)));
            return false;
        }
        if (!std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end())) {
            misfit(tensor->name, model::shape_text(shape), model::shape_text(tensor->shape));
            return false;
        }
        if (const std::optional<uint64_t> bad = first_non_finite(*tensor)) {
            misfit(tensor->name, "finite numbers",
                   format("infinity or NaN at [{}, {}]", *bad / columns, *bad % columns));
            return false;
        }
        return true;
    }

    Status plan_module(uint32_t layer, size_t index, const Found& found, LayerPlan& plan) {
        const FileModule& module = kFileModules[index];
        const model::LinearShape shape = shape_of(config_, module);
        const std::string path = module_path(layer, index);
        TRY_ASSIGN(const uint32_t rank, peft_.rank_of(path, budget_));
        TRY_ASSIGN(const double scale, peft_.scale_of(path, rank, budget_));
        const bool a_fits = check_matrix(found.a, tensor_name(layer, index, 'A'), rank, shape.k);
        const bool b_fits = check_matrix(found.b, tensor_name(layer, index, 'B'), shape.n, rank);
        if (!a_fits || !b_fits) return ok_status();
        uint32_t row = 0;
        for (auto part = static_cast<uint8_t>(module.first); part <= static_cast<uint8_t>(module.last); ++part) {
            const model::LinearShape part_shape = config_.shape(static_cast<LinearModule>(part));
            ModulePlan& entry = plan[part];
            if (entry.a != nullptr) {
                misfit(found.a->name, "either fused or split names for a matrix", format("also {}", entry.a->name));
                return ok_status();
            }
            entry = {.a = found.a,
                     .b = found.b,
                     .b_row_begin = row,
                     .n = part_shape.n,
                     .k = part_shape.k,
                     .rank = rank,
                     .scale = static_cast<float>(scale)};
            row += part_shape.n;
        }
        return ok_status();
    }

    const PeftConfig& peft_;
    std::span<const Tensor> tensors_;
    const ModelConfig& config_;
    RegexBudget budget_;
    std::map<std::pair<uint32_t, size_t>, Found> found_;  // by layer and index in kFileModules
    std::vector<Misfit> misfits_;
};

// Names come from the files: a message stays one line of bounded length whatever they hold.
Error one_line(Error error) {
    if (error.message.size() > kMessageBytesMax) {
        error.message.resize(kMessageBytesMax);
        error.message += "...";
    }
    error.message = replace_invalid_utf8(error.message);
    for (char& c : error.message) {
        if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) c = '?';
    }
    if (error.param.size() > kMessageBytesMax) error.param.clear();
    return error;
}

}  // namespace

Error misfit_error(std::vector<Misfit> misfits) {
    const bool only_unsupported =
        std::all_of(misfits.begin(), misfits.end(), [](const Misfit& misfit) { return misfit.unsupported; });
    // What is broken before what is merely not supported.
    std::stable_partition(misfits.begin(), misfits.end(), [](const Misfit& misfit) { return !misfit.unsupported; });
    std::string message = format("the adapter does not fit the base model, {} problem{}", misfits.size(),
                                 misfits.size() == 1 ? "" : "s");
    for (size_t i = 0; i < std::min(misfits.size(), kMisfitsShown); ++i) {
        message += format("{} {}: expected {}, found {}", i == 0 ? ":" : ";", misfits[i].tensor, misfits[i].expected,
                          misfits[i].found);
    }
    if (misfits.size() > kMisfitsShown) message += format("; and {} more", misfits.size() - kMisfitsShown);
    return make_error(only_unsupported ? ErrorCode::kAdapterUnsupported : ErrorCode::kAdapterInvalid, std::move(message));
}

Result<std::vector<LayerPlan>> plan_adapter(const PeftConfig& peft, std::span<const Tensor> tensors,
                                            const ModelConfig& config) {
    return Planner(peft, tensors, config).plan();
}

namespace {

Result<std::unique_ptr<CheckedAdapter>> check_source(AdapterSource source, const BaseModel& base) {
    if (source.kind != AdapterKind::kPeft) {
        return make_error(ErrorCode::kAdapterUnsupported, format("{} adapters are not supported", name_of(source.kind)));
    }
    auto adapter = std::make_unique<CheckedAdapter>();
    adapter->source = std::move(source);
    TRY_ASSIGN(adapter->peft, parse_peft_config(adapter->source.file(kConfigFile).text()));
    auto tensors = model::parse_safetensors(adapter->source.file(kPeftFile).span(), ErrorCode::kAdapterInvalid);
    if (!tensors.ok()) {
        Error error = std::move(tensors).error();
        error.message = format("{}: {}", kPeftFile, error.message);
        return error;
    }
    adapter->tensors = std::move(tensors).value();
    TRY_ASSIGN(adapter->layers, plan_adapter(adapter->peft, adapter->tensors, base.config));
    for (const LayerPlan& layer : adapter->layers) {
        for (const ModulePlan& module : layer) {
            adapter->rank_max = std::max(adapter->rank_max, module.rank);
            adapter->n_modules += module.a != nullptr;
        }
    }
    return adapter;
}

}  // namespace

Result<std::unique_ptr<CheckedAdapter>> check_adapter(AdapterSource source, const BaseModel& base) {
    auto adapter = check_source(std::move(source), base);
    if (!adapter.ok()) return one_line(std::move(adapter).error());
    return adapter;
}

Result<std::unique_ptr<CheckedAdapter>> check_adapter(const std::filesystem::path& path, const BaseModel& base) {
    Result<AdapterSource> source = read_adapter_source(path);
    if (!source.ok()) return one_line(std::move(source).error());
    return check_adapter(std::move(source).value(), base);
}

}  // namespace lorad::adapters
