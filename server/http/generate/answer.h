// Turns generations into OpenAI's answers: the parts of a stream's chunks, and whole choices. One per request; its HTTP
// worker.
#pragma once

#include <optional>
#include <vector>

#include "model/text/harmony.h"
#include "model/text/reasoning.h"
#include "model/text/tool_calls.h"
#include "proto/generate/answer_blocks.h"
#include "proto/generate/generate_response.h"
#include "server/http/generate/generation.h"

namespace lorad::server {

class AnswerParts {
  public:
    explicit AnswerParts(Generation& generation);

    // The parts that a piece adds to its choice, in order; the first of a choice brings the echo of the prompt and what
    // is told about it. At least one; the last has what ends the choice.
    std::vector<proto::ChoicePart> parts_of(Generation::Piece piece);
    // Returns true if the part has content for a chunk.
    bool worth_a_chunk(const proto::ChoicePart& part) const;

  private:
    struct Progress {
        bool begun = false;
        uint64_t n_characters = 0;  // in the tokens with log-probabilities so far
        std::optional<model::ReasoningParser> reasoning;
        std::optional<model::ToolCallParser> tools;
        std::optional<model::HarmonyParser> channels;  // does the work of both
    };
    // Text goes to reasoning, content and calls.
    void separate(Progress& progress, std::string text, bool at_end, proto::ChoicePart& part);
    void take_content(Progress& progress, std::string_view text, bool at_end, proto::ChoicePart& part);
    void take_channels(Progress& progress, std::string_view text, std::vector<proto::ChoicePart>& parts);
    bool makes_call(uint32_t index) const;
    proto::ToolCallPart call_part(uint32_t index, std::string name, std::string arguments, size_t text_before) const;
    void tell_calls(bool in_call, uint32_t n_calls, proto::ChoicePart& part) const;
    void begin_choice(uint32_t choice, proto::ChoicePart& part);

    Generation& generation_;
    std::vector<Progress> progress_;  // by choice
};

// All parts of all choices as one; the best n of best_of for each prompt, numbered as OpenAI does:
// those of the first prompt first. Nothing if the client has gone, then the generation is cancelled.
Result<std::optional<std::vector<proto::ChoicePart>>> whole_answer(Generation& generation, const HttpRequest& http);

// Adds the one answer of a request to `blocks`, as its stream would. Returns the last part, which says why it ended;
// nothing if the client has gone, then the generation is cancelled.
Result<std::optional<proto::ChoicePart>> whole_blocks(Generation& generation, const HttpRequest& http,
                                                      proto::AnswerBlocks& blocks);

}  // namespace lorad::server
