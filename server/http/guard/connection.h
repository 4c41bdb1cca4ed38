// One accepted connection and the request that is on it.
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <utility>

#include "server/access/shared_places.h"
#include "server/http/guard/channel.h"
#include "server/http/guard/request_head.h"

namespace lorad::server {

using GuardClock = std::chrono::steady_clock;
// Deadlines of connections, with their ids.
using Deadlines = std::set<std::pair<GuardClock::time_point, uint64_t>>;

// Owned by the guard's thread; while kWorking, by the worker that serves it.
struct Connection {
    enum class State : uint8_t {
        kHandshake,
        kHead,     // reads a head, or is idle between two requests
        kBody,     // gathers the body's first bytes
        kParked,   // has a large body on its way and waits for a worker
        kWorking,  // with a worker, not watched
        kWriting,  // the rest of a reply
        kLinger,   // has said all, takes what still comes, closes
    };

    Connection(uint64_t connection_id, OwnedFd fd, TlsSession session)
        : id(connection_id), channel(std::move(fd), std::move(session)) {}

    const uint64_t id;
    Channel channel;
    ListenerRole role = ListenerRole::kMain;
    std::string peer;         // the address, or "unix"
    std::string address_key;  // key of the cap per address; empty: exempt
    bool is_refused = false;  // over a cap: only told so, not counted

    State state = State::kHead;
    GuardClock::time_point deadline{};
    Deadlines::node_type deadline_node;  // while it has none: so that a later one needs no memory
    uint32_t interest = 0;               // in epoll with these events; 0: not in it

    std::string in;  // received and not used
    HeadReader reader;
    std::string head_bytes;
    RequestHead head;        // views of head_bytes
    uint64_t body_left = 0;  // of this request, not taken by the handler; its first bytes begin `in`
    access::Holder holder;   // of this head's request, once it was asked for
    access::SharedPlaces::Place body_slot;
    GuardClock::time_point body_begin{};
    uint32_t n_requests = 0;  // complete enough for a worker, the running one included

    std::string out;  // the reply; from out_at on it is not sent yet
    size_t out_at = 0;
    access::SharedPlaces::Place left_over;  // place in the total for `out`
    bool closes = false;                    // after the reply
    bool broken = false;                    // nothing can be sent any more
    bool stalled = false;                   // ... since the client did not read
    uint64_t n_lingered = 0;

    size_t n_out() const { return out.size() - out_at; }
};

}  // namespace lorad::server
