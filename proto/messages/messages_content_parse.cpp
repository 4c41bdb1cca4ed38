// The messages of POST /v1/messages: texts, or blocks of text, thinking, calls and their results.
#include "proto/base/format.h"
#include "proto/generate/chat_translation.h"
#include "proto/generate/generate_request_parts.h"
#include "proto/known_fields.h"
#include "proto/messages/messages_request.h"

namespace lorad::proto {
namespace {

Result<std::string_view> text_field(const JsonValue& block, std::string_view name) {
    TRY_ASSIGN(JsonValue value, block.require(name));
    return value.as_string();
}

// Lists a block's unknown fields by its kind; cache marks are known, as they change no answer.
void list_unknown(const JsonValue& block, const JsonValue& type, ChatMessages& messages) {
    if (is_text(type, "text")) messages.list_unknown(block, {"type", "text", "cache_control", "citations"});
    if (is_text(type, "thinking")) messages.list_unknown(block, {"type", "thinking", "signature", "cache_control"});
    if (is_text(type, "tool_use"))
        messages.list_unknown(block, {"type", "id", "name", "input", "cache_control", "caller"});
    if (!is_text(type, "tool_result")) return;
    messages.list_unknown(block, {"type", "tool_use_id", "content", "is_error", "cache_control"});
    messages.list_unknown_parts(block.find("content"), {"type", "text", "cache_control", "citations"});
}

// Arguments that are no JSON object were shown within one (proto/messages/messages_write.cpp): they are that text
// again.
std::string arguments_of(const JsonValue& input) {
    std::optional<JsonValue> broken = input.size() == 1 ? input.find(kInvalidJsonInput) : std::nullopt;
    return broken && broken->is_string() ? std::string(*broken->as_string()) : input.dump();
}

Error no_such_block(const JsonValue& type, std::string_view role) {
    return unsupported_field(type.path(),
                             format("this server does not support {} here, only {}", type.describe(),
                                    role == "user" ? "text and tool_result" : "text, thinking and tool_use"));
}

// Neighbouring texts are one message; results of calls are messages of their own.
Status translate_user(const JsonValue& message, const std::vector<JsonValue>& blocks, ChatMessages& messages) {
    std::string text;
    bool has_text = false;
    auto flush = [&] {
        if (has_text) messages.add("user", text, message.path(), message.path() + ".content");
        has_text = false;
        text.clear();
    };
    for (const JsonValue& block : blocks) {
        TRY_ASSIGN(JsonValue type, block.require("type"));
        list_unknown(block, type, messages);
        if (is_text(type, "text")) {
            TRY_ASSIGN(std::string_view piece, text_field(block, "text"));
            if (has_text) text += '\n';
            text += piece;
            has_text = true;
        } else if (is_text(type, "tool_result")) {
            flush();
            TRY_ASSIGN(std::string_view id, text_field(block, "tool_use_id"));
            TRY_ASSIGN(bool is_error, block.bool_or("is_error", false));
            std::string result;
            if (std::optional<JsonValue> content = block.find("content")) {
                TRY_ASSIGN(result, text_of_parts(*content, {"text"}));
            }
            messages.add_tool_result(id, result, is_error, block.path(), {"tool_use_id", "content"});
        } else {
            return no_such_block(type, "user");
        }
    }
    flush();
    return ok_status();
}

Status translate_assistant(const JsonValue& message, const std::vector<JsonValue>& blocks, ChatMessages& messages) {
    std::string text;
    bool has_text = false;
    auto flush = [&] {
        if (has_text) messages.add_assistant_text(text, message.path(), message.path() + ".content");
        has_text = false;
        text.clear();
    };
    for (const JsonValue& block : blocks) {
        TRY_ASSIGN(JsonValue type, block.require("type"));
        list_unknown(block, type, messages);
        if (is_text(type, "text")) {
            TRY_ASSIGN(std::string_view piece, text_field(block, "text"));
            if (has_text) text += '\n';
            text += piece;
            has_text = true;
            continue;
        }
        flush();
        if (is_text(type, "thinking")) {
            TRY_ASSIGN(std::string_view thought, text_field(block, "thinking"));
            messages.add_reasoning(thought, message.path(), block.path() + ".thinking");
        } else if (is_text(type, "tool_use")) {
            TRY_ASSIGN(std::string_view id, text_field(block, "id"));
            TRY_ASSIGN(std::string_view name, text_field(block, "name"));
            TRY_ASSIGN(JsonValue input, block.require("input"));
            if (!input.is_object()) return input.error(format("expected an object, found {}", input.describe()));
            messages.add_call({std::string(id), std::string(name), arguments_of(input), block.path(), "id", "input"},
                              message.path());
        } else {
            return no_such_block(type, "assistant");
        }
    }
    flush();
    return ok_status();
}

Status translate_message(const JsonValue& message, ChatMessages& messages) {
    if (!message.is_object()) return message.error(format("expected an object, found {}", message.describe()));
    messages.list_unknown(message, {"role", "content"});
    TRY_ASSIGN(JsonValue role_value, message.require("role"));
    TRY_ASSIGN(std::string_view role, role_value.as_string());
    if (role != "user" && role != "assistant" && role != "system") {
        return role_value.error(format("expected \"user\" or \"assistant\", found {}", role_value.describe()));
    }
    TRY_ASSIGN(JsonValue content, message.require("content"));
    if (content.is_string() || role == "system") {
        TRY_ASSIGN(std::string text, text_of_parts(content, {"text"}));
        if (role == "assistant") {
            messages.add_assistant_text(text, message.path(), content.path());
        } else {
            messages.add(role, text, message.path(), content.path());
        }
        messages.list_unknown_parts(content, {"type", "text", "cache_control", "citations"});
        return ok_status();
    }
    if (!content.is_array()) {
        return content.error(format("expected a string or a list of blocks, found {}", content.describe()));
    }
    TRY_ASSIGN(std::vector<JsonValue> blocks, content.as_array());
    if (blocks.empty()) return content.error("expected at least one block, found an empty list");
    return role == "user" ? translate_user(message, blocks, messages) : translate_assistant(message, blocks, messages);
}

}  // namespace

Status translate_messages(const JsonValue& list, ChatMessages& messages) {
    TRY_ASSIGN(std::vector<JsonValue> elements, list.as_array());
    if (elements.empty()) return list.error("expected at least one message, found an empty list");
    for (const JsonValue& element : elements) TRY(translate_message(element, messages));
    return ok_status();
}

}  // namespace lorad::proto
