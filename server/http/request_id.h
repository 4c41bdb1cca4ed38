// The id of a request in logs: the client's own x-request-id, or a new one. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace lorad::server {

inline constexpr size_t kRequestIdBytesMax = 128;

// `sent`: the header, or empty. What is too long or not printable ASCII without blanks is replaced.
std::string request_id_of(std::string_view sent);

}  // namespace lorad::server
