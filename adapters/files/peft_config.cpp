#include "adapters/files/peft_config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "adapters/files/source.h"
#include "model/weights/lora_table.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::adapters {

namespace {

// Fields that leave the result of a trained LoRA as it is, whatever they hold. *_config of initialisations are here
// because init_lora_weights says whether they were used; fan_in_fan_out because PEFT resets it for the linear layers of
// these models.
constexpr std::array<std::string_view, 16> kWithoutEffect = {"auto_mapping",      "base_model_name_or_path",
                                                             "corda_config",      "eva_config",
                                                             "fan_in_fan_out",    "inference_mode",
                                                             "loftq_config",      "lora_dropout",
                                                             "lora_ga_config",    "megatron_core",
                                                             "merge_weights",     "peft_version",
                                                             "qalora_group_size", "revision",
                                                             "runtime_config",    "task_type"};

// Fields that are read below.
constexpr std::array<std::string_view, 20> kRead = {"peft_type",
                                                    "r",
                                                    "lora_alpha",
                                                    "use_rslora",
                                                    "bias",
                                                    "rank_pattern",
                                                    "alpha_pattern",
                                                    "target_modules",
                                                    "exclude_modules",
                                                    "layers_to_transform",
                                                    "layers_pattern",
                                                    "init_lora_weights",
                                                    "use_dora",
                                                    "lora_bias",
                                                    "modules_to_save",
                                                    "ensure_weight_tying",
                                                    "trainable_token_indices",
                                                    "alora_invocation_tokens",
                                                    "invocation_string",
                                                    "target_parameters"};

// The user's name for a field, for the refusal.
struct Variant {
    std::string_view field, meaning;
};
constexpr std::array<Variant, 9> kVariants = {{
    {"use_qalora", "QALoRA"},
    {"use_bdlora", "BD-LoRA"},
    {"arrow_config", "Arrow routing"},
    {"layer_replication", "repeated layers"},
    {"megatron_config", "Megatron layers"},
    {"kasa_config", "KaSA"},
    {"velora_config", "VeLoRA"},
    {"monteclora_config", "MonteCLoRA"},
    {"nvfp4_merge_aware",
     "trained to be merged and rounded to NVFP4, and another model unmerged; merge it by the program that trained it"},
}};

// Other methods by peft_type, as people call them.
constexpr std::array<Variant, 14> kOtherMethods = {{
    {"IA3", "IA3, which scales activations"},
    {"VERA", "VeRA, which shares random matrices"},
    {"LOHA", "LoHa, a Hadamard product"},
    {"LOKR", "LoKr, a Kronecker product"},
    {"OFT", "OFT, an orthogonal transform"},
    {"BOFT", "BOFT, an orthogonal transform"},
    {"ADALORA", "AdaLoRA"},
    {"PROMPT_TUNING", "prompt tuning"},
    {"P_TUNING", "p-tuning"},
    {"PREFIX_TUNING", "prefix tuning"},
    {"TRAINABLE_TOKENS", "trained tokens without LoRA"},
    {"XLORA", "X-LoRA"},
    {"VBLORA", "VB-LoRA"},
    {"FOURIERFT", "FourierFT"},
}};

template <size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

// null, false, 0, "", [] and {}: nobody asked for anything.
bool is_empty(const JsonValue& value) {
    switch (value.type()) {
        case JsonType::kNull: return true;
        case JsonType::kBool:
        case JsonType::kInteger:
        case JsonType::kNumber: return value.dump() == "false" || (value.is_number() && *value.as_number() == 0.0);
        case JsonType::kString: return value.as_string()->empty();
        case JsonType::kArray:
        case JsonType::kObject: return value.size() == 0;
    }
    return false;
}

// Initialisations by what is left of the base weights. Those that change them are plain LoRA once PEFT has converted
// the adapter, and the field says true then.
constexpr std::array<std::string_view, 6> kKeepBaseWeights = {"gaussian", "eva", "orthogonal", "mica", "true", "false"};
constexpr std::array<std::string_view, 4> kChangeBaseWeights = {"olora", "loftq", "lora_ga", "lora-ga"};
constexpr std::array<std::string_view, 2> kChangeBaseWeightsPrefixes = {"pissa", "corda"};  // "pissa_niter_16"

std::string lower_case(std::string_view text) {
    std::string lower(text);
    for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    return lower;
}

// Why an initialisation is refused; empty: it is not.
std::string_view refused_init(std::string_view init) {
    const std::string lower = lower_case(init);
    if (contains(kKeepBaseWeights, lower)) return {};
    const bool changes = contains(kChangeBaseWeights, lower) ||
                         std::ranges::any_of(kChangeBaseWeightsPrefixes,
                                             [&](std::string_view prefix) { return lower.starts_with(prefix); });
    return changes ? "it changes the base weights; convert the adapter to plain LoRA when saving, by "
                     "path_initial_model_for_weight_conversion"
                   : "an initialisation that lorad does not know; where it leaves the base weights as they are, true "
                     "says the same";
}

Status check_supported(const JsonValue& root) {
    std::vector<std::string> refused;
    for (const JsonMember& member : *root.as_object()) {
        if (contains(kWithoutEffect, member.key) || contains(kRead, member.key) || is_empty(member.value)) continue;
        const auto variant = std::find_if(kVariants.begin(), kVariants.end(),
                                          [&](const Variant& known) { return known.field == member.key; });
        refused.push_back(variant == kVariants.end() ? format("{} = {} (a field that lorad does not know)", member.key,
                                                              member.value.describe())
                                                     : format("{} ({})", member.key, variant->meaning));
    }
    if (!root.has("alora_invocation_tokens") && root.find("invocation_string")) {
        refused.push_back("invocation_string (an activated LoRA of an old form; alora_invocation_tokens say it)");
    }
    if (const auto init = root.find("init_lora_weights"); init && init->is_string()) {
        const std::string_view kind = *init->as_string();
        if (const std::string_view why = refused_init(kind); !why.empty()) {
            refused.push_back(format("init_lora_weights = {} ({})", json_quote_short(kind), why));
        }
    } else if (init && !init->is_bool()) {
        return init->error(format("expected true, false or a name, found {}", init->describe()));
    }
    if (refused.empty()) return ok_status();
    std::string list;
    for (const std::string& item : refused) list += (list.empty() ? "" : "; ") + item;
    return make_error(ErrorCode::kAdapterUnsupported, format("{}: not supported: {}", kConfigFile, list));
}

Error at_field(const JsonValue& value, const Error& error) {
    Error placed = value.error(error.message);
    placed.code = error.code;
    return placed;
}

Result<std::vector<int64_t>> read_integers(const JsonValue& value) {
    std::vector<int64_t> integers;
    TRY_ASSIGN(const std::vector<JsonValue> items, value.as_array());
    for (const JsonValue& item : items) {
        TRY_ASSIGN(const int64_t integer, item.as_int());
        integers.push_back(integer);
    }
    return integers;
}

// Lists name modules; the largest models have a thousand, and each entry may cost an expression.
constexpr size_t kListMax = 8192, kPatternsMax = 2048;
Status check_length(const JsonValue& list, size_t max) {
    if (list.size() <= max) return ok_status();
    return list.error(format("expected at most {} entries, found {}", max, list.size()));
}

bool is_in_names(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
}

// Everything beyond A and B on linear layers.
Status parse_variants(const JsonValue& root, PeftConfig& config) {
    TRY_ASSIGN(config.use_dora, root.bool_or("use_dora", false));
    TRY_ASSIGN(config.lora_bias, root.bool_or("lora_bias", false));
    TRY_ASSIGN(config.ensure_weight_tying, root.bool_or("ensure_weight_tying", false));
    if (config.use_dora && config.lora_bias) {
        return root.error("use_dora and lora_bias exclude each other");
    }
    TRY_ASSIGN(const std::string_view bias, root.string_or("bias", "none"));
    if (bias != "none" && bias != "all" && bias != "lora_only") {
        return root.require("bias")->error(format("expected none, all or lora_only, found {}", json_quote_short(bias)));
    }
    config.bias = bias == "none" ? BiasKind::kNone : bias == "all" ? BiasKind::kAll : BiasKind::kLoraOnly;
    if (const auto modules = root.find("modules_to_save")) {
        TRY(check_length(*modules, kListMax));
        TRY_ASSIGN(const std::vector<JsonValue> items, modules->as_array());
        for (const JsonValue& item : items) {
            TRY_ASSIGN(const std::string_view name, item.as_string());
            if (name.empty()) return item.error("expected the name of a module, found an empty string");
            config.modules_to_save.emplace_back(name);
            if (std::ranges::all_of(name, is_in_names)) continue;
            // PEFT puts it into an expression as it is. One that is none names no module, which is told later.
            Result<Regex> regex = Regex::compile(format("(^|.*\\.){}($|\\..*)", name));
            if (regex.ok()) config.saved_patterns.push_back(std::move(regex).value());
        }
    }
    if (const auto tokens = root.find("trainable_token_indices")) {
        if (tokens->is_object()) {
            for (const JsonMember& member : *tokens->as_object()) {
                TRY_ASSIGN(std::vector<int64_t> indices, read_integers(member.value));
                if (!indices.empty()) config.token_indices.push_back({std::string(member.key), std::move(indices)});
            }
        } else {
            TRY_ASSIGN(std::vector<int64_t> indices, read_integers(*tokens));
            if (!indices.empty()) config.token_indices.push_back({"embed_tokens", std::move(indices)});
        }
    }
    if (const auto tokens = root.find("alora_invocation_tokens")) {
        TRY_ASSIGN(config.invocation_tokens, read_integers(*tokens));
    }
    return ok_status();
}

Result<ModuleSelector> parse_selector(const JsonValue& root, std::string_view key) {
    ModuleSelector selector;
    const auto value = root.find(key);
    if (!value) return selector;
    if (value->is_array()) {
        selector.kind = ModuleSelector::Kind::kNames;
        TRY(check_length(*value, kListMax));
        for (const JsonValue& item : *value->as_array()) {
            TRY_ASSIGN(const std::string_view name, item.as_string());
            selector.names.emplace_back(name);
        }
        if (selector.names.empty() && key == "exclude_modules") selector.kind = ModuleSelector::Kind::kUnset;
        return selector;
    }
    if (!value->is_string())
        return value->error(format("expected string or array of strings, found {}", value->describe()));
    const std::string_view pattern = *value->as_string();
    if (key == "exclude_modules" && pattern.empty()) return selector;
    // PEFT compares without regard to case.
    if (lower_case(pattern) == "all-linear") {
        selector.kind = ModuleSelector::Kind::kAllLinear;
        return selector;
    }
    selector.pattern = pattern;
    Result<Regex> regex = Regex::compile(pattern);
    if (regex.ok()) {
        selector.kind = ModuleSelector::Kind::kRegex;
        selector.regex = std::move(regex).value();
    } else if (regex.error().code == ErrorCode::kAdapterUnsupported) {
        // It only serves to check the tensors; they decide.
        selector.kind = ModuleSelector::Kind::kUnreadableRegex;
        selector.unreadable = regex.error().message;
    } else {
        return at_field(*value, regex.error());
    }
    return selector;
}

template <typename T, typename Read>
Result<ModulePattern<T>> parse_pattern(const JsonValue& root, std::string_view key, Read read) {
    ModulePattern<T> pattern;
    const auto object = root.find(key);
    if (!object) return pattern;
    TRY(check_length(*object, kPatternsMax));
    TRY_ASSIGN(const std::vector<JsonMember> members, object->as_object());
    for (const JsonMember& member : members) {
        Result<Regex> regex = Regex::compile(format("(.*\\.)?({})$", member.key));
        if (!regex.ok()) return at_field(member.value, regex.error());
        TRY_ASSIGN(T value, read(member.value));
        pattern.entries.push_back({std::string(member.key), std::move(regex).value(), value});
    }
    return pattern;
}

Result<uint32_t> read_rank(const JsonValue& value) {
    TRY_ASSIGN(const int64_t rank, value.as_int());
    if (rank < 1) return value.error(format("expected a rank of 1 to {}, found {}", model::kLoraRankMax, rank));
    if (rank > model::kLoraRankMax) {
        Error error = value.error(format("rank {}; at most {} is supported", rank, model::kLoraRankMax));
        error.code = ErrorCode::kAdapterUnsupported;
        return error;
    }
    return static_cast<uint32_t>(rank);
}

Result<double> read_alpha(const JsonValue& value) {
    TRY_ASSIGN(const double alpha, value.as_number());
    if (!std::isfinite(static_cast<float>(alpha))) {
        return value.error(format("expected a number within float32, found {}", value.dump()));
    }
    if (std::abs(alpha) > kAlphaMax)
        return value.error(format("expected at most {:g}, found {}", kAlphaMax, value.dump()));
    return alpha;
}

Status parse_layers(const JsonValue& root, PeftConfig& config) {
    if (const auto layers = root.find("layers_to_transform")) {
        std::vector<int64_t> indices;
        if (layers->is_array()) {
            for (const JsonValue& item : *layers->as_array()) {
                TRY_ASSIGN(const int64_t index, item.as_int());
                indices.push_back(index);
            }
        } else {
            TRY_ASSIGN(const int64_t index, layers->as_int());
            indices.push_back(index);
        }
        if (!indices.empty()) config.layers_to_transform = std::move(indices);
    }
    if (const auto patterns = root.find("layers_pattern")) {
        std::vector<JsonValue> items;
        if (patterns->is_array()) {
            TRY(check_length(*patterns, kPatternsMax));
            items = *patterns->as_array();
        } else {
            items.push_back(*patterns);
        }
        for (const JsonValue& item : items) {
            TRY_ASSIGN(const std::string_view pattern, item.as_string());
            if (pattern.empty() && !patterns->is_array()) continue;  // in a list it is one that nothing matches
            Result<Regex> regex = Regex::compile(format("(?:^|.*?\\.){}\\.(\\d+)\\.", pattern));
            if (!regex.ok()) return at_field(item, regex.error());
            config.layers_patterns.push_back(std::move(regex).value());
        }
    }
    return ok_status();
}

// Parameters that are no layers: those of experts, and the routers' matrices.
constexpr std::array<std::string_view, 4> kParameters = {"gate_up_proj", "down_proj", "gate.weight", "router.weight"};

Status parse_parameters(const JsonValue& root, PeftConfig& config) {
    if (const auto version = root.find("peft_version"); version && version->is_string())
        config.peft_version = version->as_string()->substr(0, 64);
    const auto list = root.find("target_parameters");
    if (!list) return ok_status();
    TRY(check_length(*list, kListMax));
    TRY_ASSIGN(const auto items, list->as_array());
    for (const JsonValue& item : items) {
        TRY_ASSIGN(const std::string_view name, item.as_string());
        const bool is_known = std::ranges::any_of(kParameters, [&](std::string_view end) {
            return name == end || (name.ends_with(end) && name[name.size() - end.size() - 1] == '.');
        });
        if (!is_known) {
            Error error =
                item.error(format("LoRA on the parameter {}, which is not supported; those of experts and routers are",
                                  json_quote_short(name)));
            error.code = ErrorCode::kAdapterUnsupported;
            return error;
        }
        config.target_parameters.emplace_back(name);
    }
    return ok_status();
}

}  // namespace

Result<JsonDocument> parse_config_file(std::string_view text) {
    JsonParseOptions options;
    options.name = kConfigFile;
    options.code = ErrorCode::kAdapterInvalid;
    options.max_bytes = kConfigBytesMax;
    return parse_json(text, options);
}

Result<PeftConfig> parse_peft_config(std::string_view text) {
    TRY_ASSIGN(const JsonDocument document, parse_config_file(text));
    const JsonValue root = document.root();
    if (!root.is_object()) return root.error(format("expected object, found {}", root.describe()));

    TRY_ASSIGN(const JsonValue type, root.require("peft_type"));
    TRY_ASSIGN(const std::string_view type_name, type.as_string());
    if (type_name != "LORA") {
        const auto method = std::find_if(kOtherMethods.begin(), kOtherMethods.end(),
                                         [&](const Variant& known) { return known.field == type_name; });
        return make_error(
            ErrorCode::kAdapterUnsupported,
            format("{}: not supported: peft_type = {}{}; only LORA is", kConfigFile, json_quote_short(type_name),
                   method == kOtherMethods.end() ? "" : format(" ({})", method->meaning)));
    }

    PeftConfig config;
    if (root.has("r")) {
        TRY_ASSIGN(const JsonValue rank, root.require("r"));
        TRY_ASSIGN(config.rank, read_rank(rank));
    }
    if (root.has("lora_alpha")) {
        TRY_ASSIGN(const JsonValue alpha, root.require("lora_alpha"));
        TRY_ASSIGN(config.alpha, read_alpha(alpha));
    }
    TRY_ASSIGN(config.use_rslora, root.bool_or("use_rslora", false));
    TRY_ASSIGN(config.rank_pattern, parse_pattern<uint32_t>(root, "rank_pattern", read_rank));
    TRY_ASSIGN(config.alpha_pattern, parse_pattern<double>(root, "alpha_pattern", read_alpha));
    TRY_ASSIGN(config.target_modules, parse_selector(root, "target_modules"));
    TRY_ASSIGN(config.exclude_modules, parse_selector(root, "exclude_modules"));
    TRY(parse_layers(root, config));
    TRY(parse_parameters(root, config));
    TRY(parse_variants(root, config));
    if (const auto base = root.find("base_model_name_or_path"); base && base->is_string()) {
        config.base_model_name = *base->as_string();
    }
    // After the types, so that a broken file is called broken.
    TRY(check_supported(root));
    return config;
}

}  // namespace lorad::adapters
