// Answers of POST /v1/messages: the message object, the events of a stream, and errors in Anthropic's
// envelope.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "proto/generate/answer_blocks.h"
#include "proto/generate/generate_response.h"
#include "proto/json/json.h"

namespace lorad::proto {

// {"type":"error","error":{"type","message"}}, the type by the HTTP status that the error has.
std::string messages_error_body(const Error& error);

struct MessagesEnd {
    std::string finish_reason = {};  // see ChoicePart
    std::string stop_sequence = {};  // the text that ended the answer, where one did
    Usage usage = {};
};

std::string messages_object(const ResponseHead& head, const std::vector<AnswerBlock>& blocks, const MessagesEnd& end);
std::string messages_token_count(uint64_t n_tokens);

// The events of one stream; each function returns the bytes to send.
std::string messages_begin_event(const ResponseHead& head, uint64_t n_prompt_tokens);
std::string messages_ping_event();
// Tools whose input a stream sends as it is written, as the client wants. The input of other calls comes whole, so that
// a stream has the same as the whole answer.
using EagerTools = std::set<std::string, std::less<>>;
std::string messages_change_event(const std::vector<AnswerBlock>& blocks, const BlockChange& change,
                                  const EagerTools& eager_tools = {});
std::string messages_end_events(const std::vector<AnswerBlock>& blocks, const MessagesEnd& end);
std::string messages_error_event(const Error& error);

}  // namespace lorad::proto
