#include <algorithm>
#include <random>

#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/generate_response.h"
#include "proto/json.h"
#include "proto/sse.h"
#include "server/http/routes.h"

namespace lorad::server {
namespace {

using proto::ApiKind;
using proto::GenerateRequest;

// How often a waiting worker looks whether its client is still there.
constexpr std::chrono::milliseconds kDisconnectPoll{50};

Result<std::vector<TokenId>> prompt_tokens(const ServerContext& context, GenerateRequest& parsed) {
    if (parsed.kind == ApiKind::kCompletion && !parsed.prompt_text)
        return std::move(parsed.prompt_ids);
    std::string text;
    if (parsed.kind == ApiKind::kChat) {
        TRY_ASSIGN(text, context.text.render_chat(parsed.messages_json));
    } else {
        text = std::move(*parsed.prompt_text);
    }
    TRY_ASSIGN(std::vector<TokenId> tokens, context.text.encode(text, parsed.add_special_tokens));
    // A tokenizer may know tokens for which the model has no embedding.
    for (TokenId token : tokens) {
        if (token >= 0 && uint32_t(token) < context.vocab_size) continue;
        return make_error(ErrorCode::kInvalidRequest,
                          format("the text holds token {}, but the model's vocabulary ends at {}",
                                 token, context.vocab_size - 1),
                          parsed.kind == ApiKind::kChat ? "messages" : "prompt");
    }
    return tokens;
}

// How many tokens the request may generate; the prompt and they must fit the context.
Result<uint32_t> tokens_to_generate(const ServerContext& context, const GenerateRequest& parsed,
                                    size_t n_prompt) {
    constexpr uint32_t kCompletionDefault = 16;  // OpenAI's
    uint64_t n_left = n_prompt < context.n_positions_max ? context.n_positions_max - n_prompt : 0;
    uint64_t n_default =
        parsed.kind == ApiKind::kChat ? std::max<uint64_t>(n_left, 1) : kCompletionDefault;
    uint64_t n_wanted = parsed.n_tokens_max ? *parsed.n_tokens_max : n_default;
    if (n_wanted > n_left) {
        return make_error(ErrorCode::kContextLengthExceeded,
                          format("this model's maximum context length is {} tokens, the request "
                                 "needs {}: {} in the prompt and {} "
                                 "to generate",
                                 context.n_positions_max, n_prompt + n_wanted, n_prompt, n_wanted),
                          parsed.n_tokens_max && n_left > 0 ? "max_tokens"
                          : parsed.kind == ApiKind::kChat   ? "messages"
                                                            : "prompt");
    }
    return uint32_t(n_wanted);
}

uint64_t random_seed() {
    thread_local std::mt19937_64 generator{std::random_device{}()};
    return generator();
}

proto::SamplingParams sampling_of(const ServerContext& context, const GenerateRequest& parsed) {
    proto::SamplingParams sampling;
    sampling.temperature = parsed.temperature.value_or(context.defaults.temperature);
    sampling.top_p = parsed.top_p.value_or(context.defaults.top_p);
    sampling.top_k = parsed.top_k.value_or(context.defaults.top_k);
    sampling.min_p = parsed.min_p.value_or(context.defaults.min_p);
    sampling.seed = parsed.seed ? *parsed.seed : random_seed();
    return sampling;
}

// One admitted request on its HTTP worker: takes tokens from the engine, gives text. Cancels when
// it goes away early.
class Generation {
  public:
    struct Piece {
        std::string text;
        std::vector<TokenId> ids;
        std::string_view finish_reason;  // set in the last piece
        std::optional<Error> error;      // instead of a finish reason
        bool ended() const { return error || !finish_reason.empty(); }
    };

    Generation(proto::ResponseHead response_head, const GenerateRequest& parsed,
               const Request& request, std::unique_ptr<TextDecoder> decoder)
        : head(std::move(response_head)),
          include_usage(parsed.include_usage),
          return_token_ids(parsed.return_token_ids),
          prompt(request.prompt),
          stop_tokens_(request.stop_tokens),
          n_tokens_min_(request.n_tokens_min),
          stream_(request.stream),
          decoder_(std::move(decoder)) {}
    ~Generation() { stream_->cancel(); }
    Generation(const Generation&) = delete;
    Generation& operator=(const Generation&) = delete;

    // Empty when nothing came within the time between two looks at the client.
    Piece next() {
        Piece piece;
        TokenStream::Batch batch = stream_->pop(kDisconnectPoll);
        for (TokenId token : batch.tokens) {
            piece.ids.push_back(token);
            ++n_completion_tokens_;
            bool is_stop =
                std::find(stop_tokens_.begin(), stop_tokens_.end(), token) != stop_tokens_.end();
            if (is_stop && n_completion_tokens_ >= n_tokens_min_)
                break;  // not text; the engine's ending follows
            Result<std::string> text = decoder_->push(token);
            if (!text.ok()) return failed(std::move(piece), text.error());
            piece.text += *text;
            if (decoder_->found_stop()) {
                stream_->cancel(FinishReason::kStop);
                piece.finish_reason = to_string(FinishReason::kStop);
                return piece;
            }
        }
        if (!batch.end) return piece;
        if (batch.end->error) return failed(std::move(piece), *batch.end->error);
        Result<std::string> rest = decoder_->finish();
        if (!rest.ok()) return failed(std::move(piece), rest.error());
        piece.text += *rest;
        // A stop string may become certain only now.
        FinishReason reason = decoder_->found_stop() ? FinishReason::kStop : batch.end->reason;
        piece.finish_reason = to_string(reason);
        return piece;
    }
    void cancel() { stream_->cancel(); }
    proto::Usage usage() const { return {prompt.size(), n_completion_tokens_}; }

    const proto::ResponseHead head;
    const bool include_usage;
    const bool return_token_ids;
    const std::vector<TokenId> prompt;

  private:
    static Piece failed(Piece piece, const Error& error) {
        piece.error = error;
        return piece;
    }

    const std::vector<TokenId> stop_tokens_;
    const uint32_t n_tokens_min_;
    std::shared_ptr<TokenStream> stream_;
    std::unique_ptr<TextDecoder> decoder_;
    uint64_t n_completion_tokens_ = 0;
};

void stream_out(Generation& generation, HttpSink& sink) {
    bool is_first = true;
    for (;;) {
        Generation::Piece piece = generation.next();
        if (piece.error) {
            sink.write(proto::sse_event(proto::error_body(*piece.error)));
            return;
        }
        bool worth_a_chunk = piece.ended() || !piece.text.empty() ||
                             (generation.return_token_ids && !piece.ids.empty());
        if (!worth_a_chunk) {
            if (sink.client_gone()) return;
            continue;
        }
        proto::Chunk chunk;
        chunk.text = piece.text;
        chunk.finish_reason = piece.finish_reason;
        chunk.is_first = is_first;
        chunk.with_usage = generation.include_usage;
        if (generation.return_token_ids) {
            chunk.ids = {is_first ? &generation.prompt : nullptr, &piece.ids};
        }
        is_first = false;
        std::string out = proto::sse_event(proto::chunk_response(generation.head, chunk));
        if (piece.ended()) {
            if (generation.include_usage) {
                out += proto::sse_event(proto::usage_chunk(generation.head, generation.usage()));
            }
            out += proto::kSseDone;
        }
        if (!sink.write(out) || piece.ended()) return;
    }
}

HttpReply whole_reply(Generation& generation, const HttpRequest& request) {
    std::string text;
    std::vector<TokenId> ids;
    for (;;) {
        Generation::Piece piece = generation.next();
        text += piece.text;
        ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
        if (piece.error) return error_reply(*piece.error);
        if (piece.ended()) {
            proto::TokenIds token_ids;
            if (generation.return_token_ids) token_ids = {&generation.prompt, &ids};
            return json_reply(proto::whole_response(generation.head, text, piece.finish_reason,
                                                    generation.usage(), token_ids));
        }
        if (request.client_gone && request.client_gone()) {
            generation.cancel();
            HttpReply nobody;  // nobody reads it; nginx's status for a client that went away
            nobody.status = 499;
            return nobody;
        }
    }
}

Result<std::shared_ptr<Generation>> start_generation(ServerContext& context,
                                                     const HttpRequest& http, ApiKind kind,
                                                     bool& stream) {
    TRY_ASSIGN(GenerateRequest parsed,
               proto::parse_generate_request(http.body, kind, context.vocab_size));
    stream = parsed.stream;
    proto::ResponseHead head;
    head.kind = kind;
    head.id = format("{}-{:016x}", kind == ApiKind::kChat ? "chatcmpl" : "cmpl", random_seed());
    head.created_s = unix_time_s();
    head.model = parsed.model.empty() ? context.base_name : parsed.model;

    Request request;
    TRY_ASSIGN(request.prompt, prompt_tokens(context, parsed));
    if (request.prompt.empty()) {
        return make_error(ErrorCode::kInvalidRequest, "the prompt has no tokens",
                          kind == ApiKind::kChat ? "messages" : "prompt");
    }
    TRY_ASSIGN(request.n_tokens_max, tokens_to_generate(context, parsed, request.prompt.size()));
    if (parsed.n_tokens_min > request.n_tokens_max) {
        return make_error(ErrorCode::kInvalidRequest,
                          format("min_tokens: expected at most {}, which max_tokens is here, found {}",
                                 request.n_tokens_max, parsed.n_tokens_min),
                          "min_tokens");
    }
    request.n_tokens_min = parsed.n_tokens_min;
    request.sampling = sampling_of(context, parsed);
    request.stop_tokens = parsed.stop_token_ids;
    if (!parsed.ignore_eos) {
        const std::vector<TokenId>& eos = context.defaults.eos_token_ids;
        request.stop_tokens.insert(request.stop_tokens.end(), eos.begin(), eos.end());
    }
    // Last: what is refused anyway brings no adapter to the device.
    TRY_ASSIGN(adapters::MixLease lease, choose_adapters(context, parsed, http));
    if (lease) head.adapter_generation = lease.generation();
    request.adapter = use_of(lease, request.prompt);
    request.prefix = prefix_of(context.registry, lease, request.adapter, request.prompt, "");
    request.stream = std::make_shared<TokenStream>(request.n_tokens_max);
    auto generation = std::make_shared<Generation>(
        std::move(head), parsed, request, context.text.make_decoder(std::move(parsed.stop)));
    TRY(context.engine.submit(std::move(request)));
    return generation;
}

}  // namespace

HttpReply generate(ServerContext& context, const HttpRequest& request, ApiKind kind) {
    bool stream = false;
    Result<std::shared_ptr<Generation>> generation =
        start_generation(context, request, kind, stream);
    if (!generation.ok()) return error_reply(generation.error());
    if (!stream) return whole_reply(**generation, request);
    HttpReply reply;
    reply.content_type = "text/event-stream";
    reply.headers.emplace_back("Cache-Control", "no-cache");
    reply.headers.emplace_back("X-Accel-Buffering", "no");
    reply.stream = [generation = std::move(*generation)](HttpSink& sink) {
        stream_out(*generation, sink);
    };
    return reply;
}

}  // namespace lorad::server
