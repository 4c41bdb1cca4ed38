#include "adapters/plan/recipe_config.h"

#include "proto/json/json.h"

namespace lorad::adapters {
namespace {

void write_selector(JsonWriter& json, std::string_view field, const std::vector<std::string>& names) {
    json.key(field);
    if (names.size() == 1 && (names[0] == "all-linear" || is_expression(names[0]))) {
        json.value(names[0]);
        return;
    }
    json.begin_array();
    for (const std::string& name : names) json.value(name);
    json.end_array();
}

}  // namespace

bool is_expression(std::string_view name) { return name.find_first_of("^$*+?()[]{}|\\") != std::string_view::npos; }

std::string peft_config_of(const LoraRecipe& recipe) {
    JsonWriter json;
    json.begin_object()
        .field("peft_type", "LORA")
        .field("r", recipe.r)
        .field("lora_alpha", recipe.lora_alpha)
        .field("use_rslora", recipe.use_rslora)
        .field("use_dora", recipe.use_dora)
        .field("lora_bias", recipe.lora_bias)
        .field("bias", recipe.bias == BiasKind::kNone  ? "none"
                       : recipe.bias == BiasKind::kAll ? "all"
                                                       : "lora_only");
    write_selector(json, "target_modules", recipe.target_modules);
    if (!recipe.exclude_modules.empty()) write_selector(json, "exclude_modules", recipe.exclude_modules);
    json.key("rank_pattern").begin_object();
    for (const auto& [name, rank] : recipe.rank_pattern) json.field(name, rank);
    json.end_object().key("alpha_pattern").begin_object();
    for (const auto& [name, alpha] : recipe.alpha_pattern) json.field(name, alpha);
    json.end_object().key("modules_to_save").begin_array();
    for (const std::string& name : recipe.modules_to_save) json.value(name);
    json.end_array();
    if (recipe.layers_to_transform) {
        json.key("layers_to_transform").begin_array();
        for (const int64_t layer : *recipe.layers_to_transform) json.value(layer);
        json.end_array();
    }
    json.end_object();
    return json.take();
}

}  // namespace lorad::adapters
