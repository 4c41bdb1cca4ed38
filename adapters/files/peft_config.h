// adapter_config.json as PEFT writes it. The tensors decide what is applied; the config decides the scale and which
// tensors must exist, and names all variants of the mathematics that lorad does not apply.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "adapters/files/regex.h"
#include "proto/base/result.h"
#include "proto/json/json.h"

namespace lorad::adapters {

// A module list or an expression, as in target_modules and exclude_modules.
struct ModuleSelector {
    enum class Kind : uint8_t { kUnset, kNames, kRegex, kAllLinear, kUnreadableRegex };
    Kind kind = Kind::kUnset;
    std::vector<std::string> names;  // whole names, or ends of names at a dot
    std::optional<Regex> regex;      // matched against the whole name
    std::string pattern;             // the expression
    std::string unreadable;          // why it is not read
};

// Values for the modules whose names match "(.*\.)?(KEY)$"; the first key counts.
template <typename T>
struct ModulePattern {
    struct Entry {
        std::string key;
        Regex regex;
        T value;
    };
    std::vector<Entry> entries;
};

// The largest |lora_alpha| and the largest scale in a file; common ones are below a thousand.
inline constexpr double kAlphaMax = 1 << 20;

enum class BiasKind : uint8_t { kNone, kLoraOnly, kAll };

// Rows of trained tokens of one embedding.
struct TokenIndices {
    std::string module;           // "embed_tokens"
    std::vector<int64_t> tokens;  // in the order of the tensor's rows
};

struct PeftConfig {
    uint32_t rank = 8;
    double alpha = 8.0;
    bool use_rslora = false;
    ModulePattern<uint32_t> rank_pattern;
    ModulePattern<double> alpha_pattern;
    ModuleSelector target_modules;
    ModuleSelector exclude_modules;
    std::optional<std::vector<int64_t>> layers_to_transform;
    // each "(?:^|.*?\.)PATTERN\.(\d+)\.", of a module's name up to its layer's index
    std::vector<Regex> layers_patterns;
    std::string base_model_name;
    std::string peft_version;
    // "mlp.experts.gate_up_proj", or the end of such a name: experts and routers only
    std::vector<std::string> target_parameters;
    bool use_dora = false;
    bool lora_bias = false;           // a bias on lora_B
    BiasKind bias = BiasKind::kNone;  // biases of the base's layers were trained
    std::vector<std::string> modules_to_save;
    std::vector<Regex> saved_patterns;  // entries that are expressions, not plain names
    bool ensure_weight_tying = false;
    std::vector<TokenIndices> token_indices;
    std::vector<int64_t> invocation_tokens;  // aLoRA

    // Set for files without such a config, which give ranks by module and a scale that is not alpha / rank.
    std::map<std::string, uint32_t, std::less<>> exact_ranks;
    std::optional<double> exact_scale;

    // The rank and the scale of one module of the base, by its full name ("model.layers.0.self_attn.q_proj"). An error
    // only where an expression costs more steps than `budget` has left.
    Result<uint32_t> rank_of(std::string_view module, RegexBudget& budget) const;
    Result<double> scale_of(std::string_view module, uint32_t rank, RegexBudget& budget) const;
    // True, false, or nothing where the config does not tell (no target_modules, or an expression that
    // adapters/files/regex.h does not support). A module named by modules_to_save is no target.
    Result<std::optional<bool>> targets(std::string_view module, RegexBudget& budget) const;
    // The index of the module's layer, as layers_to_transform counts layers.
    Result<std::optional<int64_t>> layer_of(std::string_view module, RegexBudget& budget) const;
    // Returns true if the embedding and the output layer share one A and B, whichever of them is targeted: the config
    // sets ensure_weight_tying and the base is tied.
    Result<bool> ties_lora(RegexBudget& budget) const;
};

// Parses an adapter_config.json from any tool. kAdapterInvalid: no JSON, or too much of it.
Result<JsonDocument> parse_config_file(std::string_view text);
// kAdapterInvalid: not what PEFT writes, with the field. kAdapterUnsupported: names every variant in it that is not
// applied; a field that lorad does not know counts as one unless it is null, false, or empty.
Result<PeftConfig> parse_peft_config(std::string_view text);

}  // namespace lorad::adapters
