// Answers of POST /v1/responses: the response object, and the events of a stream.
#pragma once

#include <string>

#include "proto/generate/answer_blocks.h"
#include "proto/generate/generate_response.h"
#include "proto/json/json.h"
#include "proto/responses/responses_request.h"

namespace lorad::proto {

// The same in all that is said about one answer.
struct ResponsesHead {
    const ResponseHead& head;  // id: "resp_..."
    const ResponsesRequest& request;
    float temperature = 1.0f, top_p = 1.0f;  // the applied values
};

// How an answer ended; empty while it is in progress.
struct ResponsesEnd {
    std::string finish_reason = {};   // see ChoicePart; empty: in progress
    std::optional<Error> error = {};  // instead of it
    Usage usage = {};                 // with either
    uint64_t n_reasoning_tokens = 0;
    int64_t ended_s = 0;  // Unix time
};

// Returns the items of this answer that a later request may refer to.
ResponseItems output_items(const ResponsesHead& head, const std::vector<AnswerBlock>& blocks);

std::string responses_object(const ResponsesHead& head, const std::vector<AnswerBlock>& blocks,
                             const ResponsesEnd& end);

// The events of one stream, numbered; one thread. Each function returns the bytes to send.
class ResponsesEvents {
  public:
    explicit ResponsesEvents(ResponsesHead head) : head_(head) {}

    std::string begin();
    std::string change(const std::vector<AnswerBlock>& blocks, const BlockChange& change);
    std::string end(const std::vector<AnswerBlock>& blocks, const ResponsesEnd& end);

  private:
    JsonWriter& event(std::string_view type);
    std::string sent();
    std::string response(std::string_view type, const std::vector<AnswerBlock>& blocks, const ResponsesEnd& end);
    std::string item(std::string_view type, const AnswerBlock& block, uint32_t index, bool begins);
    std::string part(std::string_view type, const AnswerBlock& block, uint32_t index, bool whole);
    std::string ended(const AnswerBlock& block, uint32_t index);
    std::string grown(const AnswerBlock& block, const BlockChange& change);
    std::string custom_call_ended(const AnswerBlock& block, uint32_t index);
    void place(const AnswerBlock& block, uint32_t index);

    const ResponsesHead head_;
    JsonWriter writer_;
    std::string type_;  // of the event being written
    uint64_t n_events_ = 0;
};

}  // namespace lorad::proto
