#include "adapters/files/tensor_names.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "model/files/tensor_map.h"
#include "proto/base/format.h"

namespace lorad::adapters {

namespace {

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kModel = "model.";
constexpr std::string_view kLayers = "model.layers.";
constexpr std::string_view kSharedExpert = "mlp.shared_expert.", kExperts = "mlp.experts.", kMamba = "mamba.";
constexpr uint32_t kPleModelName = 11;  // in kFileModules
static_assert(kFileModules[kPleModelName].first == model::LinearModule::kPleModel);

// Parts of names that belong to something other than LoRA.
struct NamePart {
    std::string_view part, meaning;
};
constexpr std::array<NamePart, 10> kUnsupportedParts = {{
    {".ia3_l", "IA3"},
    {".vera_lambda_", "VeRA"},
    {".hada_w", "LoHa"},
    {".lokr_w", "LoKr"},
    {".oft_", "OFT"},
    {".boft_", "BOFT"},
    {".lora_E", "AdaLoRA"},
    {".lora_a_scales", "a quantized adapter"},
    {".lora_b_scales", "a quantized adapter"},
    {"prompt_embeddings", "prompt tuning"},
}};

// Parts that wrappers put into names; PEFT would look for such modules in the base, find none, and leave the tensors
// out without a word.
constexpr std::array<NamePart, 3> kWrappers = {{
    {"_orig_mod.", "saved from a compiled model (torch.compile); save the model that it was made of, its _orig_mod"},
    {"_fsdp_wrapped_module.", "saved from a model in FSDP; save its full state"},
    {"_checkpoint_wrapped_module.", "saved from a model with checkpoint wrappers; save the model inside"},
}};

// Ends of names, longest first where one ends another. Between the parts may be the adapter's name, ".default".
struct Suffix {
    std::string_view before, after;
    TensorRole role;
};
constexpr std::array<Suffix, 16> kSuffixes = {{
    {".lora_A", ".weight", TensorRole::kA},
    {".lora_B", ".weight", TensorRole::kB},
    {".lora_B", ".bias", TensorRole::kBBias},
    {".lora_magnitude_vector", ".weight", TensorRole::kMagnitude},
    {".lora_magnitude_vector", "", TensorRole::kMagnitude},
    {".lora_embedding_A", "", TensorRole::kEmbeddingA},
    {".lora_embedding_B", "", TensorRole::kEmbeddingB},
    {".token_adapter.trainable_tokens_delta", "", TensorRole::kTokenRows},
    {".modules_to_save", ".weight", TensorRole::kWeight},
    {".modules_to_save", ".bias", TensorRole::kBias},
    {".original_module", ".weight", TensorRole::kOriginal},
    {".token_adapter.base_layer", ".weight", TensorRole::kBaseWeight},
    {".base_layer", ".weight", TensorRole::kBaseWeight},
    {".base_layer", ".bias", TensorRole::kBias},
    {"", ".weight", TensorRole::kWeight},
    {"", ".bias", TensorRole::kBias},
}};

struct NormName {
    std::string_view name;
    PlaceKind kind;
};
constexpr std::array<NormName, 8> kNorms = {{
    {"pre_feedforward_layernorm", PlaceKind::kPreFeedForwardNorm},
    {"post_feedforward_layernorm", PlaceKind::kPostFeedForwardNorm},
    {"input_layernorm", PlaceKind::kInputNorm},
    {"post_attention_layernorm", PlaceKind::kPostAttentionNorm},
    {"self_attn.q_norm", PlaceKind::kQNorm},
    {"self_attn.k_norm", PlaceKind::kKNorm},
    {"linear_attn.norm", PlaceKind::kDeltaNorm},
    {"mamba.norm", PlaceKind::kMambaNorm},
}};

std::optional<TensorRole> take_suffix(std::string_view& name) {
    for (const Suffix& suffix : kSuffixes) {
        for (const std::string_view adapter : {"", ".default"}) {
            if (suffix.before.empty() && !adapter.empty()) continue;
            std::string_view rest = name;
            bool ends = true;
            for (const std::string_view part : {suffix.after, adapter, suffix.before}) {
                ends = ends && rest.ends_with(part);
                if (ends) rest.remove_suffix(part.size());
            }
            if (!ends) continue;
            name = rest;
            return suffix.role;
        }
    }
    return std::nullopt;
}

// The layer's number as the base writes it; nothing if the text is none. Too large ones give UINT32_MAX.
std::optional<uint32_t> read_layer(std::string_view digits) {
    uint32_t layer = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
    if (digits.empty() || end != digits.data() + digits.size() || (digits.size() > 1 && digits.front() == '0'))
        return std::nullopt;
    return error == std::errc() ? layer : UINT32_MAX;
}

// "mlp.experts.3.up_proj" -> "mlp.experts.#.up_proj" and 3. False: the layer has no expert of that number.
bool take_expert(std::string& module, uint32_t& expert, uint32_t n_experts) {
    if (!module.starts_with(kExperts) || n_experts == 0) return true;
    const size_t end = module.find('.', kExperts.size());
    if (end == std::string::npos) return true;
    const auto number = read_layer(std::string_view(module).substr(kExperts.size(), end - kExperts.size()));
    if (!number) return true;
    if (*number >= n_experts) return false;
    expert = *number;
    module.replace(kExperts.size(), end - kExperts.size(), "#");
    return true;
}

// The place of a module's path, or what is wrong with it.
void find_place(std::string_view path, const model::ModelConfig& config, ParsedName& parsed) {
    if (path == "lm_head" || path == "language_model.lm_head") {
        parsed.place.kind = PlaceKind::kHead;
        return;
    }
    parsed.prefix = model::decoder_prefix_of(path);
    path.remove_prefix(parsed.prefix.size());
    if (path == name_of(model::LinearModule::kPleModel)) {
        parsed.place.linear = kPleModelName;
        if (config.shape(0, model::LinearModule::kPleModel).n != 0) return;
    }
    if (path == "embed_tokens") {
        parsed.place.kind = PlaceKind::kEmbedding;
        return;
    }
    if (path == "norm") {
        parsed.place.kind = PlaceKind::kFinalNorm;
        return;
    }
    constexpr std::string_view kOwnLayers = kLayers.substr(kModel.size());
    const bool in_layers = path.starts_with(kOwnLayers);
    if (in_layers) path.remove_prefix(kOwnLayers.size());
    const size_t dot = path.find('.');
    const auto layer = in_layers && dot != std::string_view::npos ? read_layer(path.substr(0, dot)) : std::nullopt;
    if (!layer) {
        parsed.expected = format("a linear layer under {}N, the embedding, the output layer or a norm", kLayers);
        parsed.found = "a module the base does not have there";
        return;
    }
    if (*layer >= config.n_layers) {
        parsed.expected = format("layers 0 to {}", config.n_layers - 1);
        parsed.found = format("layer {}", path.substr(0, dot));
        return;
    }
    parsed.place.layer = *layer;
    std::string module(path.substr(dot + 1));
    if (!take_expert(module, parsed.place.expert, config.layer(*layer).ffn.experts.n)) {
        parsed.expected = format("experts 0 to {}", config.layer(*layer).ffn.experts.n - 1);
        parsed.found = "an expert of a higher number";
        return;
    }
    const auto* linear = std::ranges::find(kFileModules, std::string_view(module), &FileModule::name);
    if (linear != kFileModules.end() && shape_of(config, *layer, *linear).n != 0) {
        parsed.place.linear = static_cast<uint32_t>(linear - kFileModules.begin());
        return;
    }
    const auto* norm = std::ranges::find(kNorms, std::string_view(module), &NormName::name);
    if (norm != kNorms.end() && has_norm(config.layer(*layer), norm->kind)) {
        parsed.place.kind = norm->kind;
        return;
    }
    const bool is_norm = module.ends_with("norm");
    parsed.expected = is_norm ? format("a norm of {} that adapters may replace", config.architecture)
                              : format("a linear layer of {}", config.architecture);
    parsed.found = format("{}, which the base does not have", module);
}

// Returns the reason why a part of the model cannot have a role; empty: it can.
std::string_view refused_role(PlaceKind kind, TensorRole role) {
    switch (kind) {
        case PlaceKind::kLinear:
            switch (role) {
                case TensorRole::kWeight:
                case TensorRole::kOriginal:
                case TensorRole::kBaseWeight: return "a fully trained linear layer";
                case TensorRole::kEmbeddingA:
                case TensorRole::kEmbeddingB:
                case TensorRole::kTokenRows: return "a part of an embedding on a linear layer";
                default: return "";
            }
        case PlaceKind::kEmbedding:
            switch (role) {
                case TensorRole::kEmbeddingA:
                case TensorRole::kEmbeddingB:
                case TensorRole::kTokenRows:
                case TensorRole::kWeight:
                case TensorRole::kOriginal:
                case TensorRole::kBaseWeight: return "";
                case TensorRole::kMagnitude: return "DoRA on the embedding";
                default: return "a part of a linear layer on the embedding";
            }
        case PlaceKind::kHead:
            switch (role) {
                case TensorRole::kA:
                case TensorRole::kB:
                case TensorRole::kBBias:
                case TensorRole::kTokenRows:
                case TensorRole::kWeight:
                case TensorRole::kOriginal:
                case TensorRole::kBaseWeight: return "";
                case TensorRole::kMagnitude: return "DoRA on the output layer";
                case TensorRole::kBias: return "a bias of the output layer";
                default: return "a part of an embedding on the output layer";
            }
        default:
            return role == TensorRole::kWeight || role == TensorRole::kOriginal
                       ? ""
                       : "something other than the weights of a norm";
    }
}

std::string_view suffix_of(TensorRole role) {
    switch (role) {
        case TensorRole::kA: return ".lora_A.weight";
        case TensorRole::kB: return ".lora_B.weight";
        case TensorRole::kBBias: return ".lora_B.bias";
        case TensorRole::kMagnitude: return ".lora_magnitude_vector";
        case TensorRole::kBias: return ".bias";
        case TensorRole::kEmbeddingA: return ".lora_embedding_A";
        case TensorRole::kEmbeddingB: return ".lora_embedding_B";
        case TensorRole::kTokenRows: return ".token_adapter.trainable_tokens_delta";
        case TensorRole::kWeight: return ".weight";
        case TensorRole::kBaseWeight: return ".base_layer.weight";
        case TensorRole::kOriginal: return ".original_module.weight";
    }
    return "";
}

}  // namespace

// Mamba 2 shares the modules of convolutions under names of its own: true for the names that files of this mixer have.
static bool is_of_mixer(const FileModule& module, model::Mixer mixer) {
    const bool is_shared =
        module.first == model::LinearModule::kConvIn || module.first == model::LinearModule::kConvOut;
    return !is_shared || module.name.starts_with(kMamba) == (mixer == model::Mixer::kMamba);
}

bool has_norm(const model::LayerFacts& layer, PlaceKind kind) {
    const model::AttentionFacts& attention = layer.attention;
    const bool norms_heads = layer.mixer == model::Mixer::kAttention && attention.qk_norm != model::QkNorm::kNone;
    switch (kind) {
        case PlaceKind::kInputNorm: return layer.mixer_norm.before;
        case PlaceKind::kPostAttentionNorm: return layer.mixer_norm.after || layer.ffn_norm.before;
        case PlaceKind::kPreFeedForwardNorm: return layer.mixer_norm.after && layer.ffn_norm.before;
        case PlaceKind::kPostFeedForwardNorm: return layer.ffn_norm.after;
        case PlaceKind::kQNorm: return norms_heads;
        case PlaceKind::kKNorm: return norms_heads && !attention.kv_from;
        case PlaceKind::kDeltaNorm: return layer.mixer == model::Mixer::kDeltaNet;
        case PlaceKind::kMambaNorm: return layer.mixer == model::Mixer::kMamba;
        default: return false;
    }
}

uint32_t file_module_of(model::LinearModule module, model::Mixer mixer) {
    const auto* found = std::ranges::find_if(
        kFileModules, [&](const FileModule& of) { return !of.fused && of.first == module && is_of_mixer(of, mixer); });
    return static_cast<uint32_t>(found - kFileModules.begin());
}

bool is_norm(PlaceKind kind) { return kind >= PlaceKind::kInputNorm; }

std::string name_of(const Place& place, std::string_view prefix) {
    if (prefix != kModel) {
        const std::string name = name_of(place);
        return name.starts_with(kModel) ? std::string(prefix) + name.substr(kModel.size()) : name;
    }
    if (place.kind == PlaceKind::kLinear && place.linear == kPleModelName)
        return format("{}{}", kModel, kFileModules[kPleModelName].name);
    switch (place.kind) {
        case PlaceKind::kEmbedding: return "model.embed_tokens";
        case PlaceKind::kHead: return "lm_head";
        case PlaceKind::kFinalNorm: return "model.norm";
        case PlaceKind::kLinear: {
            std::string module(kFileModules[place.linear].name);
            if (place.linear >= kExpertGate) module.replace(kExperts.size(), 1, std::to_string(place.expert));
            return format("{}{}.{}", kLayers, place.layer, module);
        }
        default: break;
    }
    return format("{}{}.{}", kLayers, place.layer, std::ranges::find(kNorms, place.kind, &NormName::kind)->name);
}

std::string bias_tensor_name(const Place& place, bool has_pair) {
    std::string name = tensor_name(place, TensorRole::kBias);
    if (has_pair) name.insert(name.rfind('.'), ".base_layer");
    return name;
}

std::string tensor_name(const Place& place, TensorRole role) {
    return format("{}{}{}", kPrefix, name_of(place), suffix_of(role));
}

ParsedName parse_tensor_name(std::string_view name, const model::ModelConfig& config) {
    ParsedName parsed;
    for (const NamePart& known : kUnsupportedParts) {
        if (name.find(known.part) == std::string_view::npos) continue;
        parsed.expected = "LoRA";
        parsed.found = format("{}, which is not supported", known.meaning);
        parsed.unsupported = true;
        return parsed;
    }
    for (const NamePart& wrapper : kWrappers) {
        if (name.find(wrapper.part) == std::string_view::npos) continue;
        parsed.expected = "names of the model itself";
        parsed.found = format("{} in it: {}", wrapper.part, wrapper.meaning);
        return parsed;
    }
    if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
    if (model::is_other_tower(name)) {
        parsed.is_elsewhere = true;
        return parsed;
    }
    const std::optional<TensorRole> role = take_suffix(name);
    if (!role) {
        parsed.expected = "a name ending in .lora_A.weight or .lora_B.weight, or another that PEFT writes";
        parsed.found = "another name";
        return parsed;
    }
    parsed.role = *role;
    find_place(model::name_from_files(name, config), config, parsed);
    if (!parsed.expected.empty()) return parsed;
    if (const std::string_view refused = refused_role(parsed.place.kind, *role); !refused.empty()) {
        parsed.expected = "LoRA, or a fully trained embedding, output layer or norm";
        parsed.found = format("{}, which is not supported", refused);
        parsed.unsupported = true;
    }
    return parsed;
}

model::LinearShape shape_of(const model::ModelConfig& config, uint32_t layer, const FileModule& module) {
    // A layer with experts has its dense feed-forward, if any, beside them, under a name that others do not have.
    const bool is_dense = module.first >= model::LinearModule::kGate && module.first <= model::LinearModule::kDown;
    const bool is_beside_experts = config.layer(layer).ffn.kind == model::FeedForward::kExperts;
    if (is_dense && module.name.starts_with(kSharedExpert) != is_beside_experts) return {};
    // such a model's files never fuse these, and mean the experts by that name
    if (is_dense && module.fused && is_beside_experts && !config.fused_gate_up) return {};
    if (!is_of_mixer(module, config.layer(layer).mixer)) return {};
    const bool is_parameter =
        module.name == kFileModules[kExpertsFirst].name || module.name == kFileModules[kExpertsFirst + 1].name;
    if (is_parameter) return {};
    model::LinearShape shape = config.shape(layer, module.first);
    for (auto part = static_cast<uint8_t>(module.first) + 1; part <= static_cast<uint8_t>(module.last); ++part) {
        shape.n += config.shape(layer, static_cast<model::LinearModule>(part)).n;
    }
    return shape;
}

}  // namespace lorad::adapters
