#include "proto/base/format.h"
#include "proto/generate/custom_tools.h"
#include "proto/generate/generate_response.h"
#include "proto/sse.h"
#include "server/http/generate/answer.h"
#include "server/http/generate/generation.h"
#include "server/http/generate/reply_parts.h"
#include "server/http/routes.h"

namespace lorad::server {
namespace {

using proto::ApiKind;
using proto::GenerateRequest;

void stream_out(Generation& generation, HttpSink& sink) {
    AnswerParts parts(generation);
    const GenerateRequest& request = generation.request;
    proto::CustomCalls custom_calls(request.custom_tools);
    while (!generation.ended()) {
        std::string out;
        for (Generation::Piece& piece : generation.next()) {
            if (piece.error) {
                sink.write(out + proto::sse_event(proto::error_body(*piece.error)));
                return;
            }
            for (proto::ChoicePart& part : parts.parts_of(std::move(piece))) {
                custom_calls.apply(part);
                if (!parts.worth_a_chunk(part)) continue;
                proto::ChunkUsage usage{request.include_usage, {}};
                if (request.continuous_usage) usage.so_far = generation.usage();
                out += proto::sse_event(proto::chunk_response(generation.head, part, usage));
            }
        }
        if (generation.ended()) {
            if (request.include_usage) out += proto::sse_event(proto::usage_chunk(generation.head, generation.usage()));
            out += proto::kSseDone;
        }
        if (out.empty() ? sink.client_gone() : !sink.write(out)) return;
    }
}

HttpReply whole_reply(Generation& generation, const HttpRequest& http) {
    auto answer = whole_answer(generation, http);
    if (!answer.ok()) return error_reply(answer.error());
    if (!*answer) return error_reply(client_closed());
    proto::CustomCalls custom_calls(generation.request.custom_tools);
    for (proto::ChoicePart& part : **answer) custom_calls.apply(part);
    return json_reply(proto::whole_response(generation.head, **answer, generation.usage()));
}

Result<HttpReply> answered(ServerContext& context, const HttpRequest& http, ApiKind kind) {
    TRY_ASSIGN(GenerateRequest parsed, proto::parse_generate_request(http.body, kind, context.vocab_size));
    TRY_ASSIGN(std::string ignored, ignored_fields_header(context, parsed.ignored_fields));
    TRY_ASSIGN(std::string not_enforced, not_enforced_header(context, parsed.not_enforced));
    bool stream = parsed.stream;
    TRY_ASSIGN(std::shared_ptr<Generation> generation, Generation::start(context, http, std::move(parsed)));
    generation->head.id = format("{}-{:016x}", kind == ApiKind::kChat ? "chatcmpl" : "cmpl", random_number());
    HttpReply reply;
    if (stream) {
        reply = event_stream([generation](HttpSink& sink) { stream_out(*generation, sink); });
    } else {
        reply = whole_reply(*generation, http);
    }
    add_ignored_fields(reply, ignored, generation->unread_fields());
    add_not_enforced(reply, not_enforced);
    return reply;
}

}  // namespace

HttpReply generate(ServerContext& context, const HttpRequest& request, ApiKind kind) {
    return reply_of(answered(context, request, kind));
}

}  // namespace lorad::server
