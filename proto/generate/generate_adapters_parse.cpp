// Parses the adapters that a request runs with, in lorad's form and in those of other servers.
#include <array>

#include "proto/base/format.h"
#include "proto/generate/generate_request_parts.h"
#include "proto/known_fields.h"

namespace lorad::proto {
namespace {

struct Chosen {
    std::string name;  // empty: says nothing
    std::string field;
};

Result<Chosen> name_in(const JsonValue& value) {
    TRY_ASSIGN(std::string_view text, value.as_string());
    // LoRAX's word for no adapter.
    return Chosen{text == "__base__" ? std::string() : std::string(text), value.path()};
}

// A name, or a list with one for each prompt, which all have to be the same.
Result<Chosen> one_name(const JsonValue& value) {
    if (!value.is_array()) return name_in(value);
    TRY_ASSIGN(std::vector<JsonValue> elements, value.as_array());
    Chosen chosen;
    for (size_t i = 0; i < elements.size(); ++i) {
        Chosen one;
        if (!elements[i].is_null()) {
            TRY_ASSIGN(one, name_in(elements[i]));
        }
        if (i > 0 && one.name != chosen.name)
            return value.error("expected one adapter for all prompts; send a request for each adapter");
        chosen = std::move(one);
    }
    return chosen;
}

Result<Chosen> name_in_parameters(const JsonValue& value, std::vector<std::string>& ignored) {
    static constexpr KnownField kFields[] = {{"adapter_id"},
                                             {"adapter_source", false, Neutral::kNone, Neutral::kAny},
                                             {"merged_adapters", false, Neutral::kEmpty}};
    if (!value.is_object()) return value.error(format("expected an object, found {}", value.describe()));
    TRY(refuse_unknown_adapters(value, kFields));
    TRY(check_fields(value, kFields, ignored));
    std::optional<JsonValue> name = value.find("adapter_id");
    return name ? one_name(*name) : Result<Chosen>(Chosen{});
}

// vLLM's LoRARequest: by its name; its number and its path are those of another process.
Result<Chosen> name_in_lora_request(const JsonValue& value, std::vector<std::string>& ignored) {
    static constexpr KnownField kFields[] = {{"lora_name"}, {"lora_int_id"}, {"lora_path"}, {"lora_local_path"}};
    if (value.is_array()) {
        TRY_ASSIGN(std::vector<JsonValue> elements, value.as_array());
        if (elements.empty()) return Chosen{};
        if (elements.size() > 1)
            return value.error("expected one adapter for all prompts; send a request for each adapter");
        return name_in_lora_request(elements[0], ignored);
    }
    if (!value.is_object()) return value.error(format("expected an object with lora_name, found {}", value.describe()));
    TRY(check_fields(value, kFields, ignored));
    TRY_ASSIGN(JsonValue name, value.require("lora_name"));
    return name_in(name);
}

}  // namespace

// Several ways to say it; only one at a time, unless they say the same.
Status parse_adapters(const JsonValue& root, GenerateRequest& request) {
    std::string given;
    for (std::string_view field : {"adapters", "lora", "adapter", "lora_path", "adapter_id", "parameters",
                                   "lora_request", "lora_name", "adapter_name"}) {
        std::optional<JsonValue> value = root.find(field);
        if (!value) continue;
        Chosen chosen{{}, std::string(field)};
        const bool is_list = field == "adapters" || field == "lora";
        if (field == "adapter") {
            TRY_ASSIGN(chosen, name_in(*value));
            if (value->as_string()->empty()) return value->error("expected a name, found an empty string");
        } else if (field == "parameters") {
            TRY_ASSIGN(chosen, name_in_parameters(*value, request.ignored_fields));
        } else if (field == "lora_request") {
            TRY_ASSIGN(chosen, name_in_lora_request(*value, request.ignored_fields));
        } else if (!is_list) {
            TRY_ASSIGN(chosen, one_name(*value));
        }
        if (!is_list && chosen.name.empty()) continue;
        const bool is_same = !is_list && request.adapters && request.adapters->size() == 1 &&
                             request.adapters->front().name == chosen.name && request.adapters->front().scale == 1.0f;
        if (is_same) continue;
        if (!given.empty()) {
            return make_error(ErrorCode::kInvalidRequest,
                              format("{}: {} is given, too: use one of them", chosen.field, given), chosen.field);
        }
        given = chosen.field;
        if (field == "adapters") {
            TRY_ASSIGN(request.adapters, parse_named_scales(*value));
        } else if (field == "lora") {
            TRY_ASSIGN(request.lora, parse_id_scales(*value, request.ignored_fields));
        } else {
            request.adapters = {{std::move(chosen.name), 1.0f}};
            request.adapters_field = chosen.field;
        }
    }
    return ok_status();
}

}  // namespace lorad::proto
