#include <algorithm>
#include <array>
#include <limits>

#include "proto/base/format.h"
#include "proto/custom_tools.h"
#include "proto/generate_request_parts.h"
#include "proto/known_fields.h"

namespace lorad::proto {
namespace {

// Where a parameter is honoured.
enum class Known : uint8_t { kNowhere, kCompletions, kChats, kBoth };

struct Parameter {
    std::string_view name;
    Known known;
    Neutral neutral = Neutral::kNone;
    Neutral hint = Neutral::kNone;  // as in KnownField
};

constexpr std::array kParameters = {
    Parameter{"model", Known::kBoth},
    Parameter{"adapter", Known::kBoth},
    Parameter{"adapters", Known::kBoth},
    Parameter{"lora", Known::kBoth},
    // As SGLang, LoRAX, TGI and vLLM's Python name an adapter.
    Parameter{"lora_path", Known::kBoth},
    Parameter{"adapter_id", Known::kBoth},
    Parameter{"parameters", Known::kBoth},
    Parameter{"lora_request", Known::kBoth},
    Parameter{"lora_name", Known::kBoth},
    Parameter{"adapter_name", Known::kBoth},
    Parameter{"merged_adapters", Known::kNowhere, Neutral::kEmpty},
    Parameter{"prompt", Known::kCompletions},
    Parameter{"messages", Known::kChats},
    Parameter{"max_tokens", Known::kBoth},
    Parameter{"max_completion_tokens", Known::kBoth},
    Parameter{"min_tokens", Known::kBoth},
    Parameter{"temperature", Known::kBoth},
    Parameter{"top_p", Known::kBoth},
    Parameter{"top_k", Known::kBoth},
    Parameter{"min_p", Known::kBoth},
    Parameter{"typical_p", Known::kBoth},
    Parameter{"presence_penalty", Known::kBoth},
    Parameter{"frequency_penalty", Known::kBoth},
    Parameter{"repetition_penalty", Known::kBoth},
    Parameter{"logit_bias", Known::kBoth},
    Parameter{"allowed_token_ids", Known::kBoth},
    Parameter{"bad_words", Known::kBoth},
    Parameter{"seed", Known::kBoth},
    Parameter{"stop", Known::kBoth},
    Parameter{"stop_token_ids", Known::kBoth},
    Parameter{"include_stop_str_in_output", Known::kBoth},
    Parameter{"ignore_eos", Known::kBoth},
    Parameter{"skip_special_tokens", Known::kBoth},
    Parameter{"add_special_tokens", Known::kBoth},
    Parameter{"truncate_prompt_tokens", Known::kBoth},
    Parameter{"n", Known::kBoth},
    Parameter{"best_of", Known::kCompletions, Neutral::kOne},
    Parameter{"echo", Known::kCompletions, Neutral::kFalse},
    Parameter{"logprobs", Known::kBoth},
    Parameter{"top_logprobs", Known::kChats, Neutral::kZero},
    Parameter{"prompt_logprobs", Known::kBoth},
    Parameter{"return_tokens_as_token_ids", Known::kBoth},
    Parameter{"stream", Known::kBoth},
    Parameter{"stream_options", Known::kBoth},
    Parameter{"return_token_ids", Known::kBoth},
    Parameter{"priority", Known::kBoth},
    Parameter{"user", Known::kBoth},
    Parameter{"cache_salt", Known::kBoth},
    Parameter{"add_generation_prompt", Known::kChats, Neutral::kTrue},
    Parameter{"continue_final_message", Known::kChats, Neutral::kFalse},
    Parameter{"chat_template_kwargs", Known::kChats, Neutral::kEmpty},
    Parameter{"documents", Known::kChats, Neutral::kEmpty},
    Parameter{"response_format", Known::kBoth},
    Parameter{"structured_outputs", Known::kBoth},
    Parameter{"guided_json", Known::kBoth},
    Parameter{"guided_regex", Known::kBoth},
    Parameter{"guided_choice", Known::kBoth},
    Parameter{"guided_grammar", Known::kBoth},
    Parameter{"tools", Known::kChats, Neutral::kEmpty},
    Parameter{"tool_choice", Known::kChats, Neutral::kNoTools},
    Parameter{"parallel_tool_calls", Known::kChats, Neutral::kAny},
    Parameter{"include_reasoning", Known::kChats, Neutral::kAny},
    // Labels, which change no answer.
    Parameter{"metadata", Known::kNowhere, Neutral::kAny},
    Parameter{"store", Known::kNowhere, Neutral::kAny},
    Parameter{"safety_identifier", Known::kNowhere, Neutral::kAny},
    Parameter{"prompt_cache_key", Known::kNowhere, Neutral::kAny},
    Parameter{"prompt_cache_retention", Known::kNowhere, Neutral::kAny},
    Parameter{"request_id", Known::kNowhere, Neutral::kAny},
    Parameter{"cache_prompt", Known::kNowhere, Neutral::kAny},
    Parameter{"id_slot", Known::kNowhere, Neutral::kAny},
    // Hints, which change no answer here and are listed.
    Parameter{"service_tier", Known::kNowhere, Neutral::kAuto, Neutral::kAny},
    Parameter{"reasoning_effort", Known::kNowhere, Neutral::kNone, Neutral::kAny},
    Parameter{"verbosity", Known::kNowhere, Neutral::kNone, Neutral::kAny},
    Parameter{"thinking_token_budget", Known::kNowhere, Neutral::kNone, Neutral::kAny},
    Parameter{"prediction", Known::kNowhere, Neutral::kNone, Neutral::kAny},
    Parameter{"guided_decoding_backend", Known::kNowhere, Neutral::kNone, Neutral::kAny},
    // What clients know and lorad does not do.
    Parameter{"suffix", Known::kNowhere, Neutral::kEmpty},
    Parameter{"use_beam_search", Known::kNowhere, Neutral::kFalse},
    Parameter{"length_penalty", Known::kNowhere, Neutral::kOne},
    Parameter{"early_stopping", Known::kNowhere, Neutral::kFalse},
    Parameter{"logits_processors", Known::kNowhere, Neutral::kEmpty},
    Parameter{"functions", Known::kNowhere, Neutral::kEmpty},
    Parameter{"function_call", Known::kNowhere, Neutral::kNoTools},
    Parameter{"guided_whitespace_pattern", Known::kNowhere},
    Parameter{"grammar", Known::kNowhere, Neutral::kEmpty},
    Parameter{"json_schema", Known::kNowhere},
    Parameter{"modalities", Known::kNowhere, Neutral::kTextOnly},
    Parameter{"audio", Known::kNowhere},
    Parameter{"web_search_options", Known::kNowhere},
    Parameter{"chat_template", Known::kChats},
    Parameter{"spaces_between_special_tokens", Known::kNowhere, Neutral::kTrue},
    Parameter{"prompt_embeds", Known::kNowhere},
    Parameter{"kv_transfer_params", Known::kNowhere},
    Parameter{"vllm_xargs", Known::kNowhere, Neutral::kEmpty},
    Parameter{"mm_processor_kwargs", Known::kNowhere, Neutral::kEmpty},
    Parameter{"media_io_kwargs", Known::kNowhere, Neutral::kEmpty},
    Parameter{"repetition_detection", Known::kNowhere},
    // llama-server's.
    Parameter{"n_predict", Known::kNowhere},
    Parameter{"n_cmpl", Known::kNowhere, Neutral::kOne},
    Parameter{"repeat_penalty", Known::kNowhere, Neutral::kOne},
    Parameter{"dynatemp_range", Known::kNowhere, Neutral::kZero},
    Parameter{"xtc_probability", Known::kNowhere, Neutral::kZero},
    Parameter{"dry_multiplier", Known::kNowhere, Neutral::kZero},
    Parameter{"mirostat", Known::kNowhere, Neutral::kZero},
    Parameter{"top_n_sigma", Known::kNowhere, Neutral::kZero},
    Parameter{"samplers", Known::kNowhere, Neutral::kEmpty},
    Parameter{"min_keep", Known::kNowhere, Neutral::kZero},
    Parameter{"n_keep", Known::kNowhere, Neutral::kZero},
    Parameter{"n_discard", Known::kNowhere, Neutral::kZero},
    Parameter{"n_indent", Known::kNowhere, Neutral::kZero},
    Parameter{"t_max_predict_ms", Known::kNowhere, Neutral::kZero},
    Parameter{"n_probs", Known::kNowhere, Neutral::kZero},
    Parameter{"post_sampling_probs", Known::kNowhere, Neutral::kFalse},
    Parameter{"return_progress", Known::kNowhere, Neutral::kFalse},
    Parameter{"timings_per_token", Known::kNowhere, Neutral::kFalse},
    Parameter{"return_tokens", Known::kNowhere, Neutral::kFalse},
    Parameter{"response_fields", Known::kNowhere, Neutral::kEmpty},
    Parameter{"image_data", Known::kNowhere, Neutral::kEmpty},
    Parameter{"reasoning_format", Known::kNowhere},
    Parameter{"reasoning_budget", Known::kNowhere},
    Parameter{"thinking_forced_open", Known::kNowhere, Neutral::kFalse},
    Parameter{"parse_tool_calls", Known::kNowhere, Neutral::kTrue},
    // Sizes of what stands above, which say nothing where that is off.
    Parameter{"repeat_last_n", Known::kNowhere, Neutral::kAny},
    Parameter{"dynatemp_exponent", Known::kNowhere, Neutral::kAny},
    Parameter{"xtc_threshold", Known::kNowhere, Neutral::kAny},
    Parameter{"dry_base", Known::kNowhere, Neutral::kAny},
    Parameter{"dry_allowed_length", Known::kNowhere, Neutral::kAny},
    Parameter{"dry_penalty_last_n", Known::kNowhere, Neutral::kAny},
    Parameter{"dry_sequence_breakers", Known::kNowhere, Neutral::kAny},
    Parameter{"mirostat_tau", Known::kNowhere, Neutral::kAny},
    Parameter{"mirostat_eta", Known::kNowhere, Neutral::kAny},
};

bool is_honoured(Known known, ApiKind kind) {
    return known == Known::kBoth ||
           known == (kind == ApiKind::kChat ? Known::kChats : Known::kCompletions);
}

Error refused(const Parameter& parameter, const JsonValue& value) {
    std::string why = format("this server does not support {}", value.describe());
    if (parameter.known == Known::kChats) why = "only /v1/chat/completions has it";
    if (parameter.known == Known::kCompletions) why = "only /v1/completions has it";
    return unsupported_field(parameter.name, why);
}

}  // namespace

bool is_number(const JsonValue& value, double expected) {
    if (!value.is_number()) return false;
    Result<double> number = value.as_number();
    return number.ok() && *number == expected;
}
bool is_bool(const JsonValue& value, bool expected) {
    if (!value.is_bool()) return false;
    Result<bool> flag = value.as_bool();
    return flag.ok() && *flag == expected;
}
bool is_text(const JsonValue& value, std::string_view expected) {
    if (!value.is_string()) return false;
    Result<std::string_view> text = value.as_string();
    return text.ok() && *text == expected;
}

std::vector<KnownField> generation_fields(bool chat) {
    std::vector<KnownField> out;
    for (const Parameter& parameter : kParameters) {
        bool honoured = is_honoured(parameter.known, chat ? ApiKind::kChat : ApiKind::kCompletion);
        out.push_back({parameter.name, honoured, parameter.neutral, parameter.hint});
    }
    return out;
}

Status check_known_fields(const JsonValue& root, GenerateRequest& request) {
    TRY_ASSIGN(std::vector<JsonMember> members, root.as_object());
    for (const JsonMember& member : members) {
        const auto* parameter =
            std::find_if(kParameters.begin(), kParameters.end(),
                         [&](const Parameter& known) { return known.name == member.key; });
        const bool is_idle = parameter != kParameters.end() &&
                             (is_honoured(parameter->known, request.kind) || member.value.is_null() ||
                              is_neutral(member.value, parameter->neutral));
        if (is_idle) continue;
        if (parameter == kParameters.end() || is_neutral(member.value, parameter->hint)) {
            if (request.ignored_fields.size() < kIgnoredFieldsMax)
                request.ignored_fields.emplace_back(member.key);
        } else {
            return refused(*parameter, member.value);
        }
    }
    return ok_status();
}

Result<GenerateRequest> parse_generate_object(const JsonValue& root, ApiKind kind,
                                              uint32_t vocab_size) {
    if (!root.is_object())
        return root.error(format("expected an object, found {}", root.describe()));
    bool chat = kind == ApiKind::kChat;
    GenerateRequest request;
    request.kind = kind;
    TRY_ASSIGN(std::string_view model, root.string_or("model", ""));
    request.model = std::string(model);
    TRY(check_known_fields(root, request));
    TRY(parse_adapters(root, request));
    TRY(chat ? parse_messages(root, request) : parse_prompts(root, request, vocab_size));
    if (chat) TRY(parse_template_options(root, request));
    TRY(parse_sampling(root, request, vocab_size));
    TRY(parse_limits(root, request, vocab_size));
    TRY(parse_stop(root, request));
    TRY(parse_tools(root, request));
    TRY(parse_output(root, request));
    // Chat templates write the special tokens themselves.
    if (std::optional<JsonValue> n_max = root.find("truncate_prompt_tokens")) {
        TRY_ASSIGN(int64_t n, n_max->as_int(-1, std::numeric_limits<int32_t>::max()));
        if (n == 0) return n_max->error("expected -1 or at least 1, found 0");
        request.n_prompt_max = int32_t(n);
    }
    TRY_ASSIGN(request.add_special_tokens, root.bool_or("add_special_tokens", !chat));
    return request;
}

Result<GenerateRequest> parse_generate_request(std::string_view body, ApiKind kind,
                                               uint32_t vocab_size) {
    TRY_ASSIGN(JsonDocument document, parse_json(body));
    if (kind != ApiKind::kChat) return parse_generate_object(document.root(), kind, vocab_size);
    TRY_ASSIGN(std::optional<PlainChat> plain, plain_chat(document.root()));
    if (!plain) return parse_generate_object(document.root(), kind, vocab_size);
    TRY_ASSIGN(JsonDocument rewritten, parse_json(plain->body));
    Result<GenerateRequest> request = parse_generate_object(rewritten.root(), kind, vocab_size);
    if (!request.ok()) return plain->names.renamed(request.error());
    request->custom_tools = std::move(plain->custom_tools);
    return request;
}

}  // namespace lorad::proto
