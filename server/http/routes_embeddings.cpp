// POST /v1/embeddings: the hidden state of each input's last token, by the same engine, in the same
// steps as what others generate.
#include <algorithm>
#include <span>

#include "proto/base/format.h"
#include "proto/embeddings.h"
#include "server/access/principal.h"
#include "server/http/generate/adapter_choice.h"
#include "server/http/generate/generation.h"
#include "server/http/generate/prompt.h"
#include "server/http/generate/reply_parts.h"
#include "server/http/routes.h"

namespace lorad::server {
namespace {

// Inputs of one request that the engine has at a time, so that a large one leaves room in the queue
// for others.
constexpr size_t kInputsAtOnce = 32;

// The first of these that may be waiting together: a quarter of the queue, and what the key may have there, but always
// one.
size_t n_at_once(const ServerContext& context, const HttpRequest& http, std::span<const PreparedPrompt> inputs) {
    const EngineOptions& queue = context.engine.options();
    size_t n_max = std::clamp<size_t>(queue.n_waiting_max / 4, 1, kInputsAtOnce);
    uint64_t n_tokens_max = queue.n_waiting_tokens_max / 4;
    if (http.principal != nullptr) {
        const access::Quotas quotas = http.principal->account->quotas();
        if (quotas.queued_requests_max > 0) n_max = std::min<size_t>(n_max, quotas.queued_requests_max);
        if (quotas.queued_tokens_max > 0) n_tokens_max = std::min(n_tokens_max, quotas.queued_tokens_max);
    }
    uint64_t n_tokens = 0;
    size_t n = 0;
    for (; n < std::min(n_max, inputs.size()); ++n) {
        n_tokens += inputs[n].tokens.size();
        if (n > 0 && n_tokens > n_tokens_max) break;
    }
    return n;
}

// False if the client has gone.
Result<bool> embed_some(Generation& generation, const HttpRequest& http, const proto::EmbeddingsRequest& request,
                        proto::EmbeddingsAnswer& answer) {
    while (!generation.ended()) {
        for (Generation::Piece& piece : generation.next()) {
            if (piece.error) return *piece.error;
        }
        if (http.client_gone && http.client_gone()) return false;
    }
    for (uint32_t i = 0; i < generation.n_choices(); ++i) {
        const std::vector<float>& hidden = generation.embedding(i);
        // It was ended before it was computed.
        if (hidden.empty()) {
            return make_error(ErrorCode::kOverloaded,
                              format("the input was not computed: {}", generation.finish_reason(i)));
        }
        answer.embeddings.push_back(proto::shown_embedding(hidden, request));
    }
    answer.n_prompt_tokens += generation.usage().n_prompt_tokens;
    return true;
}

Result<HttpReply> answered(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(proto::EmbeddingsRequest request,
               proto::parse_embeddings_request(http.body, context.vocab_size, context.hidden_size));
    TRY_ASSIGN(std::string ignored, ignored_fields_header(context, request.generate.ignored_fields));
    TRY(limit_adapters(context, http, request.generate));
    // Errors in inputs are reported before anything is computed.
    Result<std::vector<PreparedPrompt>> prepared =
        prepare_prompts(context, http, request.generate, TokensFor::kGenerating);
    if (!prepared.ok()) return request.generate.names.renamed(prepared.error());
    for (const PreparedPrompt& input : *prepared) {
        Result<uint32_t> fits = tokens_to_generate(context, request.generate, input.tokens.size());
        if (!fits.ok()) return request.generate.names.renamed(fits.error());
    }
    request.generate.prompts.clear();
    proto::EmbeddingsAnswer answer;
    // All inputs are computed with the adapters of the first.
    std::optional<adapters::MixLease> lease;
    std::span<const PreparedPrompt> inputs(*prepared);
    while (!inputs.empty()) {
        proto::GenerateRequest some = request.generate;
        const size_t n = n_at_once(context, http, inputs);
        for (const PreparedPrompt& input : inputs.first(n)) some.prompts.push_back({{}, input.tokens});
        inputs = inputs.subspan(n);
        TRY_ASSIGN(std::unique_ptr<Generation> generation, Generation::start(context, http, std::move(some), lease));
        Generation& running = *generation;
        running.head.id = format("embd-{:016x}", random_number());
        lease = running.lease();
        TRY_ASSIGN(bool done, embed_some(running, http, request, answer));
        if (!done) return client_closed();
        answer.model = running.head.model;
        answer.adapter_generation = running.head.adapter_generation;
    }
    HttpReply reply = json_reply(proto::embeddings_response(answer, request.as_base64));
    add_ignored_fields(reply, ignored);
    return reply;
}

HttpReply embed(ServerContext& context, const HttpRequest& request) { return reply_of(answered(context, request)); }

constexpr ContextRoute kEmbeddingRoutes[] = {{"POST", "/v1/embeddings", kGenerates, embed}};

}  // namespace

std::span<const ContextRoute> embeddings_routes() { return kEmbeddingRoutes; }

}  // namespace lorad::server
