// The engine's part in recurrent states (model/exec/state_cache.h): each running sequence has a slot, and the prefix
// cache has snapshots of states at the ends of blocks, where a text that begins the same goes on. Where they are made,
// of a sequence of whole blocks:
//
//   - at the end of its prompt, but for the words that a chat template puts behind the last message: they may be others
//       in the next turn
//   - where blocks of its prefix were there, but no state: others begin with these tokens as well
//   - in an answer at the end of the newest block; the one before goes, for nobody comes back to it
//   - of long prompts every snapshot_tokens, the first that make way
#include <algorithm>

#include "proto/base/check.h"
#include "server/engine/engine.h"

namespace lorad::server {
namespace {

constexpr uint32_t kTurnTailTokens = 16;  // at the end of a prompt, that the next turn may not have
constexpr uint32_t kIntervalsMax = 4;     // per prompt

}  // namespace

// Blocks are only found as far as there are a state and a window behind the last of them.
PrefixCache::Match Engine::shorten(Sequence& sequence, const PrefixCache::Match& match,
                                   std::span<const BlockIdentity> prefix, bool or_merged) const {
    const std::vector<bool> has_window =
        options_.groups.has_windows() ? find_windows(match, prefix) : std::vector<bool>();
    const auto goes_on_at = [&](uint32_t n) {
        if (!has_window.empty() && !has_window[n]) return false;
        return !options_.has_state || snapshots_.find({prefix[n - 1], n > match.n_unmerged}) != gpu::kNoState;
    };
    uint32_t n_blocks = match.n_blocks;
    while (n_blocks > 0 && !goes_on_at(n_blocks)) --n_blocks;
    sequence.n_shared_tokens = match.n_blocks * options_.limits.block_tokens;
    return n_blocks == match.n_blocks ? match : blocks_.find(prefix.first(n_blocks), or_merged);
}

// Holds the snapshot behind the blocks of the match, which the sequence has taken.
void Engine::take_state(Sequence& sequence, const PrefixCache::Match& match) {
    if (match.n_blocks == 0) return;
    const uint32_t slot =
        snapshots_.find({sequence.request.prefix.blocks()[match.n_blocks - 1], match.n_unmerged < match.n_blocks});
    CHECK(slot != gpu::kNoState && sequence.state_from == gpu::kNoState);
    snapshots_.hold(slot);
    metrics_.on_snapshot_used();
    sequence.state_from = slot;
}

void Engine::take_state_slot(Sequence& sequence) {
    if (sequence.state_slot != gpu::kNoState) return;
    CHECK(!free_state_slots_.empty() && (sequence.n_computed == 0 || sequence.state_from != gpu::kNoState));
    sequence.state_slot = free_state_slots_.back();
    free_state_slots_.pop_back();
}

// Counts the tokens of its prompt that the next turn will begin with as well.
uint32_t Engine::kept_tokens(const Sequence& sequence) const {
    const size_t n_prompt = sequence.request.prompt.size();
    return n_prompt > kTurnTailTokens ? static_cast<uint32_t>(n_prompt - kTurnTailTokens) /
                                            options_.limits.block_tokens * options_.limits.block_tokens
                                      : 0;
}

// Chooses the states on the way of its next rows that are kept: state_saves_.
void Engine::plan_saved_states(Sequence& sequence, uint32_t n_rows) {
    using Worth = StateSnapshots::Worth;
    state_saves_.clear();
    if (!options_.prefix_cache || !sequence.request.prefix.is_shared()) return;
    const uint32_t block = options_.limits.block_tokens, every = round_up(options_.snapshot_tokens, block);
    const auto whole = [&](uint32_t n_tokens) { return n_tokens / block * block; };
    const uint32_t end = sequence.n_computed + n_rows, n_prompt = static_cast<uint32_t>(sequence.request.prompt.size()),
                   n_kept = kept_tokens(sequence);
    save_state(sequence, n_rows, n_kept, sequence.request.wants_embedding ? Worth::kLow : Worth::kHigh, false);
    save_state(sequence, n_rows, sequence.n_shared_tokens, Worth::kHigh, false);
    if (end >= sequence.known_tokens().size() && whole(end) > n_prompt)
        save_state(sequence, n_rows, whole(end), Worth::kHigh, true);
    const uint32_t last = std::min({end, n_kept, kIntervalsMax * every}) / every;
    for (uint32_t interval = last; interval > 0; --interval)
        save_state(sequence, n_rows, interval * every, Worth::kLow, false);
}

// Has the next step save the state behind n_tokens, if the sequence's next n_rows come by there.
void Engine::save_state(Sequence& sequence, uint32_t n_rows, uint32_t n_tokens, StateSnapshots::Worth worth,
                        bool replaces) {
    if (n_tokens <= sequence.n_computed || n_tokens > sequence.n_computed + n_rows ||
        state_saves_.size() == gpu::kStateSaves)
        return;
    const uint32_t n_behind = n_tokens - sequence.n_computed;
    if (std::ranges::find(state_saves_, n_behind, &gpu::StateSave::n_rows) != state_saves_.end()) return;
    // Answers to one prompt begin together.
    if (n_tokens <= sequence.known_tokens().size()) {
        const StateSnapshots::Name name = state_name(sequence, n_tokens);
        if (snapshots_.find(name) != gpu::kNoState || std::ranges::find(saved_names_, name) != saved_names_.end())
            return;
        saved_names_.push_back(name);
    }
    const uint32_t slot = snapshots_.reserve();
    if (slot == gpu::kNoState) return;
    state_saves_.push_back({n_behind, slot});
    const auto place = std::ranges::upper_bound(sequence.saved_states, n_tokens, {}, &Sequence::SavedState::n_tokens);
    sequence.saved_states.insert(place, {slot, n_tokens, worth, replaces});
}

// Names the state behind n_tokens tokens, which are known.
StateSnapshots::Name Engine::state_name(Sequence& sequence, uint32_t n_tokens) const {
    sequence.request.prefix.extend(sequence.known_tokens());
    const uint32_t last_block = n_tokens / options_.limits.block_tokens - 1;
    return {sequence.request.prefix.blocks()[last_block], last_block >= sequence.first_merged_block};
}

// Names those whose tokens are known; the steps that make them have been submitted.
void Engine::publish_states(Sequence& sequence) {
    std::vector<Sequence::SavedState>& saved = sequence.saved_states;
    if (saved.empty()) return;
    const uint32_t n_known = static_cast<uint32_t>(sequence.known_tokens().size());
    size_t n_named = 0;
    for (; n_named < saved.size() && saved[n_named].n_tokens <= n_known; ++n_named) {
        const Sequence::SavedState& state = saved[n_named];
        const StateSnapshots::Name name = state_name(sequence, state.n_tokens);
        snapshots_.publish(state.slot, name, state.worth);
        if (!state.replaces) continue;
        if (sequence.latest_state && !(*sequence.latest_state == name)) snapshots_.replace(*sequence.latest_state);
        sequence.latest_state = name;
    }
    saved.erase(saved.begin(), saved.begin() + static_cast<ptrdiff_t>(n_named));
}

void Engine::drop_saved_states(Sequence& sequence) {
    for (const Sequence::SavedState& state : sequence.saved_states) snapshots_.drop(state.slot);
    sequence.saved_states.clear();
}

// Takes the names of its blocks and states: their content must not be used again.
void Engine::forget_content(Sequence& sequence) {
    drop_saved_states(sequence);
    for (const BlockIdentity& identity : sequence.request.prefix.blocks()) {
        snapshots_.forget({identity, false});
        snapshots_.forget({identity, true});
        windows_.forget(identity);  // also those that went back behind the window
    }
    blocks_.forget(sequence.blocks);
    sequence.n_published = static_cast<uint32_t>(sequence.blocks.size());
}

void Engine::release_state(Sequence& sequence) {
    publish_states(sequence);
    drop_saved_states(sequence);
    if (sequence.state_from != gpu::kNoState) snapshots_.release(std::exchange(sequence.state_from, gpu::kNoState));
    // Steps run in order: the next user of the slot begins behind the steps that still write it.
    if (sequence.state_slot != gpu::kNoState)
        free_state_slots_.push_back(std::exchange(sequence.state_slot, gpu::kNoState));
}

}  // namespace lorad::server
