// Bodies of POST /tokenize and /detokenize, as vLLM has them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/generate/generate_request.h"

namespace lorad::proto {

struct TokenizeRequest {
    GenerateRequest prompt;     // one text, or a chat
    bool with_strings = false;  // each token's text beside its id
};
// A body with "messages" is a chat's, one with "prompt" a completion's; both may also have what
// those generate with.
Result<TokenizeRequest> parse_tokenize_request(std::string_view body, uint32_t vocab_size);

struct DetokenizeRequest {
    std::string model;
    std::vector<TokenId> tokens;
    bool skip_special_tokens = false;
    std::vector<std::string> ignored_fields;
};
Result<DetokenizeRequest> parse_detokenize_request(std::string_view body, uint32_t vocab_size);

}  // namespace lorad::proto
