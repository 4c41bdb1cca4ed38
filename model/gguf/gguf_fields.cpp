#include "model/gguf/gguf_fields.h"

#include <algorithm>
#include <utility>

#include "proto/base/format.h"

namespace lorad::model {

Error gguf_field_error(std::string_view key, std::string_view expected, const GgufValue& found) {
    return make_error(ErrorCode::kInvalidModel, format("{}: expected {}, found {}", key, expected, found.describe()));
}

Result<uint32_t> GgufFields::size_of(std::string_view key, uint32_t max) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return make_error(ErrorCode::kInvalidModel, format("{} is missing", full(key)));
    std::optional<int64_t> size = value->as_integer();
    if (const auto list = value->as_integers(); list && !list->empty()) {
        // Layers that draft behind the others may have none.
        const auto number = [&](std::string_view name) {
            const GgufValue* found = find(name);
            return found != nullptr ? found->as_integer().value_or(0) : 0;
        };
        const int64_t n_layers = number("block_count") - number("nextn_predict_layers");
        if (std::cmp_less(list->size(), n_layers))
            return gguf_field_error(full(key), format("{} numbers, one for each layer", n_layers), *value);
        if (!std::ranges::all_of(*list, [&](int64_t one) { return one == list->front(); })) {
            return gguf_field_error(full(key), "the same for all layers", *value);
        }
        size = list->front();
    }
    if (size && *size >= 1 && *size <= int64_t{max}) return static_cast<uint32_t>(*size);
    return gguf_field_error(full(key), format("1 to {}", max), *value);
}

Result<uint32_t> GgufFields::size_or(std::string_view key, uint32_t fallback, uint32_t max) const {
    if (find(key) == nullptr) return fallback;
    return size_of(key, max);
}

Result<double> GgufFields::number_or(std::string_view key, double fallback, double min, double max) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return fallback;
    const std::optional<double> number = value->as_number();
    if (number && *number >= min && *number <= max) return *number;
    return gguf_field_error(full(key), format("a number of {:g} to {:g}", min, max), *value);
}

Result<std::string_view> GgufFields::text_or(std::string_view key, std::string_view fallback) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return fallback;
    const auto text = value->as_text();
    if (!text) return gguf_field_error(full(key), "a text", *value);
    return *text;
}

}  // namespace lorad::model
