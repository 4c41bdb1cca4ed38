// Finds the kept responses that a request may refer to. HTTP workers.
#pragma once

#include <optional>
#include <string>

#include "proto/responses/responses_stored.h"
#include "server/http/routes.h"

namespace lorad::server {

// Whose responses the request may see: its key's tenant's; of a key that may do everything, or without keys, the one
// that a gateway names.
std::string response_tenant(const HttpRequest& http);
// Returns nothing if the server keeps none. Valid as long as `context`.
std::optional<proto::ResponsesMemory> response_memory(ServerContext& context, const HttpRequest& http);

}  // namespace lorad::server
