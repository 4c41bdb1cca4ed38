// The bytes of one accepted connection, plain or TLS, never blocking.
#pragma once

#include <cstddef>
#include <cstdint>

#include "server/http/guard/listening.h"
#include "server/http/guard/tls.h"

namespace lorad::server {

enum class IoState : uint8_t {
    kDone,       // n bytes were moved
    kWantRead,   // try again when the socket can be read
    kWantWrite,  // ... or written
    kEnded,      // the peer has ended its side
    kFailed,
};
struct IoResult {
    IoState state = IoState::kFailed;
    size_t n = 0;
};

// One thread at a time.
class Channel {
  public:
    explicit Channel(OwnedFd fd, TlsSession session = nullptr) : fd_(std::move(fd)), session_(std::move(session)) {}
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;

    int fd() const { return fd_.get(); }
    bool is_tls() const { return session_ != nullptr; }
    IoResult handshake();
    IoResult read(char* out, size_t size);
    IoResult write(const char* bytes, size_t size);
    // Decrypted bytes that no event of the socket will tell of.
    bool has_pending() const;
    // Tells the peer that nothing follows; it may still send.
    void end_writing();
    // Returns true if the peer has ended its side or reset the connection.
    bool closed_by_peer() const;
    // Waits for the socket (POLLIN or POLLOUT), at most timeout_ms; false after that time.
    bool wait(short events, int timeout_ms) const;

  private:
    IoResult result_of(int returned);

    OwnedFd fd_;
    TlsSession session_;
    bool tls_failed_ = false;
};

}  // namespace lorad::server
