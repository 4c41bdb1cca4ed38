// Bodies of POST /v1/completions and /v1/chat/completions, typed and checked. A parameter that
// clients of OpenAI or vLLM know is either honoured or refused by name (kUnsupportedParameter);
// fields nobody knows are accepted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/adapter_request.h"
#include "proto/base/ids.h"
#include "proto/base/result.h"

namespace lorad::proto {

inline constexpr size_t kStopStringsMax = 16;
inline constexpr size_t kStopTokensMax = 1024;
inline constexpr size_t kStopStringBytesMax = 1024;

enum class ApiKind : uint8_t { kCompletion, kChat };

// What the request says; what it leaves out is filled from the model's generation_config.json.
struct GenerateRequest {
    ApiKind kind = ApiKind::kCompletion;
    std::string model;  // empty: the base model

    // Adapters beside what `model` names; at most one of the two is set. An empty list is the base.
    std::optional<std::vector<NamedScale>> adapters;  // "adapters" or "adapter"
    std::optional<std::vector<IdScale>> lora;         // llama-server's "lora"

    // Completion: one of the two. Chat: the messages as a JSON array for the chat template; every
    // content is a string or null, lists of text parts have been joined.
    std::optional<std::string> prompt_text;
    std::vector<TokenId> prompt_ids;
    std::string messages_json;

    std::optional<uint32_t> n_tokens_max;
    uint32_t n_tokens_min = 0;
    std::optional<float> temperature;
    std::optional<float> top_p;
    std::optional<uint32_t> top_k;  // 0: off
    std::optional<float> min_p;
    std::optional<uint64_t> seed;
    std::vector<std::string> stop;  // none of them empty
    std::vector<TokenId> stop_token_ids;
    bool ignore_eos = false;
    bool add_special_tokens = true;  // to texts; chats only where they are asked for

    bool stream = false;
    bool include_usage = false;
    bool return_token_ids = false;
};

// Errors carry the field at fault in `param`; malformed JSON is named with line, column and byte.
Result<GenerateRequest> parse_generate_request(std::string_view body, ApiKind kind,
                                               uint32_t vocab_size);

}  // namespace lorad::proto
