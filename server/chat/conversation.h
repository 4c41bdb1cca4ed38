// A chat's messages taken apart, so that they can be written as a template takes them: contents as texts or in parts,
// system texts apart or joined, thoughts under the name that it reads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"
#include "proto/json/json.h"
#include "server/chat/marks.h"

namespace lorad::server {

// The form of a message's content for a template.
enum class ContentForm : uint8_t {
    kNull,
    kText,     // parts are joined line by line
    kParts,    // as sent
    kOnePart,  // all of it as a list of one
};

// The handling of the roles "developer" and "system", each step keeping less of what was sent.
enum class RoleUse : uint8_t {
    kAsSent,
    kRenamed,        // developer is system
    kJoinedAtStart,  // and those before all others are one message
    kJoined,         // all of them are one message before all others
    kWithUser,       // all of them stand before the text of the first message of the user
};

struct ChatPlan {
    RoleUse roles = RoleUse::kAsSent;
    std::vector<ContentForm> contents;  // by message
    // Names under which the template reads the assistant's thoughts; a thought that was sent under none of them is also
    // written under the first.
    std::vector<std::string> thought_names;
    // Arguments of calls that are a text, since they are no JSON object, are {"arguments": TEXT}: for templates that
    // walk through them.
    bool wraps_arguments = false;
    // The text that the assistant said before a call is part of its thought, for templates that take one of them alone.
    bool thinks_aloud = false;
};

// The marks of a message that was written with them.
struct MessageMarks {
    std::vector<size_t> parts;
    std::optional<size_t> reasoning, name;
    struct Call {
        std::optional<size_t> name, arguments;
    };
    std::vector<Call> calls;
};

class Conversation {
  public:
    // An array of messages whose contents are texts, null or lists of text parts. Calls of functions may have anything.
    static Result<Conversation> parse(std::string_view messages_json);

    size_t size() const { return messages_.size(); }
    std::string_view role(size_t message) const { return messages_[message].role; }
    // "developer" or "system".
    bool is_system(size_t message) const;
    bool has_parts(size_t message) const { return messages_[message].sent == ContentForm::kParts; }
    std::optional<size_t> first_developer() const;
    bool has_reasoning() const;
    bool has_text_arguments() const;
    bool speaks_before_calls() const;  // a message has a thought, a text and calls
    bool speaks_before_calls(size_t message) const;
    // "reasoning_content" or "reasoning"; empty: the message has none.
    const std::string& reasoning_name(size_t message) const { return messages_[message].reasoning_name; }
    // The plan that changes nothing.
    ChatPlan plan() const;

    // Writes the array as the plan says; `appended` is put behind the last message's text.
    std::string write(const ChatPlan& plan, std::string_view appended = {}) const;
    // The same with marks in place of all texts, and with ids that are the same for all conversations.
    std::string write_marked(const ChatPlan& plan, Marks& marks, std::vector<MessageMarks>& messages) const;

  private:
    struct Message {
        std::vector<JsonMember> members;
        std::string_view role;
        ContentForm sent = ContentForm::kNull;
        std::vector<JsonValue> part_values;   // if the content came in parts
        std::vector<std::string_view> parts;  // its texts; one where it is a text
        std::string reasoning_name;
        std::string_view reasoning;
    };
    class Writer;
    explicit Conversation(JsonDocument document) : document_(std::move(document)) {}
    // A message that is written, and those whose texts it has.
    struct Turn {
        size_t message;
        std::vector<size_t> sources;
    };
    std::vector<Turn> turns(RoleUse roles) const;

    JsonDocument document_;
    std::vector<Message> messages_;
};

}  // namespace lorad::server
