#include "server/engine/fair_share.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <set>
#include <tuple>

#include "proto/base/check.h"

namespace lorad::server {
namespace {

// Tenants and adapters without requests are remembered while they are ahead of the others, but not
// more of them than this.
constexpr size_t kIdleMax = 1024;

template <typename Shares>
void forget_idle_of(Shares& shares, uint64_t floor) {
    if (shares.size() < 16) return;
    bool too_many = shares.size() > kIdleMax;
    std::erase_if(shares, [&](const auto& entry) {
        return entry.second.n_requests == 0 && (too_many || entry.second.cost <= floor);
    });
}

}  // namespace

// Nothing is saved up: whoever had nothing waiting begins at the least of those that have.
template <typename Shares>
void FairShare::begin_waiting(Shares& shares, Share& share, uint64_t floor) {
    if (share.n_waiting++ > 0) return;
    constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
    uint64_t least = kNone;
    for (const auto& [name, other] : shares) {
        if (other.n_waiting > 0 && static_cast<const Share*>(&other) != &share)
            least = std::min(least, other.cost);
    }
    share.cost = std::max(share.cost, least == kNone ? floor : least);
}

FairShare::Ticket FairShare::enter(const std::string& tenant, const std::string& adapter,
                                   int32_t priority) {
    forget_idle_of(tenants_, floor_);
    Ticket ticket;
    ticket.tenant = &tenants_[tenant];
    forget_idle_of(ticket.tenant->adapters, ticket.tenant->floor);
    ticket.adapter = &ticket.tenant->adapters[adapter];
    ticket.level = &ticket.tenant->levels[priority];
    ++ticket.tenant->n_requests;
    ++ticket.adapter->n_requests;
    ++ticket.level->n_requests;
    begin_waiting(tenants_, *ticket.tenant, floor_);
    begin_waiting(ticket.tenant->adapters, *ticket.adapter, ticket.tenant->floor);
    return ticket;
}

void FairShare::start(Ticket& ticket) {
    CHECK(!ticket.is_running);
    ticket.is_running = true;
    --ticket.tenant->n_waiting;
    --ticket.adapter->n_waiting;
    ++ticket.level->n_running;
    floor_ = std::max(floor_, ticket.tenant->cost);
    ticket.tenant->floor = std::max(ticket.tenant->floor, ticket.adapter->cost);
}

void FairShare::stop(Ticket& ticket, bool has_yielded, uint64_t now_ms) {
    CHECK(ticket.is_running);
    ticket.is_running = false;
    if (has_yielded && ticket.is_promoted) {
        ticket.is_promoted = false;
        --ticket.tenant->n_promoted;
    }
    --ticket.level->n_running;
    ticket.level->served_ms = now_ms;
    begin_waiting(tenants_, *ticket.tenant, floor_);
    begin_waiting(ticket.tenant->adapters, *ticket.adapter, ticket.tenant->floor);
}

void FairShare::leave(Ticket& ticket, uint64_t now_ms) {
    CHECK(ticket.tenant != nullptr);
    Tenant& tenant = *ticket.tenant;
    if (ticket.is_running) {
        --ticket.level->n_running;
        ticket.level->served_ms = now_ms;
    } else {
        --tenant.n_waiting;
        --ticket.adapter->n_waiting;
    }
    if (ticket.is_promoted) --tenant.n_promoted;
    --tenant.n_requests;
    --ticket.adapter->n_requests;
    if (--ticket.level->n_requests == 0) {
        std::erase_if(tenant.levels,
                      [&](const auto& entry) { return &entry.second == ticket.level; });
    }
    ticket = Ticket();
}

void FairShare::promote(Ticket& ticket) {
    if (ticket.is_promoted) return;
    ticket.is_promoted = true;
    ++ticket.tenant->n_promoted;
}

void FairShare::charge(const Ticket& ticket, uint64_t cost) {
    ticket.tenant->cost += cost;
    ticket.adapter->cost += cost;
}

uint64_t FairShare::cost_of(const std::string& tenant) const {
    auto found = tenants_.find(tenant);
    return found == tenants_.end() ? 0 : found->second.cost;
}

bool FairShare::starves(const Candidate& candidate, uint64_t now_ms) const {
    if (starvation_ms_ == 0) return false;
    const Ticket& ticket = *candidate.ticket;
    if (ticket.tenant->n_promoted > 0 || ticket.level->n_running > 0) return false;
    return now_ms >= std::max(candidate.arrived_ms, ticket.level->served_ms) + starvation_ms_;
}

void FairShare::order(std::vector<Candidate>& candidates, size_t n, uint64_t now_ms) const {
    n = std::min(n, candidates.size());
    std::ranges::sort(candidates, {}, [](const Candidate& c) { return c.arrival; });
    std::set<const Tenant*> with_starving;
    for (Candidate& candidate : candidates) {
        candidate.is_starving = candidate.ticket->is_promoted;
        if (!candidate.is_starving && starves(candidate, now_ms))
            candidate.is_starving = with_starving.insert(candidate.ticket->tenant).second;
    }
    auto rank = [](const Candidate& c) {
        return std::tuple(!c.is_starving, c.is_starving ? 0 : c.priority, !c.was_running);
    };
    std::ranges::stable_sort(candidates, {}, rank);
    Charges charges;
    for (size_t begin = 0; begin < n;) {
        size_t end = begin;
        while (end < candidates.size() && rank(candidates[end]) == rank(candidates[begin])) ++end;
        if (!candidates[begin].was_running)
            order_by_share(std::span(candidates).subspan(begin, end - begin), n - begin, charges);
        begin = end;
    }
}

// Of candidates in order of arrival. Each that is chosen counts at once, as it will when it starts.
void FairShare::order_by_share(std::span<Candidate> same, size_t n, Charges& charges) const {
    struct Queue {
        uint64_t cost = 0;
        std::deque<uint32_t> waiting;  // into `same`
    };
    struct TenantQueue {
        uint64_t cost = 0;
        std::map<const Adapter*, uint32_t> index;
        std::vector<Queue> adapters;  // in order of their first arrival
        uint32_t n_waiting = 0;
    };
    std::map<const Tenant*, uint32_t> index;
    std::vector<TenantQueue> tenants;
    for (uint32_t i = 0; i < same.size(); ++i) {
        const Ticket& ticket = *same[i].ticket;
        auto [tenant, is_new] = index.emplace(ticket.tenant, uint32_t(tenants.size()));
        if (is_new)
            tenants.push_back({.cost = ticket.tenant->cost + charges[ticket.tenant]});
        TenantQueue& queue = tenants[tenant->second];
        auto [adapter, is_new_adapter] =
            queue.index.emplace(ticket.adapter, uint32_t(queue.adapters.size()));
        if (is_new_adapter)
            queue.adapters.push_back({.cost = ticket.adapter->cost + charges[ticket.adapter]});
        queue.adapters[adapter->second].waiting.push_back(i);
        ++queue.n_waiting;
    }
    // First by cost, then by arrival; a set, so that the next one is at its front.
    std::set<std::pair<uint64_t, uint32_t>> next;
    for (uint32_t i = 0; i < tenants.size(); ++i) next.insert({tenants[i].cost, i});
    std::vector<Candidate> ordered;
    std::vector<bool> chosen(same.size(), false);
    while (ordered.size() < n && !next.empty()) {
        uint32_t which = next.extract(next.begin()).value().second;
        TenantQueue& tenant = tenants[which];
        Queue* queue = nullptr;
        for (Queue& one : tenant.adapters) {
            if (!one.waiting.empty() && (queue == nullptr || one.cost < queue->cost)) queue = &one;
        }
        uint32_t i = queue->waiting.front();
        queue->waiting.pop_front();
        queue->cost += same[i].cost;
        tenant.cost += same[i].cost;
        charges[same[i].ticket->tenant] += same[i].cost;
        charges[same[i].ticket->adapter] += same[i].cost;
        if (--tenant.n_waiting > 0) next.insert({tenant.cost, which});
        chosen[i] = true;
        ordered.push_back(same[i]);
    }
    for (uint32_t i = 0; i < same.size(); ++i) {
        if (!chosen[i]) ordered.push_back(same[i]);
    }
    std::ranges::copy(ordered, same.begin());
}

}  // namespace lorad::server
