// Pages of other origins that may call this server from a browser (the CORS protocol of the Fetch standard). What a
// call may do is still its key's. Any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/guard/request_head.h"
#include "server/http/http.h"

namespace lorad::server {

class Cors {
  public:
    // Origins as browsers send them, "https://app.example:8443", or "*" for all; none: nothing is allowed and no header
    // is sent.
    explicit Cors(std::vector<std::string> origins = {}) : origins_(std::move(origins)) {}

    // The answer to a browser that asks before it calls; nothing where the request is not such a question or its origin
    // is not allowed.
    std::optional<HttpReply> preflight(const RequestHead& head) const;
    // Adds the headers that let the browser's page read the reply.
    void add_headers(const RequestHead& head, HttpReply& reply) const;

  private:
    bool allows(std::string_view origin) const;

    std::vector<std::string> origins_;
};

// Parses settings that have one origin, or several between commas. kInvalidConfig names an invalid one.
Result<std::vector<std::string>> cors_origins(const std::vector<std::string>& settings);

}  // namespace lorad::server
