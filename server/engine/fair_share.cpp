#include "server/engine/fair_share.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "proto/base/check.h"

namespace lorad::server {
namespace {

// Tenants and adapters without requests are remembered while they are ahead of the others, but not
// more of them than this.
constexpr size_t kIdleMax = 1024;

template <typename Shares>
void forget_idle_of(Shares& shares, uint64_t floor, uint64_t rows_floor) {
    if (shares.size() < 16) return;
    bool too_many = shares.size() > kIdleMax;
    std::erase_if(shares, [&](const auto& entry) {
        const auto& share = entry.second;
        return share.n_requests == 0 && (too_many || (share.cost <= floor && share.rows <= rows_floor));
    });
}

}  // namespace

// Idle time earns no credit: a share that had nothing waiting begins at the least cost of those that have.
template <typename Shares>
void FairShare::begin_waiting(Shares& shares, Share& share, uint64_t floor) {
    if (share.n_waiting++ > 0) return;
    constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
    uint64_t least = kNone;
    for (const auto& [name, other] : shares) {
        if (other.n_waiting > 0 && static_cast<const Share*>(&other) != &share) least = std::min(least, other.cost);
    }
    share.cost = std::max(share.cost, least == kNone ? floor : least);
}

FairShare::Ticket FairShare::enter(const std::string& tenant, const std::string& adapter, int32_t priority) {
    forget_idle_of(tenants_, floor_, rows_begin_);
    Ticket ticket;
    ticket.tenant = &tenants_[tenant];
    forget_idle_of(ticket.tenant->adapters, ticket.tenant->floor, ticket.tenant->rows_begin);
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
        std::erase_if(tenant.levels, [&](const auto& entry) { return &entry.second == ticket.level; });
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

void FairShare::begin_prompt(Ticket& ticket, uint32_t n_rows) { ticket.prompt_end = ticket.adapter->rows + n_rows; }

void FairShare::computed(const Ticket& ticket, uint32_t n_rows) {
    Tenant& tenant = *ticket.tenant;
    tenant.rows += n_rows;
    ticket.adapter->rows += n_rows;
    rows_floor_ = std::max(rows_floor_, tenant.rows);
    tenant.rows_floor = std::max(tenant.rows_floor, ticket.adapter->rows);
}

// Idle time earns no credit here either: a share without prompts in the deal before begins at the least of those that
// had some, and are served now.
void FairShare::begin_deal(std::span<const Prompt> prompts) {
    ++n_deals_;
    constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
    const auto best = std::ranges::min(prompts, {}, &Prompt::rank).rank();
    auto had_prompts = [&](const Share& share) { return share.last_deal + 1 == n_deals_; };
    rows_begin_ = kNone;
    for (const Prompt& prompt : prompts) prompt.ticket->tenant->rows_begin = kNone;
    for (const Prompt& prompt : prompts) {
        Tenant& tenant = *prompt.ticket->tenant;
        const Adapter& adapter = *prompt.ticket->adapter;
        if (prompt.rank() != best) continue;
        if (had_prompts(tenant)) rows_begin_ = std::min(rows_begin_, tenant.rows);
        if (had_prompts(adapter)) tenant.rows_begin = std::min(tenant.rows_begin, adapter.rows);
    }
    if (rows_begin_ == kNone) rows_begin_ = rows_floor_;
    auto begin = [&](Share& share, uint64_t rows) {
        if (share.last_deal + 1 < n_deals_) share.rows = std::max(share.rows, rows);
        share.last_deal = n_deals_;
    };
    for (const Prompt& prompt : prompts) {
        Tenant& tenant = *prompt.ticket->tenant;
        if (tenant.rows_begin == kNone) tenant.rows_begin = tenant.rows_floor;
        begin(tenant, rows_begin_);
        begin(*prompt.ticket->adapter, tenant.rows_begin);
    }
}

bool FairShare::starves_running(const Ticket& ticket, uint64_t served_ms, uint64_t now_ms) const {
    return starvation_ms_ > 0 && ticket.tenant->n_promoted == 0 && now_ms >= served_ms + starvation_ms_;
}

// The rows of one step while they are dealt out: counts as they would be.
class FairShare::Deal {
  public:
    Deal(const FairShare& fair, std::span<const Prompt> prompts) : n_ahead_(fair.n_ahead_) {
        for (const Prompt& prompt : prompts) {
            Group& its_tenant = group(*prompt.ticket->tenant);
            Group& its_adapter = group(*prompt.ticket->adapter);
            uint64_t end = prompt.is_waiting ? its_adapter.rows + prompt.n_left : prompt.ticket->prompt_end;
            entries_.push_back({&prompt, prompt.n_left, end, &its_tenant, &its_adapter});
            if (!prompt.is_waiting) n_open_ = n_running_ = entries_.size();
        }
    }

    std::vector<PromptChunk> chunks(uint32_t n_rows) {
        deal(entries_, n_rows);
        // For rows that waiting ones could not take.
        std::span<Entry> running = std::span(entries_).first(n_running_);
        deal(running, n_rows);
        for (const Entry& entry : running) {
            if (entry.n_left > 0) add_chunk(entry, entry.n_left);
        }
        return std::move(chunks_);
    }

  private:
    static constexpr uint32_t kPortion = 64;  // of long prompts that are dealt side by side

    struct Entry;
    struct Group {  // a tenant's or an adapter's
        uint64_t rows = 0;
        Entry* head = nullptr;  // who of it is next
    };
    struct Entry {
        const Prompt* prompt;
        uint32_t n_left;
        uint64_t end;
        Group *tenant, *adapter;

        // The counts once it has had what it wants now.
        uint64_t adapter_key(uint64_t n_ahead) const {
            return adapter->rows + std::min<uint64_t>(n_left, n_ahead * kAdaptersAhead);
        }
        uint64_t tenant_key(uint64_t n_ahead) const { return tenant->rows + std::min<uint64_t>(n_left, n_ahead); }
    };

    Group& group(const Share& share) { return groups_.try_emplace(&share, Group{share.rows, nullptr}).first->second; }

    void deal(std::span<Entry> entries, uint32_t n_rows) {
        for (Entry* entry = next(entries); entry != nullptr && n_rows > 0; entry = next(entries)) {
            uint32_t n = std::min(n_rows, entry->n_left);
            if (entry->n_left > n_ahead_) n = std::min(n, kPortion);
            if (const size_t i = static_cast<size_t>(entry - entries.data()); i >= n_open_) {
                // The waiting one that is admitted first begins for the sake of those behind it.
                if (i > n_open_) {
                    entry = &entries[n_open_];
                    n = std::min({n_rows, entry->n_left, kPortion});
                }
                ++n_open_;
            }
            entry->n_left -= n;
            entry->tenant->rows += n;
            entry->adapter->rows += n;
            n_rows -= n;
            add_chunk(*entry, n);
        }
    }

    // Returns the next entry of the best rank: the head of the next adapter of the next tenant.
    Entry* next(std::span<Entry> entries) {
        std::optional<std::pair<bool, int32_t>> best;
        for (Entry& entry : entries) {
            if (entry.n_left > 0) best = best ? std::min(*best, entry.prompt->rank()) : entry.prompt->rank();
            entry.tenant->head = entry.adapter->head = nullptr;
        }
        auto take_lesser = [](Entry*& head, Entry& entry, auto key) {
            auto full_key = [&](const Entry& e) { return std::pair(key(e), e.prompt->arrival); };
            if (head == nullptr || full_key(entry) < full_key(*head)) head = &entry;
        };
        for (Entry& entry : entries) {
            if (entry.n_left > 0 && entry.prompt->rank() == best)
                take_lesser(entry.adapter->head, entry, [](const Entry& e) { return e.end; });
        }
        for (Entry& entry : entries) {
            if (entry.adapter->head == &entry)
                take_lesser(entry.tenant->head, entry, [&](const Entry& e) { return e.adapter_key(n_ahead_); });
        }
        Entry* first = nullptr;
        for (Entry& entry : entries) {
            if (entry.tenant->head == &entry)
                take_lesser(first, entry, [&](const Entry& e) { return e.tenant_key(n_ahead_); });
        }
        return first;
    }

    void add_chunk(const Entry& entry, uint32_t n) {
        if (chunks_.empty() || chunks_.back().index != entry.prompt->index) chunks_.push_back({entry.prompt->index, 0});
        chunks_.back().n_rows += n;
    }

    const uint32_t n_ahead_;
    std::map<const Share*, Group> groups_;
    std::vector<Entry> entries_;         // the running ones, then the waiting ones
    size_t n_running_ = 0, n_open_ = 0;  // the running ones; and the waiting ones begun
    std::vector<PromptChunk> chunks_;
};

std::vector<PromptChunk> FairShare::deal(std::span<const Prompt> prompts, uint32_t n_rows) {
    if (prompts.empty()) return {};
    begin_deal(prompts);
    return Deal(*this, prompts).chunks(n_rows);
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

// `same` is in the order of arrival. A chosen one counts at once, as it will when it starts.
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
        auto [tenant, is_new] = index.emplace(ticket.tenant, static_cast<uint32_t>(tenants.size()));
        if (is_new) tenants.push_back({.cost = ticket.tenant->cost + charges[ticket.tenant]});
        TenantQueue& queue = tenants[tenant->second];
        auto [adapter, is_new_adapter] =
            queue.index.emplace(ticket.adapter, static_cast<uint32_t>(queue.adapters.size()));
        if (is_new_adapter) queue.adapters.push_back({.cost = ticket.adapter->cost + charges[ticket.adapter]});
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
