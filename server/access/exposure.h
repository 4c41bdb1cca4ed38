// Checks that a server without keys is reachable by this machine's users only.
#pragma once

#include <string>

#include "proto/base/result.h"
#include "server/http/guard/listening.h"

namespace lorad::server::access {

// The parts of HOST:PORT; the host without brackets, the port empty where there is none.
struct HostAndPort {
    std::string host, port;
};
HostAndPort host_and_port(const std::string& where);

// True where every address that `host` stands for is of the loopback interface. Looks the name up.
bool is_loopback(const std::string& host);

struct Exposure {
    std::string host;          // the main listener's
    std::string admin_listen;  // HOST:PORT or unix:PATH; empty: none
    bool has_keys = false;
    bool insecure_no_keys = false;
};
// kInvalidConfig, with what to do, where anybody who reaches this machine could use and change the server.
Status check_exposure(const Exposure& exposure);

// HOST:PORT, [V6]:PORT or unix:PATH (mode 0660: the group may as well). kInvalidConfig.
Result<ListeningSocket> open_admin_socket(const std::string& where);

}  // namespace lorad::server::access
