// Opens the sockets that the server listens on: the service manager's (socket activation), else its own.
#pragma once

#include <vector>

#include "proto/base/result.h"
#include "server/config.h"
#include "server/config_service.h"
#include "server/http/guard/listening.h"

namespace lorad::server::ops {

// The manager's sockets replace host and port; one called "admin" (FileDescriptorName=) replaces admin-listen. TCP
// sockets use TLS if the configuration has a certificate. kInvalidConfig, also if strangers could reach a socket and
// there are no keys.
Result<std::vector<ListeningSocket>> listening_sockets(const Config& config, const ServiceEnvironment& environment);

}  // namespace lorad::server::ops
