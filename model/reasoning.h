// Separates what a model thinks, between <think> and </think> at the beginning of its answer, from
// the answer. Text in, both out, piece by piece. One per answer; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lorad::model {

class ReasoningParser {
  public:
    struct Output {
        std::string reasoning;
        std::string content;
    };

    // begins_inside: the prompt ends with <think>, so that the answer begins with thoughts.
    explicit ReasoningParser(bool begins_inside)
        : state_(begins_inside ? State::kThinking : State::kBegin) {}

    Output push(std::string_view text);
    Output finish();  // what was held back

  private:
    enum class State : uint8_t { kBegin, kThinking, kAfter, kAnswer };
    Output read(bool at_end);

    State state_;
    std::string pending_;
};

}  // namespace lorad::model
