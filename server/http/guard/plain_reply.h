// A whole reply as bytes, for what never comes to the HTTP library.
#pragma once

#include <string>

#include "server/http/http.h"

namespace lorad::server {

// Says that the connection ends. `is_head`: the request's method is HEAD, the body stays away.
std::string closing_reply(const HttpReply& reply, bool is_head);

}  // namespace lorad::server
