// Connections to a listener of this process, for bytes as no HTTP client would send them.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "proto/base/owned_fd.h"

namespace lorad::server {

inline sockaddr_in loopback_address(uint32_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(uint16_t(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

inline bool connect_to(const OwnedFd& fd, uint32_t port) {
    const sockaddr_in address = loopback_address(port);
    return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// Nothing where it is refused. Who waits for an answer gives up after 30 s.
inline OwnedFd connect_raw(uint32_t port) {
    OwnedFd fd(socket(AF_INET, SOCK_STREAM, 0));
    if (!connect_to(fd, port)) return {};
    const timeval patience{30, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

}  // namespace lorad::server
