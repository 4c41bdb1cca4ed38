// All that the network may do before a request is whole: one thread of ours accepts, does the TLS handshake, reads
// heads and the first bytes of bodies, sends what workers leave over, and closes. Thousands of slow or idle connections
// hold no worker.
// A worker gets a connection only with a valid head and a body that comes at its pace. What is refused is told in the
// usual envelope, and its connection ends with that.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "proto/base/mutex.h"
#include "server/http/guard/connection.h"
#include "server/http/guard/exchange.h"
#include "server/http/guard/workers.h"
#include "server/http/http.h"

namespace lorad::server {

struct GuardOptions {
    uint32_t n_workers = 1;
    uint32_t n_connections_max = 4096;
    // From one IPv4 address or one IPv6 network of 64 bits; loopback and Unix sockets, where proxies are, are exempt.
    // 0: none.
    uint32_t n_connections_per_address_max = 256;
    std::chrono::milliseconds head_time{10000};  // TLS handshake included
    std::chrono::milliseconds idle_time{15000};  // between two requests
    uint32_t n_requests_max = 1000;              // per connection; the last reply says that it is the last
    // at the end, for requests that are half sent and first ones that have yet to come
    std::chrono::milliseconds last_heads{500};
    // In stop(): workers have `last_handlers` to finish; then they see their clients as gone, and have `given_up`.
    std::chrono::milliseconds last_handlers{5000}, given_up{2000};
    HeadLimits head;
    ExchangeTimes times;
    // Writes the guard's own refusals, on its thread; if empty they have the usual envelope. The head is empty if it
    // was not understood.
    std::function<HttpReply(const RequestHead&, const Error&)> refusal;
};

// Why connections ended otherwise than by an answer of the routes, for metrics.
enum class GuardEnd : uint8_t {
    kTotalCap,
    kAddressCap,
    kNoDescriptors,
    kBusy,  // no worker for it
    kTlsFailed,
    kHeadRefused,  // malformed, too large, not supported
    kHeadTimeout,
    kBodyTimeout,
    kBodyBrokeOff,
    kStalled,  // the client did not read
    kCount,
};
const char* guard_end_name(GuardEnd end);

struct GuardCounts {
    uint64_t n_open = 0;      // connections now
    uint64_t n_working = 0;   // ... of which workers have
    uint64_t n_accepted = 0;  // ever
    std::array<uint64_t, static_cast<size_t>(GuardEnd::kCount)> ends{};
};

class Guard {
  public:
    struct Handlers {
        // Runs on a worker with a whole head; writes a whole reply, or lets the exchange break.
        std::function<void(Exchange&)> serve;
        // Is told the status of each reply that is the guard's own, on its thread.
        std::function<void(int)> on_reply;
        // Answers on the guard's thread, even if all workers are busy; nothing: a worker answers. Never blocks.
        std::function<std::optional<HttpReply>(const RequestHead&)> at_once = {};
        // Returns the tenant of the key in a head, for shares; empty: no tenant. Called on the guard's thread and
        // workers; must not block for long.
        std::function<std::string(const RequestHead&)> tenant = {};
    };
    Guard(const GuardOptions& options, std::vector<ListeningSocket> sockets, Handlers handlers);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

    Status start();
    // No connection is taken any more; those that are there are served on, and told to close after their reply.
    void stop_accepting();
    // Lets workers finish, ends everything, joins. Connections idle after a request hold up nobody, those that wait for
    // a request's end or for the first one `last_heads`. False: a worker does not end its request although nobody waits
    // for it any more; then it still uses all that it reaches, and only the process's end ends it.
    [[nodiscard]] bool stop();
    // For connections accepted from now on.
    void set_tls(std::shared_ptr<const TlsContext> tls);
    GuardCounts counts() const;  // any thread

  private:
    using TimePoint = GuardClock::time_point;
    struct Listening {
        ListeningSocket socket;
        bool is_watched = false;
    };

    void run();
    int timeout_ms(TimePoint now) const;
    void on_event(uint64_t id);
    void accept_some(Listening& listening);
    void shed_one(Listening& listening);
    void watch(Listening& listening, bool on);
    void stop_listening();
    void admit(OwnedFd fd, const Listening& listening);
    void begin(Connection& c);
    bool over_cap(Connection& c);
    bool evict_idle();

    void advance(Connection& c);
    void guarded(Connection& c, void (Guard::*step)(Connection&));
    bool receive(Connection& c);  // false: wait for more, or it is gone
    bool begin_body(Connection& c);
    size_t gathered_max(const Connection& c) const;
    void dispatch(Connection& c);
    bool answered_here(Connection& c);
    bool take_body_slot(Connection& c);
    void find_holder(Connection& c) const;
    void leave_over(Connection& c);
    void send_out(Connection& c);
    void linger(Connection& c);
    void next_request(Connection& c);
    Connection* next_returned();
    void take_back(Connection& c);
    void refuse(Connection& c, const Error& error, GuardEnd end);
    void expire(Connection& c);
    void close(Connection& c);

    void set_interest(Connection& c, uint32_t events);
    void set_deadline(Connection& c, TimePoint deadline);
    void wake();
    void serve_on_worker(Connection& c);
    void unpark();
    void stop_step(TimePoint now);
    void count(GuardEnd end) { ends_[static_cast<size_t>(end)].fetch_add(1, std::memory_order_relaxed); }

    const GuardOptions options_;
    const Handlers handlers_;
    // Half of the workers may wait for bodies that are larger than what is gathered here; small requests always find
    // the others.
    access::SharedPlaces body_slots_;
    access::SharedPlaces left_over_{Exchange::kLeftOverTotalMax};
    OwnedFd epoll_, wake_, spare_;
    std::vector<Listening> listening_;
    std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;
    Deadlines deadlines_;
    std::unordered_map<std::string, uint32_t> n_by_address_;
    std::deque<uint64_t> parked_;
    uint64_t next_id_ = 0;
    uint32_t n_counted_ = 0, n_refused_open_ = 0;
    TimePoint rearm_at_ = TimePoint::max();  // when to listen again after a pause
    TimePoint warned_at_{};
    TimePoint stop_since_{};
    std::unique_ptr<Workers> workers_;
    std::thread thread_;

    std::atomic<bool> is_stopping_{false}, ends_all_{false};
    std::atomic<bool> slot_given_back_{false};
    bool has_stuck_workers_ = false;
    std::atomic<uint64_t> n_open_{0}, n_working_{0}, n_accepted_{0};
    std::array<std::atomic<uint64_t>, static_cast<size_t>(GuardEnd::kCount)> ends_{};

    Mutex mutex_;
    std::vector<uint64_t> returned_ GUARDED_BY(mutex_);
    std::shared_ptr<const TlsContext> tls_ GUARDED_BY(mutex_);
};

}  // namespace lorad::server
