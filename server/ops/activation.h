// The sockets that the server listens on: those that the service manager hands over (socket activation), else its own.
#pragma once

#include <vector>

#include "proto/base/result.h"
#include "server/config.h"
#include "server/config_service.h"
#include "server/http/guard/listening.h"

namespace lorad::server::ops {

// What the manager hands over takes the place of host and port; a socket of it called "admin" (FileDescriptorName=)
// takes that of admin-listen. TLS on those of TCP where the configuration has a certificate. kInvalidConfig; without
// keys for sockets that strangers could reach.
Result<std::vector<ListeningSocket>> listening_sockets(const Config& config, const ServiceEnvironment& environment);

}  // namespace lorad::server::ops
