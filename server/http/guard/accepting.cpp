// The guard's listening sockets: every errno of accept() is survived, caps are held.
#include <cerrno>
#include <cstring>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/mutex.h"
#include "server/http/guard/guard.h"

namespace lorad::server {
namespace {

constexpr int kAcceptedAtOnce = 64;
constexpr std::chrono::milliseconds kPause{100};
constexpr std::chrono::seconds kBetweenWarnings{10};
// Connections over a cap that are told so; more than that at once are closed without a word.
constexpr uint32_t kToldRefusedMax = 256;
// The kernel's buffer for a reply that the client does not read; the kernel counts about twice that.
constexpr int kSendBufferBytes = 96 << 10;

struct Peer {
    std::string text = "unknown";
    std::string key;  // empty: exempt from the cap per address
    bool is_tcp = false;
};

Peer peer_of(const sockaddr_storage& address) {
    Peer out;
    char text[INET6_ADDRSTRLEN] = "";
    if (address.ss_family == AF_UNIX) {
        out.text = "unix";
    } else if (address.ss_family == AF_INET) {
        const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
        out.is_tcp = true;
        out.text = inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
        out.key = out.text;
    } else if (address.ss_family == AF_INET6) {
        const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
        out.is_tcp = true;
        if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
            out.text = inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof text);
            out.key = out.text;
        } else {
            out.text = inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
            // One client has a network of 64 bits to choose addresses from.
            out.key.assign(reinterpret_cast<const char*>(v6.sin6_addr.s6_addr), 8);
        }
    }
    if (is_loopback_address(reinterpret_cast<const sockaddr&>(address))) out.key.clear();
    return out;
}

}  // namespace

void Guard::watch(Listening& listening, bool on) {
    if (listening.is_watched == on || listening.socket.fd.get() < 0) return;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = 1 + uint64_t(&listening - listening_.data());
    listening.is_watched =
        epoll_ctl(epoll_.get(), on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listening.socket.fd.get(), &event) == 0
            ? on
            : listening.is_watched;
}

void Guard::accept_some(Listening& listening) {
    for (int i = 0; i < kAcceptedAtOnce; ++i) {
        if (listening.socket.fd.get() < 0) return;
        OwnedFd fd(accept4(listening.socket.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (fd.get() >= 0) {
            n_accepted_.fetch_add(1, std::memory_order_relaxed);
            admit(std::move(fd), listening);
            continue;
        }
        switch (errno) {
            case EAGAIN: return;
            // The connection's own trouble, or a network's (accept(2)): the next one may be well.
            case EINTR:
            case ECONNABORTED:
            case EPROTO:
            case EPERM:
            case ENETDOWN:
            case ENOPROTOOPT:
            case EHOSTDOWN:
            case ENONET:
            case EHOSTUNREACH:
            case EOPNOTSUPP:
            case ENETUNREACH:
            case ETIMEDOUT: continue;
            case EMFILE:
            case ENFILE:
                count(GuardEnd::kNoDescriptors);
                shed_one(listening);
                break;
            default: break;
        }
        const char* why = std::strerror(errno);
        const TimePoint now = GuardClock::now();
        if (warned_at_ == TimePoint{} || now - warned_at_ > kBetweenWarnings) {
            warned_at_ = now;
            log_warn("accepting connections pauses for {} ms at a time: {}", kPause.count(), why);
        }
        watch(listening, false);
        rearm_at_ = std::min(rearm_at_, now + kPause);
        return;
    }
}

// Without a free descriptor a client would wait without an answer: a spare one is used to accept it and hang up.
void Guard::shed_one(Listening& listening) {
    const int error = errno;
    spare_.reset();
    OwnedFd taken(accept4(listening.socket.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    taken.reset();
    spare_ = OwnedFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    errno = error;
}

void Guard::admit(OwnedFd fd, const Listening& listening) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    // A client that is gone already has no address any more.
    if (getpeername(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return;
    Peer peer = peer_of(address);
    if (peer.is_tcp) {
        int yes = 1;
        setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    }
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof kSendBufferBytes);
    TlsSession session;
    if (listening.socket.tls) {
        std::shared_ptr<const TlsContext> tls;
        {
            MutexLock lock(mutex_);
            tls = tls_;
        }
        if (tls != nullptr) session = tls->new_session(fd.get());
        if (session == nullptr) return count(GuardEnd::kTlsFailed);
    }
    const bool is_tls = session != nullptr;
    auto owned = std::make_unique<Connection>(next_id_++, std::move(fd), std::move(session));
    Connection& c = *owned;
    c.reader = HeadReader(options_.head);
    c.role = listening.socket.role;
    c.peer = std::move(peer.text);
    c.address_key = std::move(peer.key);
    c.state = is_tls ? Connection::State::kHandshake : Connection::State::kHead;
    const bool is_refused = over_cap(c);
    if (is_refused && (is_tls || n_refused_open_ >= kToldRefusedMax)) return;
    connections_.emplace(c.id, std::move(owned));
    n_open_.fetch_add(1, std::memory_order_relaxed);
    c.is_refused = is_refused;
    guarded(c, &Guard::begin);
}

void Guard::begin(Connection& c) {
    if (c.is_refused) {
        ++n_refused_open_;
        return refuse(c, make_error(ErrorCode::kTooManyConnections, "too many connections"), GuardEnd::kCount);
    }
    ++n_counted_;
    if (!c.address_key.empty()) ++n_by_address_[c.address_key];
    set_deadline(c, GuardClock::now() + options_.head_time);
    advance(c);
}

bool Guard::over_cap(Connection& c) {
    if (n_counted_ >= options_.n_connections_max && !evict_idle()) {
        count(GuardEnd::kTotalCap);
        return true;
    }
    const uint32_t per_address = options_.n_connections_per_address_max;
    if (per_address == 0 || c.address_key.empty()) return false;
    auto found = n_by_address_.find(c.address_key);
    if (found == n_by_address_.end() || found->second < per_address) return false;
    count(GuardEnd::kAddressCap);
    return true;
}

// Closes an idle connection, so that a new client can connect.
bool Guard::evict_idle() {
    Connection* oldest = nullptr;
    for (const auto& [id, c] : connections_) {
        bool is_idle = c->state == Connection::State::kHead && c->n_requests > 0 && c->in.empty();
        if (is_idle && (oldest == nullptr || c->deadline < oldest->deadline)) oldest = c.get();
    }
    if (oldest == nullptr) return false;
    close(*oldest);
    return true;
}

}  // namespace lorad::server
