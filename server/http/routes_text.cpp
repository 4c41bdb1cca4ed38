// Shows the model's input without generating: rendered prompts and tokens; vLLM's names.
#include "proto/json/json.h"
#include "proto/tokenize_request.h"
#include "server/http/generate/adapter_choice.h"
#include "server/http/generate/prompt.h"
#include "server/http/generate/reply_parts.h"
#include "server/http/generate/request_check.h"
#include "server/http/routes.h"

namespace lorad::server {
namespace {

using proto::ApiKind;
using proto::GenerateRequest;

void write_ids(JsonWriter& writer, std::string_view name, const std::vector<TokenId>& ids) {
    writer.key(name).begin_array();
    for (TokenId id : ids) writer.value(static_cast<int64_t>(id));
    writer.end_array();
}

Result<HttpReply> rendered(ServerContext& context, const HttpRequest& http, ApiKind kind) {
    TRY_ASSIGN(GenerateRequest request, proto::parse_generate_request(http.body, kind, context.vocab_size));
    TRY_ASSIGN(PreparedOnly prepared, prepare_only(context, http, request, Length::kMustFit));
    JsonWriter writer;
    if (kind == ApiKind::kCompletion) writer.begin_array();
    for (PreparedPrompt& prompt : prepared.prompts) {
        TRY_ASSIGN(uint32_t n_tokens_max, tokens_to_generate(context, request, prompt.tokens.size()));
        if (prompt.text.empty()) {
            TRY_ASSIGN(prompt.text, context.text.decode(prompt.tokens, false));
        }
        writer.begin_object()
            .field("object", "rendered_prompt")
            .field("model", request.model.empty() ? context.base_name : request.model)
            .field("prompt", prompt.text);
        write_ids(writer, "token_ids", prompt.tokens);
        writer.field("count", static_cast<uint64_t>(prompt.tokens.size()))
            .field("max_tokens", n_tokens_max)
            .field("max_model_len", context.n_positions_max)
            .end_object();
    }
    if (kind == ApiKind::kCompletion) writer.end_array();
    HttpReply reply = json_reply(writer.take());
    add_headers(reply, prepared);
    return reply;
}

// Tokenizes a text that need not fit the context, and may be empty; `unread`: fields of a chat that its template does
// not show.
Result<std::vector<TokenId>> tokens_of(ServerContext& context, const HttpRequest& http, GenerateRequest& request,
                                       std::vector<std::string>& unread) {
    TRY(limit_adapters(context, http, request));
    TRY(check_adapters(context, http, request));
    Tokenizing tokenizing(context, http, TokensFor::kShowing);
    if (request.kind != ApiKind::kChat)
        return tokenizing.of_text(*request.prompts[0].text, request.add_special_tokens, "prompt");
    TRY_ASSIGN(PreparedPrompt chat, render_prompt(context, http, request));
    TRY(check_structure(context, http, request));
    unread = request.names.originals(chat.unread_fields);
    return tokenizing.of_text(chat.text, request.add_special_tokens, "messages");
}

Result<HttpReply> tokenized(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(proto::TokenizeRequest request, proto::parse_tokenize_request(http.body, context.vocab_size));
    TRY_ASSIGN(std::string ignored, ignored_fields_header(context, request.prompt.ignored_fields));
    TRY_ASSIGN(std::string not_enforced, not_enforced_header(context, request.prompt.not_enforced));
    std::vector<std::string> unread;
    Result<std::vector<TokenId>> encoded = tokens_of(context, http, request.prompt, unread);
    if (!encoded.ok()) return request.prompt.names.renamed(encoded.error());
    const std::vector<TokenId>& tokens = *encoded;
    JsonWriter writer;
    writer.begin_object()
        .field("count", static_cast<uint64_t>(tokens.size()))
        .field("max_model_len", context.n_positions_max);
    write_ids(writer, "tokens", tokens);
    writer.key("token_strs");
    if (request.with_strings) {
        writer.begin_array();
        for (TokenId token : tokens) writer.value(replace_invalid_utf8(context.text.token_bytes(token)));
        writer.end_array();
    } else {
        writer.null();
    }
    HttpReply reply = json_reply(writer.end_object().take());
    add_ignored_fields(reply, ignored, unread);
    add_not_enforced(reply, not_enforced);
    return reply;
}

Result<HttpReply> detokenized(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(proto::DetokenizeRequest request, proto::parse_detokenize_request(http.body, context.vocab_size));
    TRY_ASSIGN(std::string ignored, ignored_fields_header(context, request.ignored_fields));
    GenerateRequest named;
    named.model = request.model;
    TRY(limit_adapters(context, http, named));
    TRY(check_adapters(context, http, named));
    TRY_ASSIGN(std::string text, context.text.decode(request.tokens, request.skip_special_tokens));
    JsonWriter writer;
    writer.begin_object().field("prompt", text).end_object();
    HttpReply reply = json_reply(writer.take());
    add_ignored_fields(reply, ignored);
    return reply;
}

HttpReply render_completion(ServerContext& context, const HttpRequest& request) {
    return reply_of(rendered(context, request, ApiKind::kCompletion));
}
HttpReply render_chat(ServerContext& context, const HttpRequest& request) {
    return reply_of(rendered(context, request, ApiKind::kChat));
}
HttpReply tokenize(ServerContext& context, const HttpRequest& request) { return reply_of(tokenized(context, request)); }
HttpReply detokenize(ServerContext& context, const HttpRequest& request) {
    return reply_of(detokenized(context, request));
}

constexpr ContextRoute kTextRoutes[] = {
    {"POST", "/v1/completions/render", kGenerates, render_completion},
    {"POST", "/v1/chat/completions/render", kGenerates, render_chat},
    {"POST", "/tokenize", kGenerates, tokenize},
    {"POST", "/detokenize", kGenerates, detokenize},
};

}  // namespace

std::span<const ContextRoute> text_routes() { return kTextRoutes; }

}  // namespace lorad::server
