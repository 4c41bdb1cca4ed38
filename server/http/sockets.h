// What the HTTP library does not tell of its sockets, asked of the system.
#pragma once

#include <string>

#include "proto/base/result.h"

namespace lorad::server {

inline constexpr int kNoSuchPeer = -1;
inline constexpr int kCannotLook = -2;

// The socket of this process that is connected to this peer, or one of the two above. It walks through all open files.
int find_socket(const std::string& peer_address, int peer_port);
bool socket_closed_by_peer(int fd);
// Ends the wait for requests on connections of this port that nobody answers just now.
void hang_up(int port);
// The library does not tell a name that cannot be looked up from a port that is taken. kInvalidConfig.
Status check_host(const std::string& host);
// The library asks for a backlog of 5: more clients than that at once would be reset or wait a second. Linux lets us ask again.
void widen_backlog(int listening_socket);
// The library's default would let a second daemon share the port without a word.
void reuse_address_only(int socket);

}  // namespace lorad::server
