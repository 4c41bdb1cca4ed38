// Reads facts about a base's weights from the base's name that an adapter records.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "adapters/plan/base_model.h"

namespace lorad::adapters {

// A warning where `name` (base_model_name_or_path: "unsloth/Llama-3.2-1B-bnb-4bit") says that the base was quantized
// and none of this base's matrices is so: the adapter was trained on numbers that are a little off these. Nothing where
// the name says nothing, as of models quantized while they were loaded.
std::optional<std::string> quantization_warning(std::string_view name, const WeightFormats& formats);

}  // namespace lorad::adapters
