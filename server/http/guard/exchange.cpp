#include "server/http/guard/exchange.h"

#include <algorithm>

#include <poll.h>

namespace lorad::server {
namespace {

int milliseconds_until(GuardClock::time_point when) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(when - GuardClock::now());
    return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60000));
}

}  // namespace

void Exchange::end_body() {
    if (!connection_.body_slot.taken()) return;
    connection_.body_slot.give_back();
    on_body_end_();
}

Exchange::Piece Exchange::read_body(std::string_view& piece) {
    if (connection_.body_left == 0) return Piece::kEnd;
    if (connection_.head.expects_continue && !told_to_send_ && connection_.in.empty()) {
        told_to_send_ = true;
        connection_.out += "HTTP/1.1 100 Continue\r\n\r\n";
        if (!flush(0)) return Piece::kBrokeOff;
        body_begin_ = GuardClock::now();
    }
    size_t n = 0;
    if (!connection_.in.empty()) {
        n = static_cast<size_t>(std::min<uint64_t>({connection_.in.size(), connection_.body_left, sizeof piece_}));
        connection_.in.copy(piece_, n);
        connection_.in.erase(0, n);
        if (connection_.in.empty()) connection_.in.shrink_to_fit();
    }
    while (n == 0) {
        IoResult read = connection_.channel.read(
            piece_, static_cast<size_t>(std::min<uint64_t>(sizeof piece_, connection_.body_left)));
        if (read.state == IoState::kDone) {
            n = read.n;
            n_received_ += n;
        } else if (read.state == IoState::kEnded || read.state == IoState::kFailed) {
            return Piece::kBrokeOff;
        } else {
            const auto until = body_begin_ + times_.body_grace + time_for(n_received_);
            if (GuardClock::now() >= until) return Piece::kTooSlow;
            connection_.channel.wait(read.state == IoState::kWantWrite ? POLLOUT : POLLIN, milliseconds_until(until));
        }
    }
    connection_.body_left -= n;
    if (connection_.body_left == 0) end_body();
    piece = {piece_, n};
    // A client that sends without a pause must keep up the pace, too.
    if (GuardClock::now() >= body_begin_ + times_.body_grace + time_for(n_received_)) return Piece::kTooSlow;
    return Piece::kData;
}

bool Exchange::closes() const {
    return connection_.closes || !connection_.head.keeps_alive || is_stopping_.load(std::memory_order_relaxed) ||
           connection_.body_left > connection_.in.size();
}

bool Exchange::flush(size_t n_left_max) {
    Connection& c = connection_;
    const auto begin = GuardClock::now();
    const auto end = begin + times_.write_stall + time_for(c.n_out());
    auto stall_end = begin + times_.write_stall;
    while (!c.broken && c.n_out() > n_left_max) {
        IoResult written = c.channel.write(c.out.data() + c.out_at, c.n_out());
        if (written.state == IoState::kDone) {
            c.out_at += written.n;
            stall_end = GuardClock::now() + times_.write_stall;
        } else if (written.state == IoState::kWantWrite || written.state == IoState::kWantRead) {
            const auto until = std::min(stall_end, end);
            if (GuardClock::now() >= until) {
                c.broken = c.stalled = true;
            } else {
                c.channel.wait(written.state == IoState::kWantWrite ? POLLOUT : POLLIN, milliseconds_until(until));
            }
        } else {
            c.broken = true;
        }
    }
    if (c.n_out() == 0 || c.broken) {
        c.out.clear();
        c.out_at = 0;
    }
    return !c.broken;
}

bool Exchange::write(std::string_view bytes) {
    if (connection_.broken) return false;
    connection_.out += bytes;
    if (sends_at_once_) return flush(0);
    return connection_.n_out() <= kLeftOverMax || flush(kLeftOverMax);
}

void Exchange::finish() {
    connection_.closes = closes();
    end_body();
    Connection& c = connection_;
    while (!c.broken && c.n_out() > 0) {
        IoResult written = c.channel.write(c.out.data() + c.out_at, c.n_out());
        if (written.state == IoState::kFailed || written.state == IoState::kEnded) c.broken = true;
        if (written.state != IoState::kDone) break;
        c.out_at += written.n;
    }
    if (!c.broken && c.n_out() > 0) {
        leave_over_();
        if (c.left_over.taken()) return;
        c.broken = c.stalled = true;
    }
    c.out = {};
    c.out_at = 0;
}

}  // namespace lorad::server
