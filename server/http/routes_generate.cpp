#include "proto/base/format.h"
#include "proto/generate_response.h"
#include "proto/sse.h"
#include "proto/url.h"
#include "server/http/answer.h"
#include "server/http/generation.h"
#include "server/http/routes.h"

namespace lorad::server {
namespace {

using proto::ApiKind;
using proto::GenerateRequest;

// Fields that had no effect, in a header; strict servers refuse them.
Result<std::string> ignored_fields_header(const ServerContext& context,
                                          const GenerateRequest& request) {
    constexpr size_t kHeaderBytesMax = 1024;
    std::string header;
    for (const std::string& field : request.ignored_fields) {
        if (context.strict) {
            return make_error(ErrorCode::kInvalidRequest,
                              format("{}: this server does not know the field",
                                     field.substr(0, 100)),
                              field.substr(0, 100));
        }
        std::string name = proto::percent_encode(field);
        if (header.size() + name.size() > kHeaderBytesMax) return header + ", ...";
        header += (header.empty() ? "" : ", ") + name;
    }
    return header;
}

void stream_out(Generation& generation, HttpSink& sink) {
    AnswerParts parts(generation);
    const GenerateRequest& request = generation.request;
    while (!generation.ended()) {
        std::string out;
        for (Generation::Piece& piece : generation.next()) {
            if (piece.error) {
                sink.write(out + proto::sse_event(proto::error_body(*piece.error)));
                return;
            }
            proto::ChoicePart part = parts.part_of(std::move(piece));
            if (!parts.worth_a_chunk(part)) continue;
            proto::ChunkUsage usage{request.include_usage, {}};
            if (request.continuous_usage) usage.so_far = generation.usage();
            out += proto::sse_event(proto::chunk_response(generation.head, part, usage));
        }
        if (generation.ended()) {
            if (request.include_usage)
                out += proto::sse_event(proto::usage_chunk(generation.head, generation.usage()));
            out += proto::kSseDone;
        }
        if (out.empty() ? sink.client_gone() : !sink.write(out)) return;
    }
}

HttpReply whole_reply(Generation& generation, const HttpRequest& http) {
    auto answer = whole_answer(generation, http);
    if (!answer.ok()) return error_reply(answer.error());
    if (*answer)
        return json_reply(proto::whole_response(generation.head, **answer, generation.usage()));
    HttpReply nobody;  // nobody reads it; nginx's status for a client that went away
    nobody.status = 499;
    return nobody;
}

Result<HttpReply> answered(ServerContext& context, const HttpRequest& http, ApiKind kind) {
    TRY_ASSIGN(GenerateRequest parsed,
               proto::parse_generate_request(http.body, kind, context.vocab_size));
    TRY_ASSIGN(std::string ignored, ignored_fields_header(context, parsed));
    bool stream = parsed.stream;
    TRY_ASSIGN(std::shared_ptr<Generation> generation,
               Generation::start(context, http, std::move(parsed)));
    generation->head.id =
        format("{}-{:016x}", kind == ApiKind::kChat ? "chatcmpl" : "cmpl", random_number());
    HttpReply reply;
    if (stream) {
        reply.content_type = "text/event-stream";
        reply.headers.emplace_back("Cache-Control", "no-cache");
        reply.headers.emplace_back("X-Accel-Buffering", "no");
        reply.stream = [generation](HttpSink& sink) { stream_out(*generation, sink); };
    } else {
        reply = whole_reply(*generation, http);
    }
    if (!ignored.empty()) reply.headers.emplace_back("x-lorad-ignored-fields", ignored);
    return reply;
}

}  // namespace

HttpReply generate(ServerContext& context, const HttpRequest& request, ApiKind kind) {
    Result<HttpReply> reply = answered(context, request, kind);
    return reply.ok() ? std::move(*reply) : error_reply(reply.error());
}

}  // namespace lorad::server
