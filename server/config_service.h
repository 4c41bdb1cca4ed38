// Reads what a service manager passes in the environment: systemd's protocols (sd_notify(3), sd_listen_fds(3),
// sd_watchdog_enabled(3)), without its library.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace lorad::server {

struct ServiceEnvironment {
    // NOTIFY_SOCKET: a path, or @name for an abstract socket; empty: nobody listens
    std::string notify_socket;
    std::optional<std::chrono::microseconds> watchdog;  // WATCHDOG_USEC, where it is meant for this process
    struct InheritedSocket {
        int fd = -1;
        std::string name;  // FileDescriptorName= of the socket unit; "unknown" where none was given
    };
    std::vector<InheritedSocket> sockets;  // LISTEN_FDS, where they are meant for this process
};

ServiceEnvironment service_environment();

}  // namespace lorad::server
