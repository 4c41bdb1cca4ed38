// Sockets that the guard accepts on, opened before it starts.
#pragma once

#include <cstdint>
#include <string>

#include "proto/base/owned_fd.h"
#include "proto/base/result.h"
#include "server/http/http.h"

struct sockaddr;

namespace lorad::server {

struct ListeningSocket {
    OwnedFd fd;
    ListenerRole role = ListenerRole::kMain;
    bool tls = false;
    bool is_inherited = false;  // a manager's: stop_accepting() leaves connections in its queue for whoever is next
    std::string unlink_path;    // a Unix socket's own file, removed when the listener stops
};

// All of them: bound, listening, non-blocking, not handed to programs that are started. kInvalidConfig, with what to
// change. `host`: a name or an address of this machine, IPv6 without brackets; port 0: any free one.
Result<ListeningSocket> open_tcp(const std::string& host, uint32_t port);
// A socket file that nobody listens on any more is replaced; any other file is an error. `mode` as in chmod.
Result<ListeningSocket> open_unix(const std::string& path, uint32_t mode);
// An inherited descriptor (socket activation): a listening stream socket, TCP or Unix.
Result<ListeningSocket> adopt(int fd);

// The address it listens on: "127.0.0.1:8080", "[::1]:8080" or "unix:/run/x.sock".
std::string address_text(int fd);
// Returns true for this machine's own addresses: 127.0.0.0/8, ::1, and the former mapped to IPv6.
bool is_loopback_address(const sockaddr& address);
// The port of a bound TCP socket; 0 for anything else.
uint32_t bound_port(int fd);

}  // namespace lorad::server
