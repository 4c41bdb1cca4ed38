// Log-probabilities in answers: OpenAI's two forms, and vLLM's for prompts. Private to
// proto/**_write.cpp.
#pragma once

#include "proto/generate/generate_response.h"
#include "proto/json/json.h"

namespace lorad::proto {

// [{"token", "logprob", "bytes", "top_logprobs"}]
void write_token_logprobs(JsonWriter& writer, const ResponseHead& head, std::span<const TokenLogprobs> tokens);
// {"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null}
void write_chat_logprobs(JsonWriter& writer, const ResponseHead& head, const ShownLogprobs& shown);
// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, lists of the same length
void write_completion_logprobs(JsonWriter& writer, const ResponseHead& head, const ShownLogprobs& shown);
// [null, {"id": {"logprob", "rank", "decoded_token"}}, ...]; the first token has none
void write_prompt_logprobs(JsonWriter& writer, const ResponseHead& head, std::span<const TokenLogprobs> tokens);

}  // namespace lorad::proto
