// Bodies of other endpoints said as a chat's, which generate_*_parse.cpp then read: one reading
// of sampling, limits, tools and schemas for all of them. Private to parsers in proto/.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/field_names.h"
#include "proto/generate/generate_request.h"
#include "proto/json/json.h"
#include "proto/known_fields.h"

namespace lorad::proto {

// Messages of a chat. What the assistant said, thought and called one after the other is one
// message of its, as chat templates expect; so are system texts at the beginning.
class ChatMessages {
  public:
    explicit ChatMessages(FieldNames& names) : names_(names) {}

    // `path`: where it stands in the body of the other endpoint; text_path: where its text does.
    void add(std::string_view role, std::string_view text, const std::string& path, const std::string& text_path);
    // Names the members of the value at `path` that hold the result's id and its text.
    struct ResultFields {
        std::string_view id, text;
    };
    void add_tool_result(std::string_view call_id, std::string_view text, bool is_error, const std::string& path,
                         const ResultFields& fields);
    void add_assistant_text(std::string_view text, const std::string& path, const std::string& text_path);
    void add_reasoning(std::string_view text, const std::string& path, const std::string& text_path);
    struct Call {
        std::string id, name;
        std::string arguments;                       // a text, as a rule of a JSON object
        std::string path;                            // of the call in the body
        std::string_view id_field, arguments_field;  // its members
    };
    void add_call(Call call, const std::string& turn_path);
    // Lists the unknown members of a message's part in the other body.
    void list_unknown(const JsonValue& part, std::initializer_list<std::string_view> known) {
        list_unknown_fields(part, known, ignored_);
    }
    // Parts of a text, in a list: of these members.
    void list_unknown_parts(const std::optional<JsonValue>& parts, std::initializer_list<std::string_view> known);
    const std::vector<std::string>& ignored() const { return ignored_; }
    // The same for each part of a text that is a list of parts.
    bool ends_with_assistant_text() const { return turn_.has_text && turn_.calls.empty(); }

    // A JSON array; at the end.
    std::string take();

  private:
    struct Turn {
        std::string text, reasoning;
        std::string path, text_path, reasoning_path;
        std::vector<Call> calls;
        bool begun = false, has_text = false;
    };
    std::string message_name() const;  // of the next message to be written
    void begin_turn(const std::string& path);
    void begin_message(std::string_view role, const std::string& path);
    void flush();

    FieldNames& names_;
    std::vector<std::string> ignored_;
    JsonWriter messages_;
    std::string text_ = "[";  // the array so far
    size_t n_messages_ = 0;
    std::string system_, system_path_, system_text_path_;  // at the beginning, not yet written
    bool has_system_ = false;
    Turn turn_;  // the assistant's, not yet written
};

// {"type":"function","function":{...}} of a tool whose fields stand side by side; `renamed`: what a
// field is called there.
void write_chat_tool(JsonWriter& writer, const std::vector<JsonMember>& fields, std::string_view schema_field);

// A text, or a list of parts of these types with "text", which are joined line by line.
// kUnsupportedParameter for parts of other types.
Result<std::string> text_of_parts(const JsonValue& content, const std::vector<std::string_view>& types);

// Members of `root` that the other body has under the same name.
void copy_fields(const JsonValue& root, std::span<const std::string_view> names, JsonWriter& writer);

}  // namespace lorad::proto
