// Whose share of a pool a request uses.
#pragma once

#include "server/access/principal.h"
#include "server/access/shared_places.h"
#include "server/http/http.h"

namespace lorad::server {

inline access::Holder holder_of(const HttpRequest& http) {
    return {http.principal != nullptr ? http.principal->tenant : std::string(), http.address_key};
}

}  // namespace lorad::server
