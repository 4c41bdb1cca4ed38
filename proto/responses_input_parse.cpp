// The input of POST /v1/responses: a text, or items of a conversation.
#include "proto/base/format.h"
#include "proto/chat_translation.h"
#include "proto/generate_request_parts.h"
#include "proto/known_fields.h"

namespace lorad::proto {
namespace {

Result<std::string_view> item_text(const JsonValue& item, std::string_view name) {
    TRY_ASSIGN(JsonValue value, item.require(name));
    return value.as_string();
}

Status translate_input_message(const JsonValue& item, ChatMessages& messages) {
    TRY_ASSIGN(JsonValue role_value, item.require("role"));
    TRY_ASSIGN(std::string_view role, role_value.as_string());
    TRY_ASSIGN(JsonValue content, item.require("content"));
    TRY_ASSIGN(std::string text,
               text_of_parts(content, {"input_text", "output_text", "text", "refusal"}));
    if (role == "assistant") {
        messages.add_assistant_text(text, item.path());
    } else if (role == "user") {
        messages.add("user", text, item.path());
    } else if (role == "system" || role == "developer") {
        messages.add("system", text, item.path());
    } else {
        return role_value.error(
            format("expected \"user\", \"assistant\", \"system\" or \"developer\", found {}",
                   role_value.describe()));
    }
    return ok_status();
}

Status translate_reasoning(const JsonValue& item, ChatMessages& messages) {
    if (item.find("encrypted_content")) {
        return unsupported_field(item.path() + ".encrypted_content",
                                 "this server encrypts nothing and cannot read it");
    }
    for (std::string_view name : {"content", "summary"}) {
        std::optional<JsonValue> parts = item.find(name);
        if (!parts || (parts->is_array() && parts->size() == 0)) continue;
        TRY_ASSIGN(std::string text,
                   text_of_parts(*parts, {"reasoning_text", "summary_text"}));
        messages.add_reasoning(text, item.path());
        return ok_status();  // a summary says the same again
    }
    return ok_status();
}

Status translate_item(const JsonValue& item, ChatMessages& messages) {
    if (!item.is_object())
        return item.error(format("expected an object, found {}", item.describe()));
    static constexpr std::string_view kFields[] = {"type", "role", "content", "id", "status", "call_id", "name", "arguments", "output",
                                                   "summary", "encrypted_content"};
    static constexpr std::string_view kPart[] = {"type", "text", "refusal", "annotations", "logprobs"};
    messages.list_unknown(item, kFields);
    if (std::optional<JsonValue> parts = item.find("content"); parts && parts->is_array()) {
        for (const JsonValue& part : *parts->as_array()) messages.list_unknown(part, kPart);
    }
    TRY_ASSIGN(std::string_view type, item.string_or("type", "message"));
    if (type == "message") return translate_input_message(item, messages);
    if (type == "reasoning") return translate_reasoning(item, messages);
    if (type == "function_call") {
        TRY_ASSIGN(std::string_view call_id, item_text(item, "call_id"));
        TRY_ASSIGN(std::string_view name, item_text(item, "name"));
        TRY_ASSIGN(std::string_view arguments, item_text(item, "arguments"));
        messages.add_call(call_id, name, std::string(arguments), item.path(),
                          item.path() + ".arguments");
        return ok_status();
    }
    if (type == "function_call_output") {
        TRY_ASSIGN(std::string_view call_id, item_text(item, "call_id"));
        TRY_ASSIGN(JsonValue output, item.require("output"));
        TRY_ASSIGN(std::string text, text_of_parts(output, {"input_text", "text"}));
        messages.add_tool_result(call_id, text, false, item.path());
        return ok_status();
    }
    std::string path = item.path() + ".type";
    if (type == "item_reference")
        return unsupported_field(path, "this server stores nothing that could be referred to");
    return unsupported_field(path, format("this server does not support items of the type {}",
                                          json_quote_short(type)));
}

}  // namespace

Status translate_input(const JsonValue& input, ChatMessages& messages) {
    if (input.is_string()) {
        TRY_ASSIGN(std::string_view text, input.as_string());
        messages.add("user", text, "input");
        return ok_status();
    }
    if (!input.is_array()) {
        return input.error(
            format("expected a string or a list of items, found {}", input.describe()));
    }
    TRY_ASSIGN(std::vector<JsonValue> items, input.as_array());
    if (items.empty()) return input.error("expected at least one item, found an empty list");
    for (const JsonValue& item : items) TRY(translate_item(item, messages));
    return ok_status();
}

}  // namespace lorad::proto
