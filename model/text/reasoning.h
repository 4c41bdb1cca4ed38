// Separates what a model thinks, between two marks at the beginning of its answer, from
// the answer. Text in, both out, piece by piece. One per answer; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lorad::model {

struct ThoughtMarks {
    std::string_view open = "<think>", close = "</think>";
};
inline constexpr ThoughtMarks kGemma4Thoughts{"<|channel>thought", "<channel|>"};

class ReasoningParser {
  public:
    struct Output {
        std::string reasoning;
        std::string content;
    };

    // begins_inside: the prompt ends with the mark that opens thoughts, so that the answer begins with them.
    explicit ReasoningParser(bool begins_inside, ThoughtMarks marks = {})
        : marks_(marks), state_(begins_inside ? State::kThinking : State::kBegin) {}

    Output push(std::string_view text);
    Output finish();  // what was held back

  private:
    enum class State : uint8_t { kBegin, kThinking, kAfter, kAnswer };
    Output read(bool at_end);

    const ThoughtMarks marks_;
    State state_;
    std::string pending_;
};

}  // namespace lorad::model
