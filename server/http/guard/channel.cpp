#include "server/http/guard/channel.h"

#include <algorithm>
#include <cerrno>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

namespace lorad::server {
namespace {

constexpr size_t kPieceMax = 1 << 20;  // OpenSSL counts in int

}  // namespace

IoResult Channel::result_of(int returned) {
    switch (SSL_get_error(session_.get(), returned)) {
        case SSL_ERROR_WANT_READ: return {IoState::kWantRead, 0};
        case SSL_ERROR_WANT_WRITE: return {IoState::kWantWrite, 0};
        case SSL_ERROR_ZERO_RETURN: return {IoState::kEnded, 0};
        default: break;
    }
    tls_failed_ = true;
    ERR_clear_error();
    return {IoState::kFailed, 0};
}

IoResult Channel::handshake() {
    if (session_ == nullptr) return {IoState::kDone, 0};
    ERR_clear_error();
    int returned = SSL_do_handshake(session_.get());
    return returned == 1 ? IoResult{IoState::kDone, 0} : result_of(returned);
}

IoResult Channel::read(char* out, size_t size) {
    size = std::min(size, kPieceMax);
    if (session_ != nullptr) {
        if (tls_failed_) return {IoState::kFailed, 0};
        ERR_clear_error();
        int n = SSL_read(session_.get(), out, static_cast<int>(size));
        return n > 0 ? IoResult{IoState::kDone, static_cast<size_t>(n)} : result_of(n);
    }
    ssize_t n = 0;
    do n = recv(fd_.get(), out, size, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n > 0) return {IoState::kDone, static_cast<size_t>(n)};
    if (n == 0) return {IoState::kEnded, 0};
    return {errno == EAGAIN || errno == EWOULDBLOCK ? IoState::kWantRead : IoState::kFailed, 0};
}

IoResult Channel::write(const char* bytes, size_t size) {
    size = std::min(size, kPieceMax);
    if (session_ != nullptr) {
        if (tls_failed_) return {IoState::kFailed, 0};
        ERR_clear_error();
        int n = SSL_write(session_.get(), bytes, static_cast<int>(size));
        return n > 0 ? IoResult{IoState::kDone, static_cast<size_t>(n)} : result_of(n);
    }
    ssize_t n = 0;
    do n = send(fd_.get(), bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n >= 0) return {IoState::kDone, static_cast<size_t>(n)};
    return {errno == EAGAIN || errno == EWOULDBLOCK ? IoState::kWantWrite : IoState::kFailed, 0};
}

bool Channel::has_pending() const { return session_ != nullptr && SSL_pending(session_.get()) > 0; }

void Channel::end_writing() {
    if (session_ != nullptr && !tls_failed_ && SSL_is_init_finished(session_.get())) {
        ERR_clear_error();
        SSL_shutdown(session_.get());
        ERR_clear_error();
    }
    ::shutdown(fd_.get(), SHUT_WR);
}

bool Channel::closed_by_peer() const {
    pollfd state{fd_.get(), POLLRDHUP, 0};
    if (poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0) return true;
    char byte = 0;
    ssize_t n = recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

bool Channel::wait(short events, int timeout_ms) const {
    pollfd state{fd_.get(), events, 0};
    int n = 0;
    do n = poll(&state, 1, timeout_ms);
    while (n < 0 && errno == EINTR);
    return n > 0;
}

}  // namespace lorad::server
