#include "server/http/generate/token_count.h"

#include "server/http/generate/request_check.h"

namespace lorad::server {

Result<HttpReply> token_count_reply(ServerContext& context, const HttpRequest& http, proto::GenerateRequest& request,
                                    std::string (*write)(uint64_t n_tokens)) {
    TRY_ASSIGN(PreparedOnly prepared, prepare_only(context, http, request, Length::kAny));
    HttpReply reply = json_reply(write(prepared.prompts.front().tokens.size()));
    add_headers(reply, prepared);
    return reply;
}

}  // namespace lorad::server
