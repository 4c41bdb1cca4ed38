#include "proto/training/training_line.h"

#include <algorithm>
#include <array>

#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::proto {
namespace {

constexpr std::array<std::string_view, 6> kLineRoles = {"system", "developer", "user", "assistant", "tool", "function"};

JsonParseOptions line_options() {
    JsonParseOptions options;
    options.max_bytes = kTrainingLineBytesMax;
    // A sequence of tokens with its labels has two values a token.
    options.max_values = 1u << 20;
    return options;
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

// The text of a content that is a text or a list of text parts.
Result<std::string> content_text(const JsonValue& content) {
    if (content.is_string()) {
        TRY_ASSIGN(const std::string_view text, content.as_string());
        return std::string(text);
    }
    if (!content.is_array())
        return content.error(format("expected a text, a list of text parts or null, found {}", content.describe()));
    TRY_ASSIGN(const std::vector<JsonValue> parts, content.as_array());
    std::string joined;
    for (const JsonValue& part : parts) {
        if (!part.is_object()) return part.error(format("expected a text part, found {}", part.describe()));
        TRY_ASSIGN(const JsonValue type, part.require("type"));
        TRY_ASSIGN(const std::string_view kind, type.as_string());
        if (kind != "text")
            return type.error(format("only parts of the type text can be trained on, found {}", type.describe()));
        TRY_ASSIGN(const JsonValue value, part.require("text"));
        TRY_ASSIGN(const std::string_view text, value.as_string());
        if (&part != &parts.front()) joined += '\n';
        joined += text;
    }
    return joined;
}

Result<bool> has_calls(const JsonValue& message) {
    const std::optional<JsonValue> calls = message.find("tool_calls");
    if (!calls) return message.has("function_call") && message.find("function_call");
    TRY_ASSIGN(const std::vector<JsonValue> list, calls->as_array());
    for (const JsonValue& call : list) {
        if (!call.is_object()) return call.error(format("expected an object, found {}", call.describe()));
    }
    return !list.empty();
}

// Weight 0 or 1, an assistant's alone.
Result<bool> weight_of(const JsonValue& message, bool is_assistant) {
    const std::optional<JsonValue> weight = message.find("weight");
    if (!weight) return true;
    if (!is_assistant) return weight->error("only messages of the assistant have a weight");
    const Result<double> number = weight->as_number();
    if (!number.ok() || (*number != 0.0 && *number != 1.0))
        return weight->error(format("expected 0 or 1, found {}", weight->describe()));
    return *number == 1.0;
}

std::string without_weight(const std::vector<JsonMember>& members) {
    JsonWriter writer;
    writer.begin_object();
    for (const JsonMember& member : members) {
        if (member.key != "weight") writer.key(member.key).raw(member.value.dump());
    }
    return writer.end_object().take();
}

Result<TrainingMessage> parse_message(const JsonValue& value) {
    if (!value.is_object()) return value.error(format("expected a message, found {}", value.describe()));
    TRY_ASSIGN(const JsonValue role, value.require("role"));
    TRY_ASSIGN(const std::string_view role_name, role.as_string());
    if (std::ranges::find(kLineRoles, role_name) == kLineRoles.end())
        return role.error(format("expected system, developer, user, assistant or tool, found {}", role.describe()));
    TrainingMessage message;
    message.is_assistant = role_name == "assistant";
    TRY_ASSIGN(const bool has_weight, weight_of(value, message.is_assistant));
    message.is_trained = message.is_assistant && has_weight;
    const std::optional<JsonValue> content = value.find("content");
    TRY_ASSIGN(const bool calls, has_calls(value));
    if (content) {
        TRY_ASSIGN(message.content, content_text(*content));
    } else if (message.is_assistant && !calls) {
        return value.error("a message of the assistant needs content or tool_calls, found neither");
    } else if (!message.is_assistant) {
        return value.error("expected content, found none");
    }
    message.is_empty = message.is_assistant && !calls && is_blank(message.content);
    TRY_ASSIGN(const std::vector<JsonMember> members, value.as_object());
    message.json = without_weight(members);
    return message;
}

Result<std::vector<TrainingMessage>> parse_messages(const JsonValue& value) {
    if (!value.is_array()) return value.error(format("expected a list of messages, found {}", value.describe()));
    TRY_ASSIGN(const std::vector<JsonValue> list, value.as_array());
    if (list.empty()) return value.error("expected messages, found an empty list");
    if (list.size() > kTrainingMessagesMax)
        return value.error(format("{} messages, at most {} are taken", list.size(), kTrainingMessagesMax));
    std::vector<TrainingMessage> messages;
    messages.reserve(list.size());
    for (const JsonValue& one : list) {
        TRY_ASSIGN(TrainingMessage message, parse_message(one));
        messages.push_back(std::move(message));
    }
    return messages;
}

Status check_trained(const JsonValue& root, const std::vector<TrainingMessage>& messages) {
    if (std::ranges::any_of(messages, &TrainingMessage::is_trained)) return ok_status();
    if (std::ranges::any_of(messages, &TrainingMessage::is_assistant))
        return root.error("every message of the assistant has weight 0: nothing to train");
    return root.error("no message of the assistant: nothing to train");
}

Status parse_tools(const JsonValue& root, TrainingLine& line) {
    const std::optional<JsonValue> tools = root.find("tools");
    if (!tools) return ok_status();
    TRY_ASSIGN(const std::vector<JsonValue> list, tools->as_array());
    for (const JsonValue& tool : list) {
        if (!tool.is_object()) return tool.error(format("expected an object, found {}", tool.describe()));
    }
    if (!list.empty()) line.tools_json = tools->dump();
    return ok_status();
}

Status parse_chat(const JsonValue& root, TrainingLine& line) {
    TRY_ASSIGN(const JsonValue messages, root.require("messages"));
    TRY_ASSIGN(line.messages, parse_messages(messages));
    TRY(parse_tools(root, line));
    return check_trained(root, line.messages);
}

Status parse_completion(const JsonValue& root, TrainingLine& line) {
    TRY_ASSIGN(const JsonValue prompt, root.require("prompt"));
    TRY_ASSIGN(const JsonValue completion, root.require("completion"));
    if (prompt.is_string()) {
        TRY_ASSIGN(const std::string_view first, prompt.as_string());
        TRY_ASSIGN(const std::string_view second, completion.as_string());
        line.prompt = std::string(first);
        line.completion = std::string(second);
        return ok_status();
    }
    if (!prompt.is_array())
        return prompt.error(format("expected a text or a list of messages, found {}", prompt.describe()));
    TRY_ASSIGN(line.messages, parse_messages(prompt));
    for (TrainingMessage& message : line.messages) message.is_trained = false;
    TRY_ASSIGN(std::vector<TrainingMessage> answer, parse_messages(completion));
    std::ranges::move(answer, std::back_inserter(line.messages));
    TRY(parse_tools(root, line));
    return check_trained(completion, line.messages);
}

Status parse_text(const JsonValue& root, TrainingLine& line) {
    TRY_ASSIGN(const JsonValue value, root.require("text"));
    TRY_ASSIGN(const std::string_view text, value.as_string());
    if (text.empty()) return value.error("expected a text, found an empty one: nothing to train");
    line.text = std::string(text);
    return ok_status();
}

Result<std::vector<int64_t>> parse_numbers(const JsonValue& value) {
    TRY_ASSIGN(const std::vector<JsonValue> list, value.as_array());
    std::vector<int64_t> numbers;
    numbers.reserve(list.size());
    for (const JsonValue& one : list) {
        if (one.is_bool()) {
            TRY_ASSIGN(const bool flag, one.as_bool());
            numbers.push_back(flag ? 1 : 0);
            continue;
        }
        TRY_ASSIGN(const int64_t number, one.as_int());
        numbers.push_back(number);
    }
    return numbers;
}

Status parse_labels(const JsonValue& root, uint32_t vocab_size, TrainingLine& line) {
    const bool is_mask = !root.find("labels");
    const std::optional<JsonValue> value = root.find(is_mask ? "mask" : "labels");
    if (!value) return root.error("expected labels or mask beside the tokens, found neither");
    TRY_ASSIGN(const std::vector<int64_t> numbers, parse_numbers(*value));
    if (numbers.size() != line.tokens.size())
        return value->error(
            format("expected as many as there are tokens, {}, found {}", line.tokens.size(), numbers.size()));
    line.labels.reserve(numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
        const std::string place = format("{}[{}]", is_mask ? "mask" : "labels", i);
        if (is_mask) {
            if (numbers[i] != 0 && numbers[i] != 1)
                return make_error(ErrorCode::kInvalidRequest,
                                  format("{}: expected 0 or 1, found {}", place, numbers[i]), place);
            line.labels.push_back(numbers[i] == 1 ? line.tokens[i] : kUntrained);
            continue;
        }
        if (numbers[i] != kUntrained && (numbers[i] < 0 || numbers[i] >= vocab_size)) {
            return make_error(ErrorCode::kInvalidRequest,
                              format("{}: expected {} or a token of the vocabulary, 0 to {}, found {}", place,
                                     kUntrained, vocab_size - 1, numbers[i]),
                              place);
        }
        if (numbers[i] != kUntrained && numbers[i] != line.tokens[i]) {
            return make_error(ErrorCode::kInvalidRequest,
                              format("{}: expected {}, or the token at that place, {}, which is what the tokens before "
                                     "it are to predict; found {}",
                                     place, kUntrained, line.tokens[i], numbers[i]),
                              place);
        }
        line.labels.push_back(static_cast<int32_t>(numbers[i]));
    }
    return ok_status();
}

Status parse_tokens(const JsonValue& root, uint32_t vocab_size, TrainingLine& line) {
    const std::string_view name = root.find("tokens") ? "tokens" : "input_ids";
    TRY_ASSIGN(const JsonValue value, root.require(name));
    TRY_ASSIGN(const std::vector<int64_t> ids, parse_numbers(value));
    if (ids.empty()) return value.error("expected token ids, found an empty list");
    for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] < 0 || ids[i] >= vocab_size) {
            const std::string place = format("{}[{}]", name, i);
            return make_error(
                ErrorCode::kInvalidRequest,
                format("{}: expected a token of the vocabulary, 0 to {}, found {}", place, vocab_size - 1, ids[i]),
                place);
        }
        line.tokens.push_back(TokenId(ids[i]));
    }
    TRY(parse_labels(root, vocab_size, line));
    // The label of the first place is of no use: nothing is before it.
    const bool is_trained =
        std::any_of(line.labels.begin() + 1, line.labels.end(), [](int32_t label) { return label != kUntrained; });
    return is_trained ? ok_status() : Status(root.error("no token of the line is trained"));
}

struct LineFormatName {
    LineFormat format;
    std::string_view name;
};
constexpr std::array kLineFormatNames = {
    LineFormatName{LineFormat::kChat, "messages"}, LineFormatName{LineFormat::kCompletion, "prompt and completion"},
    LineFormatName{LineFormat::kText, "text"}, LineFormatName{LineFormat::kTokens, "tokens"}};

std::optional<LineFormat> keys_format(const JsonValue& root) {
    if (!root.is_object()) return std::nullopt;
    if (root.has("messages")) return LineFormat::kChat;
    if (root.has("prompt") || root.has("completion")) return LineFormat::kCompletion;
    if (root.has("tokens") || root.has("input_ids")) return LineFormat::kTokens;
    if (root.has("text")) return LineFormat::kText;
    return std::nullopt;
}

}  // namespace

std::string_view line_format_name(LineFormat format) {
    return std::ranges::find(kLineFormatNames, format, &LineFormatName::format)->name;
}

std::optional<LineFormat> line_format_named(std::string_view name) {
    const auto found = std::ranges::find(kLineFormatNames, name, &LineFormatName::name);
    return found == kLineFormatNames.end() ? std::nullopt : std::optional(found->format);
}

std::optional<LineFormat> line_format_of(std::string_view line) {
    const Result<JsonDocument> document = parse_json(line, line_options());
    return document.ok() ? keys_format(document->root()) : std::nullopt;
}

Result<TrainingLine> parse_training_line(std::string_view text, LineFormat expected, uint32_t vocab_size) {
    TRY_ASSIGN(const JsonDocument document, parse_json(text, line_options()));
    const JsonValue root = document.root();
    if (!root.is_object())
        return root.error(format("expected an object with {}, found {}", line_format_name(expected), root.describe()));
    const std::optional<LineFormat> found = keys_format(root);
    if (found && *found != expected) {
        return root.error(format("expected an object with {} as in the lines before and behind it, found one with {}",
                                 line_format_name(expected), line_format_name(*found)));
    }
    TrainingLine line;
    line.format = expected;
    switch (expected) {
        case LineFormat::kChat: TRY(parse_chat(root, line)); break;
        case LineFormat::kCompletion: TRY(parse_completion(root, line)); break;
        case LineFormat::kText: TRY(parse_text(root, line)); break;
        case LineFormat::kTokens: TRY(parse_tokens(root, vocab_size, line)); break;
    }
    return line;
}

}  // namespace lorad::proto
