// Parses how tokens are drawn, how many, and the conditions that end them.
#include <algorithm>
#include <charconv>
#include <set>

#include "proto/base/format.h"
#include "proto/generate/generate_request_parts.h"

namespace lorad::proto {
namespace {

// {"token id": bias}, as OpenAI has it; ids are texts there.
Status parse_logit_bias(const JsonValue& root, GenerateRequest& request, uint32_t vocab_size) {
    constexpr double kBiasMax = 100.0;
    std::optional<JsonValue> map = root.find("logit_bias");
    if (!map) return ok_status();
    TRY_ASSIGN(std::vector<JsonMember> members, map->as_object());
    if (members.size() > kLogitBiasMax) {
        return map->error(format("expected at most {} tokens, found {}", kLogitBiasMax, members.size()));
    }
    std::set<TokenId> seen;
    for (const JsonMember& member : members) {
        TokenId id = -1;
        const char* end = member.key.data() + member.key.size();
        auto [stopped, error] = std::from_chars(member.key.data(), end, id);
        if (error != std::errc() || stopped != end || id < 0 || static_cast<uint32_t>(id) >= vocab_size) {
            return map->error(format("expected token ids from 0 to {} as keys, found {}", vocab_size - 1,
                                     json_quote_short(member.key)));
        }
        if (!seen.insert(id).second) return map->error(format("token {} is given twice", id));
        TRY_ASSIGN(double bias, member.value.as_number());
        if (!(bias >= -kBiasMax && bias <= kBiasMax)) {
            return member.value.error(
                format("expected a number from {} to {}, found {}", -kBiasMax, kBiasMax, member.value.describe()));
        }
        if (bias != 0.0) request.logit_bias.push_back({id, static_cast<float>(bias)});
    }
    return ok_status();
}

Status parse_allowed(const JsonValue& root, GenerateRequest& request, uint32_t vocab_size) {
    std::optional<JsonValue> ids = root.find("allowed_token_ids");
    if (!ids) return ok_status();
    TRY_ASSIGN(request.allowed_token_ids, parse_ids(*ids, vocab_size, vocab_size));
    if (request.allowed_token_ids.empty()) return ids->error("expected at least one token id, found an empty list");
    std::sort(request.allowed_token_ids.begin(), request.allowed_token_ids.end());
    return ok_status();
}

Status parse_bad_words(const JsonValue& root, GenerateRequest& request) {
    std::optional<JsonValue> list = root.find("bad_words");
    if (!list) return ok_status();
    TRY_ASSIGN(std::vector<JsonValue> elements, list->as_array());
    if (elements.size() > kBadWordsMax)
        return list->error(format("expected at most {} texts, found {}", kBadWordsMax, elements.size()));
    for (const JsonValue& element : elements) {
        TRY_ASSIGN(std::string_view text, element.as_string());
        if (text.find_first_not_of(' ') == std::string_view::npos || text.size() > kBadWordBytesMax)
            return element.error(format("expected a text of 1 to {} bytes that is not blank", kBadWordBytesMax));
        request.bad_words.emplace_back(text);
    }
    return ok_status();
}

}  // namespace

Result<std::optional<float>> optional_number(const JsonValue& root, std::string_view name, double min, bool min_allowed,
                                             double max) {
    std::optional<JsonValue> value = root.find(name);
    if (!value) return std::optional<float>();
    TRY_ASSIGN(double number, value->as_number());
    // The least value above 0 that a float holds is more than 0.
    bool too_small = static_cast<float>(number) < static_cast<float>(min) ||
                     (static_cast<float>(number) == static_cast<float>(min) && !min_allowed);
    if (number > max || number < min || too_small) {
        return value->error(format("expected a number {} {} and at most {}, found {}",
                                   min_allowed ? "of at least" : "above", min, max, value->describe()));
    }
    return std::optional<float>(static_cast<float>(number));
}

Result<std::vector<TokenId>> parse_ids(const JsonValue& value, uint32_t vocab_size, size_t n_max) {
    TRY_ASSIGN(std::vector<JsonValue> elements, value.as_array());
    if (elements.size() > n_max) {
        return value.error(format("expected at most {} token ids, found {}", n_max, elements.size()));
    }
    std::vector<TokenId> ids;
    ids.reserve(elements.size());
    for (const JsonValue& element : elements) {
        TRY_ASSIGN(int64_t id, element.as_int(0, int64_t{vocab_size} - 1));
        ids.push_back(TokenId(id));
    }
    return ids;
}

Result<std::string> short_text(const JsonValue& root, std::string_view name, size_t n_max) {
    std::optional<JsonValue> value = root.find(name);
    if (!value) return std::string();
    TRY_ASSIGN(std::string_view text, value->as_string());
    if (text.size() > n_max) {
        return value->error(format("expected at most {} bytes, found {}", n_max, text.size()));
    }
    return std::string(text);
}

Status parse_sampling(const JsonValue& root, GenerateRequest& request, uint32_t vocab_size) {
    TRY(parse_bad_words(root, request));
    TRY_ASSIGN(request.temperature, optional_number(root, "temperature", 0.0, true, 2.0));
    TRY_ASSIGN(request.top_p, optional_number(root, "top_p", 0.0, false, 1.0));
    TRY_ASSIGN(request.min_p, optional_number(root, "min_p", 0.0, true, 1.0));
    TRY_ASSIGN(std::optional<float> typical_p, optional_number(root, "typical_p", 0.0, false, 1.0));
    request.typical_p = typical_p.value_or(1.0f);
    TRY_ASSIGN(request.repetition_penalty, optional_number(root, "repetition_penalty", 0.0, false, 10.0));
    TRY_ASSIGN(std::optional<float> presence, optional_number(root, "presence_penalty", -2.0, true, 2.0));
    request.presence_penalty = presence.value_or(0.0f);
    TRY_ASSIGN(std::optional<float> frequency, optional_number(root, "frequency_penalty", -2.0, true, 2.0));
    request.frequency_penalty = frequency.value_or(0.0f);
    if (std::optional<JsonValue> top_k = root.find("top_k")) {
        TRY_ASSIGN(int64_t number, top_k->as_int(-1, 0x7fffffff));  // -1 turns it off as 0 does
        request.top_k = number < 0 ? 0u : static_cast<uint32_t>(number);
    }
    if (std::optional<JsonValue> seed = root.find("seed")) {
        TRY_ASSIGN(int64_t number, seed->as_int());
        request.seed = static_cast<uint64_t>(number);
    }
    TRY(parse_logit_bias(root, request, vocab_size));
    return parse_allowed(root, request, vocab_size);
}

Status parse_limits(const JsonValue& root, GenerateRequest& request, uint32_t vocab_size) {
    TRY_ASSIGN(request.echo, root.bool_or("echo", false));
    for (const char* name : {"max_tokens", "max_completion_tokens"}) {
        std::optional<JsonValue> value = root.find(name);
        if (!value) continue;
        // With echo 0 is valid: only the prompt's own log-probabilities are wanted.
        TRY_ASSIGN(int64_t number, value->as_int(request.echo ? 0 : 1, 0x7fffffff));
        if (request.n_tokens_max && *request.n_tokens_max != static_cast<uint32_t>(number)) {
            return value->error("differs from max_tokens: give one of the two");
        }
        request.n_tokens_max = static_cast<uint32_t>(number);
    }
    TRY_ASSIGN(int64_t n_min, root.int_or("min_tokens", 0, 0, 0x7fffffff));
    request.n_tokens_min = static_cast<uint32_t>(n_min);
    if (request.n_tokens_max && request.n_tokens_min > *request.n_tokens_max) {
        return make_error(ErrorCode::kInvalidRequest,
                          format("min_tokens: expected at most max_tokens, {}, found {}", *request.n_tokens_max,
                                 request.n_tokens_min),
                          "min_tokens");
    }
    TRY_ASSIGN(request.ignore_eos, root.bool_or("ignore_eos", false));
    if (std::optional<JsonValue> ids = root.find("stop_token_ids")) {
        TRY_ASSIGN(request.stop_token_ids, parse_ids(*ids, vocab_size, kStopTokensMax));
    }
    return ok_status();
}

Status parse_stop(const JsonValue& root, GenerateRequest& request) {
    TRY_ASSIGN(request.include_stop, root.bool_or("include_stop_str_in_output", false));
    std::optional<JsonValue> stop = root.find("stop");
    if (!stop) return ok_status();
    std::vector<JsonValue> elements{*stop};
    if (!stop->is_string()) {
        if (!stop->is_array()) {
            return stop->error(format("expected a string or a list of strings, found {}", stop->describe()));
        }
        TRY_ASSIGN(elements, stop->as_array());
    }
    if (elements.size() > kStopStringsMax) {
        return stop->error(format("expected at most {} strings, found {}", kStopStringsMax, elements.size()));
    }
    for (const JsonValue& element : elements) {
        TRY_ASSIGN(std::string_view text, element.as_string());
        if (text.empty() || text.size() > kStopStringBytesMax) {
            return element.error(format("expected 1 to {} bytes, found {}", kStopStringBytesMax, text.size()));
        }
        request.stop.emplace_back(text);
    }
    return ok_status();
}

}  // namespace lorad::proto
