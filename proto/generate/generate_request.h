// Bodies of POST /v1/completions and /v1/chat/completions, typed and checked. A parameter that clients of OpenAI, vLLM
// or llama-server know is either honoured or refused by name (kUnsupportedParameter); unknown fields are accepted and
// listed. Other endpoints fill the same struct.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "proto/adapter_request.h"
#include "proto/base/ids.h"
#include "proto/base/result.h"
#include "proto/field_names.h"
#include "proto/generate/sampling_params.h"
#include "proto/generate/structure.h"
#include "proto/schema/schema.h"

namespace lorad::proto {

inline constexpr size_t kStopStringsMax = 16;
inline constexpr size_t kStopTokensMax = 1024;
inline constexpr size_t kStopStringBytesMax = 1024;
inline constexpr size_t kLogitBiasMax = 1024;
inline constexpr uint32_t kChoicesMax = 128;  // prompts times best_of
inline constexpr size_t kBadWordsMax = 256;
inline constexpr size_t kBadWordBytesMax = 256;
inline constexpr size_t kUserBytesMax = 512;  // for user and for cache_salt
inline constexpr size_t kIgnoredFieldsMax = 64;

enum class ApiKind : uint8_t { kCompletion, kChat };
enum class ToolChoice : uint8_t { kNone, kAuto, kRequired, kNamed };

// A function that an answer may call.
struct CallableTool {
    std::string name;
    GrammarSchema arguments;  // its root is empty where no grammar needs it
    uint32_t index = 0;       // in the request's tools
};

struct Prompt {
    std::optional<std::string> text;
    std::vector<TokenId> ids;  // if there is no text
};

// The request's values; missing ones are filled from the model's generation_config.json.
struct GenerateRequest {
    ApiKind kind = ApiKind::kCompletion;
    std::string model;  // empty: the base model

    // Adapters beside what `model` names; at most one of the two is set. An empty list is the base.
    std::optional<std::vector<NamedScale>> adapters;  // "adapters" or "adapter"
    std::optional<std::vector<IdScale>> lora;         // llama-server's "lora"
    std::string adapters_field = "adapters";          // the client's name for `adapters`

    std::vector<Prompt> prompts;     // completions: at least one
    bool add_special_tokens = true;  // to texts; chats only where they are asked for
    // Only the last so many tokens of a longer prompt count; -1: as many as leave room for the answer.
    std::optional<int32_t> n_prompt_max;

    // Chats: JSON for the chat template, each empty where there is none. Every content is a string,
    // a list of text parts or null; arguments of tool calls are objects, or texts where they are none.
    std::string messages_json;
    std::string documents_json;
    std::string template_kwargs_json;
    std::string tools_json;     // empty as well where none may be called
    std::string template_name;  // one of several chat templates; empty: transformers' choice
    bool add_generation_prompt = true;
    // The last message's text, which the answer is to continue.
    std::optional<std::string> continued_text;

    std::optional<uint32_t> n_tokens_max;  // 0 only with echo
    bool n_tokens_max_is_cut = false;      // to what the context leaves, instead of refusing more
    uint32_t n_tokens_min = 0;
    std::optional<float> temperature;
    std::optional<float> top_p;
    std::optional<uint32_t> top_k;  // 0: off
    std::optional<float> min_p;
    std::optional<float> repetition_penalty;
    float typical_p = 1.0f;
    float presence_penalty = 0.0f;
    float frequency_penalty = 0.0f;
    std::vector<TokenBias> logit_bias;
    std::vector<TokenId> allowed_token_ids;  // sorted
    std::vector<std::string> bad_words;      // none of them empty
    std::optional<uint64_t> seed;
    std::vector<std::string> stop;  // none of them empty
    std::vector<TokenId> stop_token_ids;
    bool include_stop = false;  // in the text
    bool ignore_eos = false;
    bool skip_special_tokens = true;

    // The form that the answer must have; with required tools or a named one, the form of their calls.
    std::optional<Structure> structure;
    // The structure is a response's; tools may be called in place of a response.
    bool is_response_format = false;
    GrammarSchema response_schema;    // the structure's, if it is a response format
    std::vector<CallableTool> tools;  // the answer may call these
    ToolChoice tool_choice = ToolChoice::kNone;
    std::string forced_function;  // for ToolChoice::kNamed
    bool parallel_tool_calls = true;
    std::set<std::string, std::less<>> custom_tools;  // custom_tools.h
    std::set<std::string, std::less<>> eager_tools;   // /v1/messages: whose input is sent as it is written
    bool include_reasoning = true;                    // in the answer, where the server separates it

    // Generates nothing and answers with the hidden state of each prompt's last token.
    bool embed = false;
    uint32_t n = 1;                             // answers to each prompt
    uint32_t best_of = 1;                       // answers are generated and `n` kept; at least n
    bool echo = false;                          // completions: the prompt before the answer
    std::optional<uint32_t> n_logprobs;         // beside each token; 0: its own alone
    std::optional<uint32_t> n_prompt_logprobs;  // beside each token of the prompt, as n_logprobs
    bool tokens_as_ids = false;                 // "token_id:5" where log-probabilities name tokens

    bool stream = false;
    bool include_usage = false;
    bool continuous_usage = false;
    bool return_token_ids = false;

    int32_t priority = 0;
    std::string user;
    std::string cache_salt;

    // With paths of the client's body: the first fields that had no effect, and keywords of schemas that are not
    // enforced on answers.
    std::vector<std::string> ignored_fields;
    std::vector<std::string> not_enforced;
    // Maps field names of a body that was translated to a chat: members of this struct and later errors use the chat's
    // names.
    FieldNames names;
};

// Errors carry the field at fault in `param`; malformed JSON is named with line, column and byte.
Result<GenerateRequest> parse_generate_request(std::string_view body, ApiKind kind, uint32_t vocab_size);

}  // namespace lorad::proto
