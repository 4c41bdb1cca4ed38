#include <array>
#include <cmath>

#include "proto/base/format.h"
#include "proto/generate_request.h"
#include "proto/json.h"

namespace lorad::proto {
namespace {

// The value with which a parameter that lorad does not have changes nothing, and so is accepted.
enum class Neutral : uint8_t {
    kNone,
    kFalse,
    kTrue,
    kZero,
    kOne,
    kEmpty,
    kTextFormat,
    kNoTools,
    kTextOnly
};

struct RefusedParameter {
    std::string_view name;
    Neutral neutral;
};

constexpr std::array kRefused = {
    RefusedParameter{"n", Neutral::kOne},
    RefusedParameter{"best_of", Neutral::kOne},
    RefusedParameter{"use_beam_search", Neutral::kFalse},
    RefusedParameter{"length_penalty", Neutral::kOne},
    RefusedParameter{"early_stopping", Neutral::kFalse},
    RefusedParameter{"logprobs", Neutral::kFalse},
    RefusedParameter{"top_logprobs", Neutral::kZero},
    RefusedParameter{"prompt_logprobs", Neutral::kNone},
    RefusedParameter{"echo", Neutral::kFalse},
    RefusedParameter{"suffix", Neutral::kEmpty},
    RefusedParameter{"presence_penalty", Neutral::kZero},
    RefusedParameter{"frequency_penalty", Neutral::kZero},
    RefusedParameter{"repetition_penalty", Neutral::kOne},
    RefusedParameter{"typical_p", Neutral::kOne},
    RefusedParameter{"logit_bias", Neutral::kEmpty},
    RefusedParameter{"bad_words", Neutral::kEmpty},
    RefusedParameter{"allowed_token_ids", Neutral::kNone},
    RefusedParameter{"logits_processors", Neutral::kEmpty},
    RefusedParameter{"tools", Neutral::kEmpty},
    RefusedParameter{"tool_choice", Neutral::kNoTools},
    RefusedParameter{"functions", Neutral::kEmpty},
    RefusedParameter{"function_call", Neutral::kNoTools},
    RefusedParameter{"response_format", Neutral::kTextFormat},
    RefusedParameter{"structured_outputs", Neutral::kNone},
    RefusedParameter{"guided_json", Neutral::kNone},
    RefusedParameter{"guided_regex", Neutral::kNone},
    RefusedParameter{"guided_choice", Neutral::kNone},
    RefusedParameter{"guided_grammar", Neutral::kNone},
    RefusedParameter{"guided_decoding_backend", Neutral::kNone},
    RefusedParameter{"guided_whitespace_pattern", Neutral::kNone},
    RefusedParameter{"grammar", Neutral::kEmpty},
    RefusedParameter{"json_schema", Neutral::kNone},
    RefusedParameter{"modalities", Neutral::kTextOnly},
    RefusedParameter{"audio", Neutral::kNone},
    RefusedParameter{"prediction", Neutral::kNone},
    RefusedParameter{"web_search_options", Neutral::kNone},
    RefusedParameter{"reasoning_effort", Neutral::kNone},
    RefusedParameter{"verbosity", Neutral::kNone},
    RefusedParameter{"priority", Neutral::kZero},
    RefusedParameter{"chat_template", Neutral::kNone},
    RefusedParameter{"chat_template_kwargs", Neutral::kEmpty},
    RefusedParameter{"documents", Neutral::kEmpty},
    RefusedParameter{"add_generation_prompt", Neutral::kTrue},
    RefusedParameter{"continue_final_message", Neutral::kFalse},
    RefusedParameter{"truncate_prompt_tokens", Neutral::kNone},
    RefusedParameter{"skip_special_tokens", Neutral::kTrue},
    RefusedParameter{"spaces_between_special_tokens", Neutral::kTrue},
    RefusedParameter{"include_stop_str_in_output", Neutral::kFalse},
    RefusedParameter{"prompt_embeds", Neutral::kNone},
    RefusedParameter{"cache_salt", Neutral::kNone},
    RefusedParameter{"kv_transfer_params", Neutral::kNone},
};

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

bool is_neutral(const JsonValue& value, Neutral neutral) {
    switch (neutral) {
        case Neutral::kNone:
            return false;
        case Neutral::kFalse:
            return is_bool(value, false);
        case Neutral::kTrue:
            return is_bool(value, true);
        case Neutral::kZero:
            return is_number(value, 0.0);
        case Neutral::kOne:
            return is_number(value, 1.0);
        case Neutral::kEmpty:
            return is_text(value, "") ||
                   ((value.is_array() || value.is_object()) && value.size() == 0);
        case Neutral::kTextFormat: {
            std::optional<JsonValue> type = value.find("type");
            return type && is_text(*type, "text");
        }
        case Neutral::kNoTools:
            return is_text(value, "none") || is_text(value, "auto");
        case Neutral::kTextOnly: {
            Result<std::vector<JsonValue>> kinds = value.as_array();
            return kinds.ok() && kinds->size() == 1 && is_text(kinds->front(), "text");
        }
    }
    return false;
}

Status check_refused(const JsonValue& root) {
    for (const RefusedParameter& parameter : kRefused) {
        std::optional<JsonValue> value = root.find(parameter.name);
        if (!value || is_neutral(*value, parameter.neutral)) continue;
        return make_error(ErrorCode::kUnsupportedParameter,
                          format("{}: this server does not support {}; leave the parameter out",
                                 parameter.name, value->describe()),
                          std::string(parameter.name));
    }
    return ok_status();
}

Result<std::optional<float>> optional_number(const JsonValue& root, std::string_view name,
                                             double min, bool min_allowed, double max) {
    std::optional<JsonValue> value = root.find(name);
    if (!value) return std::optional<float>();
    TRY_ASSIGN(double number, value->as_number());
    if (number > max || number < min || (number == min && !min_allowed)) {
        return value->error(format("expected a number {} {} and at most {}, found {}",
                                   min_allowed ? "of at least" : "above", min, max,
                                   value->describe()));
    }
    return std::optional<float>(float(number));
}

Status parse_sampling(const JsonValue& root, GenerateRequest& request) {
    TRY_ASSIGN(request.temperature, optional_number(root, "temperature", 0.0, true, 2.0));
    TRY_ASSIGN(request.top_p, optional_number(root, "top_p", 0.0, false, 1.0));
    TRY_ASSIGN(request.min_p, optional_number(root, "min_p", 0.0, true, 1.0));
    if (std::optional<JsonValue> top_k = root.find("top_k")) {
        TRY_ASSIGN(int64_t number, top_k->as_int(-1, 0x7fffffff));  // -1 turns it off as 0 does
        request.top_k = number < 0 ? 0u : uint32_t(number);
    }
    if (std::optional<JsonValue> seed = root.find("seed")) {
        TRY_ASSIGN(int64_t number, seed->as_int());
        request.seed = uint64_t(number);
    }
    return ok_status();
}

Result<std::vector<TokenId>> parse_ids(const JsonValue& value, uint32_t vocab_size) {
    TRY_ASSIGN(std::vector<JsonValue> elements, value.as_array());
    std::vector<TokenId> ids;
    ids.reserve(elements.size());
    for (const JsonValue& element : elements) {
        TRY_ASSIGN(int64_t id, element.as_int(0, int64_t(vocab_size) - 1));
        ids.push_back(TokenId(id));
    }
    return ids;
}

Status parse_limits(const JsonValue& root, GenerateRequest& request, uint32_t vocab_size) {
    for (const char* name : {"max_tokens", "max_completion_tokens"}) {
        std::optional<JsonValue> value = root.find(name);
        if (!value) continue;
        TRY_ASSIGN(int64_t number, value->as_int(1, 0x7fffffff));
        if (request.n_tokens_max && *request.n_tokens_max != uint32_t(number)) {
            return value->error("differs from max_tokens: give one of the two");
        }
        request.n_tokens_max = uint32_t(number);
    }
    TRY_ASSIGN(int64_t n_min, root.int_or("min_tokens", 0, 0, 0x7fffffff));
    request.n_tokens_min = uint32_t(n_min);
    if (request.n_tokens_max && request.n_tokens_min > *request.n_tokens_max) {
        return make_error(ErrorCode::kInvalidRequest,
                          format("min_tokens: expected at most max_tokens, {}, found {}",
                                 *request.n_tokens_max, request.n_tokens_min),
                          "min_tokens");
    }
    TRY_ASSIGN(request.ignore_eos, root.bool_or("ignore_eos", false));
    if (std::optional<JsonValue> ids = root.find("stop_token_ids")) {
        if (ids->size() > kStopTokensMax) {
            return ids->error(
                format("expected at most {} token ids, found {}", kStopTokensMax, ids->size()));
        }
        TRY_ASSIGN(request.stop_token_ids, parse_ids(*ids, vocab_size));
    }
    return ok_status();
}

Status parse_stop(const JsonValue& root, GenerateRequest& request) {
    std::optional<JsonValue> stop = root.find("stop");
    if (!stop) return ok_status();
    std::vector<JsonValue> elements{*stop};
    if (!stop->is_string()) {
        if (!stop->is_array()) {
            return stop->error(
                format("expected a string or a list of strings, found {}", stop->describe()));
        }
        TRY_ASSIGN(elements, stop->as_array());
    }
    if (elements.size() > kStopStringsMax) {
        return stop->error(
            format("expected at most {} strings, found {}", kStopStringsMax, elements.size()));
    }
    for (const JsonValue& element : elements) {
        TRY_ASSIGN(std::string_view text, element.as_string());
        if (text.empty() || text.size() > kStopStringBytesMax) {
            return element.error(
                format("expected 1 to {} bytes, found {}", kStopStringBytesMax, text.size()));
        }
        request.stop.emplace_back(text);
    }
    return ok_status();
}

Status parse_output(const JsonValue& root, GenerateRequest& request) {
    TRY_ASSIGN(request.stream, root.bool_or("stream", false));
    TRY_ASSIGN(request.return_token_ids, root.bool_or("return_token_ids", false));
    if (std::optional<JsonValue> options = root.find("stream_options")) {
        if (!request.stream) return options->error("only allowed with \"stream\": true");
        TRY_ASSIGN(std::vector<JsonMember> members, options->as_object());
        for (const JsonMember& member : members) {
            if (member.key == "continuous_usage_stats" && !member.value.is_null() &&
                !is_bool(member.value, false)) {
                return make_error(
                    ErrorCode::kUnsupportedParameter,
                    "stream_options.continuous_usage_stats: this server does not support it",
                    "stream_options.continuous_usage_stats");
            }
        }
        TRY_ASSIGN(request.include_usage, options->bool_or("include_usage", false));
    }
    return ok_status();
}

// A text, token ids, or a list with one of either.
Status parse_prompt(const JsonValue& root, GenerateRequest& request, uint32_t vocab_size) {
    TRY_ASSIGN(JsonValue prompt, root.require("prompt"));
    if (prompt.is_array() && prompt.size() > 0) {
        TRY_ASSIGN(std::vector<JsonValue> elements, prompt.as_array());
        if (!elements.front().is_number()) {
            if (elements.size() > 1) {
                return make_error(
                    ErrorCode::kUnsupportedParameter,
                    format("prompt: this server takes one prompt in a request, found a list of {}",
                           elements.size()),
                    "prompt");
            }
            prompt = elements.front();
        }
    }
    if (prompt.is_string()) {
        TRY_ASSIGN(std::string_view text, prompt.as_string());
        request.prompt_text = std::string(text);
        return ok_status();
    }
    if (!prompt.is_array()) {
        return prompt.error(
            format("expected a string or a list of token ids, found {}", prompt.describe()));
    }
    if (prompt.size() == 0)
        return prompt.error("expected at least one token id, found an empty list");
    TRY_ASSIGN(request.prompt_ids, parse_ids(prompt, vocab_size));
    return ok_status();
}

// Chat templates work on strings: the text parts of a list become lines of one.
Status write_content(const JsonValue& content, JsonWriter& writer) {
    if (content.is_string()) {
        TRY_ASSIGN(std::string_view text, content.as_string());
        writer.value(text);
        return ok_status();
    }
    if (!content.is_array()) {
        return content.error(
            format("expected a string or a list of text parts, found {}", content.describe()));
    }
    std::string joined;
    TRY_ASSIGN(std::vector<JsonValue> parts, content.as_array());
    for (size_t i = 0; i < parts.size(); ++i) {
        TRY_ASSIGN(JsonValue type, parts[i].require("type"));
        if (!is_text(type, "text")) {
            return make_error(ErrorCode::kUnsupportedParameter,
                              format("{}: this server takes only text parts, found {}", type.path(),
                                     type.describe()),
                              type.path());
        }
        TRY_ASSIGN(JsonValue part, parts[i].require("text"));
        TRY_ASSIGN(std::string_view text, part.as_string());
        if (i > 0) joined += '\n';
        joined += text;
    }
    writer.value(joined);
    return ok_status();
}

Status parse_messages(const JsonValue& root, GenerateRequest& request) {
    TRY_ASSIGN(JsonValue messages, root.require("messages"));
    TRY_ASSIGN(std::vector<JsonValue> elements, messages.as_array());
    if (elements.empty()) return messages.error("expected at least one message, found none");
    JsonWriter writer;
    writer.begin_array();
    for (const JsonValue& message : elements) {
        TRY_ASSIGN(std::vector<JsonMember> members, message.as_object());
        TRY_ASSIGN(JsonValue role, message.require("role"));
        TRY_ASSIGN(std::string_view role_text, role.as_string());
        if (role_text.empty())
            return role.error("expected a role such as \"user\", found an empty string");
        bool may_lack_content = role_text == "assistant";
        if (!may_lack_content) TRY(message.require("content"));
        writer.begin_object();
        for (const JsonMember& member : members) {
            writer.key(member.key);
            if (member.key == "content" && !member.value.is_null()) {
                TRY(write_content(member.value, writer));
            } else {
                writer.raw(member.value.dump());
            }
        }
        if (!message.has("content")) writer.key("content").null();
        writer.end_object();
    }
    writer.end_array();
    request.messages_json = writer.take();
    return ok_status();
}

// Three ways to say which adapters a request runs with; only one at a time.
Status parse_adapters(const JsonValue& root, GenerateRequest& request) {
    std::string_view given;
    for (std::string_view name : {"adapters", "adapter", "lora"}) {
        std::optional<JsonValue> value = root.find(name);
        if (!value) continue;
        if (!given.empty()) return value->error(format("{} is given, too: use one of them", given));
        given = name;
        if (name == "adapters") {
            TRY_ASSIGN(request.adapters, parse_named_scales(*value));
        } else if (name == "lora") {
            TRY_ASSIGN(request.lora, parse_id_scales(*value));
        } else {
            TRY_ASSIGN(std::string_view text, value->as_string());
            if (text.empty()) return value->error("expected a name, found an empty string");
            request.adapters = {{std::string(text), 1.0f}};
        }
    }
    return ok_status();
}

}  // namespace

Result<GenerateRequest> parse_generate_request(std::string_view body, ApiKind kind,
                                               uint32_t vocab_size) {
    TRY_ASSIGN(JsonDocument document, parse_json(body));
    JsonValue root = document.root();
    if (!root.is_object())
        return root.error(format("expected an object, found {}", root.describe()));
    GenerateRequest request;
    request.kind = kind;
    TRY_ASSIGN(std::string_view model, root.string_or("model", ""));
    request.model = std::string(model);
    TRY(check_refused(root));
    TRY(parse_adapters(root, request));
    TRY(kind == ApiKind::kChat ? parse_messages(root, request)
                               : parse_prompt(root, request, vocab_size));
    TRY(parse_sampling(root, request));
    TRY(parse_limits(root, request, vocab_size));
    TRY(parse_stop(root, request));
    TRY(parse_output(root, request));
    // Chat templates write the special tokens themselves.
    TRY_ASSIGN(request.add_special_tokens,
               root.bool_or("add_special_tokens", kind == ApiKind::kCompletion));
    TRY(root.string_or("user", ""));
    return request;
}

}  // namespace lorad::proto
