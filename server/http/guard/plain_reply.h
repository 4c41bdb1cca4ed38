// A whole reply as bytes, for what never comes to the HTTP library.
#pragma once

#include <string>
#include <string_view>

#include "server/http/http.h"

namespace lorad::server {

// The words behind a status in the first line of a reply, also those of the HTTP library, which has fewer.
std::string_view reason_phrase(int status);

// `is_head`: the request's method is HEAD, the body stays away. `closes`: it says that the connection ends.
std::string whole_reply(const HttpReply& reply, bool is_head, bool closes);
inline std::string closing_reply(const HttpReply& reply, bool is_head) { return whole_reply(reply, is_head, true); }

}  // namespace lorad::server
