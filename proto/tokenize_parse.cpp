#include <array>

#include "proto/base/format.h"
#include "proto/generate/generate_request_parts.h"
#include "proto/known_fields.h"
#include "proto/tokenize_request.h"

namespace lorad::proto {

Result<TokenizeRequest> parse_tokenize_request(std::string_view body, uint32_t vocab_size) {
    TRY_ASSIGN(JsonDocument document, parse_json(body));
    JsonValue root = document.root();
    bool chat = root.find("messages").has_value();
    TokenizeRequest request;
    TRY_ASSIGN(request.prompt, parse_generate_root(root, chat ? ApiKind::kChat : ApiKind::kCompletion, vocab_size));
    if (!chat && (request.prompt.prompts.size() != 1 || !request.prompt.prompts[0].text)) {
        return root.find("prompt")->error(format("expected a string, found {}", root.find("prompt")->describe()));
    }
    if (request.prompt.n_prompt_max) return unsupported_field("truncate_prompt_tokens", "all tokens are counted here");
    TRY_ASSIGN(request.with_strings, root.bool_or("return_token_strs", false));
    std::erase(request.prompt.ignored_fields, "return_token_strs");
    return request;
}

Result<DetokenizeRequest> parse_detokenize_request(std::string_view body, uint32_t vocab_size) {
    static constexpr std::array kFields = {KnownField{"model"}, KnownField{"tokens"},
                                           KnownField{"skip_special_tokens"}};
    TRY_ASSIGN(JsonDocument document, parse_json(body));
    JsonValue root = document.root();
    if (!root.is_object()) return root.error(format("expected an object, found {}", root.describe()));
    DetokenizeRequest request;
    TRY(check_fields(root, kFields, request.ignored_fields));
    TRY_ASSIGN(std::string_view model, root.string_or("model", ""));
    request.model = std::string(model);
    TRY_ASSIGN(JsonValue tokens, root.require("tokens"));
    TRY_ASSIGN(request.tokens, parse_ids(tokens, vocab_size, tokens.size()));
    TRY_ASSIGN(request.skip_special_tokens, root.bool_or("skip_special_tokens", false));
    return request;
}

}  // namespace lorad::proto
