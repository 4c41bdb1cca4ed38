// Answers of /v1/completions and /v1/chat/completions as JSON: whole ones and the chunks of a
// stream.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/ids.h"
#include "proto/generate/generate_request.h"
#include "proto/generate/logprobs.h"

namespace lorad::proto {

// The same in every chunk of an answer.
struct ResponseHead {
    ApiKind kind = ApiKind::kCompletion;
    std::string id;                  // "cmpl-..." or "chatcmpl-..."
    int64_t created_s = 0;           // Unix time
    std::string model;               // as named in the request
    std::string adapter_generation;  // digest of the adapter's content; empty for the base model,
                                     // then not written
    // The bytes that a token adds to a text; they need not be UTF-8.
    std::function<std::string(TokenId)> token_bytes;
    bool tokens_as_ids = false;  // "token_id:5" in the place of a token's text
};

struct Usage {
    uint64_t n_prompt_tokens = 0;
    uint64_t n_completion_tokens = 0;
    uint64_t n_cached_tokens = 0;  // prompt tokens whose KV entries came from the cache
};

// Log-probabilities of consecutive tokens. Rank 0: nothing is known about this token, since it is a
// prompt's first.
struct ShownLogprobs {
    std::vector<TokenLogprobs> tokens;
    uint64_t text_offset = 0;  // characters of the choice's text before the first of them
};

// A part of one tool call. Whole answers have each call once, with all of its arguments.
struct ToolCallPart {
    uint32_t index = 0;
    std::string id;  // in the call's first part, as the name
    std::string name;
    std::string arguments;  // JSON text; of a custom tool: its input
    bool is_custom = false;
    size_t text_before = 0;  // bytes of the part's text that stand before it; of an answer's parts, not of whole ones
};

// A choice, or the part of it that a chunk brings.
struct ChoicePart {
    uint32_t index = 0;
    std::string text;
    std::string reasoning;                 // chats: before the text
    std::vector<ToolCallPart> tool_calls;  // chats: after the text
    std::string finish_reason;             // empty: not ended
    std::string stop_text;                 // the stop string that ended it, where one did
    bool is_first = false;                 // first chunk of this choice in a stream: it carries the role
    std::optional<ShownLogprobs> logprobs;
    // Set if they were requested; with vLLM's names and places.
    std::optional<std::vector<TokenId>> prompt_ids, token_ids;
    std::optional<std::vector<TokenLogprobs>> prompt_logprobs;  // without the first token's
};

std::string whole_response(const ResponseHead& head, std::span<const ChoicePart> choices, const Usage& usage);

// The usage in a chunk. With include_usage every chunk of a stream has "usage": null, or the numbers so far with
// continuous_usage_stats; usage_chunk() has the last ones.
struct ChunkUsage {
    bool with_usage = false;
    std::optional<Usage> so_far;
};
std::string chunk_response(const ResponseHead& head, const ChoicePart& part, const ChunkUsage& usage);
std::string usage_chunk(const ResponseHead& head, const Usage& usage);

// Characters (code points) of a text, as text offsets count them.
uint64_t n_characters(std::string_view text);
// Returns the form of a token in answers: its text, or "bytes:\xe2\x82" if that is no UTF-8.
std::string token_name(const ResponseHead& head, TokenId token);

}  // namespace lorad::proto
