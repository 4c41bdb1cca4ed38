// A request's body with bounds on its bytes and on its time, whoever takes it off the connection.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "server/http/http.h"

namespace lorad::server {

// What the request's headers say about its body.
struct BodyFraming {
    bool has_body = false;           // else nothing is pulled, which could wait for ever
    std::optional<uint64_t> length;  // nothing where it is chunked or compressed
};

struct BodyPatience {
    std::chrono::milliseconds begin{30000};  // then a second more for each 32 KiB
    std::chrono::milliseconds piece{30000};  // `pull` gives up after this without a piece
};

// The value of Content-Length; nothing for what is no number.
std::optional<uint64_t> parse_length(const std::string& text);

// The request's HTTP worker only.
class BoundedBody final : public HttpBody {
  public:
    // Hands over the next pieces of the connection to `take` until the body ends (true) or `take` returns false or the
    // connection fails (false).
    using TakePiece = std::function<bool(const char* data, size_t size)>;
    using Pull = std::function<bool(const TakePiece& take)>;

    BoundedBody(const BodyFraming& framing, Pull pull, const BodyPatience& patience)
        : framing_(framing), pull_(std::move(pull)), patience_(patience), ended_(!framing.has_body) {}

    std::optional<uint64_t> length() const override { return framing_.length; }
    Status read(uint64_t bytes_max, const Take& take) override;

    // What the handler has left. False: the connection is out of step and is to be closed.
    bool skip_rest();

  private:
    Error drop(Error error);

    const BodyFraming framing_;
    const Pull pull_;
    const BodyPatience patience_;
    uint64_t n_bytes_ = 0;
    bool was_read_ = false;
    bool ended_;  // the connection stands behind the body
};

}  // namespace lorad::server
