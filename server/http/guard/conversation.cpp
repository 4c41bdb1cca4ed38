// A connection's way on the guard's thread: handshake, head, the first bytes of the body, what workers leave of the
// reply, the next request;
// and what is read on after the last reply.
#include <algorithm>

#include <sys/epoll.h>
#include <sys/socket.h>

#include "proto/base/log.h"
#include "server/http/guard/guard.h"
#include "server/http/guard/plain_reply.h"

namespace lorad::server {
namespace {

// The limit on one connection's head and first bytes of the body.
constexpr size_t kConnectionBytesMax = 60 << 10;
constexpr size_t kPieceBytes = 16 << 10;
// A client may read the answer only after it has sent its body: what is refused is still taken, within bounds.
constexpr std::chrono::milliseconds kLingerTime{800};
constexpr std::chrono::milliseconds kBodyLingerTime{10000};
constexpr uint64_t kLingerBytesMax = uint64_t{64} << 20;

}  // namespace

void Guard::advance(Connection& c) {
    using State = Connection::State;
    if (c.state == State::kHandshake) {
        IoResult done = c.channel.handshake();
        if (done.state == IoState::kWantRead) return set_interest(c, EPOLLIN);
        if (done.state == IoState::kWantWrite) return set_interest(c, EPOLLOUT);
        if (done.state != IoState::kDone) {
            count(GuardEnd::kTlsFailed);
            return close(c);
        }
        c.state = State::kHead;
    }
    switch (c.state) {
        case State::kHead:
        case State::kBody:
            while (receive(c)) {
            }
            return;
        case State::kWriting: return send_out(c);
        case State::kLinger: return linger(c);
        default: return;
    }
}

size_t Guard::gathered_max(const Connection& c) const {
    // A client that asks before sending its body (Expect) is answered first, by the worker that reads it.
    if (c.head.expects_continue) return 0;
    return static_cast<size_t>(std::min<uint64_t>(
        c.head.body_bytes, kConnectionBytesMax - std::min(kConnectionBytesMax, c.head_bytes.size())));
}

bool Guard::receive(Connection& c) {
    const bool in_head = c.state == Connection::State::kHead;
    if (in_head) {
        auto verdict = c.in.empty() ? HeadReader::Verdict::kMore : c.reader.read(c.in);
        if (verdict == HeadReader::Verdict::kRefused) {
            refuse(c, make_error(c.reader.refusal().code, c.reader.refusal().reason), GuardEnd::kHeadRefused);
            return false;
        }
        if (verdict == HeadReader::Verdict::kComplete) return begin_body(c);
    } else if (c.in.size() >= gathered_max(c)) {
        dispatch(c);
        return false;
    }
    char piece[kPieceBytes];
    const size_t n_wanted = (in_head ? kConnectionBytesMax : gathered_max(c)) - c.in.size();
    IoResult read = c.channel.read(piece, std::min(n_wanted, sizeof piece));
    if (read.state == IoState::kDone) {
        if (in_head && c.in.empty() && c.n_requests > 0) set_deadline(c, GuardClock::now() + options_.head_time);
        c.in.append(piece, read.n);
        if (!in_head) set_deadline(c, c.body_begin + options_.times.body_grace + time_for(c.in.size()));
        return true;
    }
    if (read.state == IoState::kWantRead || read.state == IoState::kWantWrite) {
        set_interest(c, read.state == IoState::kWantRead ? EPOLLIN : EPOLLOUT);
    } else if (read.state == IoState::kEnded && !in_head) {
        refuse(c, make_error(ErrorCode::kInvalidRequest, "the request's body breaks off before its declared end"),
               GuardEnd::kBodyBrokeOff);
    } else {
        close(c);
    }
    return false;
}

bool Guard::begin_body(Connection& c) {
    const size_t n = c.reader.n_bytes();
    c.head_bytes.assign(c.in, 0, n);
    c.in.erase(0, n);
    HeadRefusal refusal;
    if (!parse_head(c.head_bytes, c.head, refusal)) {
        refuse(c, make_error(refusal.code, refusal.reason), GuardEnd::kHeadRefused);
        return false;
    }
    c.state = Connection::State::kBody;
    c.body_left = c.head.body_bytes;
    c.body_begin = GuardClock::now();
    set_deadline(c, c.body_begin + options_.times.body_grace);
    return true;
}

void Guard::send_out(Connection& c) {
    while (c.n_out() > 0) {
        IoResult written = c.channel.write(c.out.data() + c.out_at, c.n_out());
        if (written.state == IoState::kWantRead) return set_interest(c, EPOLLIN);
        if (written.state == IoState::kWantWrite) return set_interest(c, EPOLLOUT);
        if (written.state != IoState::kDone) return close(c);
        c.out_at += written.n;
    }
    c.out = {};
    c.out_at = 0;
    c.left_over.give_back();
    if (!c.closes) return next_request(c);
    c.channel.end_writing();
    c.state = Connection::State::kLinger;
    c.in = {};
    set_deadline(c, GuardClock::now() + (c.body_left > 0 ? kBodyLingerTime : kLingerTime));
    linger(c);
}

// Closing with bytes unread would reset the connection, and the reply could be lost with it.
void Guard::linger(Connection& c) {
    if (ends_all_) return close(c);
    char piece[kPieceBytes];
    for (int i = 0; i < 16; ++i) {
        ssize_t n = recv(c.channel.fd(), piece, sizeof piece, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return set_interest(c, EPOLLIN);
        if (n <= 0) return close(c);
        c.n_lingered += static_cast<uint64_t>(n);
        if (c.n_lingered > kLingerBytesMax) return close(c);
    }
    set_interest(c, EPOLLIN);
}

void Guard::next_request(Connection& c) {
    if (ends_all_) return close(c);
    c.state = Connection::State::kHead;
    c.reader = HeadReader(options_.head);
    c.head = {};
    c.head_bytes = {};
    c.holder = {};
    if (c.in.empty()) c.in = {};
    set_deadline(c, GuardClock::now() + (c.in.empty() ? options_.idle_time : options_.head_time));
    while (receive(c)) {
    }
}

void Guard::refuse(Connection& c, const Error& error, GuardEnd end) {
    if (end != GuardEnd::kCount) count(end);
    HttpReply reply = options_.refusal ? options_.refusal(c.head, error) : error_reply(error);
    const bool is_head = c.head.method == "HEAD" || (c.head_bytes.empty() && c.in.starts_with("HEAD "));
    c.out = closing_reply(reply, is_head);
    c.out_at = 0;
    c.closes = true;
    if (end != GuardEnd::kBusy) c.body_left = 0;
    c.in = {};
    c.state = Connection::State::kWriting;
    handlers_.on_reply(reply.status);
    log_debug("a connection is refused: {}", error.message);
    set_deadline(c, GuardClock::now() + kLingerTime);
    send_out(c);
}

}  // namespace lorad::server
