// Answers of /v1/completions and /v1/chat/completions as JSON: whole ones and the chunks of a
// stream.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "proto/base/ids.h"
#include "proto/generate_request.h"

namespace lorad::proto {

// The same in every chunk of an answer.
struct ResponseHead {
    ApiKind kind = ApiKind::kCompletion;
    std::string id;                  // "cmpl-..." or "chatcmpl-..."
    int64_t created_s = 0;           // Unix time
    std::string model;               // as the request named it
    std::string adapter_generation;  // digest of the adapter's content; empty for the base model,
                                     // then not written
};

struct Usage {
    uint64_t n_prompt_tokens = 0;
    uint64_t n_completion_tokens = 0;
};

// Token ids are written where the pointers are set (return_token_ids), with vLLM's names and
// places.
struct TokenIds {
    const std::vector<TokenId>* prompt = nullptr;
    const std::vector<TokenId>* completion = nullptr;
};

std::string whole_response(const ResponseHead& head, std::string_view text,
                           std::string_view finish_reason, const Usage& usage, const TokenIds& ids);

// One chunk of a stream. `finish_reason` is empty but in the last one. Every chunk of a stream with
// include_usage carries "usage": null, the final usage_chunk the numbers.
struct Chunk {
    std::string_view text;
    std::string_view finish_reason;
    bool is_first = false;  // chat: carries the role
    bool with_usage = false;
    TokenIds ids;
};
std::string chunk_response(const ResponseHead& head, const Chunk& chunk);
std::string usage_chunk(const ResponseHead& head, const Usage& usage);

}  // namespace lorad::proto
