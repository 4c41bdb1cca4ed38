// Whose turn it is among the waiting requests: by starvation, priority, and what each tenant and
// each of its adapters has been given so far.
//
// Service is counted in token cost: a prompt token that is computed costs 1, a generated one 2. The
// tenant that has had least is next, and of its adapters the one that has had least (a virtual token
// counter, as in "Fairness in Serving Large Language Models"). A tenant that had nothing waiting
// begins at the least of those that do: what was not asked for is not saved up. Between two tenants
// that always have requests waiting the service differs by at most what the running requests of one
// may still cost and one request more.
//
// Priorities come before shares, so they could starve: requests of one tenant and priority that wait
// while none of them has run for `starvation_ms` have their first promoted, one for each tenant at a
// time. A promoted request is ahead of all others until it ends, or yields: the engine lets whoever
// has run for as long, and got on in it, make room for one that starves.
//
// Pure bookkeeping; the caller says what time it is. Engine thread only.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace lorad::server {

inline constexpr uint32_t kPromptTokenCost = 1, kGeneratedTokenCost = 2;

class FairShare {
    struct Adapter;
    struct Level;
    struct Tenant;

  public:
    explicit FairShare(uint64_t starvation_ms) : starvation_ms_(starvation_ms) {}  // 0: no promotion
    FairShare(const FairShare&) = delete;
    FairShare& operator=(const FairShare&) = delete;

    // A request's account. Begins waiting; every ticket ends with leave().
    class Ticket {
        friend class FairShare;
        Tenant* tenant = nullptr;
        Adapter* adapter = nullptr;
        Level* level = nullptr;
        bool is_running = false;
        bool is_promoted = false;

      public:
        bool promoted() const { return is_promoted; }
    };
    Ticket enter(const std::string& tenant, const std::string& adapter, int32_t priority);
    void start(Ticket& ticket);
    // Put back; it waits again. Who yields to a starving one is promoted no more.
    void stop(Ticket& ticket, bool has_yielded, uint64_t now_ms);
    void leave(Ticket& ticket, uint64_t now_ms);
    void promote(Ticket& ticket);
    void charge(const Ticket& ticket, uint64_t cost);

    struct Candidate {
        uint32_t index = 0;  // of the caller
        const Ticket* ticket = nullptr;
        int32_t priority = 0;     // lower: earlier
        bool was_running = false;  // lost its blocks to an older one: before those that never ran
        uint64_t arrival = 0;      // order of arrival
        uint64_t arrived_ms = 0;
        uint64_t cost = 0;  // of its prompt, charged when it starts
        bool is_starving = false;  // set by order()
    };
    // The first n of them in the order in which they should be admitted come first.
    void order(std::vector<Candidate>& candidates, size_t n, uint64_t now_ms) const;

    uint64_t starvation_ms() const { return starvation_ms_; }
    size_t n_tenants() const { return tenants_.size(); }
    uint64_t cost_of(const std::string& tenant) const;

  private:
    struct Share {
        uint64_t cost = 0;
        uint32_t n_waiting = 0;
        uint32_t n_requests = 0;
    };
    struct Adapter : Share {};
    struct Level {
        uint32_t n_running = 0;
        uint32_t n_requests = 0;
        uint64_t served_ms = 0;  // when the last one stopped running
    };
    struct Tenant : Share {
        std::map<std::string, Adapter> adapters;
        std::map<int32_t, Level> levels;  // by priority
        uint64_t floor = 0;               // of its adapters
        uint32_t n_promoted = 0;          // that have not ended
    };

    template <typename Shares>
    static void begin_waiting(Shares& shares, Share& share, uint64_t floor);
    using Charges = std::map<const Share*, uint64_t>;  // of those that were chosen before
    void order_by_share(std::span<Candidate> same, size_t n, Charges& charges) const;
    bool starves(const Candidate& candidate, uint64_t now_ms) const;

    const uint64_t starvation_ms_;
    std::map<std::string, Tenant> tenants_;  // with requests, and those that are still ahead
    uint64_t floor_ = 0;                     // cost of the tenant that was served last
};

}  // namespace lorad::server
