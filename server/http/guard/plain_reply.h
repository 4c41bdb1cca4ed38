// A whole reply as bytes, for what never comes to the HTTP library.
#pragma once

#include <string>

#include "server/http/http.h"

namespace lorad::server {

// `is_head`: the request's method is HEAD, the body stays away. `closes`: it says that the connection ends.
std::string whole_reply(const HttpReply& reply, bool is_head, bool closes);
inline std::string closing_reply(const HttpReply& reply, bool is_head) { return whole_reply(reply, is_head, true); }

}  // namespace lorad::server
