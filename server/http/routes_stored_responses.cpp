// /v1/responses/ID: answers that are kept; and how many tokens a request of /v1/responses would have.
#include "proto/base/format.h"
#include "proto/json/json.h"
#include "proto/responses/responses_request.h"
#include "server/http/generate/reply_parts.h"
#include "server/http/generate/response_memory.h"
#include "server/http/generate/response_store.h"
#include "server/http/generate/token_count.h"

namespace lorad::server {
namespace {

using Stored = std::shared_ptr<const proto::StoredResponse>;

Error no_such_response(const ServerContext& context, std::string_view id) {
    return make_error(ErrorCode::kNotFound,
                      context.responses == nullptr
                          ? std::string("this server keeps no responses (--response-store is off)")
                          : format("no response is called {}, or it is no longer kept", json_quote_short(id)));
}

Result<Stored> found(ServerContext& context, const HttpRequest& http) {
    const std::string& id = http.params.at(0);
    Stored response = context.responses != nullptr ? context.responses->find(response_tenant(http), id) : nullptr;
    if (response == nullptr) return no_such_response(context, id);
    return response;
}

Result<HttpReply> shown_response(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(Stored response, found(context, http));
    if (http.query_value("stream").value_or("false") == "true") {
        return make_error(ErrorCode::kUnsupportedParameter,
                          "stream: what is kept is answered whole; leave the parameter out", "stream");
    }
    return json_reply(response->json);
}

Result<HttpReply> removed_response(ServerContext& context, const HttpRequest& http) {
    const std::string& id = http.params.at(0);
    bool was_there = false;
    if (context.responses != nullptr) {
        TRY_ASSIGN(was_there, context.responses->remove(response_tenant(http), id));
    }
    if (!was_there) return no_such_response(context, id);
    return json_reply(proto::deleted_response(id));
}

Result<HttpReply> items_of(ServerContext& context, const HttpRequest& http) {
    constexpr size_t kPageMax = 100;
    TRY_ASSIGN(Stored response, found(context, http));
    proto::ItemPage page;
    page.after = std::string(http.query_value("after").value_or(""));
    const std::string_view order = http.query_value("order").value_or("desc");
    page.oldest_first = order == "asc";
    if (order != "asc" && order != "desc")
        return make_error(ErrorCode::kInvalidRequest,
                          format("order: expected \"asc\" or \"desc\", found {}", json_quote_short(order)), "order");
    if (std::optional<std::string_view> limit = http.query_value("limit")) {
        Result<JsonDocument> number = parse_json(*limit);
        Result<int64_t> n =
            number.ok() ? number->root().as_int(1, static_cast<int64_t>(kPageMax)) : Result<int64_t>(number.error());
        if (!n.ok())
            return make_error(ErrorCode::kInvalidRequest, format("limit: expected a number from 1 to {}", kPageMax),
                              "limit");
        page.n_max = size_t(*n);
    }
    TRY_ASSIGN(std::string list, proto::input_items_response(*response, page));
    return json_reply(std::move(list));
}

Result<HttpReply> counted_input(ServerContext& context, const HttpRequest& http) {
    const std::optional<proto::ResponsesMemory> memory = response_memory(context, http);
    TRY_ASSIGN(proto::ResponsesRequest parsed,
               proto::parse_responses_request(http.body, context.vocab_size, memory ? &*memory : nullptr));
    return token_count_reply(context, http, parsed.generate, proto::input_tokens_response);
}

HttpReply show_response(ServerContext& context, const HttpRequest& http) {
    return reply_of(shown_response(context, http));
}
HttpReply remove_response(ServerContext& context, const HttpRequest& http) {
    return reply_of(removed_response(context, http));
}
HttpReply show_input_items(ServerContext& context, const HttpRequest& http) {
    return reply_of(items_of(context, http));
}
HttpReply count_input_tokens(ServerContext& context, const HttpRequest& http) {
    return reply_of(counted_input(context, http));
}

constexpr ContextRoute kStoredResponseRoutes[] = {
    {"GET", "/v1/responses/{}", kGenerates, show_response},
    {"DELETE", "/v1/responses/{}", kGenerates, remove_response},
    {"GET", "/v1/responses/{}/input_items", kGenerates, show_input_items},
    {"POST", "/v1/responses/input_tokens", kGenerates, count_input_tokens},
};

}  // namespace

std::span<const ContextRoute> stored_response_routes() { return kStoredResponseRoutes; }

}  // namespace lorad::server
