// POST /v1/responses: OpenAI's newer interface, over the same generations.
#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/generate/answer_blocks.h"
#include "proto/responses/responses_request.h"
#include "proto/responses/responses_response.h"
#include "server/http/generate/answer.h"
#include "server/http/generate/generation.h"
#include "server/http/generate/reply_parts.h"
#include "server/http/generate/response_memory.h"
#include "server/http/generate/response_store.h"
#include "server/http/routes.h"

namespace lorad::server {
namespace {

std::string item_id(proto::BlockKind kind) {
    switch (kind) {
        case proto::BlockKind::kReasoning: return format("rs_{:016x}", random_number());
        case proto::BlockKind::kText: return format("msg_{:016x}", random_number());
        case proto::BlockKind::kToolCall: return format("fc_{:016x}", random_number());
    }
    return {};
}

// One answer while it is being made.
struct Answering {
    ServerContext& context;
    proto::ResponsesRequest request;
    std::unique_ptr<Generation> generation;
    std::string tenant;  // whose responses it may refer to, and is kept among
    proto::AnswerBlocks blocks{item_id};

    proto::ResponsesHead head() const {
        const proto::GenerateRequest& asked = generation->request;
        return {generation->head, request, asked.temperature.value_or(context.defaults.temperature),
                asked.top_p.value_or(context.defaults.top_p)};
    }
    proto::ResponsesEnd end(std::string finish_reason, std::optional<Error> error) const {
        uint64_t n_reasoning = 0;
        for (const proto::AnswerBlock& block : blocks.blocks()) {
            if (block.kind != proto::BlockKind::kReasoning) continue;
            Result<std::vector<TokenId>> tokens = context.text.encode(block.text, false);
            n_reasoning += tokens.ok() ? tokens->size() : 0;
        }
        return {std::move(finish_reason), std::move(error), generation->usage(), n_reasoning, unix_time_s()};
    }
};

// Keeps the response; if that fails, the answer does not claim that it is kept.
void keep(Answering& answering, const proto::ResponsesEnd& end) {
    proto::ResponsesRequest& request = answering.request;
    if (!request.store) return;
    const std::vector<proto::AnswerBlock>& blocks = answering.blocks.blocks();
    proto::StoredResponse kept;
    kept.id = answering.generation->head.id;
    kept.tenant = answering.tenant;
    kept.created_s = answering.generation->head.created_s;
    kept.json = proto::responses_object(answering.head(), blocks, end);
    kept.items = request.earlier;
    kept.input_begin = kept.items.size();
    kept.items.insert(kept.items.end(), request.own_input.begin(), request.own_input.end());
    kept.input_end = kept.items.size();
    for (auto& item : proto::output_items(answering.head(), blocks)) kept.items.push_back(std::move(item));
    Status stored = answering.context.responses->put(std::move(kept));
    if (stored.ok()) return;
    request.store = false;
    log_warn("response {} is not kept: {}", answering.generation->head.id, stored.error().message);
}

void stream_out(Answering& answering, HttpSink& sink) {
    Generation& generation = *answering.generation;
    AnswerParts parts(generation);
    proto::ResponsesEvents events(answering.head());
    if (!sink.write(events.begin())) return;
    while (!generation.ended()) {
        std::string out;
        for (Generation::Piece& piece : generation.next()) {
            const auto& blocks = answering.blocks.blocks();
            if (piece.error) {
                sink.write(out + events.end(blocks, answering.end({}, piece.error)));
                return;
            }
            for (const proto::ChoicePart& part : parts.parts_of(std::move(piece))) {
                for (const proto::BlockChange& change : answering.blocks.take(part))
                    out += events.change(blocks, change);
                if (part.finish_reason.empty()) continue;
                const proto::ResponsesEnd end = answering.end(part.finish_reason, {});
                keep(answering, end);
                out += events.end(blocks, end);
            }
        }
        if (out.empty() ? sink.client_gone() : !sink.write(out)) return;
    }
}

HttpReply whole_reply(Answering& answering, const HttpRequest& http) {
    auto last = whole_blocks(*answering.generation, http, answering.blocks);
    if (!last.ok()) return error_reply(last.error());
    if (!*last) return error_reply(client_closed());
    const proto::ResponsesEnd end = answering.end((*last)->finish_reason, {});
    keep(answering, end);
    return json_reply(proto::responses_object(answering.head(), answering.blocks.blocks(), end));
}

Result<HttpReply> answered_response(ServerContext& context, const HttpRequest& http) {
    const std::optional<proto::ResponsesMemory> memory = response_memory(context, http);
    TRY_ASSIGN(proto::ResponsesRequest parsed,
               proto::parse_responses_request(http.body, context.vocab_size, memory ? &*memory : nullptr));
    TRY_ASSIGN(std::string ignored, ignored_fields_header(context, parsed.generate.ignored_fields));
    TRY_ASSIGN(std::string not_enforced, not_enforced_header(context, parsed.generate.not_enforced));
    TRY_ASSIGN(std::unique_ptr<Generation> started, Generation::start(context, http, parsed.generate));
    parsed.generate.messages_json.clear();  // the generation has its own
    auto answering =
        std::make_shared<Answering>(Answering{context, std::move(parsed), std::move(started), response_tenant(http)});
    answering->generation->head.id = format("resp_{:016x}", random_number());
    HttpReply reply = answering->request.generate.stream
                          ? event_stream([answering](HttpSink& sink) { stream_out(*answering, sink); })
                          : whole_reply(*answering, http);
    add_ignored_fields(reply, ignored, answering->generation->unread_fields());
    add_not_enforced(reply, not_enforced);
    return reply;
}

HttpReply respond(ServerContext& context, const HttpRequest& request) {
    return reply_of(answered_response(context, request));
}

constexpr ContextRoute kResponseRoutes[] = {{"POST", "/v1/responses", kGenerates, respond}};

}  // namespace

std::span<const ContextRoute> responses_routes() { return kResponseRoutes; }

}  // namespace lorad::server
