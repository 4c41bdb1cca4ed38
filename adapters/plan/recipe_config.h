// A recipe in PEFT's own words, so that one reader decides what they mean.
#pragma once

#include <string>
#include <string_view>

#include "adapters/plan/trainable.h"

namespace lorad::adapters {

// Returns true for a name that is read as an expression where it stands alone.
bool is_expression(std::string_view name);

// Returns an adapter_config.json.
std::string peft_config_of(const LoraRecipe& recipe);

}  // namespace lorad::adapters
