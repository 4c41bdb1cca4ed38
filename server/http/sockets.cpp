#include "server/http/sockets.h"

#include <cerrno>
#include <cstdlib>

#include <arpa/inet.h>
#include <dirent.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include "proto/base/format.h"
#include "proto/json.h"

namespace lorad::server {
namespace {

constexpr int kBacklog = 1024;  // connections that wait to be accepted

// The peer's port of a connected TCP socket and, in `host`, its address; -1 for anything else.
int peer_of(int fd, std::string& host) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return -1;
    if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return -1;
    char host_text[NI_MAXHOST];
    char port_text[NI_MAXSERV];
    if (getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host_text, sizeof host_text,
                    port_text, sizeof port_text, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        return -1;
    }
    host = host_text;
    return std::atoi(port_text);
}

}  // namespace

// Older releases of the library do not say which socket a request came on. Its peer's address and
// port do: among the sockets of this process only one has them.
int find_socket(const std::string& peer_address, int peer_port) {
    DIR* folder = opendir("/proc/self/fd");
    if (folder == nullptr) return kCannotLook;
    int found = kNoSuchPeer;
    std::string host;
    while (dirent* entry = readdir(folder)) {
        int fd = std::atoi(entry->d_name);
        int port = entry->d_name[0] == '.' ? -1 : peer_of(fd, host);
        if (port >= 0 && port == peer_port && host == peer_address) {
            found = fd;
            break;
        }
    }
    closedir(folder);
    return found;
}

bool socket_closed_by_peer(int fd) {
    pollfd state{fd, POLLRDHUP, 0};
    if (poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0)
        return true;
    char byte = 0;
    ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void hang_up(int port) {
    DIR* folder = opendir("/proc/self/fd");
    if (folder == nullptr) return;
    while (dirent* entry = readdir(folder)) {
        int fd = std::atoi(entry->d_name);
        sockaddr_storage address{};
        socklen_t size = sizeof address;
        if (entry->d_name[0] == '.' ||
            getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
            continue;
        in_port_t own_port = 0;
        if (address.ss_family == AF_INET)
            own_port = reinterpret_cast<sockaddr_in*>(&address)->sin_port;
        if (address.ss_family == AF_INET6)
            own_port = reinterpret_cast<sockaddr_in6*>(&address)->sin6_port;
        if (own_port != 0 && ntohs(own_port) == port) ::shutdown(fd, SHUT_RD);
    }
    closedir(folder);
}

Status check_host(const std::string& host) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
    if (error != 0) {
        return make_error(ErrorCode::kInvalidConfig,
                          format("cannot listen on {}: expected an address of this machine: {}",
                                 json_quote(host), gai_strerror(error)));
    }
    freeaddrinfo(found);
    return ok_status();
}

void widen_backlog(int listening_socket) { ::listen(listening_socket, kBacklog); }

void reuse_address_only(int socket) {
    int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
}

}  // namespace lorad::server
