// Bodies of POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients send them: said as
// a chat.
#pragma once

#include <string_view>

#include "proto/generate/generate_request.h"

namespace lorad::proto {

// The only member of a call's input whose arguments are no JSON object: their text. As Anthropic advises for
// what a stream brought of such.
inline constexpr std::string_view kInvalidJsonInput = "INVALID_JSON";

enum class MessagesUse : uint8_t { kGenerate, kCountTokens };

// Errors as parse_generate_request(), about the body's own fields. max_tokens is required to
// generate, as there.
Result<GenerateRequest> parse_messages_request(std::string_view body, MessagesUse use, uint32_t vocab_size);

}  // namespace lorad::proto
