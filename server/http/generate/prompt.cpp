#include "server/http/generate/prompt.h"

#include <algorithm>

#include "proto/base/format.h"
#include "server/http/place.h"

namespace lorad::server {
namespace {

using proto::ApiKind;
using proto::GenerateRequest;

std::string prompt_field(const GenerateRequest& request, size_t index) {
    if (request.kind == ApiKind::kChat) return "messages";
    return request.prompts.size() > 1 ? format("prompt[{}]", index) : "prompt";
}

Status check_tokens(const ServerContext& context, const std::vector<TokenId>& tokens, const std::string& field) {
    if (tokens.empty()) {
        return make_error(ErrorCode::kInvalidRequest, format("{}: has no tokens", field), field);
    }
    // A tokenizer may know tokens for which the model has no embedding.
    for (TokenId token : tokens) {
        if (token >= 0 && static_cast<uint32_t>(token) < context.vocab_size) continue;
        return make_error(ErrorCode::kInvalidRequest,
                          format("{}: the text holds token {}, but the model's vocabulary ends at "
                                 "{}",
                                 field, token, context.vocab_size - 1),
                          field);
    }
    return ok_status();
}

// The engine computes the prompt's own positions and no more.
Result<uint32_t> check_input_length(const ServerContext& context, size_t n_prompt) {
    if (n_prompt <= context.n_positions_max) return 1u;
    return make_error(
        ErrorCode::kContextLengthExceeded,
        format("this model's maximum context length is {} tokens, the input has {}", context.n_positions_max, n_prompt),
        "prompt");
}

// Returns the number of a prompt's last tokens that count; nothing: all.
std::optional<size_t> prompt_tokens_max(const ServerContext& context, const GenerateRequest& request) {
    constexpr uint32_t kCompletionDefault = 16;  // as in tokens_to_generate()
    if (!request.n_prompt_max) return std::nullopt;
    if (*request.n_prompt_max > 0) return size_t(*request.n_prompt_max);
    const uint32_t n_default = request.kind == ApiKind::kChat ? 1 : kCompletionDefault;
    const uint32_t n_answer = request.embed ? 0 : request.n_tokens_max.value_or(n_default);
    return std::max<size_t>(context.n_positions_max - std::min(n_answer, context.n_positions_max), 1);
}

// The last n_max tokens of a prompt, behind those that the tokenizer puts before every text.
Status cut_prompt(const ServerContext& context, const GenerateRequest& request, size_t n_max, PreparedPrompt& prompt,
                  bool is_text) {
    std::vector<TokenId>& tokens = prompt.tokens;
    if (tokens.size() <= n_max) return ok_status();
    size_t n_first = 0;
    if (is_text && request.add_special_tokens) {
        TRY_ASSIGN(const std::vector<TokenId> specials, context.text.encode("", true));
        const auto [end, _] = std::ranges::mismatch(specials, tokens);
        n_first = std::min(static_cast<size_t>(end - specials.begin()), n_max - 1);
    }
    tokens.erase(tokens.begin() + static_cast<int64_t>(n_first), tokens.end() - static_cast<int64_t>(n_max - n_first));
    if (!prompt.text.empty()) {
        TRY_ASSIGN(prompt.text, context.text.decode(tokens, false));
    }
    return ok_status();
}

Status check_unread(const ServerContext& context, const std::vector<std::string>& unread) {
    if (!context.strict || unread.empty()) return ok_status();
    const std::string field = unread.front().substr(0, 100);
    return make_error(ErrorCode::kInvalidRequest, format("{}: the chat template does not show it to the model", field),
                      field);
}

}  // namespace

Result<PreparedPrompt> render_prompt(ServerContext& context, const HttpRequest& http, const GenerateRequest& request) {
    ChatInput chat;
    chat.holder = holder_of(http);
    adapters::ChatFiles files;
    if (std::optional<std::string> adapter = only_adapter(context, request))
        files = context.registry.chat_files(*adapter);
    chat.template_digest = files.digest;
    chat.template_sources = [&] { return context.registry.templates(files); };
    chat.template_name = request.template_name;
    chat.messages_json = request.messages_json;
    chat.tools_json = request.tools_json;
    chat.documents_json = request.documents_json;
    chat.kwargs_json = request.template_kwargs_json;
    chat.add_generation_prompt = request.add_generation_prompt;
    chat.continued_text = request.continued_text;
    PreparedPrompt prompt;
    TRY_ASSIGN(RenderedChat rendered, context.text.render_chat(chat));
    TRY(check_unread(context, rendered.unread));
    prompt.text = std::move(rendered.text);
    prompt.unread_fields = std::move(rendered.unread);
    prompt.template_digest = std::move(chat.template_digest);
    return prompt;
}

Result<std::vector<PreparedPrompt>> prepare_prompts(ServerContext& context, const HttpRequest& http,
                                                    const GenerateRequest& request, TokensFor what) {
    Tokenizing tokenizing(context, http, what);
    std::vector<PreparedPrompt> prepared;
    if (request.kind == ApiKind::kChat) {
        TRY_ASSIGN(PreparedPrompt prompt, render_prompt(context, http, request));
        prepared.push_back(std::move(prompt));
    }
    for (const proto::Prompt& prompt : request.prompts) prepared.push_back({prompt.ids, prompt.text.value_or("")});
    const std::optional<size_t> n_max = prompt_tokens_max(context, request);
    for (size_t i = 0; i < prepared.size(); ++i) {
        PreparedPrompt& one = prepared[i];
        const std::string field = prompt_field(request, i);
        if (request.kind == ApiKind::kChat || request.prompts[i].text) {
            // A text that is cut need not fit.
            TRY_ASSIGN(one.tokens, n_max ? tokenizing.of_text(one.text, request.add_special_tokens, field)
                                         : tokenizing.of_prompt(one.text, request.add_special_tokens, field));
        }
        if (n_max)
            TRY(cut_prompt(context, request, *n_max, one,
                           request.kind == ApiKind::kChat || request.prompts[i].text.has_value()));
        TRY(check_tokens(context, one.tokens, field));
    }
    return prepared;
}

Result<uint32_t> tokens_to_generate(const ServerContext& context, const GenerateRequest& request, size_t n_prompt) {
    constexpr uint32_t kCompletionDefault = 16;  // OpenAI's
    if (request.embed) return check_input_length(context, n_prompt);
    uint64_t n_left = n_prompt < context.n_positions_max ? context.n_positions_max - n_prompt : 0;
    uint64_t n_default = request.kind == ApiKind::kChat ? std::max<uint64_t>(n_left, 1) : kCompletionDefault;
    uint64_t n_wanted = request.n_tokens_max ? *request.n_tokens_max : n_default;
    if (request.n_tokens_max_is_cut && n_left > 0) n_wanted = std::min(n_wanted, n_left);
    if (n_wanted > n_left) {
        return make_error(ErrorCode::kContextLengthExceeded,
                          format("this model's maximum context length is {} tokens, the request "
                                 "needs {}: {} in the prompt and {} to generate",
                                 context.n_positions_max, n_prompt + n_wanted, n_prompt, n_wanted),
                          request.n_tokens_max && n_left > 0 ? "max_tokens"
                          : request.kind == ApiKind::kChat   ? "messages"
                                                             : "prompt");
    }
    return static_cast<uint32_t>(n_wanted);
}

}  // namespace lorad::server
