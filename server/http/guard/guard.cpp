#include "server/http/guard/guard.h"

#include <algorithm>
#include <exception>

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/base/log_failure.h"
#include "proto/base/mutex.h"
#include "server/http/guard/plain_reply.h"

namespace lorad::server {
namespace {

constexpr uint64_t kWakeId = 0;
constexpr uint64_t kFirstConnectionId = 1000;  // listening sockets have those below
constexpr int kEventsAtOnce = 256;
constexpr size_t kWaitingForWorkerMax = 1024;

}  // namespace

const char* guard_end_name(GuardEnd end) {
    static constexpr const char* kNames[] = {"total_cap",      "address_cap",  "no_descriptors", "busy",
                                             "tls_failed",     "head_refused", "head_timeout",   "body_timeout",
                                             "body_broke_off", "stalled"};
    static_assert(std::size(kNames) == static_cast<size_t>(GuardEnd::kCount));
    return kNames[static_cast<size_t>(end)];
}

Guard::Guard(const GuardOptions& options, std::vector<ListeningSocket> sockets, Handlers handlers)
    : options_(options),
      handlers_(std::move(handlers)),
      body_slots_(std::max<uint32_t>(1, options.n_workers / 2)),
      next_id_(kFirstConnectionId) {
    for (ListeningSocket& socket : sockets) listening_.push_back({std::move(socket), false});
}

Guard::~Guard() {
    (void)stop();
    workers_.reset();  // before what they use
}

Status Guard::start() {
    CHECK(!thread_.joinable());
    epoll_ = OwnedFd(epoll_create1(EPOLL_CLOEXEC));
    wake_ = OwnedFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    spare_ = OwnedFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = kWakeId;
    if (epoll_.get() < 0 || wake_.get() < 0 || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0)
        return make_error(ErrorCode::kIo, "the HTTP guard could not be set up: no file descriptors");
    for (Listening& listening : listening_) watch(listening, true);
    {
        // A worker that gives a connection back must not need memory for it.
        const MutexLock lock(mutex_);
        returned_.reserve(static_cast<size_t>(options_.n_connections_max) + 1);
    }
    workers_ = std::make_unique<Workers>(options_.n_workers, kWaitingForWorkerMax,
                                         [this](Connection& c) { serve_on_worker(c); });
    if (workers_->n_workers() == 0)
        return make_error(ErrorCode::kIo, "no HTTP worker could be started: the system gives no more threads");
    thread_ = std::thread([this] { run(); });
    return ok_status();
}

void Guard::wake() {
    uint64_t one = 1;
    while (::write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
}

void Guard::stop_accepting() {
    is_stopping_ = true;
    if (thread_.joinable()) wake();
}

bool Guard::stop() {
    if (!thread_.joinable()) {  // never started, or for the second time
        stop_listening();
        return !has_stuck_workers_;
    }
    is_stopping_ = ends_all_ = true;
    wake();
    thread_.join();
    if (!has_stuck_workers_) workers_->stop();
    return !has_stuck_workers_;
}

void Guard::set_tls(std::shared_ptr<const TlsContext> tls) {
    MutexLock lock(mutex_);
    tls_ = std::move(tls);
}

GuardCounts Guard::counts() const {
    GuardCounts out;
    out.n_open = n_open_.load(std::memory_order_relaxed);
    out.n_working = n_working_.load(std::memory_order_relaxed);
    out.n_accepted = n_accepted_.load(std::memory_order_relaxed);
    for (size_t i = 0; i < out.ends.size(); ++i) out.ends[i] = ends_[i].load(std::memory_order_relaxed);
    return out;
}

int Guard::timeout_ms(TimePoint now) const {
    TimePoint next = rearm_at_;
    if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
    if (ends_all_) next = std::min(next, now + std::chrono::milliseconds(20));
    if (next == TimePoint::max()) return -1;
    auto left = std::chrono::ceil<std::chrono::milliseconds>(next - now).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 60000));
}

void Guard::run() {
    epoll_event events[kEventsAtOnce];
    while (!ends_all_ || (!connections_.empty() && !has_stuck_workers_)) {
        int n = epoll_wait(epoll_.get(), events, kEventsAtOnce, timeout_ms(GuardClock::now()));
        for (int i = 0; i < n; ++i) on_event(events[i].data.u64);
        while (Connection* c = next_returned()) take_back(*c);
        unpark();
        const TimePoint now = GuardClock::now();
        while (!deadlines_.empty() && deadlines_.begin()->first <= now)
            expire(*connections_.at(deadlines_.begin()->second));
        if (rearm_at_ <= now) {
            rearm_at_ = TimePoint::max();
            for (Listening& listening : listening_) watch(listening, !is_stopping_);
        }
        if (is_stopping_) stop_listening();
        if (ends_all_) stop_step(now);
    }
    stop_listening();  // stop() may have come behind the last look at is_stopping_, or before the first
}

void Guard::stop_listening() {
    for (Listening& listening : listening_) {
        watch(listening, false);
        // First, while it takes connections: who finds one that does not makes a file of its own in its place.
        if (!listening.socket.unlink_path.empty()) unlink(listening.socket.unlink_path.c_str());
        listening.socket.unlink_path.clear();
        listening.socket.fd.reset();
    }
}

Connection* Guard::next_returned() {
    MutexLock lock(mutex_);
    if (returned_.empty()) return nullptr;
    uint64_t id = returned_.back();
    returned_.pop_back();
    return connections_.at(id).get();
}

void Guard::on_event(uint64_t id) {
    if (id == kWakeId) {
        uint64_t count = 0;
        while (::read(wake_.get(), &count, sizeof count) < 0 && errno == EINTR) {
        }
    } else if (id < kFirstConnectionId) {
        try {
            accept_some(listening_[id - 1]);
        } catch (const std::exception& exception) {
            log_failure("a connection is not taken", exception);
        }
    } else if (auto found = connections_.find(id); found != connections_.end()) {
        guarded(*found->second, &Guard::advance);
    }
}

// Out of memory for one connection must not end the others.
void Guard::guarded(Connection& c, void (Guard::*step)(Connection&)) {
    try {
        (this->*step)(c);
    } catch (const std::exception& exception) {
        log_failure("a connection is given up", exception);
        if (c.state == Connection::State::kWorking) n_working_.fetch_sub(1, std::memory_order_relaxed);
        close(c);
    }
}

// Without a worker: the reply goes out when the socket is asked next, so that requests on one another's heels do not
// pile up on the stack.
bool Guard::answered_here(Connection& c) {
    if (!handlers_.at_once || c.head.body_bytes > 0) return false;
    const std::optional<HttpReply> reply = handlers_.at_once(c.head);
    if (!reply) return false;
    c.closes = ++c.n_requests >= options_.n_requests_max || !c.head.keeps_alive || is_stopping_;
    c.out = whole_reply(*reply, c.head.method == "HEAD", c.closes);
    c.out_at = 0;
    c.state = Connection::State::kWriting;
    handlers_.on_reply(reply->status);
    set_deadline(c, GuardClock::now() + options_.times.write_stall);
    set_interest(c, EPOLLOUT);
    return true;
}

void Guard::find_holder(Connection& c) const {
    if (c.holder.tenant.empty() && handlers_.tenant) c.holder.tenant = handlers_.tenant(c.head);
    if (options_.n_connections_per_address_max > 0) c.holder.address = c.address_key;
}

// Takes a place for a body that a worker has to wait for; false: it waits here until others give theirs back.
bool Guard::take_body_slot(Connection& c) {
    if (c.body_left <= c.in.size() || c.body_slot.taken()) return true;
    find_holder(c);
    c.body_slot = body_slots_.take(c.holder);
    if (c.body_slot.taken()) return true;
    parked_.push_back(c.id);
    if (c.state == Connection::State::kParked) return false;
    c.state = Connection::State::kParked;
    set_interest(c, 0);
    set_deadline(c, GuardClock::now() + options_.head_time);
    return false;
}

void Guard::dispatch(Connection& c) {
    if (answered_here(c) || !take_body_slot(c)) return;
    // Its reply has to say so: a client that is not told sends the next request into a closed connection.
    if (++c.n_requests >= options_.n_requests_max) c.closes = true;
    set_interest(c, 0);
    set_deadline(c, TimePoint::max());
    c.state = Connection::State::kWorking;
    n_working_.fetch_add(1, std::memory_order_relaxed);
    if (workers_->enqueue(c)) return;
    n_working_.fetch_sub(1, std::memory_order_relaxed);
    c.body_slot.give_back();
    slot_given_back_ = true;
    refuse(c, make_error(ErrorCode::kOverloaded, "as many requests wait as may"), GuardEnd::kBusy);
}

// Unparks in the order of arrival, except for shares.
void Guard::unpark() {
    if (parked_.empty() || !slot_given_back_.exchange(false)) return;
    std::deque<uint64_t> parked;
    parked.swap(parked_);
    for (uint64_t id : parked) {
        auto found = connections_.find(id);
        if (found != connections_.end() && found->second->state == Connection::State::kParked)
            guarded(*found->second, &Guard::dispatch);
    }
}

void Guard::serve_on_worker(Connection& c) {
    const auto body_has_ended = [this] {
        slot_given_back_ = true;
        wake();
    };
    Exchange exchange(c, options_.times, is_stopping_, [this, &c] { leave_over(c); }, body_has_ended);
    handlers_.serve(exchange);
    exchange.finish();
    {
        MutexLock lock(mutex_);
        returned_.push_back(c.id);
    }
    wake();
}

// A slow reader holds no worker, and only its share of the memory for unread replies.
void Guard::leave_over(Connection& c) {
    try {
        find_holder(c);
        c.left_over = left_over_.take(c.holder, c.n_out());
    } catch (const std::exception& exception) {
        log_failure("the rest of a reply is not sent", exception);
    }
}

void Guard::take_back(Connection& c) {
    n_working_.fetch_sub(1, std::memory_order_relaxed);
    const size_t n_of_body = static_cast<size_t>(std::min<uint64_t>(c.in.size(), c.body_left));
    c.in.erase(0, n_of_body);
    c.body_left -= n_of_body;
    if (c.body_left > 0) c.closes = true;
    if (c.stalled) count(GuardEnd::kStalled);
    if (c.broken) return close(c);
    c.state = Connection::State::kWriting;
    set_deadline(c, GuardClock::now() + options_.times.write_stall + time_for(c.n_out()));
    guarded(c, &Guard::advance);
}

void Guard::expire(Connection& c) {
    using State = Connection::State;
    const auto time_out = [&](const char* what, GuardEnd end) {
        refuse(c, make_error(ErrorCode::kRequestTimeout, what), end);
    };
    try {
        if (c.state == State::kBody) return time_out("the request's body comes too slowly", GuardEnd::kBodyTimeout);
        if (c.state == State::kHead && !c.in.empty())
            return time_out("the request's head comes too slowly", GuardEnd::kHeadTimeout);
        if (c.state == State::kParked)
            return refuse(c, make_error(ErrorCode::kOverloaded, "too many large bodies are on their way"),
                          GuardEnd::kBusy);
    } catch (const std::exception& exception) {
        log_failure("a connection is given up", exception);
    }
    if (c.state == State::kHandshake) count(GuardEnd::kTlsFailed);
    if (c.state == State::kHead && c.n_requests == 0) count(GuardEnd::kHeadTimeout);
    if (c.state == State::kWriting) count(GuardEnd::kStalled);
    close(c);
}

void Guard::close(Connection& c) {
    set_interest(c, 0);
    deadlines_.erase({c.deadline, c.id});
    if (c.is_refused) {
        --n_refused_open_;
    } else {
        --n_counted_;
        if (auto found = n_by_address_.find(c.address_key); found != n_by_address_.end() && --found->second == 0)
            n_by_address_.erase(found);
    }
    n_open_.fetch_sub(1, std::memory_order_relaxed);
    connections_.erase(c.id);
}

void Guard::set_interest(Connection& c, uint32_t events) {
    if (c.interest == events) return;
    epoll_event event{};
    event.events = events;
    event.data.u64 = c.id;
    const int operation = c.interest == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
    // Where the kernel has no memory for it, the deadline ends the connection.
    if (epoll_ctl(epoll_.get(), operation, c.channel.fd(), &event) == 0) c.interest = events;
}

void Guard::set_deadline(Connection& c, TimePoint deadline) {
    // Only a connection's first deadline needs memory.
    Deadlines::node_type node =
        c.deadline == TimePoint::max() ? std::move(c.deadline_node) : deadlines_.extract({c.deadline, c.id});
    c.deadline = deadline;
    if (deadline == TimePoint::max()) {
        c.deadline_node = std::move(node);
    } else if (node.empty()) {
        deadlines_.insert({deadline, c.id});
    } else {
        node.value() = {deadline, c.id};
        deadlines_.insert(std::move(node));
    }
}

void Guard::stop_step(TimePoint now) {
    using State = Connection::State;
    if (stop_since_ == TimePoint{}) stop_since_ = now;
    std::vector<Connection*> ended;
    for (const auto& [id, c] : connections_) {
        const bool is_idle =
            c->state == State::kLinger || (c->state == State::kHead && c->in.empty() && c->n_requests > 0);
        // Whose first request may be on its way is told that this server ends rather than cut off.
        const bool is_half = c->state == State::kHandshake || c->state == State::kHead || c->state == State::kBody ||
                             c->state == State::kParked;
        if (is_idle || (is_half && now - stop_since_ > options_.last_heads)) ended.push_back(c.get());
        // Its handler sees that no client waits any more.
        if (c->state == State::kWorking && now - stop_since_ > options_.last_handlers)
            ::shutdown(c->channel.fd(), SHUT_RD);
        has_stuck_workers_ = has_stuck_workers_ || (c->state == State::kWorking &&
                                                    now - stop_since_ > options_.last_handlers + options_.given_up);
    }
    for (Connection* c : ended) close(*c);
}

}  // namespace lorad::server
