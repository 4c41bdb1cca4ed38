// Parses the number of answers, how they are sent, and what they tell beside their text.
#include "proto/base/format.h"
#include "proto/generate/generate_request_parts.h"
#include "proto/generate/logprobs.h"

namespace lorad::proto {
namespace {

Status parse_stream(const JsonValue& root, GenerateRequest& request) {
    TRY_ASSIGN(request.stream, root.bool_or("stream", false));
    TRY_ASSIGN(request.return_token_ids, root.bool_or("return_token_ids", false));
    std::optional<JsonValue> options = root.find("stream_options");
    if (!options) return ok_status();
    if (!options->is_object()) return options->error(format("expected an object, found {}", options->describe()));
    if (!request.stream) return options->error("only allowed with \"stream\": true");
    TRY_ASSIGN(request.include_usage, options->bool_or("include_usage", false));
    TRY_ASSIGN(request.continuous_usage, options->bool_or("continuous_usage_stats", false));
    TRY(options->bool_or("include_obfuscation", false));  // padding, which is not a promise
    request.continuous_usage = request.continuous_usage && request.include_usage;
    TRY_ASSIGN(std::vector<JsonMember> members, options->as_object());
    for (const JsonMember& member : members) {
        if (member.key != "include_usage" && member.key != "continuous_usage_stats" &&
            member.key != "include_obfuscation")
            request.ignored_fields.push_back("stream_options." + std::string(member.key));
    }
    return ok_status();
}

Status parse_counts(const JsonValue& root, GenerateRequest& request) {
    TRY_ASSIGN(int64_t n, root.int_or("n", 1, 1, kChoicesMax));
    TRY_ASSIGN(int64_t best_of, root.int_or("best_of", n, 1, kChoicesMax));
    request.n = static_cast<uint32_t>(n);
    request.best_of = static_cast<uint32_t>(best_of);
    if (best_of < n) {
        return root.find("best_of")->error(format("expected at least n, {}, found {}", n, best_of));
    }
    if (best_of > n && request.stream) {
        return root.find("best_of")->error("answers can only be compared when they are whole: leave out \"stream\"");
    }
    if (request.prompts.size() * request.best_of > kChoicesMax) {
        return make_error(ErrorCode::kInvalidRequest,
                          format("{}: {} prompts with {} answers each are more than {}", best_of > n ? "best_of" : "n",
                                 request.prompts.size(), request.best_of, kChoicesMax),
                          best_of > n ? "best_of" : "n");
    }
    return ok_status();
}

// Completions ask with a number, chats with a switch and a number.
Status parse_logprobs(const JsonValue& root, GenerateRequest& request) {
    TRY_ASSIGN(request.tokens_as_ids, root.bool_or("return_tokens_as_token_ids", false));
    if (std::optional<JsonValue> prompt = root.find("prompt_logprobs")) {
        TRY_ASSIGN(int64_t number, prompt->as_int(0, kTopLogprobsMax));
        if (request.stream) return prompt->error("not sent in streams: leave out \"stream\"");
        request.n_prompt_logprobs = static_cast<uint32_t>(number);
    }
    std::optional<JsonValue> logprobs = root.find("logprobs");
    if (request.kind == ApiKind::kCompletion) {
        if (!logprobs || is_bool(*logprobs, false)) return ok_status();
        TRY_ASSIGN(int64_t number, logprobs->as_int(0, kTopLogprobsMax));
        request.n_logprobs = static_cast<uint32_t>(number);
        return ok_status();
    }
    TRY_ASSIGN(bool wanted, root.bool_or("logprobs", false));
    TRY_ASSIGN(int64_t number, root.int_or("top_logprobs", 0, 0, kTopLogprobsMax));
    if (number > 0 && !wanted) return root.find("top_logprobs")->error("only allowed with \"logprobs\": true");
    if (wanted) request.n_logprobs = static_cast<uint32_t>(number);
    return ok_status();
}

}  // namespace

Status parse_output(const JsonValue& root, GenerateRequest& request) {
    TRY(parse_stream(root, request));
    TRY(parse_counts(root, request));
    TRY(parse_logprobs(root, request));
    TRY_ASSIGN(request.skip_special_tokens, root.bool_or("skip_special_tokens", true));
    TRY_ASSIGN(int64_t priority, root.int_or("priority", 0, INT32_MIN, INT32_MAX));
    request.priority = static_cast<int32_t>(priority);
    TRY_ASSIGN(request.user, short_text(root, "user", kUserBytesMax));
    TRY_ASSIGN(request.cache_salt, short_text(root, "cache_salt", kUserBytesMax));
    if (root.find("cache_salt") && request.cache_salt.empty())
        return root.find("cache_salt")->error("expected a text, found an empty one");
    return ok_status();
}

}  // namespace lorad::proto
