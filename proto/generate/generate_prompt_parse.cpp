// Parses the model's input: prompts, or a chat and the input of its template.
#include "proto/base/format.h"
#include "proto/generate/generate_request_parts.h"
#include "proto/known_fields.h"

namespace lorad::proto {
namespace {

Result<Prompt> parse_prompt(const JsonValue& value, uint32_t vocab_size) {
    Prompt prompt;
    if (value.is_string()) {
        TRY_ASSIGN(std::string_view text, value.as_string());
        prompt.text = std::string(text);
        return prompt;
    }
    if (!value.is_array()) {
        return value.error(format("expected a string or a list of token ids, found {}", value.describe()));
    }
    if (value.size() == 0) return value.error("expected at least one token id, found an empty list");
    TRY_ASSIGN(prompt.ids, parse_ids(value, vocab_size, value.size()));
    return prompt;
}

// A text, or a list of text parts as it is: what the template takes is found out later. `text`: all of it, line by
// line.
Status write_content(const JsonValue& content, JsonWriter& writer, std::string& text) {
    if (content.is_string()) {
        TRY_ASSIGN(std::string_view whole, content.as_string());
        text = std::string(whole);
        writer.value(text);
        return ok_status();
    }
    if (!content.is_array()) {
        return content.error(format("expected a string or a list of text parts, found {}", content.describe()));
    }
    TRY_ASSIGN(std::vector<JsonValue> parts, content.as_array());
    writer.begin_array();
    for (size_t i = 0; i < parts.size(); ++i) {
        TRY_ASSIGN(JsonValue type, parts[i].require("type"));
        const bool is_refusal = is_text(type, "refusal");
        if (!is_refusal && !is_text(type, "text")) {
            return make_error(ErrorCode::kUnsupportedParameter,
                              format("{}: this server takes only text parts, found {}", type.path(), type.describe()),
                              type.path());
        }
        TRY_ASSIGN(JsonValue part, parts[i].require(is_refusal ? "refusal" : "text"));
        TRY_ASSIGN(std::string_view part_text, part.as_string());
        if (i > 0) text += '\n';
        text += part_text;
        if (!is_refusal) {
            writer.raw(parts[i].dump());
        } else {
            // A refusal is text of the assistant too, and templates know only text parts.
            writer.begin_object().field("type", "text").field("text", part_text).end_object();
        }
    }
    writer.end_array();
    return ok_status();
}

// Two names of one field: vLLM's of today and the one before.
Status check_reasoning(const JsonValue& message) {
    const std::optional<JsonValue> one = message.find("reasoning"), other = message.find("reasoning_content");
    if (!one || !other || is_text(*one, "") || is_text(*other, "") || one->dump() == other->dump()) return ok_status();
    return one->error("differs from \"reasoning_content\", which is the same field under another name");
}

// Templates want the arguments of a call as an object; on the wire they are a text, which a model may have left
// unfinished or written wrong: then they stay one.
Status write_arguments(const JsonValue& arguments, JsonWriter& writer) {
    if (arguments.is_object()) {
        writer.raw(arguments.dump());
        return ok_status();
    }
    TRY_ASSIGN(std::string_view text, arguments.as_string());
    if (text.empty()) {
        writer.raw("{}");
        return ok_status();
    }
    Result<JsonDocument> document = parse_json(text, {.allow_duplicate_keys = true});
    if (document.ok() && document->root().is_object()) {
        writer.raw(document->root().dump());
    } else {
        writer.value(text);
    }
    return ok_status();
}

// Lists unknown fields, even those that a template may read: they are not checked here.
void list_unknown(const JsonValue& message, std::vector<std::string>& ignored) {
    static constexpr std::string_view kFields[] = {
        "role",      "content",  "name",    "tool_calls", "tool_call_id", "tool_name", "reasoning_content",
        "reasoning", "thinking", "refusal", "is_error"};
    static constexpr std::string_view kPart[] = {"type", "text", "refusal"};
    static constexpr std::string_view kCall[] = {"id", "type", "index", "function"};
    static constexpr std::string_view kFunction[] = {"name", "arguments"};
    list_unknown_fields(message, kFields, ignored);
    if (std::optional<JsonValue> content = message.find("content"); content && content->is_array()) {
        for (const JsonValue& part : *content->as_array()) list_unknown_fields(part, kPart, ignored);
    }
    std::optional<JsonValue> calls = message.find("tool_calls");
    if (!calls || !calls->is_array()) return;
    for (const JsonValue& call : *calls->as_array()) {
        list_unknown_fields(call, kCall, ignored);
        if (std::optional<JsonValue> function = call.find("function"))
            list_unknown_fields(*function, kFunction, ignored);
    }
}

Status write_tool_calls(const JsonValue& calls, JsonWriter& writer) {
    TRY_ASSIGN(std::vector<JsonValue> elements, calls.as_array());
    writer.begin_array();
    for (const JsonValue& call : elements) {
        TRY_ASSIGN(std::vector<JsonMember> members, call.as_object());
        TRY_ASSIGN(JsonValue function, call.require("function"));
        TRY_ASSIGN(JsonValue name, function.require("name"));
        TRY(name.as_string());
        writer.begin_object();
        for (const JsonMember& member : members) {
            writer.key(member.key);
            if (member.key != "function") {
                writer.raw(member.value.dump());
                continue;
            }
            TRY_ASSIGN(std::vector<JsonMember> parts, member.value.as_object());
            writer.begin_object();
            for (const JsonMember& part : parts) {
                writer.key(part.key);
                if (part.key == "arguments" && !part.value.is_null()) {
                    TRY(write_arguments(part.value, writer));
                } else {
                    writer.raw(part.key == "arguments" ? "{}" : part.value.dump());
                }
            }
            // A function without arguments may be called so.
            if (!function.has("arguments")) writer.key("arguments").raw("{}");
            writer.end_object();
        }
        writer.end_object();
    }
    writer.end_array();
    return ok_status();
}

Status write_message(const JsonValue& message, JsonWriter& writer, std::string& content_out) {
    TRY_ASSIGN(std::vector<JsonMember> members, message.as_object());
    TRY_ASSIGN(JsonValue role, message.require("role"));
    TRY_ASSIGN(std::string_view role_text, role.as_string());
    if (role_text.empty()) return role.error("expected a role such as \"user\", found an empty string");
    if (role_text != "assistant") TRY(message.require("content"));
    TRY(check_reasoning(message));
    content_out.clear();
    writer.begin_object();
    for (const JsonMember& member : members) {
        // Dropped as absent, also for templates that only test whether it is defined.
        if (member.key == "tool_calls" &&
            (member.value.is_null() || (member.value.is_array() && member.value.size() == 0)))
            continue;
        // An assistant that has refused says so beside its content.
        if (member.key == "content" && member.value.is_null() && message.find("refusal")) continue;
        writer.key(member.key);
        if (member.value.is_null()) {
            writer.null();
        } else if (member.key == "content") {
            TRY(write_content(member.value, writer, content_out));
        } else if (member.key == "tool_calls") {
            TRY(write_tool_calls(member.value, writer));
        } else {
            writer.raw(member.value.dump());
        }
    }
    if (std::optional<JsonValue> refusal = message.find("refusal"); refusal && !message.find("content")) {
        TRY_ASSIGN(std::string_view text, refusal->as_string());
        content_out = std::string(text);
        writer.field("content", text);
    } else if (!message.has("content")) {
        writer.key("content").null();
    }
    writer.end_object();
    return ok_status();
}

}  // namespace

Status parse_prompts(const JsonValue& root, GenerateRequest& request, uint32_t vocab_size) {
    TRY_ASSIGN(JsonValue prompt, root.require("prompt"));
    std::vector<JsonValue> elements{prompt};
    if (prompt.is_array() && prompt.size() > 0) {
        TRY_ASSIGN(std::vector<JsonValue> list, prompt.as_array());
        if (!list.front().is_number()) elements = std::move(list);
    }
    if (elements.size() > kChoicesMax) {
        return prompt.error(format("expected at most {} prompts, found {}", kChoicesMax, elements.size()));
    }
    for (const JsonValue& element : elements) {
        TRY_ASSIGN(Prompt one, parse_prompt(element, vocab_size));
        request.prompts.push_back(std::move(one));
    }
    return ok_status();
}

Status parse_messages(const JsonValue& root, GenerateRequest& request) {
    TRY_ASSIGN(JsonValue messages, root.require("messages"));
    TRY_ASSIGN(std::vector<JsonValue> elements, messages.as_array());
    if (elements.empty()) return messages.error("expected at least one message, found none");
    JsonWriter writer;
    std::string last_content;
    writer.begin_array();
    for (const JsonValue& message : elements) {
        TRY(write_message(message, writer, last_content));
        list_unknown(message, request.ignored_fields);
    }
    writer.end_array();
    request.messages_json = writer.take();
    TRY_ASSIGN(bool continues, root.bool_or("continue_final_message", false));
    TRY_ASSIGN(request.add_generation_prompt, root.bool_or("add_generation_prompt", !continues));
    if (!continues) return ok_status();
    JsonValue flag = *root.find("continue_final_message");
    if (request.add_generation_prompt) return flag.error("contradicts \"add_generation_prompt\": true");
    if (last_content.empty()) return flag.error("the last message has no text to continue");
    request.continued_text = std::move(last_content);
    return ok_status();
}

Status parse_template_options(const JsonValue& root, GenerateRequest& request) {
    if (std::optional<JsonValue> documents = root.find("documents")) {
        TRY_ASSIGN(std::vector<JsonValue> elements, documents->as_array());
        for (const JsonValue& element : elements) TRY(element.as_object());
        request.documents_json = documents->dump();
    }
    if (std::optional<JsonValue> name = root.find("chat_template")) {
        constexpr size_t kNameBytesMax = 64;
        TRY_ASSIGN(std::string_view text, name->as_string());
        if (text.empty() || text.size() > kNameBytesMax)
            return unsupported_field("chat_template",
                                     "this server takes the name of one of the model's templates, but no template");
        request.template_name = std::string(text);
    }
    std::optional<JsonValue> kwargs = root.find("chat_template_kwargs");
    if (!kwargs) return ok_status();
    TRY_ASSIGN(std::vector<JsonMember> members, kwargs->as_object());
    for (const JsonMember& member : members) {
        for (std::string_view name :
             {"messages", "conversation", "tools", "documents", "add_generation_prompt", "continue_final_message"}) {
            if (member.key != name) continue;
            return member.value.error("has a parameter of its own in the request");
        }
    }
    if (!members.empty()) request.template_kwargs_json = kwargs->dump();
    return ok_status();
}

}  // namespace lorad::proto
