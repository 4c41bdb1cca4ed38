// The planning half of the engine: who runs, who is admitted with which blocks of the prefix cache,
// who gives its blocks back.
#include <algorithm>
#include <set>
#include <tuple>

#include "proto/base/format.h"
#include "server/engine/engine.h"

namespace lorad::server {
namespace {

// Sorted names, comma-separated; the base is not one of them.
template <typename Sequences>
std::string adapter_names(const Sequences& sequences) {
    std::set<std::string> names;
    for (const auto& sequence : sequences) {
        if (!sequence->request.adapter.name.empty()) names.insert(sequence->request.adapter.name);
    }
    return format("{}", fmt::join(names, ","));
}

// The order in which sequences are computed, and keep their blocks when there are too few.
bool comes_before(const std::unique_ptr<Sequence>& a, const std::unique_ptr<Sequence>& b) {
    auto rank = [](const Sequence& s) {
        bool promoted = s.ticket.promoted();
        return std::tuple(!promoted, promoted ? 0 : s.request.priority, s.arrival);
    };
    return rank(*a) < rank(*b);
}

// A sequence yields to a starving one only after it has generated this many tokens since it was
// admitted, so that even those that always have to yield come to their end.
constexpr uint32_t kYieldTokens = 64;

// The most per step: each is looked up in the prefix cache first.
constexpr size_t kAdmittedMax = 32;

}  // namespace

// Orders the waiting sequences that may be admitted. One whose last token is not known yet cannot be computed.
void Engine::order_waiting() {
    order_.clear();
    size_t n_places = options_.limits.n_sequences_max - running_.size();
    uint64_t time_ms = now_ms();
    // Without a free place only a starving one can be admitted, which is not worth checking at each step.
    if (n_places == 0 && (fair_share_.starvation_ms() == 0 || time_ms < next_starvation_look_ms_)) return;
    next_starvation_look_ms_ = time_ms + fair_share_.starvation_ms() / 64;
    for (uint32_t i = 0; i < waiting_.size(); ++i) {
        const Sequence& sequence = *waiting_[i];
        if (sequence.tokens.back() < 0) continue;
        order_.push_back({.index = i,
                          .ticket = &sequence.ticket,
                          .priority = sequence.request.priority,
                          .was_running = sequence.lost_blocks,
                          .arrival = sequence.arrival,
                          .arrived_ms = sequence.arrived_ms,
                          .cost = sequence.was_admitted ? 0 : sequence.request.prompt.size() * kPromptTokenCost});
    }
    if (order_.empty()) return;
    // Later ones could not be admitted in this step anyway; the first may make others yield.
    n_places = std::clamp<size_t>(n_places, 1, kAdmittedMax);
    fair_share_.order(order_, n_places, time_ms);
    if (order_.size() > n_places) order_.resize(n_places);
}

// The outputs of a step that are there for prompts, shared by the sequences that may want them.
uint32_t Engine::prompt_rows_max() const {
    auto wants = [](const Sequence& sequence) { return sequence.wants_prompt_outputs(); };
    auto n =
        std::count_if(running_.begin(), running_.end(), [&](const auto& sequence) { return wants(*sequence); }) +
        std::count_if(order_.begin(), order_.end(), [&](const auto& next) { return wants(*waiting_[next.index]); });
    return 1 + (n == 0 ? 0 : options_.n_prompt_outputs_max / static_cast<uint32_t>(n));
}

// Looks up the sequence's prefix in the prefix cache.
PrefixCache::Match Engine::find_prefix(Sequence& sequence) {
    Request& request = sequence.request;
    if (!options_.prefix_cache || !request.may_skip_prefix) return {};
    request.prefix.extend(sequence.known_tokens());
    // At least one token is computed: its logits are what the request waits for.
    size_t n_usable = (sequence.n_known() - 1) / options_.limits.block_tokens;
    std::span<const BlockIdentity> prefix = request.prefix.blocks();
    bool or_merged = merged_ && merged_->uses == request.adapter.uses;
    prefix = prefix.first(std::min(prefix.size(), n_usable));
    const PrefixCache::Match match = blocks_.find(prefix, or_merged);
    return options_.has_state || options_.groups.has_windows() ? shorten(sequence, match, prefix, or_merged) : match;
}

void Engine::take_prefix(Sequence& sequence, const PrefixCache::Match& match) {
    blocks_.take(match, sequence.request.prefix.blocks(), sequence.blocks);
    sequence.n_published = match.n_blocks;
    sequence.n_computed = match.n_blocks * options_.limits.block_tokens;
    if (match.n_unmerged < match.n_blocks) sequence.first_merged_block = match.n_unmerged;
    if (options_.has_state) take_state(sequence, match);
    if (options_.groups.has_windows()) take_windows(sequence, match);
}

// Includes the blocks that the prefix cache has for it; they go to matches_.
SequenceView Engine::waiting_view(Sequence& sequence, uint32_t n_prompt_rows_max) {
    SequenceView view = sequence.view(n_prompt_rows_max);
    const PrefixCache::Match match = find_prefix(sequence);
    view.n_computed = match.n_blocks * options_.limits.block_tokens;
    view.n_blocks = match.n_blocks;
    view.n_idle_blocks = match.n_idle;
    matches_.push_back(match);
    return view;
}

// Makes the scheduler's input: the running sequences, and those that could be admitted now.
void Engine::make_views() {
    running_views_.clear();
    waiting_views_.clear();
    matches_.clear();
    order_waiting();
    uint32_t n_prompt_rows_max = prompt_rows_max();
    uint64_t time_ms = now_ms(), fair_time_ms = fair_share_.starvation_ms();
    n_held_ = static_cast<uint32_t>(
        std::ranges::count_if(running_, [](const auto& sequence) { return sequence->choice.is_held(); }));
    for (const auto& sequence : running_) {
        SequenceView view = sequence->view(n_prompt_rows_max);
        uint32_t n_gained = sequence->n_generated - sequence->n_generated_before;
        view.may_yield =
            fair_time_ms > 0 && time_ms >= sequence->admitted_ms + fair_time_ms && n_gained >= kYieldTokens;
        running_views_.push_back(view);
    }
    for (size_t i = 0; i < order_.size(); ++i) {
        waiting_views_.push_back(waiting_view(*waiting_[order_[i].index], n_prompt_rows_max));
        waiting_views_.back().is_starving = order_[i].is_starving;
    }
}

// Deals out the rows that a step has for prompts.
void Engine::deal_prompts() {
    prompts_.clear();
    const uint32_t n_decodes = static_cast<uint32_t>(std::ranges::count_if(running_views_, &SequenceView::is_decode));
    for (uint32_t i = 0; i < running_views_.size(); ++i) {
        SequenceView& view = running_views_[i];
        if (view.n_known > view.n_computed + 1) add_prompt(*running_[i], i, view, n_decodes);
    }
    for (uint32_t i = 0; i < waiting_views_.size(); ++i) {
        add_prompt(*waiting_[order_[i].index], static_cast<uint32_t>(running_.size()) + i, waiting_views_[i],
                   n_decodes);
        prompts_.back().is_waiting = true;
        prompts_.back().is_starving = order_[i].is_starving;
    }
    prompt_chunks_ = fair_share_.deal(prompts_, options_.limits.n_rows_max);
}

void Engine::add_prompt(const Sequence& sequence, uint32_t index, SequenceView& view, uint32_t n_decodes) {
    view.n_rows_beside = options_.n_prefill_rows_max > 0 ? options_.n_prefill_rows_max
                                                         : step_times_.n_rows_beside(n_decodes, view.n_computed);
    view.n_rows_alone = step_times_.n_rows_alone(view.n_computed);
    if (prompts_.empty()) metrics_.set_prefill_chunk(view.n_rows_beside);
    prompts_.push_back({.index = index,
                        .ticket = &sequence.ticket,
                        .priority = sequence.request.priority,
                        .arrival = sequence.arrival,
                        .n_left = sequence.n_known() - view.n_computed,
                        .is_starving = sequence.ticket.promoted()});
}

// The cost of the step being made, which has no decodes, in rows.
double Engine::n_prompt_rows(const Flight& flight) const {
    double n = 0;
    for (const Planned& planned : planned_) {
        const Sequence& sequence = *planned.sequence;
        n += step_times_.n_equivalent(planned.n_rows, sequence.n_computed, flight.prompt_context);
    }
    return n;
}

// A prompt that others have kept from getting on goes before all of them.
void Engine::promote_starving_prompts() {
    bool promoted = false;
    const uint64_t time_ms = now_ms();
    for (const auto& sequence : running_) {
        if (sequence->n_known() <= sequence->n_computed + 1 || sequence->ticket.promoted()) continue;
        if (!fair_share_.starves_running(sequence->ticket, sequence->served_ms, time_ms)) continue;
        fair_share_.promote(sequence->ticket);
        promoted = true;
    }
    if (promoted) std::ranges::stable_sort(running_, comes_before);
}

// Texts that are no longer short, or never were: those that run are computed again, in their places.
void Engine::restart_long_texts() {
    if (options_.n_short_text_tokens == 0) return;
    const auto has_grown = [&](const Sequence& sequence) {
        return !sequence.is_long && sequence.n_known() > options_.n_short_text_tokens;
    };
    const auto lengthen = [](Sequence& sequence) {
        sequence.is_long = true;
        sequence.request.prefix.lengthen();
    };
    for (auto& sequence : waiting_) {
        if (has_grown(*sequence)) lengthen(*sequence);
    }
    for (auto& sequence : running_) {
        if (!has_grown(*sequence)) continue;
        release_blocks(*sequence);  // under the identities of the short text
        lengthen(*sequence);
        take_prefix(*sequence, find_prefix(*sequence));
        fair_share_.begin_prompt(sequence->ticket, sequence->n_known() - sequence->n_computed);
    }
}

bool Engine::plan_and_apply() {
    planned_.clear();
    n_held_ = 0;
    restart_long_texts();
    promote_starving_prompts();
    // Before prefixes are looked up: naming a state may take another one away, which must be there when it is taken.
    for (const auto& sequence : running_) publish_states(*sequence);
    while (!running_.empty() || !waiting_.empty()) {
        make_views();
        deal_prompts();
        StepPlan plan = plan_step(running_views_, waiting_views_, blocks_.n_free(), options_.limits,
                                  blocks_.n_holders(), prompt_chunks_);
        // Every sequence may be waiting for its last token; without a step in flight the first
        // always gets rows, unless it waits for a mask. Who yields may have been the only one with rows.
        CHECK(!plan.rows.empty() || plan.has_yielded || !in_flight_.empty() || n_held_ > 0);
        apply(plan);
        if (!plan.rows.empty()) return true;
        if (!plan.has_yielded) return false;
    }
    return false;
}

void Engine::apply(const StepPlan& plan) {
    for (const PlannedRows& rows : plan.rows) {
        Sequence& sequence = rows.index < running_.size() ? *running_[rows.index]
                                                          : *waiting_[order_[rows.index - running_.size()].index];
        planned_.push_back({&sequence, rows.n_rows});
    }
    for (uint32_t index : plan.preempted) {
        preempt(*running_[index], plan.has_yielded && index == plan.preempted.back());
        waiting_.push_back(std::move(running_[index]));
    }
    std::erase(running_, nullptr);
    // Blocks found by the admitted ones are held before anything is allocated, as that may evict idle blocks.
    admit(plan.n_admitted);
    for (const auto& sequence : running_) {
        if (options_.groups.has_windows()) give_back_windows(*sequence);
    }
    for (size_t i = 0; i < plan.rows.size(); ++i) {
        CHECK(blocks_.allocate(plan.rows[i].n_new_blocks, planned_[i].sequence->blocks));
        if (options_.groups.has_windows()) allocate_windows(*planned_[i].sequence);
    }
}

void Engine::preempt(Sequence& sequence, bool has_yielded) {
    release_blocks(sequence);
    sequence.lost_blocks = !has_yielded;
    fair_share_.stop(sequence.ticket, has_yielded, now_ms());
    metrics_.on_preempted(has_yielded);
}

// The first n of the order join the running ones, with what the prefix cache has for them.
void Engine::admit(uint32_t n_admitted) {
    uint32_t n_first_admitted = 0;
    uint64_t n_prompt_tokens = 0;
    for (uint32_t i = 0; i < n_admitted; ++i) {
        std::unique_ptr<Sequence> owned = std::move(waiting_[order_[i].index]);
        Sequence& sequence = *owned;
        take_prefix(sequence, matches_[i]);
        fair_share_.start(sequence.ticket);
        if (order_[i].is_starving) fair_share_.promote(sequence.ticket);
        sequence.admitted_ms = now_ms();
        sequence.served_ms = sequence.admitted_ms;
        sequence.n_generated_before = sequence.n_generated;
        fair_share_.begin_prompt(sequence.ticket, sequence.n_known() - sequence.n_computed);
        sequence.lost_blocks = false;
        if (!sequence.was_admitted) {
            ++n_first_admitted;
            sequence.was_admitted = true;
            sequence.request.queue_place.reset();
            sequence.started = time_now();
            uint32_t n_prompt = static_cast<uint32_t>(sequence.request.prompt.size());
            n_prompt_tokens += n_prompt;
            sequence.n_cached_tokens = std::min(sequence.n_computed, n_prompt);
            fair_share_.charge(sequence.ticket, (n_prompt - sequence.n_cached_tokens) * kPromptTokenCost);
            if (options_.prefix_cache) metrics_.on_prefix_lookup(n_prompt, sequence.n_cached_tokens);
        }
        begin_mask(sequence);
        auto place = std::upper_bound(running_.begin(), running_.end(), owned, comes_before);
        running_.insert(place, std::move(owned));
    }
    if (n_admitted > 0) std::erase(waiting_, nullptr);
    if (n_first_admitted > 0) queue_.leave_waiting(n_first_admitted, n_prompt_tokens);
}

void Engine::release_blocks(Sequence& sequence) {
    publish_blocks(sequence);
    release_state(sequence);
    blocks_.release(sequence.blocks);
    sequence.blocks.clear();
    windows_.release(held_windows(sequence));
    sequence.window_blocks.clear();
    sequence.n_given_back = 0;
    sequence.last_step = 0;  // the step in flight sees blocks that it no longer has
    sequence.n_published = sequence.n_computed = 0;
    sequence.first_merged_block = Sequence::kNoBlock;
}

// Tells the prefix cache of blocks that have become full and whose tokens are all known.
void Engine::publish_blocks(Sequence& sequence) {
    PrefixIdentity& prefix = sequence.request.prefix;
    if (!options_.prefix_cache || !prefix.is_shared()) return;
    std::span<const TokenId> known = sequence.known_tokens();
    // The last row of one with a grammar may be computed again.
    const uint32_t n_settled = sequence.n_computed - (sequence.request.constraint && sequence.n_computed > 0 ? 1 : 0);
    uint32_t n_full = std::min(n_settled, static_cast<uint32_t>(known.size())) / options_.limits.block_tokens;
    if (n_full <= sequence.n_published) return;
    prefix.extend(known);
    for (uint32_t i = sequence.n_published; i < n_full; ++i) {
        const bool is_merged = i >= sequence.first_merged_block;
        blocks_.publish(sequence.blocks[i], prefix.blocks()[i], is_merged);
        if (i >= sequence.n_given_back && i < sequence.window_blocks.size())
            windows_.publish(sequence.window_blocks[i], prefix.blocks()[i], is_merged);
    }
    sequence.n_published = n_full;
}

void Engine::update_gauges() {
    // The queue counts those that never ran; the preempted ones wait as well.
    auto n_preempted = std::count_if(waiting_.begin(), waiting_.end(), [](const auto& s) { return s->was_admitted; });
    metrics_.set_requests(static_cast<uint32_t>(running_.size()),
                          queue_.n_waiting() + static_cast<uint32_t>(n_preempted));
    metrics_.set_kv_blocks(blocks_.n_used(), blocks_.n_idle());
    metrics_.set_window_blocks(windows_.n_used());
    metrics_.set_snapshots(snapshots_.n_named(), snapshots_.n_evicted());
    metrics_.set_waiting_tokens(queue_.n_waiting_tokens());
    std::string running = adapter_names(running_);
    std::string waiting = adapter_names(waiting_);
    if (running == active_running_ && waiting == active_waiting_) return;
    active_running_ = running;
    active_waiting_ = waiting;
    metrics_.set_active_adapters(std::move(running), std::move(waiting));
}

}  // namespace lorad::server
