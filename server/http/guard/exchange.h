// One request and its reply, as the worker that serves it sees them: body in, bytes out, each with a bound on its time.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string_view>

#include "server/http/guard/connection.h"

namespace lorad::server {

struct ExchangeTimes {
    // A body has body_grace, plus a second for each 64 KiB; so has each write, with write_stall.
    std::chrono::milliseconds body_grace{10000};
    std::chrono::milliseconds write_stall{5000};
};
inline constexpr uint64_t kSlowestBytesPerSecond = 64 << 10;
inline std::chrono::milliseconds time_for(uint64_t n_bytes) {
    return std::chrono::milliseconds(n_bytes * 1000 / kSlowestBytesPerSecond);
}

// The worker's thread only.
class Exchange {
  public:
    // `leave_over` gives the connection room for what is left of its reply, if there is any.
    Exchange(Connection& connection, const ExchangeTimes& times, const std::atomic<bool>& is_stopping,
             std::function<void()> leave_over, std::function<void()> on_body_end)
        : connection_(connection),
          times_(times),
          is_stopping_(is_stopping),
          leave_over_(std::move(leave_over)),
          on_body_end_(std::move(on_body_end)),
          body_begin_(GuardClock::now()) {}

    const RequestHead& head() const { return connection_.head; }
    const std::string& peer() const { return connection_.peer; }
    const std::string& address_key() const { return connection_.address_key; }
    ListenerRole role() const { return connection_.role; }

    enum class Piece : uint8_t { kData, kEnd, kTooSlow, kBrokeOff };
    // The next bytes of the body, valid until the next call. A client that asked to be told (Expect) is told to send.
    Piece read_body(std::string_view& piece);

    // Returns true if the reply must say that the connection ends with it. Call it when the body is nearly read.
    bool closes() const;
    void close_after() { connection_.closes = true; }

    // False: the client is gone, or has read nothing for too long; then nothing more is sent.
    bool write(std::string_view bytes);
    // From now on each write is sent at once, not with later ones.
    void send_at_once() { sends_at_once_ = true; }
    // Bytes of a reply that the client does not take at once are left to the guard, so that slow readers hold no
    // worker: kLeftOverMax per reply (a larger one waits here), kLeftOverTotalMax in all, shared fairly (a connection
    // beyond its share is cut).
    static constexpr size_t kLeftOverMax = 1 << 20;
    static constexpr uint64_t kLeftOverTotalMax = uint64_t{128} << 20;
    void finish();

    bool client_gone() const { return connection_.broken || connection_.channel.closed_by_peer(); }

  private:
    bool flush(size_t n_left_max);
    void end_body();

    Connection& connection_;
    const ExchangeTimes& times_;
    const std::atomic<bool>& is_stopping_;
    const std::function<void()> leave_over_, on_body_end_;
    GuardClock::time_point body_begin_;
    uint64_t n_received_ = 0;  // from the connection, by read_body
    bool told_to_send_ = false;
    bool sends_at_once_ = false;
    char piece_[16384];
};

}  // namespace lorad::server
