#include "server/training/show_data.h"

#include "proto/base/format.h"
#include "proto/base/printable.h"
#include "proto/json/json.h"

namespace lorad::server::training {
namespace {

constexpr std::string_view kTrainedColour = "\x1b[1;32m", kOtherColour = "\x1b[90m", kNoColour = "\x1b[0m";

std::string shown_text(std::string_view bytes) {
    const std::string escaped = escape_unprintable(replace_invalid_utf8(bytes));
    std::string out;
    for (size_t i = 0; i < escaped.size(); ++i) {
        out += escaped[i];
        if (escaped[i] == 'n' && i > 0 && escaped[i - 1] == '\\') out += '\n';
    }
    return out;
}

}  // namespace

std::string shown_sequence(const TrainingSequence& sequence, const TrainingText& text, bool in_colours) {
    std::string out =
        format("line {}: {} tokens, {} trained\n", sequence.line, sequence.tokens.size(), sequence.n_trained());
    for (size_t begin = 0; begin < sequence.tokens.size();) {
        const bool is_trained = sequence.labels[begin] != proto::kUntrained;
        std::string bytes;
        size_t end = begin;
        for (; end < sequence.tokens.size() && (sequence.labels[end] != proto::kUntrained) == is_trained; ++end)
            bytes += text.has_tokenizer() ? text.decode(sequence.tokens[end]) : format(" {}", sequence.tokens[end]);
        if (in_colours)
            out += format("{}{}{}", is_trained ? kTrainedColour : kOtherColour, shown_text(bytes), kNoColour);
        else
            out += is_trained ? format("[[{}]]", shown_text(bytes)) : shown_text(bytes);
        begin = end;
    }
    return out + "\n\n";
}

}  // namespace lorad::server::training
