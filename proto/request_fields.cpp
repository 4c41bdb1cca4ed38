// The fields at the root of the bodies that ask for an answer: who honours them, and what becomes of them elsewhere.
#include <algorithm>
#include <array>

#include "proto/base/format.h"
#include "proto/generate/generate_request.h"
#include "proto/known_fields.h"

namespace lorad::proto {
namespace {

// The set of endpoints that honour a field. "AsChat": the value is a chat's, and read like one.
enum Honoured : uint8_t {
    kNobody = 0,
    kCompletions = 1,
    kChats = 2,
    kResponses = 4,
    kMessages = 8,
    kResponsesAsChat = kResponses | 16,
    kMessagesAsChat = kMessages | 32,
    kChatsAll = kChats | kResponsesAsChat | kMessagesAsChat,
    kAll = kCompletions | kChatsAll,
};

struct RequestField {
    std::string_view name;
    uint8_t honoured = kNobody;
    Neutral neutral = Neutral::kNone;
    Neutral hint = Neutral::kNone;  // see KnownField
};

constexpr std::array kRequestFields = {
    RequestField{"model", kAll},
    RequestField{"adapter", kAll},
    RequestField{"adapters", kAll},
    RequestField{"lora", kAll},
    // Names of an adapter in SGLang, LoRAX, TGI and vLLM's Python interface.
    RequestField{"lora_path", kAll},
    RequestField{"adapter_id", kAll},
    RequestField{"parameters", kAll},
    RequestField{"lora_request", kAll},
    RequestField{"lora_name", kAll},
    RequestField{"adapter_name", kAll},
    RequestField{"merged_adapters", kNobody, Neutral::kEmpty},
    RequestField{"adapter_source", kNobody, Neutral::kNone, Neutral::kAny},  // where LoRAX loads it from
    // Input of the model.
    RequestField{"prompt", kCompletions},
    RequestField{"messages", kChats | kMessages},
    RequestField{"input", kResponses},
    RequestField{"instructions", kResponses, Neutral::kEmpty},
    RequestField{"system", kMessages, Neutral::kEmpty},
    RequestField{"previous_response_id", kResponses, Neutral::kEmpty},
    RequestField{"add_special_tokens", kAll},
    RequestField{"truncate_prompt_tokens", kAll},
    RequestField{"add_generation_prompt", kChats, Neutral::kTrue},
    RequestField{"continue_final_message", kChats, Neutral::kFalse},
    RequestField{"chat_template", kChatsAll},
    RequestField{"chat_template_kwargs", kChatsAll, Neutral::kEmpty},
    RequestField{"documents", kChatsAll, Neutral::kEmpty},
    // Length of the answer, sampling, and number of answers.
    RequestField{"max_tokens", kCompletions | kChats | kMessagesAsChat},
    RequestField{"max_completion_tokens", kCompletions | kChats},
    RequestField{"max_output_tokens", kResponses},
    RequestField{"min_tokens", kAll},
    RequestField{"temperature", kAll},
    RequestField{"top_p", kAll},
    RequestField{"top_k", kAll},
    RequestField{"min_p", kAll},
    RequestField{"typical_p", kAll},
    RequestField{"presence_penalty", kAll},
    RequestField{"frequency_penalty", kAll},
    RequestField{"repetition_penalty", kAll},
    RequestField{"logit_bias", kAll},
    RequestField{"allowed_token_ids", kAll},
    RequestField{"bad_words", kAll},
    RequestField{"seed", kAll},
    RequestField{"stop", kCompletions | kChats | kResponsesAsChat, Neutral::kEmpty},
    RequestField{"stop_sequences", kMessages, Neutral::kEmpty},
    RequestField{"stop_token_ids", kAll},
    RequestField{"include_stop_str_in_output", kAll},
    RequestField{"ignore_eos", kAll},
    RequestField{"skip_special_tokens", kAll},
    RequestField{"n", kCompletions | kChats, Neutral::kOne},
    RequestField{"best_of", kCompletions, Neutral::kOne},
    // Content of the answer beside its text.
    RequestField{"echo", kCompletions, Neutral::kFalse},
    RequestField{"logprobs", kCompletions | kChats, Neutral::kFalse},
    RequestField{"top_logprobs", kChats | kResponses, Neutral::kZero},
    RequestField{"prompt_logprobs", kCompletions | kChats},
    RequestField{"return_tokens_as_token_ids", kCompletions | kChats, Neutral::kFalse},
    RequestField{"return_token_ids", kCompletions | kChats, Neutral::kFalse},
    RequestField{"include", kResponses, Neutral::kEmpty},
    RequestField{"stream", kAll},
    RequestField{"stream_options", kCompletions | kChats | kResponses, Neutral::kEmpty},
    // Structure of the answer, and its tools.
    RequestField{"response_format", kCompletions | kChats, Neutral::kTextOnly},
    RequestField{"text", kResponses, Neutral::kEmpty},
    RequestField{"output_config", kMessages, Neutral::kEmpty},
    RequestField{"structured_outputs", kAll},
    RequestField{"guided_json", kAll},
    RequestField{"guided_regex", kAll},
    RequestField{"guided_choice", kAll},
    RequestField{"guided_grammar", kAll},
    RequestField{"tools", kChats | kResponses | kMessages, Neutral::kEmpty},
    RequestField{"tool_choice", kChats | kResponses | kMessages, Neutral::kNoTools},
    RequestField{"parallel_tool_calls", kChats | kResponsesAsChat | kMessages, Neutral::kAny},
    RequestField{"include_reasoning", kChatsAll, Neutral::kAny},
    RequestField{"thinking", kMessages, Neutral::kNone, Neutral::kAny},
    RequestField{"reasoning", kResponses, Neutral::kNone, Neutral::kAny},
    // The sender of the request.
    RequestField{"priority", kAll},
    RequestField{"user", kCompletions | kChats | kResponsesAsChat | kMessages},
    RequestField{"cache_salt", kAll},
    // Labels, which change no answer.
    RequestField{"metadata", kResponses | kMessages, Neutral::kAny},
    RequestField{"store", kResponses, Neutral::kAny},
    RequestField{"safety_identifier", kNobody, Neutral::kAny},
    RequestField{"prompt_cache_key", kNobody, Neutral::kAny},
    RequestField{"prompt_cache_retention", kNobody, Neutral::kAny},
    RequestField{"cache_control", kNobody, Neutral::kAny},
    RequestField{"user_profile_id", kNobody, Neutral::kAny},
    RequestField{"workspace_id", kNobody, Neutral::kAny},
    RequestField{"request_id", kNobody, Neutral::kAny},
    RequestField{"cache_prompt", kNobody, Neutral::kAny},
    RequestField{"id_slot", kNobody, Neutral::kAny},
    // Hints, which change no answer here and are listed.
    RequestField{"service_tier", kNobody, Neutral::kAuto, Neutral::kAny},
    RequestField{"reasoning_effort", kNobody, Neutral::kNone, Neutral::kAny},
    RequestField{"verbosity", kNobody, Neutral::kNone, Neutral::kAny},
    RequestField{"thinking_token_budget", kNobody, Neutral::kNone, Neutral::kAny},
    RequestField{"prediction", kNobody, Neutral::kNone, Neutral::kAny},
    RequestField{"guided_decoding_backend", kNobody, Neutral::kNone, Neutral::kAny},
    RequestField{"max_tool_calls", kNobody, Neutral::kNone, Neutral::kAny},
    RequestField{"prompt_cache_options", kNobody, Neutral::kNone, Neutral::kAny},
    RequestField{"speed", kNobody, Neutral::kNone, Neutral::kAny},
    RequestField{"fallbacks", kNobody, Neutral::kNone, Neutral::kAny},
    RequestField{"fallback_credit_token", kNobody, Neutral::kNone, Neutral::kAny},
    RequestField{"billing_policy", kNobody, Neutral::kNone, Neutral::kAny},
    RequestField{"context_management", kNobody, Neutral::kNone, Neutral::kEmpty},
    // Known to clients, not supported by lorad.
    RequestField{"suffix", kNobody, Neutral::kEmpty},
    RequestField{"use_beam_search", kNobody, Neutral::kFalse},
    RequestField{"length_penalty", kNobody, Neutral::kOne},
    RequestField{"early_stopping", kNobody, Neutral::kFalse},
    RequestField{"logits_processors", kNobody, Neutral::kEmpty},
    RequestField{"functions", kNobody, Neutral::kEmpty},
    RequestField{"function_call", kNobody, Neutral::kNoTools},
    RequestField{"guided_whitespace_pattern"},
    RequestField{"grammar", kNobody, Neutral::kEmpty},
    RequestField{"json_schema"},
    RequestField{"modalities", kNobody, Neutral::kTextOnly},
    RequestField{"audio"},
    RequestField{"web_search_options"},
    RequestField{"spaces_between_special_tokens", kNobody, Neutral::kTrue},
    RequestField{"prompt_embeds"},
    RequestField{"kv_transfer_params"},
    RequestField{"vllm_xargs", kNobody, Neutral::kEmpty},
    RequestField{"mm_processor_kwargs", kNobody, Neutral::kEmpty},
    RequestField{"media_io_kwargs", kNobody, Neutral::kEmpty},
    RequestField{"repetition_detection"},
    RequestField{"enable_response_messages", kNobody, Neutral::kFalse},
    RequestField{"previous_input_messages", kNobody, Neutral::kEmpty},
    // OpenAI's and Anthropic's.
    RequestField{"truncation", kNobody, Neutral::kDisabled},
    RequestField{"background", kNobody, Neutral::kFalse},
    RequestField{"background_options"},
    RequestField{"conversation"},
    RequestField{"moderation"},
    RequestField{"image"},
    RequestField{"access_programs"},
    RequestField{"container"},
    RequestField{"mcp_servers", kNobody, Neutral::kEmpty},
    RequestField{"diagnostics"},
    RequestField{"inference_geo"},
    RequestField{"thread"},
    RequestField{"compaction"},
    RequestField{"output_format"},
    RequestField{"prefill"},
    // llama-server's.
    RequestField{"n_predict"},
    RequestField{"n_cmpl", kNobody, Neutral::kOne},
    RequestField{"repeat_penalty", kNobody, Neutral::kOne},
    RequestField{"dynatemp_range", kNobody, Neutral::kZero},
    RequestField{"xtc_probability", kNobody, Neutral::kZero},
    RequestField{"dry_multiplier", kNobody, Neutral::kZero},
    RequestField{"mirostat", kNobody, Neutral::kZero},
    RequestField{"top_n_sigma", kNobody, Neutral::kZero},
    RequestField{"samplers", kNobody, Neutral::kEmpty},
    RequestField{"min_keep", kNobody, Neutral::kZero},
    RequestField{"n_keep", kNobody, Neutral::kZero},
    RequestField{"n_discard", kNobody, Neutral::kZero},
    RequestField{"n_indent", kNobody, Neutral::kZero},
    RequestField{"t_max_predict_ms", kNobody, Neutral::kZero},
    RequestField{"n_probs", kNobody, Neutral::kZero},
    RequestField{"post_sampling_probs", kNobody, Neutral::kFalse},
    RequestField{"return_progress", kNobody, Neutral::kFalse},
    RequestField{"timings_per_token", kNobody, Neutral::kFalse},
    RequestField{"return_tokens", kNobody, Neutral::kFalse},
    RequestField{"response_fields", kNobody, Neutral::kEmpty},
    RequestField{"image_data", kNobody, Neutral::kEmpty},
    RequestField{"reasoning_format"},
    RequestField{"reasoning_budget"},
    RequestField{"thinking_forced_open", kNobody, Neutral::kFalse},
    RequestField{"parse_tool_calls", kNobody, Neutral::kTrue},
    // Sizes of what stands above, which say nothing where that is off.
    RequestField{"repeat_last_n", kNobody, Neutral::kAny},
    RequestField{"dynatemp_exponent", kNobody, Neutral::kAny},
    RequestField{"xtc_threshold", kNobody, Neutral::kAny},
    RequestField{"dry_base", kNobody, Neutral::kAny},
    RequestField{"dry_allowed_length", kNobody, Neutral::kAny},
    RequestField{"dry_penalty_last_n", kNobody, Neutral::kAny},
    RequestField{"dry_sequence_breakers", kNobody, Neutral::kAny},
    RequestField{"mirostat_tau", kNobody, Neutral::kAny},
    RequestField{"mirostat_eta", kNobody, Neutral::kAny},
};

struct EndpointInfo {
    Endpoint endpoint;
    std::string_view path;
    uint8_t honours, as_chat;
};
constexpr std::array<EndpointInfo, 4> kEndpoints = {{
    {Endpoint::kCompletions, "/v1/completions", kCompletions, kNobody},
    {Endpoint::kChats, "/v1/chat/completions", kChats, kNobody},
    {Endpoint::kResponses, "/v1/responses", kResponses, kResponsesAsChat & ~kResponses},
    {Endpoint::kMessages, "/v1/messages", kMessages, kMessagesAsChat & ~kMessages},
}};

// One endpoint's fields, in the order of the table.
struct EndpointFields {
    std::vector<KnownField> known;
    std::vector<std::string_view> as_in_chats;
};

const EndpointFields& fields_of(Endpoint endpoint) {
    static const std::array<EndpointFields, kEndpoints.size()> kOfAll = [] {
        std::array<EndpointFields, kEndpoints.size()> all;
        for (const EndpointInfo& info : kEndpoints) {
            EndpointFields& out = all[static_cast<size_t>(info.endpoint)];
            for (const RequestField& field : kRequestFields) {
                out.known.push_back({field.name, (field.honoured & info.honours) != 0, field.neutral, field.hint});
                if ((field.honoured & info.as_chat) != 0) out.as_in_chats.push_back(field.name);
            }
        }
        return all;
    }();
    return kOfAll[static_cast<size_t>(endpoint)];
}

// "only /v1/a, /v1/b and /v1/c have it"; empty for what nobody honours.
std::string who_has_it(std::string_view name) {
    auto field = std::ranges::find(kRequestFields, name, &RequestField::name);
    std::vector<std::string_view> paths;
    for (const EndpointInfo& info : kEndpoints) {
        if (field != kRequestFields.end() && (field->honoured & info.honours) != 0) paths.push_back(info.path);
    }
    if (paths.empty()) return {};
    std::string list;
    for (size_t i = 0; i < paths.size(); ++i)
        list += format("{}{}", i == 0 ? "" : i + 1 == paths.size() ? " and " : ", ", paths[i]);
    return format("only {} {} it", list, paths.size() == 1 ? "has" : "have");
}

}  // namespace

std::span<const KnownField> request_fields(Endpoint endpoint) { return fields_of(endpoint).known; }

std::span<const std::string_view> fields_as_in_chats(Endpoint endpoint) { return fields_of(endpoint).as_in_chats; }

Status check_request_fields(const JsonValue& root, Endpoint endpoint, std::vector<std::string>& ignored) {
    TRY(refuse_unknown_adapters(root, request_fields(endpoint)));
    Status checked = check_fields(root, request_fields(endpoint), ignored);
    if (checked.ok() || checked.error().code != ErrorCode::kUnsupportedParameter) return checked;
    const std::string elsewhere = who_has_it(checked.error().param);
    return elsewhere.empty() ? checked : Status(unsupported_field(checked.error().param, elsewhere));
}

}  // namespace lorad::proto
