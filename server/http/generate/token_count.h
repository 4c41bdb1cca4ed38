// Counts the tokens of a request's prompt without generating; it refuses what generating would refuse.
#pragma once

#include <string>

#include "proto/generate/generate_request.h"
#include "server/http/routes.h"

namespace lorad::server {

// `write`: the answer's body. Errors and headers name the fields as the body has them.
Result<HttpReply> token_count_reply(ServerContext& context, const HttpRequest& http, proto::GenerateRequest& request,
                                    std::string (*write)(uint64_t n_tokens));

}  // namespace lorad::server
