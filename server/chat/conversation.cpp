#include "server/chat/conversation.h"

#include <algorithm>
#include <map>

#include "proto/base/format.h"

namespace lorad::server {
namespace {

constexpr std::string_view kReasoningNames[] = {"reasoning_content", "reasoning"};

bool is_only_blanks(std::string_view text) { return text.find_first_not_of(" \t\n\r\f\v") == std::string_view::npos; }

std::string_view text_or(const JsonValue& object, std::string_view key) {
    const std::optional<JsonValue> value = object.find(key);
    return value && value->is_string() ? *value->as_string() : std::string_view();
}

}  // namespace

// Writes one array. With marks it says which are whose.
class Conversation::Writer {
  public:
    Writer(const Conversation& chat, const ChatPlan& plan) : chat_(chat), plan_(plan) {}

    void mark_with(Marks& marks, std::vector<MessageMarks>& messages) {
        marks_ = &marks;
        marked_ = &messages;
        marked_->assign(chat_.size(), {});
    }

    std::string write(std::string_view appended) {
        const std::vector<Turn> turns = chat_.turns(plan_.roles);
        writer_.begin_array();
        for (size_t i = 0; i < turns.size(); ++i)
            write_turn(turns[i], i + 1 == turns.size() ? appended : std::string_view());
        return writer_.end_array().take();
    }

  private:
    void write_turn(const Turn& turn, std::string_view appended) {
        const Message& message = chat_.messages_[turn.message];
        bool has_content = false;
        writer_.begin_object();
        for (const JsonMember& member : message.members) {
            has_content = has_content || member.key == "content";
            writer_.key(member.key);
            write_member(turn, member, appended);
        }
        if (!has_content) {
            writer_.key("content");
            write_content(turn, appended);
        }
        const std::vector<std::string>& read = plan_.thought_names;
        if (!message.reasoning_name.empty() && !read.empty() &&
            std::ranges::find(read, message.reasoning_name) == read.end()) {
            writer_.key(read.front());
            write_reasoning(turn.message);
        }
        writer_.end_object();
    }

    void write_member(const Turn& turn, const JsonMember& member, std::string_view appended) {
        const Message& message = chat_.messages_[turn.message];
        const bool is_marked = marks_ != nullptr;
        if (member.key == "role") {
            const bool is_renamed = plan_.roles != RoleUse::kAsSent && chat_.is_system(turn.message);
            writer_.value(is_renamed ? std::string_view("system") : message.role);
        } else if (member.key == "content") {
            write_content(turn, appended);
        } else if (member.key == message.reasoning_name) {
            write_reasoning(turn.message);
        } else if ((is_marked || plan_.wraps_arguments) && member.key == "tool_calls" && member.value.is_array()) {
            write_calls(turn.message, member.value);
        } else if (is_marked && member.key == "tool_call_id" && member.value.is_string()) {
            writer_.value(id_like(*member.value.as_string()));
        } else if (is_marked && member.key == "name" && member.value.is_string() && message.role != "tool" &&
                   !is_only_blanks(*member.value.as_string())) {
            (*marked_)[turn.message].name = marks_->size();
            writer_.value(marks_->add_name());
        } else {
            writer_.raw(member.value.dump());
        }
    }

    void write_content(const Turn& turn, std::string_view appended) {
        const ContentForm form = plan_.contents[turn.message];
        if (plan_.thinks_aloud && chat_.speaks_before_calls(turn.message)) {
            writer_.value("");
            return;
        }
        if (form == ContentForm::kNull && turn.sources.size() == 1 && appended.empty()) {
            writer_.null();
        } else if (form == ContentForm::kParts) {
            writer_.begin_array();
            for (size_t source : turn.sources) {
                const Message& message = chat_.messages_[source];
                for (size_t i = 0; i < message.parts.size(); ++i) {
                    const bool is_last = source == turn.sources.back() && i + 1 == message.parts.size();
                    const std::string text = part(source, i).append(is_last ? appended : std::string_view());
                    write_part(i < message.part_values.size() ? &message.part_values[i] : nullptr, text);
                }
            }
            writer_.end_array();
        } else {
            std::string joined;
            for (size_t source : turn.sources) {
                if (source != turn.sources.front()) joined += "\n\n";
                for (size_t i = 0; i < chat_.messages_[source].parts.size(); ++i)
                    joined.append(i > 0 ? "\n" : "").append(part(source, i));
            }
            joined += appended;
            if (form == ContentForm::kOnePart) {
                writer_.begin_array();
                write_part(nullptr, joined);
                writer_.end_array();
            } else {
                writer_.value(joined);
            }
        }
    }

    void write_part(const JsonValue* sent, const std::string& text) {
        writer_.begin_object();
        if (sent == nullptr) {
            writer_.field("type", "text").field("text", text);
        } else {
            for (const JsonMember& member : *sent->as_object()) {
                writer_.key(member.key);
                if (member.key == "text") {
                    writer_.value(text);
                } else {
                    writer_.raw(member.value.dump());
                }
            }
        }
        writer_.end_object();
    }

    // Blanks are what they are: templates look whether a text has anything else, and nobody misses them.
    std::string part(size_t message, size_t index) {
        const std::string_view text = chat_.messages_[message].parts[index];
        if (marks_ == nullptr || is_only_blanks(text)) return std::string(text);
        (*marked_)[message].parts.push_back(marks_->size());
        return marks_->add();
    }

    // One mark under all of its names.
    void write_reasoning(size_t message) {
        const std::string_view text = chat_.messages_[message].reasoning;
        if (marks_ == nullptr || is_only_blanks(text)) {
            writer_.value(std::string(text) + aloud(message));
            return;
        }
        std::optional<size_t>& mark = (*marked_)[message].reasoning;
        if (!mark) {
            mark = marks_->size();
            reasoning_ = marks_->add() + aloud(message);
        }
        writer_.value(reasoning_);
    }

    // The text before a call, where that belongs to the thought.
    std::string aloud(size_t message) {
        std::string said;
        if (!plan_.thinks_aloud || !chat_.speaks_before_calls(message)) return said;
        for (size_t i = 0; i < chat_.messages_[message].parts.size(); ++i) said.append("\n\n").append(part(message, i));
        return said;
    }

    void write_calls(size_t message, const JsonValue& calls) {
        writer_.begin_array();
        for (const JsonValue& call : *calls.as_array()) {
            MessageMarks::Call nothing;
            MessageMarks::Call& marked = marks_ != nullptr ? (*marked_)[message].calls.emplace_back() : nothing;
            if (!call.is_object()) {
                writer_.raw(call.dump());
                continue;
            }
            writer_.begin_object();
            for (const JsonMember& member : *call.as_object()) {
                writer_.key(member.key);
                if (member.key == "function" && member.value.is_object()) {
                    write_function(member.value, marked);
                } else if (marks_ != nullptr && member.key == "id" && member.value.is_string()) {
                    writer_.value(id_like(*member.value.as_string()));
                } else {
                    writer_.raw(member.value.dump());
                }
            }
            writer_.end_object();
        }
        writer_.end_array();
    }

    void write_function(const JsonValue& function, MessageMarks::Call& marked) {
        writer_.begin_object();
        for (const JsonMember& member : *function.as_object()) {
            writer_.key(member.key);
            const bool is_text = member.value.is_string() && !is_only_blanks(*member.value.as_string());
            const bool is_wrapped = plan_.wraps_arguments && member.key == "arguments" && member.value.is_string();
            if (is_wrapped) writer_.begin_object().key("arguments");
            if (marks_ == nullptr) {
                writer_.raw(member.value.dump());
            } else if (member.key == "name" && is_text) {
                marked.name = marks_->size();
                writer_.value(marks_->add_name());
            } else if (member.key == "arguments" && is_text) {
                marked.arguments = marks_->size();
                writer_.value(marks_->add());
            } else if (member.key == "arguments" && member.value.is_object() && member.value.size() > 0) {
                marked.arguments = marks_->size();
                const std::string mark = marks_->add_name();
                writer_.begin_object().field("a", mark).end_object();
            } else {
                writer_.raw(member.value.dump());
            }
            if (is_wrapped) writer_.end_object();
        }
        writer_.end_object();
    }

    // Some templates want ids of nine letters and digits, others any.
    std::string id_like(std::string_view id) {
        const auto known = ids_.find(id);
        if (known != ids_.end()) return known->second;
        std::string made = format("{}{:08}", id.size() == 9 ? "c" : "call_", ids_.size());
        ids_.emplace(id, made);
        return made;
    }

    const Conversation& chat_;
    const ChatPlan& plan_;
    JsonWriter writer_;
    Marks* marks_ = nullptr;  // null: what was said
    std::vector<MessageMarks>* marked_ = nullptr;
    std::string reasoning_;  // of the message being written
    std::map<std::string, std::string, std::less<>> ids_;
};

Result<Conversation> Conversation::parse(std::string_view messages_json) {
    // Arguments of calls came as texts, each with the depth and the values of a whole body, and with what a model may
    // write twice.
    TRY_ASSIGN(JsonDocument document, parse_json(messages_json, {.max_bytes = size_t{64} << 20,
                                                                 .max_depth = 192,
                                                                 .max_values = 1u << 20,
                                                                 .allow_duplicate_keys = true}));
    Conversation chat(std::move(document));
    TRY_ASSIGN(std::vector<JsonValue> elements, chat.document_.root().as_array());
    for (const JsonValue& element : elements) {
        Message message;
        TRY_ASSIGN(message.members, element.as_object());
        message.role = text_or(element, "role");
        for (const JsonMember& member : message.members) {
            if (member.key == "content" && member.value.is_string()) {
                message.sent = ContentForm::kText;
                message.parts = {*member.value.as_string()};
            } else if (member.key == "content" && member.value.is_array()) {
                message.sent = ContentForm::kParts;
                TRY_ASSIGN(message.part_values, member.value.as_array());
                for (const JsonValue& part : message.part_values) {
                    TRY(part.as_object());
                    message.parts.push_back(text_or(part, "text"));
                }
            }
        }
        for (std::string_view name : kReasoningNames) {
            if (!message.reasoning_name.empty() || text_or(element, name).empty()) continue;
            message.reasoning_name = name;
            message.reasoning = text_or(element, name);
        }
        // The other name, if it is there, says the same or nothing.
        if (!message.reasoning_name.empty()) {
            std::erase_if(message.members, [&](const JsonMember& member) {
                return member.key != message.reasoning_name &&
                       std::ranges::find(kReasoningNames, member.key) != std::end(kReasoningNames);
            });
        }
        chat.messages_.push_back(std::move(message));
    }
    return chat;
}

bool Conversation::is_system(size_t message) const {
    const std::string_view role = messages_[message].role;
    return role == "system" || role == "developer";
}

std::optional<size_t> Conversation::first_developer() const {
    const auto found = std::ranges::find(messages_, std::string_view("developer"), &Message::role);
    return found == messages_.end() ? std::nullopt : std::optional(static_cast<size_t>(found - messages_.begin()));
}

bool Conversation::has_reasoning() const {
    return std::ranges::any_of(messages_, [](const Message& message) { return !message.reasoning_name.empty(); });
}

bool Conversation::has_text_arguments() const {
    const auto is_text = [](const JsonValue& call) {
        const std::optional<JsonValue> function = call.find("function");
        const std::optional<JsonValue> arguments = function ? function->find("arguments") : std::nullopt;
        return arguments && arguments->is_string();
    };
    const auto is_call_with_one = [&](const JsonMember& member) {
        return member.key == "tool_calls" && member.value.is_array() &&
               std::ranges::any_of(*member.value.as_array(), is_text);
    };
    return std::ranges::any_of(
        messages_, [&](const Message& message) { return std::ranges::any_of(message.members, is_call_with_one); });
}

bool Conversation::speaks_before_calls(size_t index) const {
    const Message& message = messages_[index];
    const bool has_calls = std::ranges::any_of(message.members, [](const JsonMember& member) {
        return member.key == "tool_calls" && member.value.size() > 0;
    });
    return has_calls && !message.reasoning_name.empty() &&
           std::ranges::any_of(message.parts, [](std::string_view part) { return !is_only_blanks(part); });
}

bool Conversation::speaks_before_calls() const {
    for (size_t i = 0; i < size(); ++i) {
        if (speaks_before_calls(i)) return true;
    }
    return false;
}

ChatPlan Conversation::plan() const {
    ChatPlan plan;
    for (const Message& message : messages_) plan.contents.push_back(message.sent);
    return plan;
}

std::vector<Conversation::Turn> Conversation::turns(RoleUse roles) const {
    std::vector<size_t> joined;
    size_t n_leading = 0;
    while (n_leading < size() && is_system(n_leading)) ++n_leading;
    const size_t n_looked_at = roles < RoleUse::kJoinedAtStart    ? 0
                               : roles == RoleUse::kJoinedAtStart ? n_leading
                                                                  : size();
    for (size_t i = 0; i < n_looked_at; ++i) {
        if (is_system(i)) joined.push_back(i);
    }
    const auto user = std::ranges::find(messages_, std::string_view("user"), &Message::role);
    const bool is_with_user = roles == RoleUse::kWithUser && user != messages_.end() && !joined.empty();
    std::vector<Turn> turns;
    if (!joined.empty() && !is_with_user) turns.push_back({joined.front(), joined});
    for (size_t i = 0; i < size(); ++i) {
        if (i < n_looked_at && is_system(i)) continue;
        turns.push_back({i, {i}});
        if (is_with_user && i == static_cast<size_t>(user - messages_.begin())) {
            turns.back().sources = joined;
            turns.back().sources.push_back(i);
        }
    }
    return turns;
}

std::string Conversation::write(const ChatPlan& plan, std::string_view appended) const {
    return Writer(*this, plan).write(appended);
}

std::string Conversation::write_marked(const ChatPlan& plan, Marks& marks, std::vector<MessageMarks>& messages) const {
    Writer writer(*this, plan);
    writer.mark_with(marks, messages);
    return writer.write({});
}

}  // namespace lorad::server
