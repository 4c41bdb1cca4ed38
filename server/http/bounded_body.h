// A request's body with a bound on its bytes; its time is the guard's business.
#pragma once

#include "server/http/guard/exchange.h"
#include "server/http/http.h"

namespace lorad::server {

// The request's HTTP worker only. What the handler leaves unread the guard drops, or ends the connection.
class BoundedBody final : public HttpBody {
  public:
    explicit BoundedBody(Exchange& exchange) : exchange_(exchange) {}

    std::optional<uint64_t> length() const override { return exchange_.head().body_bytes; }
    Status read(uint64_t bytes_max, const Take& take) override;

  private:
    Exchange& exchange_;
    bool was_read_ = false;
};

}  // namespace lorad::server
