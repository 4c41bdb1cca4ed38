#include "server/ops/activation.h"

#include <algorithm>

#include "proto/base/log.h"
#include "server/access/exposure.h"

namespace lorad::server::ops {
namespace {

Result<ListeningSocket> adopt_socket(const Config& config, const ServiceEnvironment::InheritedSocket& inherited) {
    TRY_ASSIGN(ListeningSocket socket, adopt(inherited.fd));
    const std::string address = address_text(socket.fd.get());
    const bool is_unix = address.starts_with("unix:");
    if (!is_unix) {
        TRY(access::check_exposure({.host = access::host_and_port(address).host,
                                    .admin_listen = {},
                                    .has_keys = has_keys(config),
                                    .insecure_no_keys = config.insecure_no_keys}));
    }
    socket.role = inherited.name == "admin" ? ListenerRole::kAdmin : ListenerRole::kMain;
    socket.tls = !config.tls_cert.empty() && !is_unix;
    log_info("listening on {}, which the service manager holds", address);
    return socket;
}

}  // namespace

Result<std::vector<ListeningSocket>> listening_sockets(const Config& config, const ServiceEnvironment& environment) {
    std::vector<ListeningSocket> out;
    for (const ServiceEnvironment::InheritedSocket& inherited : environment.sockets) {
        TRY_ASSIGN(ListeningSocket socket, adopt_socket(config, inherited));
        out.push_back(std::move(socket));
    }
    auto has_role = [&out](ListenerRole role) {
        return std::any_of(out.begin(), out.end(),
                           [role](const ListeningSocket& socket) { return socket.role == role; });
    };
    const bool opens_main = !has_role(ListenerRole::kMain);
    const bool opens_admin = !config.admin_listen.empty() && !has_role(ListenerRole::kAdmin);
    TRY(access::check_exposure({.host = opens_main ? config.host : "127.0.0.1",
                                .admin_listen = opens_admin ? config.admin_listen : std::string(),
                                .has_keys = has_keys(config),
                                .insecure_no_keys = config.insecure_no_keys}));
    if (opens_main) {
        TRY_ASSIGN(ListeningSocket socket, open_tcp(config.host, config.port));
        socket.tls = !config.tls_cert.empty();
        out.insert(out.begin(), std::move(socket));
    }
    if (opens_admin) {
        TRY_ASSIGN(ListeningSocket socket, access::open_admin_socket(config.admin_listen));
        socket.tls = !config.tls_cert.empty() && !config.admin_listen.starts_with("unix:");
        log_info("administration on {}", address_text(socket.fd.get()));
        out.push_back(std::move(socket));
    }
    return out;
}

}  // namespace lorad::server::ops
