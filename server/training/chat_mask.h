// Finds the characters of a rendered chat to train on: the assistant's answers with the tokens that end them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"
#include "proto/training/training_line.h"
#include "server/training/training_text.h"

namespace lorad::server::training {

enum class TrainOn : uint8_t {
    kAssistant,  // every answer whose weight is not 0
    kLast,       // the last of them
    kExpand,     // each of them is the end of an example of its own
    kAll,        // the whole text
};
std::optional<TrainOn> train_on_of(std::string_view name);  // assistant, last, expand, all

struct MaskedText {
    std::string text;
    std::vector<model::TextSpan> trained;  // in the order of the text
    std::vector<std::string> unread;       // fields of the line that the template does not show
    bool lacks_end = false;                // no token that ends an answer was found behind one
};

// The examples of a line of messages: one, or with kExpand one for each trained answer. Where the template marks the
// answers by `{% generation %}`, the marks count; else an answer is what the template adds to the conversation before
// it and what makes the assistant speak, up to the first token that ends an answer behind its content. kInvalidRequest
// where the template refuses the chat, or shows an answer differently once more follows: then an answer's place in the
// whole is not known.
Result<std::vector<MaskedText>> mask_chat(const proto::TrainingLine& line, TrainOn train_on, const TrainingText& text);

}  // namespace lorad::server::training
