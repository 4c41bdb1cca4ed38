// Decides what an adapter's configuration means for a module, exactly as PEFT's own code does.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "adapters/files/peft_config.h"

namespace lorad::adapters {

namespace {

// A part of a module's name that is a number, with others before and behind it.
struct LayerIndex {
    int64_t value = 0;
    size_t n_parts_before = 0;
    std::string_view up_to;  // the name as far as the dot behind it
};

std::vector<LayerIndex> indices_in(std::string_view module) {
    std::vector<LayerIndex> indices;
    size_t begin = 0;
    for (size_t part = 0;; ++part) {
        const size_t dot = module.find('.', begin);
        if (dot == std::string_view::npos) return indices;
        const std::string_view text = module.substr(begin, dot - begin);
        if (part > 0 && !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos) {
            int64_t value = -1;  // none that a config could mean, where it is too large
            std::from_chars(text.data(), text.data() + text.size(), value);
            indices.push_back({value, part, module.substr(0, dot + 1)});
        }
        begin = dot + 1;
    }
}

// Returns true if the dotted parts of `name` occur in the module's name, in a row: `(^|.*\.)NAME($|\..*)`.
bool has_parts(std::string_view module, std::string_view name) {
    for (size_t at = module.find(name); at != std::string_view::npos; at = module.find(name, at + 1)) {
        const size_t end = at + name.size();
        if ((at == 0 || module[at - 1] == '.') && (end == module.size() || module[end] == '.')) return true;
    }
    return false;
}

// The names by which PEFT knows the embedding and the output layer, which a base may tie.
constexpr std::array<std::string_view, 2> kTiedNames = {"embed_tokens", "lm_head"};

bool names_tied_module(const std::vector<std::string>& names) {
    return std::ranges::any_of(names, [](const std::string& name) {
        const std::string_view last = std::string_view(name).substr(name.rfind('.') + 1);
        return std::ranges::find(kTiedNames, last) != kTiedNames.end();
    });
}

bool names_module(const std::vector<std::string>& names, std::string_view module, bool& exactly) {
    exactly = false;
    bool found = false;
    for (const std::string& name : names) {
        if (name == module) return exactly = true;
        found |=
            module.size() > name.size() && module.ends_with(name) && module[module.size() - name.size() - 1] == '.';
    }
    return found;
}

}  // namespace

Result<uint32_t> PeftConfig::rank_of(std::string_view module, RegexBudget& budget) const {
    if (const auto exact = exact_ranks.find(module); exact != exact_ranks.end()) return exact->second;
    for (const auto& entry : rank_pattern.entries) {
        TRY_ASSIGN(const bool matches, entry.regex.full_match(module, budget));
        if (matches) return entry.value;
    }
    return rank;
}

Result<double> PeftConfig::scale_of(std::string_view module, uint32_t module_rank, RegexBudget& budget) const {
    if (exact_scale) return *exact_scale;
    double module_alpha = alpha;
    for (const auto& entry : alpha_pattern.entries) {
        TRY_ASSIGN(const bool matches, entry.regex.full_match(module, budget));
        if (matches) {
            module_alpha = entry.value;
            break;
        }
    }
    return use_rslora ? module_alpha / std::sqrt(static_cast<double>(module_rank))
                      : module_alpha / static_cast<double>(module_rank);
}

Result<std::optional<bool>> PeftConfig::targets(std::string_view module, RegexBudget& budget) const {
    using Kind = ModuleSelector::Kind;
    bool exactly = false;
    bool excluded = false;
    if (exclude_modules.kind == Kind::kUnreadableRegex) return std::optional<bool>();
    if (exclude_modules.kind == Kind::kNames) excluded = names_module(exclude_modules.names, module, exactly);
    if (exclude_modules.kind == Kind::kRegex) {
        TRY_ASSIGN(excluded, exclude_modules.regex->full_match(module, budget));
    }
    for (const std::string& saved : modules_to_save) excluded = excluded || has_parts(module, saved);
    for (const Regex& saved : saved_patterns) {
        if (excluded) break;
        TRY_ASSIGN(excluded, saved.full_match(module, budget));
    }
    if (excluded) return std::optional(false);
    switch (target_modules.kind) {
        case Kind::kUnset:
        case Kind::kUnreadableRegex: return std::optional<bool>();
        // All but the output layer.
        case Kind::kAllLinear: return std::optional(module != "lm_head" && !module.ends_with("embed_tokens"));
        case Kind::kRegex: {
            TRY_ASSIGN(const bool matches, target_modules.regex->full_match(module, budget));
            return std::optional(matches);
        }
        case Kind::kNames: break;
    }
    if (!names_module(target_modules.names, module, exactly)) return std::optional(false);
    // A module named in full is adapted whatever its layer.
    if (exactly || !layers_to_transform) return std::optional(true);
    TRY_ASSIGN(const std::optional<int64_t> layer, layer_of(module, budget));
    return std::optional(layer && std::ranges::find(*layers_to_transform, *layer) != layers_to_transform->end());
}

// The index behind the first of the patterns that the name has, where it has it first: the list of layers may stand at
// the root ("layers.3."). Without patterns PEFT wants something before it ("model.layers.3.", `.*?\.[^.]*\.(\d+)\.`).
Result<std::optional<int64_t>> PeftConfig::layer_of(std::string_view module, RegexBudget& budget) const {
    const std::vector<LayerIndex> indices = indices_in(module);
    for (const LayerIndex& index : indices) {
        if (layers_patterns.empty() && index.n_parts_before >= 2) return std::optional(index.value);
    }
    for (const Regex& pattern : layers_patterns) {
        for (const LayerIndex& index : indices) {
            TRY_ASSIGN(const bool matches, pattern.full_match(index.up_to, budget));
            if (matches) return std::optional(index.value);
        }
    }
    return std::optional<int64_t>();
}

Result<bool> PeftConfig::ties_lora(RegexBudget& budget) const {
    if (!ensure_weight_tying || names_tied_module(modules_to_save)) return false;
    if (target_modules.kind == ModuleSelector::Kind::kNames) return names_tied_module(target_modules.names);
    if (target_modules.kind != ModuleSelector::Kind::kRegex) return false;
    for (const std::string_view name : kTiedNames) {
        TRY_ASSIGN(const bool matches, target_modules.regex->full_match(name, budget));
        if (matches) return true;
    }
    return false;
}

}  // namespace lorad::adapters
