#include "server/http/guard/listening.h"

#include <cerrno>
#include <cstring>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::server {
namespace {

constexpr int kBacklog = 1024;  // connections that wait to be accepted

Error cannot_listen(const std::string& where, const std::string& why) {
    return make_error(ErrorCode::kInvalidConfig, format("cannot listen on {}: {}", where, why));
}

std::string errno_text() { return std::strerror(errno); }

Result<ListeningSocket> listening(OwnedFd fd, const std::string& where) {
    if (::listen(fd.get(), kBacklog) != 0) return cannot_listen(where, errno_text());
    ListeningSocket out;
    out.fd = std::move(fd);
    return out;
}

bool unix_address(const std::string& path, sockaddr_un& out) {
    if (path.empty() || path.size() >= sizeof out.sun_path || path.find('\0') != std::string::npos) return false;
    out.sun_family = AF_UNIX;
    std::memcpy(out.sun_path, path.data(), path.size());
    return true;
}

// A socket file whose listener is gone refuses connections; a live one takes them, or has its queue full.
Status remove_stale_socket(const std::string& path, const sockaddr_un& address) {
    struct stat info{};
    if (lstat(path.c_str(), &info) != 0) return ok_status();
    if (!S_ISSOCK(info.st_mode)) return cannot_listen("unix:" + path, "there is a file that is no socket");
    OwnedFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    int connected = connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    if (connected == 0 || errno != ECONNREFUSED) return cannot_listen("unix:" + path, "another process listens on it");
    if (unlink(path.c_str()) != 0) return cannot_listen("unix:" + path, errno_text());
    return ok_status();
}

}  // namespace

Result<ListeningSocket> open_tcp(const std::string& host, uint32_t port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    addrinfo* found = nullptr;
    const std::string where = format("{}:{}", host, port);
    int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (error != 0) {
        return make_error(ErrorCode::kInvalidConfig,
                          format("cannot listen on {}: expected an address of this machine: {}", json_quote(host),
                                 gai_strerror(error)));
    }
    std::string why = "no address";
    OwnedFd bound;
    for (const addrinfo* at = found; at != nullptr && bound.get() < 0; at = at->ai_next) {
        OwnedFd fd(socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        int yes = 1;
        // Not SO_REUSEPORT, which would let a second daemon share the port without a word.
        setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (fd.get() >= 0 && bind(fd.get(), at->ai_addr, at->ai_addrlen) == 0) {
            bound = std::move(fd);
        } else {
            why = errno_text();
        }
    }
    freeaddrinfo(found);
    if (bound.get() < 0) return cannot_listen(where, why + "; choose another --host or --port");
    return listening(std::move(bound), where);
}

Result<ListeningSocket> open_unix(const std::string& path, uint32_t mode) {
    sockaddr_un address{};
    const std::string where = "unix:" + path;
    if (!unix_address(path, address))
        return cannot_listen(where, format("expected a path of 1 to {} bytes", sizeof address.sun_path - 1));
    TRY(remove_stale_socket(path, address));
    OwnedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd.get() < 0) return cannot_listen(where, errno_text());
    // The mode holds from the first moment on: bind() makes the file with what the descriptor has.
    fchmod(fd.get(), mode_t(mode));
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
        return cannot_listen(where, errno_text());
    if (chmod(path.c_str(), mode_t(mode)) != 0) return cannot_listen(where, errno_text());
    TRY_ASSIGN(ListeningSocket out, listening(std::move(fd), where));
    out.unlink_path = path;
    return out;
}

Result<ListeningSocket> adopt(int fd) {
    const std::string where = format("the inherited descriptor {}", fd);
    int is_listening = 0, type = 0, domain = 0;
    socklen_t size = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0) return cannot_listen(where, errno_text());
    size = sizeof domain;
    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
    size = sizeof is_listening;
    getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &size);
    if (type != SOCK_STREAM || is_listening == 0 || (domain != AF_INET && domain != AF_INET6 && domain != AF_UNIX))
        return cannot_listen(where, "expected a listening TCP or Unix stream socket");
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        return cannot_listen(where, errno_text());
    ListeningSocket out;
    out.fd = OwnedFd(fd);
    out.is_inherited = true;
    return out;
}

std::string address_text(int fd) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "unknown";
    if (address.ss_family == AF_UNIX) {
        const auto* named = reinterpret_cast<const sockaddr_un*>(&address);
        return format("unix:{}", named->sun_path);
    }
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return "unknown";
    return address.ss_family == AF_INET6 ? format("[{}]:{}", host, port) : format("{}:{}", host, port);
}

bool is_loopback_address(const sockaddr& address) {
    if (address.sa_family == AF_INET)
        return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
    if (address.sa_family != AF_INET6) return false;
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    return IN6_IS_ADDR_V4MAPPED(&v6) ? v6.s6_addr[12] == 127 : IN6_IS_ADDR_LOOPBACK(&v6);
}

uint32_t bound_port(int fd) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
    if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
    if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
    return 0;
}

}  // namespace lorad::server
