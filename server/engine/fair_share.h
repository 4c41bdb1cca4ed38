// Orders the waiting requests and the prompts that are being computed: by starvation, priority, and the service that
// each tenant and each of its adapters has had so far.
//
// Service is counted in token cost: a prompt token that is computed costs 1, a generated one 2. The tenant with the
// least service is next, and of its adapters the one with the least (a virtual token counter, as in "Fairness in
// Serving Large Language Models"). A tenant that had nothing waiting begins at the least of those that do, so idle time
// earns no credit. Between two tenants that always have requests waiting the service differs by at most the remaining
// cost of the running requests of one and one request more.
//
// The rows that steps have for prompts are dealt out in the same way, by a separate count: rows that were computed. The
// next tenant is the one whose count would be least once it has what it wants now, at most `n_ahead` rows: a short
// prompt goes before a long one with as much left, equal ones go one after the other, and long ones side by side. A
// tenant that had no prompts begins at the least count of those that had. So the count of a tenant that has rows to
// compute is at most n_ahead and a step's rows below any other's of its priority. Among the adapters of a tenant the
// same holds with kAdaptersAhead times as much. Among one adapter's prompts the next is the one that would have ended
// first if the adapter's rows had been shared equally since it began: a long one waits for no more rows of later ones
// than it has itself.
//
// Priorities come before shares, so they could starve requests: if requests of one tenant and priority wait and none of
// them has run for `starvation_ms`, their first one is promoted, one for each tenant at a time. A promoted request is
// ahead of all others until it ends or yields: if it has run for as long and made progress, the engine lets it make
// room for one that starves. A running prompt that has had no rows for as long is promoted as well.
//
// Pure bookkeeping; the caller says what time it is. Engine thread only.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/scheduler.h"

namespace lorad::server {

inline constexpr uint32_t kPromptTokenCost = 1, kGeneratedTokenCost = 2;

class FairShare {
    struct Adapter;
    struct Level;
    struct Tenant;

  public:
    // starvation_ms 0: no promotion.
    explicit FairShare(uint64_t starvation_ms, uint32_t n_ahead = 2048)
        : starvation_ms_(starvation_ms), n_ahead_(n_ahead) {}
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
        uint64_t prompt_end = 0;  // its adapter's count when it would have ended

      public:
        bool promoted() const { return is_promoted; }
    };
    Ticket enter(const std::string& tenant, const std::string& adapter, int32_t priority);
    void start(Ticket& ticket);
    // It waits again. A promoted one that yields to a starving one is no longer promoted.
    void stop(Ticket& ticket, bool has_yielded, uint64_t now_ms);
    void leave(Ticket& ticket, uint64_t now_ms);
    void promote(Ticket& ticket);
    void charge(const Ticket& ticket, uint64_t cost);

    struct Candidate {
        uint32_t index = 0;  // the caller's
        const Ticket* ticket = nullptr;
        int32_t priority = 0;      // lower: earlier
        bool was_running = false;  // lost its blocks to an older one: before those that never ran
        uint64_t arrival = 0;      // order of arrival
        uint64_t arrived_ms = 0;
        uint64_t cost = 0;         // the prompt's, charged when it starts
        bool is_starving = false;  // set by order()
    };
    // Moves the first n in the order of admission to the front, in that order.
    void order(std::vector<Candidate>& candidates, size_t n, uint64_t now_ms) const;

    // A request that runs from now on has so many rows to compute before it decodes.
    void begin_prompt(Ticket& ticket, uint32_t n_rows);
    void computed(const Ticket& ticket, uint32_t n_rows);  // n_rows of its prompt
    // Returns true if a running one should be promoted that last had rows at served_ms.
    bool starves_running(const Ticket& ticket, uint64_t served_ms, uint64_t now_ms) const;

    struct Prompt {
        uint32_t index = 0;  // the caller's
        const Ticket* ticket = nullptr;
        int32_t priority = 0;
        uint64_t arrival = 0;
        uint32_t n_left = 0;       // rows, not 0
        bool is_waiting = false;   // would begin with its first rows
        bool is_starving = false;  // or promoted

        std::pair<bool, int32_t> rank() const { return {!is_starving, is_starving ? 0 : priority}; }
    };
    // Deals n_rows of a step, in this order. A waiting prompt comes only after those before it in the order of
    // admission. The running ones come once more at the end, for rows that the others could not take.
    std::vector<PromptChunk> deal(std::span<const Prompt> prompts, uint32_t n_rows);

    uint64_t starvation_ms() const { return starvation_ms_; }
    size_t n_tenants() const { return tenants_.size(); }
    uint64_t cost_of(const std::string& tenant) const;

  private:
    struct Share {
        uint64_t cost = 0;
        uint32_t n_waiting = 0;
        uint32_t n_requests = 0;
        uint64_t rows = 0;       // of its prompts
        uint64_t last_deal = 0;  // in which it had prompts
    };
    struct Adapter : Share {};
    struct Level {
        uint32_t n_running = 0;
        uint32_t n_requests = 0;
        uint64_t served_ms = 0;  // when the last one stopped running
    };
    struct Tenant : Share {
        std::map<std::string, Adapter> adapters;
        std::map<int32_t, Level> levels;          // by priority
        uint64_t floor = 0;                       // the floor for its adapters
        uint64_t rows_begin = 0, rows_floor = 0;  // for its adapters, see below
        uint32_t n_promoted = 0;                  // not ended yet
    };

    template <typename Shares>
    static void begin_waiting(Shares& shares, Share& share, uint64_t floor);
    void begin_deal(std::span<const Prompt> prompts);
    class Deal;
    using Charges = std::map<const Share*, uint64_t>;  // for those chosen before
    void order_by_share(std::span<Candidate> same, size_t n, Charges& charges) const;
    bool starves(const Candidate& candidate, uint64_t now_ms) const;

    static constexpr uint32_t kAdaptersAhead = 8;

    const uint64_t starvation_ms_;
    const uint32_t n_ahead_;
    std::map<std::string, Tenant> tenants_;     // with requests, and those that are still ahead
    uint64_t floor_ = 0;                        // cost of the tenant that was served last
    uint64_t rows_begin_ = 0, rows_floor_ = 0;  // rows with which one begins; of the one that has had most
    uint64_t n_deals_ = 1;
};

}  // namespace lorad::server
