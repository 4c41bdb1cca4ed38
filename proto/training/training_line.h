// One line of a training file: JSON in one of the forms that fine-tuning files have. Which tokens it becomes is not
// known here (server/training/line_encoder.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/result.h"

namespace lorad::proto {

enum class LineFormat : uint8_t {
    kChat,        // {"messages": [...], "tools": [...], "parallel_tool_calls": ...}, OpenAI's
    kCompletion,  // {"prompt": ..., "completion": ...}: two texts, or two lists of messages
    kText,        // {"text": ...}
    kTokens,      // {"tokens" or "input_ids": [...], "labels" or "mask": [...]}
};
// "messages", "prompt and completion", "text", "tokens": for messages.
std::string_view line_format_name(LineFormat format);
std::optional<LineFormat> line_format_named(std::string_view name);

// A message of a chat.
struct TrainingMessage {
    std::string json;     // for the chat template: without "weight"
    std::string content;  // its text; parts joined line by line; empty where it has none
    bool is_assistant = false;
    bool is_trained = false;  // an assistant's whose weight is not 0
    bool is_empty = false;    // an assistant's that has nothing but blanks and no calls
};

struct TrainingLine {
    LineFormat format = LineFormat::kChat;
    std::vector<TrainingMessage> messages;  // of a chat, or a completion made of two lists of messages
    std::string tools_json;                 // an array; empty: none
    std::string prompt, completion;         // if both are texts
    std::string text;
    std::vector<TokenId> tokens;
    // as many as tokens; kUntrained, or the token itself, which those before it are to predict
    std::vector<int32_t> labels;
};
inline constexpr int32_t kUntrained = -100;  // PyTorch's cross entropy ignores this label

inline constexpr size_t kTrainingLineBytesMax = size_t{4} << 20;
inline constexpr size_t kTrainingMessagesMax = 2048;

// Returns the format that the line's keys show; nothing if it is no JSON object or has none of them.
std::optional<LineFormat> line_format_of(std::string_view line);

// kInvalidRequest with place, expected and found: "messages[2].role: expected ..., found string \"wizard\"". A line of
// another format than `expected` is refused as what it lacks. vocab_size: ids and labels must be below it.
Result<TrainingLine> parse_training_line(std::string_view line, LineFormat expected, uint32_t vocab_size);

}  // namespace lorad::proto
