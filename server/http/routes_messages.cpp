// POST /v1/messages and /v1/messages/count_tokens: Anthropic's interface, over the same generations.
#include <chrono>

#include "proto/base/format.h"
#include "proto/generate/answer_blocks.h"
#include "proto/messages/messages_request.h"
#include "proto/messages/messages_response.h"
#include "server/http/generate/answer.h"
#include "server/http/generate/generation.h"
#include "server/http/generate/prompt.h"
#include "server/http/generate/reply_parts.h"
#include "server/http/generate/request_check.h"
#include "server/http/generate/token_count.h"
#include "server/http/routes.h"

namespace lorad::server {
namespace {

using Clock = std::chrono::steady_clock;
using proto::MessagesUse;

// Readers and proxies are told now and then that the answer is still being made.
constexpr std::chrono::seconds kPingInterval{15};

// Anthropic's clients name blocks by their place; only calls have ids.
proto::AnswerBlocks make_blocks() {
    return proto::AnswerBlocks([](proto::BlockKind) { return std::string(); });
}

void stream_message(Generation& generation, HttpSink& sink) {
    AnswerParts parts(generation);
    proto::AnswerBlocks answer = make_blocks();
    const auto& blocks = answer.blocks();
    std::string out = proto::messages_begin_event(generation.head, generation.prompt_of(0).tokens.size()) +
                      proto::messages_ping_event();
    if (!sink.write(out)) return;
    Clock::time_point last_write = Clock::now();
    while (!generation.ended()) {
        out.clear();
        for (Generation::Piece& piece : generation.next()) {
            if (piece.error) {
                sink.write(out + proto::messages_error_event(*piece.error));
                return;
            }
            for (const proto::ChoicePart& part : parts.parts_of(std::move(piece))) {
                for (const proto::BlockChange& change : answer.take(part))
                    out += proto::messages_change_event(blocks, change, generation.request.eager_tools);
                if (part.finish_reason.empty()) continue;
                out += proto::messages_end_events(blocks, {part.finish_reason, part.stop_text, generation.usage()});
            }
        }
        if (out.empty() && Clock::now() - last_write >= kPingInterval) out = proto::messages_ping_event();
        if (out.empty() ? sink.client_gone() : !sink.write(out)) return;
        if (!out.empty()) last_write = Clock::now();
    }
}

HttpReply whole_message(Generation& generation, const HttpRequest& http) {
    proto::AnswerBlocks answer = make_blocks();
    auto last = whole_blocks(generation, http, answer);
    if (!last.ok()) return messages_error_reply(last.error());
    if (!*last) return messages_error_reply(client_closed());
    return json_reply(proto::messages_object(generation.head, answer.blocks(),
                                             {(*last)->finish_reason, (*last)->stop_text, generation.usage()}));
}

Result<HttpReply> answered_message(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(proto::GenerateRequest parsed,
               proto::parse_messages_request(http.body, MessagesUse::kGenerate, context.vocab_size));
    TRY_ASSIGN(std::string ignored, ignored_fields_header(context, parsed.ignored_fields));
    TRY_ASSIGN(std::string not_enforced, not_enforced_header(context, parsed.not_enforced));
    bool stream = parsed.stream;
    TRY_ASSIGN(std::shared_ptr<Generation> generation, Generation::start(context, http, std::move(parsed)));
    generation->head.id = format("msg_{:016x}", random_number());
    HttpReply reply = stream ? event_stream([generation](HttpSink& sink) { stream_message(*generation, sink); })
                             : whole_message(*generation, http);
    add_ignored_fields(reply, ignored, generation->unread_fields());
    add_not_enforced(reply, not_enforced);
    return reply;
}

Result<HttpReply> counted_prompt(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(proto::GenerateRequest parsed,
               proto::parse_messages_request(http.body, MessagesUse::kCountTokens, context.vocab_size));
    return token_count_reply(context, http, parsed, proto::messages_token_count);
}

HttpReply create_message(ServerContext& context, const HttpRequest& request) {
    return reply_of(answered_message(context, request), messages_error_reply);
}
HttpReply count_tokens(ServerContext& context, const HttpRequest& request) {
    return reply_of(counted_prompt(context, request), messages_error_reply);
}

constexpr ContextRoute kMessageRoutes[] = {
    {"POST", "/v1/messages", kGenerates, create_message, BodyUse::kBuffered, messages_error_reply},
    {"POST", "/v1/messages/count_tokens", kGenerates, count_tokens, BodyUse::kBuffered, messages_error_reply},
};

}  // namespace

HttpReply messages_error_reply(const Error& error) {
    HttpReply reply = error_reply(error);
    reply.body = proto::messages_error_body(error);
    return reply;
}

std::span<const ContextRoute> messages_routes() { return kMessageRoutes; }

}  // namespace lorad::server
