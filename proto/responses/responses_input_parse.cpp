// The input of POST /v1/responses: a text, or items of a conversation.
#include "proto/base/format.h"
#include "proto/generate/custom_tools.h"
#include "proto/generate/generate_request_parts.h"
#include "proto/known_fields.h"
#include "proto/responses/responses_parts.h"

namespace lorad::proto {
namespace {

Result<std::string_view> item_text(const JsonValue& item, std::string_view name) {
    TRY_ASSIGN(JsonValue value, item.require(name));
    return value.as_string();
}

Status translate_input_message(const JsonValue& item, ChatMessages& messages) {
    messages.list_unknown(item, {"type", "id", "status", "role", "content"});
    messages.list_unknown_parts(item.find("content"), {"type", "text", "refusal", "annotations", "logprobs"});
    TRY_ASSIGN(JsonValue role_value, item.require("role"));
    TRY_ASSIGN(std::string_view role, role_value.as_string());
    TRY_ASSIGN(JsonValue content, item.require("content"));
    TRY_ASSIGN(std::string text, text_of_parts(content, {"input_text", "output_text", "text", "refusal"}));
    if (role == "assistant") {
        messages.add_assistant_text(text, item.path(), content.path());
    } else if (role == "user") {
        messages.add("user", text, item.path(), content.path());
    } else if (role == "system" || role == "developer") {
        messages.add("system", text, item.path(), content.path());
    } else {
        return role_value.error(
            format("expected \"user\", \"assistant\", \"system\" or \"developer\", found {}", role_value.describe()));
    }
    return ok_status();
}

Status translate_reasoning(const JsonValue& item, ChatMessages& messages) {
    messages.list_unknown(item, {"type", "id", "status", "content", "summary", "encrypted_content"});
    for (std::string_view name : {"content", "summary"}) messages.list_unknown_parts(item.find(name), {"type", "text"});
    if (item.find("encrypted_content")) {
        return unsupported_field(item.path() + ".encrypted_content", "this server encrypts nothing and cannot read it");
    }
    bool is_said = false;
    for (std::string_view name : {"content", "summary"}) {
        std::optional<JsonValue> parts = item.find(name);
        if (!parts || (parts->is_array() && parts->size() == 0)) continue;
        TRY_ASSIGN(std::string text, text_of_parts(*parts, {"reasoning_text", "summary_text"}));
        // A summary says the same again.
        if (!is_said) messages.add_reasoning(text, item.path(), parts->path());
        is_said = true;
    }
    return ok_status();
}

Status translate_item(const JsonValue& item, ChatMessages& messages) {
    if (!item.is_object()) return item.error(format("expected an object, found {}", item.describe()));
    TRY_ASSIGN(std::string_view type, item.string_or("type", "message"));
    if (type == "message") return translate_input_message(item, messages);
    if (type == "reasoning") return translate_reasoning(item, messages);
    if (type == "function_call") {
        TRY_ASSIGN(std::string_view call_id, item_text(item, "call_id"));
        TRY_ASSIGN(std::string_view name, item_text(item, "name"));
        TRY_ASSIGN(std::string_view arguments, item_text(item, "arguments"));
        messages.list_unknown(item, {"type", "id", "status", "call_id", "name", "arguments"});
        messages.add_call(
            {std::string(call_id), std::string(name), std::string(arguments), item.path(), "call_id", "arguments"},
            item.path());
        return ok_status();
    }
    if (type == "custom_tool_call") {
        TRY_ASSIGN(std::string_view call_id, item_text(item, "call_id"));
        TRY_ASSIGN(std::string_view name, item_text(item, "name"));
        TRY_ASSIGN(std::string_view text, item_text(item, "input"));
        messages.list_unknown(item, {"type", "id", "status", "call_id", "name", "input"});
        messages.add_call(
            {std::string(call_id), std::string(name), custom_tool_arguments(text), item.path(), "call_id", "input"},
            item.path());
        return ok_status();
    }
    if (type == "function_call_output" || type == "custom_tool_call_output") {
        TRY_ASSIGN(std::string_view call_id, item_text(item, "call_id"));
        TRY_ASSIGN(JsonValue output, item.require("output"));
        TRY_ASSIGN(std::string text, text_of_parts(output, {"input_text", "text"}));
        messages.list_unknown(item, {"type", "id", "status", "call_id", "output"});
        messages.list_unknown_parts(output, {"type", "text"});
        messages.add_tool_result(call_id, text, false, item.path(), {"call_id", "output"});
        return ok_status();
    }
    std::string path = item.path() + ".type";
    return unsupported_field(path, format("this server does not support items of the type {}", json_quote_short(type)));
}

// Makes the kept form of an item: with an id and its type.
std::shared_ptr<const ResponseItem> kept_item(const JsonValue& item, const ResponsesMemory& memory) {
    std::string type(*item.string_or("type", "message"));
    std::optional<JsonValue> given = item.find("id");
    std::string id = given && given->is_string() ? std::string(*given->as_string()) : memory.make_item_id(type);
    JsonWriter writer;
    writer.begin_object().field("id", id).field("type", type);
    const bool is_assistants = item.find("role") && is_text(*item.find("role"), "assistant");
    for (const JsonMember& member : *item.as_object()) {
        if (member.key == "id" || member.key == "type") continue;
        writer.key(member.key);
        // Lists of items show a text as a part.
        if (type == "message" && member.key == "content" && member.value.is_string()) {
            writer.begin_array().begin_object().field("type", is_assistants ? "output_text" : "input_text");
            writer.key("text").raw(member.value.dump()).end_object().end_array();
        } else {
            writer.raw(member.value.dump());
        }
    }
    return std::make_shared<const ResponseItem>(ResponseItem{std::move(id), writer.end_object().take()});
}

std::shared_ptr<const ResponseItem> kept_text(std::string_view text, const ResponsesMemory& memory) {
    std::string id = memory.make_item_id("message");
    JsonWriter writer;
    writer.begin_object().field("id", id).field("type", "message").field("role", "user").key("content").begin_array();
    writer.begin_object().field("type", "input_text").field("text", text).end_object().end_array();
    return std::make_shared<const ResponseItem>(ResponseItem{std::move(id), writer.end_object().take()});
}

// An item that is kept, or a text with one in it: it was read from a body once, or written by this server.
Result<JsonDocument> parse_kept(std::string_view text) {
    return parse_json(text, {.max_bytes = SIZE_MAX, .max_depth = kStoredDepthMax, .max_values = kStoredValuesMax});
}

Error too_long(std::string param) {
    return make_error(
        ErrorCode::kInvalidRequest,
        format("{}: expected a conversation of at most {} bytes, found a longer one", param, kConversationBytesMax),
        param);
}

// Adds the item that {"type": "item_reference", "id": ID} refers to. `n_bytes`: of the conversation so far, without the
// items in the body itself.
Status translate_reference(const JsonValue& item, const InputMemory& memory, size_t& n_bytes, ChatMessages& messages) {
    if (memory.responses == nullptr) {
        return unsupported_field(item.path() + ".type",
                                 "this server stores nothing that could be referred to (--response-store is off)");
    }
    TRY_ASSIGN(std::string_view id, item_text(item, "id"));
    messages.list_unknown(item, {"type", "id"});
    std::shared_ptr<const ResponseItem> found = memory.responses->item(id);
    if (found == nullptr) {
        return make_error(
            ErrorCode::kInvalidRequest,
            format("{}.id: no item is called {}, or it is no longer kept", item.path(), json_quote_short(id)),
            item.path() + ".id");
    }
    n_bytes += found->json.size();
    if (n_bytes > kConversationBytesMax) return too_long(item.path());
    TRY_ASSIGN(JsonDocument document, parse_kept(found->json));
    TRY(translate_item(document.root(), messages));
    memory.own->push_back(std::move(found));
    return ok_status();
}

}  // namespace

size_t bytes_of(const ResponseItems& items) {
    size_t n = 0;
    for (const auto& item : items) n += item->json.size();
    return n;
}

Status translate_conversation(const ResponseItems& items, ChatMessages& messages) {
    if (bytes_of(items) > kConversationBytesMax) return too_long("previous_response_id");
    // One after the other, so that the values of one are in memory at a time.
    for (const auto& item : items) {
        TRY_ASSIGN(const JsonDocument document, parse_kept("{\"previous_response_id\":" + item->json + "}"));
        TRY(translate_item(*document.root().find("previous_response_id"), messages));
    }
    return ok_status();
}

Status translate_input(const JsonValue& input, ChatMessages& messages, const InputMemory& memory) {
    if (input.is_string()) {
        TRY_ASSIGN(std::string_view text, input.as_string());
        messages.add("user", text, "input", "input");
        if (memory.responses != nullptr) memory.own->push_back(kept_text(text, *memory.responses));
        return ok_status();
    }
    if (!input.is_array()) {
        return input.error(format("expected a string or a list of items, found {}", input.describe()));
    }
    TRY_ASSIGN(std::vector<JsonValue> items, input.as_array());
    if (items.empty()) return input.error("expected at least one item, found an empty list");
    size_t n_bytes = memory.n_bytes;
    for (const JsonValue& item : items) {
        std::optional<JsonValue> type = item.find("type");
        // OpenAI's interface has the type of a reference as optional.
        if (type ? is_text(*type, "item_reference") : item.has("id") && !item.has("role")) {
            TRY(translate_reference(item, memory, n_bytes, messages));
            continue;
        }
        TRY(translate_item(item, messages));
        if (memory.responses != nullptr) memory.own->push_back(kept_item(item, *memory.responses));
    }
    return ok_status();
}

}  // namespace lorad::proto
