// The planning half of the engine: who runs, who is admitted with which blocks of the prefix cache,
// who gives its blocks back.
#include <algorithm>
#include <set>

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

}  // namespace

// What the scheduler is told: who runs, and who could be admitted now with what the prefix cache has
// for them.
void Engine::make_views() {
    running_views_.clear();
    waiting_views_.clear();
    matches_.clear();
    for (const auto& sequence : running_) running_views_.push_back(sequence->view());
    // Later ones could not be admitted in this step anyway.
    size_t n_places = options_.limits.n_sequences_max - running_.size();
    for (size_t i = 0; i < std::min(waiting_.size(), n_places); ++i) {
        Sequence& sequence = *waiting_[i];
        SequenceView view = sequence.view();
        PrefixCache::Match match;
        Request& request = sequence.request;
        if (options_.prefix_cache && request.may_skip_prefix) {
            request.prefix.extend(sequence.known_tokens());
            // At least one token is computed: its logits are what the request waits for.
            size_t n_usable = (sequence.n_known() - 1) / options_.limits.block_tokens;
            std::span<const BlockIdentity> prefix = request.prefix.blocks();
            bool or_merged = merged_ && merged_->uses == request.adapter.uses;
            match = blocks_.find(prefix.first(std::min(prefix.size(), n_usable)), or_merged);
        }
        view.n_computed = match.n_blocks * options_.limits.block_tokens;
        view.n_blocks = match.n_blocks;
        view.n_idle_blocks = match.n_idle;
        waiting_views_.push_back(view);
        matches_.push_back(match);
    }
}

bool Engine::plan_and_apply() {
    planned_.clear();
    if (running_.empty() && waiting_.empty()) return false;
    make_views();
    StepPlan plan = plan_step(running_views_, waiting_views_, blocks_.n_free(), options_.limits,
                              blocks_.n_holders());
    // Every sequence may be waiting for its last token; without a step in flight the oldest always
    // gets rows.
    if (plan.rows.empty()) {
        CHECK(!in_flight_.empty() && plan.preempted.empty());
        return false;
    }
    for (const PlannedRows& rows : plan.rows) {
        Sequence& sequence = rows.index < running_.size() ? *running_[rows.index]
                                                          : *waiting_[rows.index - running_.size()];
        planned_.push_back({&sequence, rows.n_rows});
    }
    for (uint32_t index : plan.preempted) preempt(*running_[index]);
    // What the admitted ones found is held before anything is allocated, which may give up idle
    // blocks.
    admit(plan.n_admitted);
    for (size_t i = 0; i < plan.rows.size(); ++i) {
        CHECK(blocks_.allocate(plan.rows[i].n_new_blocks, planned_[i].sequence->blocks));
    }
    // Youngest first and to the front: they keep their places before everything that arrived later.
    for (uint32_t index : plan.preempted) waiting_.push_front(std::move(running_[index]));
    std::erase(running_, nullptr);
    return true;
}

void Engine::preempt(Sequence& sequence) {
    release_blocks(sequence);
    sequence.n_computed = 0;
    sequence.first_merged_block = Sequence::kNoBlock;
    metrics_.on_preempted();
}

// The first of the waiting ones join the running ones, with what the prefix cache has for them.
void Engine::admit(uint32_t n_admitted) {
    uint32_t n_first_admitted = 0;
    for (uint32_t i = 0; i < n_admitted; ++i) {
        Sequence& sequence = *waiting_.front();
        const PrefixCache::Match& match = matches_[i];
        blocks_.take(match, sequence.request.prefix.blocks(), sequence.blocks);
        sequence.n_published = match.n_blocks;
        sequence.n_computed = match.n_blocks * options_.limits.block_tokens;
        if (match.n_unmerged < match.n_blocks) sequence.first_merged_block = match.n_unmerged;
        if (!sequence.was_admitted) {
            ++n_first_admitted;
            sequence.was_admitted = true;
            uint32_t n_prompt = uint32_t(sequence.request.prompt.size());
            sequence.n_cached_tokens = std::min(sequence.n_computed, n_prompt);
            if (options_.prefix_cache) metrics_.on_prefix_lookup(n_prompt, sequence.n_cached_tokens);
        }
        running_.push_back(std::move(waiting_.front()));
        waiting_.pop_front();
    }
    if (n_first_admitted > 0) queue_.leave_waiting(n_first_admitted);
}

void Engine::release_blocks(Sequence& sequence) {
    publish_blocks(sequence);
    blocks_.release(sequence.blocks);
    sequence.blocks.clear();
    sequence.n_published = 0;
}

// Tells the prefix cache of blocks that have become full and whose tokens are all known.
void Engine::publish_blocks(Sequence& sequence) {
    PrefixIdentity& prefix = sequence.request.prefix;
    if (!options_.prefix_cache || !prefix.is_shared()) return;
    std::span<const TokenId> known = sequence.known_tokens();
    uint32_t n_full =
        std::min(sequence.n_computed, uint32_t(known.size())) / options_.limits.block_tokens;
    if (n_full <= sequence.n_published) return;
    prefix.extend(known);
    for (uint32_t i = sequence.n_published; i < n_full; ++i)
        blocks_.publish(sequence.blocks[i], prefix.blocks()[i], i >= sequence.first_merged_block);
    sequence.n_published = n_full;
}

void Engine::update_gauges() {
    // The queue counts those that never ran; the preempted ones wait as well.
    auto n_preempted = std::count_if(waiting_.begin(), waiting_.end(),
                                     [](const auto& s) { return s->was_admitted; });
    metrics_.set_requests(uint32_t(running_.size()), queue_.n_waiting() + uint32_t(n_preempted));
    metrics_.set_kv_blocks_used(blocks_.n_used());
    std::string running = adapter_names(running_);
    std::string waiting = adapter_names(waiting_);
    if (running == active_running_ && waiting == active_waiting_) return;
    active_running_ = running;
    active_waiting_ = waiting;
    metrics_.set_active_adapters(std::move(running), std::move(waiting));
}

}  // namespace lorad::server
