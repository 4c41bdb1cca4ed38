#include "proto/tokenizer_info.h"

#include <algorithm>
#include <array>

#include "proto/generate/generate_request_parts.h"
#include "proto/json/json.h"

namespace lorad::proto {
namespace {

constexpr std::array kPaths = {std::string_view("name_or_path"), std::string_view("tokenizer_file"),
                               std::string_view("special_tokens_map_file")};

// {"content": TEXT, "special": true, ...}
std::optional<JsonValue> token_text(const JsonValue& value) {
    std::optional<JsonValue> content = value.find("content");
    return content && content->is_string() && value.find("special") ? content : std::nullopt;
}

void write_plain(JsonWriter& writer, const JsonValue& value) {
    if (std::optional<JsonValue> text = token_text(value)) {
        writer.raw(text->dump());
    } else if (value.is_object()) {
        writer.begin_object();
        for (const JsonMember& member : *value.as_object()) {
            writer.key(member.key);
            write_plain(writer, member.value);
        }
        writer.end_object();
    } else if (value.is_array()) {
        writer.begin_array();
        for (const JsonValue& element : *value.as_array()) write_plain(writer, element);
        writer.end_array();
    } else {
        writer.raw(value.dump());
    }
}

// A text, or a list of named ones of which "default" counts.
std::optional<JsonValue> template_of(const JsonValue& value) {
    if (value.is_string()) return value;
    if (!value.is_array()) return std::nullopt;
    for (const JsonValue& element : *value.as_array()) {
        std::optional<JsonValue> name = element.find("name");
        if (name && is_text(*name, "default")) return element.find("template");
    }
    return std::nullopt;
}

}  // namespace

Result<std::string> tokenizer_info(std::string_view config, std::string_view chat_template) {
    JsonParseOptions options{
        .name = "tokenizer_config.json", .code = ErrorCode::kInvalidModel, .allow_duplicate_keys = true};
    TRY_ASSIGN(JsonDocument document, parse_json(config.empty() ? "{}" : config, options));
    TRY_ASSIGN(std::vector<JsonMember> members, document.root().as_object());
    JsonWriter writer;
    writer.begin_object();
    if (!document.root().find("tokenizer_class")) writer.field("tokenizer_class", "PreTrainedTokenizerFast");
    for (const JsonMember& member : members) {
        if (std::ranges::find(kPaths, member.key) != kPaths.end() || member.key == "chat_template") continue;
        writer.key(member.key);
        write_plain(writer, member.value);
    }
    std::optional<JsonValue> configured = document.root().find("chat_template");
    if (configured) configured = template_of(*configured);
    if (!chat_template.empty()) {
        writer.field("chat_template", chat_template);
    } else if (configured) {
        writer.key("chat_template").raw(configured->dump());
    }
    return writer.end_object().take();
}

}  // namespace lorad::proto
