#include "proto/generate/chat_translation.h"

#include <algorithm>
#include <cctype>

#include "proto/base/format.h"
#include "proto/generate/generate_request_parts.h"

namespace lorad::proto {

std::string FieldNames::original(std::string_view translated) const {
    const std::pair<std::string, std::string>* best = nullptr;
    for (const auto& name : names_) {
        const std::string& prefix = name.first;
        bool fits =
            translated.starts_with(prefix) && (translated.size() == prefix.size() || translated[prefix.size()] == '.' ||
                                               translated[prefix.size()] == '[');
        if (fits && (best == nullptr || prefix.size() > best->first.size())) best = &name;
    }
    if (best == nullptr) return std::string(translated);
    return best->second + std::string(translated.substr(best->first.size()));
}

std::vector<std::string> FieldNames::originals(std::span<const std::string> translated) const {
    std::vector<std::string> names;
    for (const std::string& name : translated) names.push_back(original(name));
    return names;
}

Error FieldNames::renamed(Error error) const {
    if (error.param.empty()) return error;
    std::string name = original(error.param);
    const std::string_view message = error.message;
    const auto is_part = [&](size_t i) {
        return i < message.size() && (std::isalnum(static_cast<unsigned char>(message[i])) != 0 || message[i] == '_');
    };
    // The longest name that stands at a place; one that could be a word of the sentence stays as it is.
    const auto name_at = [&](size_t at) {
        const std::pair<std::string, std::string>* best = nullptr;
        if (at > 0 && is_part(at - 1)) return best;
        for (const auto& one : names_) {
            const std::string& translated = one.first;
            if (translated.find_first_of("._[") == std::string::npos) continue;
            if (!message.substr(at).starts_with(translated) || is_part(at + translated.size())) continue;
            if (best == nullptr || translated.size() > best->first.size()) best = &one;
        }
        return best;
    };
    // Replaces in one pass: a name already written is the client's, and may equal another one of the chat's.
    std::string written;
    size_t at = 0;
    const auto* first = name_at(0);
    const bool names_more = first != nullptr && first->first.size() > error.param.size();
    if (message.starts_with(error.param) && !names_more) {
        written = name;
        at = error.param.size();
    }
    while (at < message.size()) {
        if (const auto* found = name_at(at)) {
            written += found->second;
            at += found->first.size();
        } else {
            written += message[at++];
        }
    }
    error.message = std::move(written);
    error.param = std::move(name);
    return error;
}

std::string ChatMessages::message_name() const { return format("messages[{}]", n_messages_); }

void ChatMessages::begin_message(std::string_view role, const std::string& path) {
    names_.add(message_name(), path);
    if (n_messages_++ > 0) text_ += ',';
    messages_.begin_object().field("role", role);
}

void ChatMessages::flush() {
    if (has_system_) {
        has_system_ = false;
        names_.add(message_name() + ".content", system_text_path_);
        begin_message("system", system_path_);
        text_ += messages_.field("content", system_).end_object().take();
    }
    if (!turn_.begun) return;
    const std::string message = message_name();
    begin_message("assistant", turn_.path);
    if (turn_.has_text) names_.add(message + ".content", turn_.text_path);
    if (!turn_.reasoning.empty()) names_.add(message + ".reasoning_content", turn_.reasoning_path);
    // Never null: templates that know nothing of calls join it with other texts.
    messages_.field("content", turn_.text);
    if (!turn_.reasoning.empty()) messages_.field("reasoning_content", turn_.reasoning);
    if (!turn_.calls.empty()) {
        messages_.key("tool_calls").begin_array();
        for (size_t i = 0; i < turn_.calls.size(); ++i) {
            const Call& call = turn_.calls[i];
            const std::string name = format("{}.tool_calls[{}]", message, i);
            names_.add(name, call.path);
            names_.add(name + ".id", format("{}.{}", call.path, call.id_field));
            names_.add(name + ".function", call.path);
            names_.add(name + ".function.arguments", format("{}.{}", call.path, call.arguments_field));
            messages_.begin_object().field("id", call.id).field("type", "function");
            messages_.key("function").begin_object().field("name", call.name);
            messages_.field("arguments", call.arguments).end_object().end_object();
        }
        messages_.end_array();
    }
    text_ += messages_.end_object().take();
    turn_ = {};
}

void ChatMessages::begin_turn(const std::string& path) {
    if (turn_.begun) return;
    flush();
    turn_.begun = true;
    turn_.path = path;
}

void ChatMessages::add(std::string_view role, std::string_view text, const std::string& path,
                       const std::string& text_path) {
    if (role == "system" && n_messages_ == 0 && !turn_.begun) {
        if (has_system_) {
            system_ += "\n\n";
        } else {
            system_path_ = path;
            system_text_path_ = text_path;
        }
        has_system_ = true;
        system_ += text;
        return;
    }
    flush();
    names_.add(message_name() + ".content", text_path);
    begin_message(role, path);
    text_ += messages_.field("content", text).end_object().take();
}

void ChatMessages::add_tool_result(std::string_view call_id, std::string_view text, bool is_error,
                                   const std::string& path, const ResultFields& fields) {
    flush();
    names_.add(message_name() + ".tool_call_id", format("{}.{}", path, fields.id));
    names_.add(message_name() + ".content", format("{}.{}", path, fields.text));
    begin_message("tool", path);
    messages_.field("tool_call_id", call_id).field("content", text);
    if (is_error) messages_.field("is_error", true);
    text_ += messages_.end_object().take();
}

void ChatMessages::add_assistant_text(std::string_view text, const std::string& path, const std::string& text_path) {
    if (turn_.has_text || !turn_.calls.empty()) flush();
    begin_turn(path);
    turn_.text = std::string(text);
    turn_.text_path = text_path;
    turn_.has_text = true;
}

void ChatMessages::add_reasoning(std::string_view text, const std::string& path, const std::string& text_path) {
    if (turn_.has_text || !turn_.calls.empty()) flush();
    begin_turn(path);
    if (turn_.reasoning_path.empty()) turn_.reasoning_path = text_path;
    if (!turn_.reasoning.empty()) turn_.reasoning += '\n';
    turn_.reasoning += text;
}

void ChatMessages::add_call(Call call, const std::string& turn_path) {
    begin_turn(turn_path);
    turn_.calls.push_back(std::move(call));
}

void ChatMessages::list_unknown_parts(const std::optional<JsonValue>& parts,
                                      std::initializer_list<std::string_view> known) {
    if (!parts || !parts->is_array()) return;
    for (const JsonValue& part : *parts->as_array()) list_unknown_fields(part, known, ignored_);
}

std::string ChatMessages::take() {
    flush();
    return std::move(text_) + "]";
}

void write_chat_tool(JsonWriter& writer, const std::vector<JsonMember>& fields, std::string_view schema_field) {
    writer.begin_object().field("type", "function").key("function").begin_object();
    for (const JsonMember& field : fields) {
        if (field.key == "type" || field.value.is_null()) continue;
        writer.key(field.key == schema_field ? "parameters" : field.key).raw(field.value.dump());
    }
    writer.end_object().end_object();
}

Result<std::string> text_of_parts(const JsonValue& content, const std::vector<std::string_view>& types) {
    if (content.is_string()) {
        TRY_ASSIGN(std::string_view text, content.as_string());
        return std::string(text);
    }
    if (!content.is_array()) {
        return content.error(format("expected a string or a list of text parts, found {}", content.describe()));
    }
    std::string joined;
    TRY_ASSIGN(std::vector<JsonValue> parts, content.as_array());
    for (size_t i = 0; i < parts.size(); ++i) {
        TRY_ASSIGN(JsonValue type, parts[i].require("type"));
        TRY_ASSIGN(std::string_view name, type.as_string());
        if (std::find(types.begin(), types.end(), name) == types.end()) {
            return make_error(ErrorCode::kUnsupportedParameter,
                              format("{}: this server takes only text here, found {}", type.path(), type.describe()),
                              type.path());
        }
        TRY_ASSIGN(JsonValue part, parts[i].require(name == "refusal" ? "refusal" : "text"));
        TRY_ASSIGN(std::string_view text, part.as_string());
        if (i > 0) joined += '\n';
        joined += text;
    }
    return joined;
}

void copy_fields(const JsonValue& root, std::span<const std::string_view> names, JsonWriter& writer) {
    for (std::string_view name : names) {
        if (std::optional<JsonValue> value = root.find(name)) writer.key(name).raw(value->dump());
    }
}

}  // namespace lorad::proto
