#include "server/access/exposure.h"

#include <charconv>

#include <netdb.h>

#include "proto/base/format.h"

namespace lorad::server::access {

HostAndPort host_and_port(const std::string& where) {
    const size_t colon = where.rfind(':');
    if (colon == std::string::npos) return {where, ""};
    std::string host = where.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    return {host, where.substr(colon + 1)};
}

bool is_loopback(const std::string& host) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    if (getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0 || list == nullptr) return false;
    bool all = true;
    for (const addrinfo* one = list; one != nullptr; one = one->ai_next)
        all = all && is_loopback_address(*one->ai_addr);
    freeaddrinfo(list);
    return all;
}

Status check_exposure(const Exposure& exposure) {
    if (exposure.has_keys || exposure.insecure_no_keys) return ok_status();
    auto refused = [](std::string_view option, std::string_view host) {
        return make_error(
            ErrorCode::kInvalidConfig,
            format("{}: {} is reached from outside of this machine, and there are no keys, so anybody could use and "
                   "change this server. "
                   "Give --api-key-file FILE (`lorad key new` makes keys) or LORAD_API_KEY; or listen on 127.0.0.1 "
                   "behind a proxy that "
                   "knows its clients; or, where the network itself keeps strangers out, say --insecure-no-keys",
                   option, host),
            std::string(option));
    };
    if (!is_loopback(exposure.host)) return refused("host", exposure.host);
    if (exposure.admin_listen.empty() || exposure.admin_listen.starts_with("unix:")) return ok_status();
    return is_loopback(host_and_port(exposure.admin_listen).host) ? ok_status()
                                                                  : refused("admin-listen", exposure.admin_listen);
}

Result<ListeningSocket> open_admin_socket(const std::string& where) {
    constexpr std::string_view kUnix = "unix:";
    constexpr uint32_t kMode = 0660;
    Result<ListeningSocket> socket = [&]() -> Result<ListeningSocket> {
        if (where.starts_with(kUnix) && where.size() > kUnix.size())
            return open_unix(where.substr(kUnix.size()), kMode);
        const auto [host, port_text] = host_and_port(where);
        uint32_t port = 0;
        auto [end, error] = std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
        if (host.empty() || port_text.empty() || error != std::errc() || end != port_text.data() + port_text.size() ||
            port > 65535) {
            return make_error(ErrorCode::kInvalidConfig,
                              format("admin-listen: expected HOST:PORT or unix:PATH, found \"{}\"", where),
                              "admin-listen");
        }
        return open_tcp(host, port);
    }();
    if (socket.ok()) socket->role = ListenerRole::kAdmin;
    return socket;
}

}  // namespace lorad::server::access
