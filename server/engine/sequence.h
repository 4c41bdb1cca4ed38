// One request while the engine has it. Engine thread only.
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "server/engine/fair_share.h"
#include "server/engine/request.h"
#include "server/engine/scheduler.h"
#include "server/engine/state_snapshots.h"
#include "server/engine/token_choice.h"

namespace lorad::server {

struct Sequence {
    explicit Sequence(Request its_request, bool draws_on_device = true)
        : request(std::move(its_request)),
          tokens(request.prompt.begin(), request.prompt.end()),
          choice(request, draws_on_device) {
        tokens.reserve(request.prompt.size() + std::min(request.n_tokens_max, 4096u));
    }

    static constexpr uint32_t kNoBlock = std::numeric_limits<uint32_t>::max();

    Request request;
    // Prompt, then what was generated; the last ones may be ~output of the steps in flight.
    std::vector<TokenId> tokens;
    ChoiceState choice;
    uint32_t n_computed = 0;      // tokens whose KV entries exist or are being made by a step in flight
    std::vector<BlockId> blocks;  // cover n_computed
    // Blocks of the window group, where there is one: as many, of which the first n_given_back belong to others.
    std::vector<BlockId> window_blocks;
    uint32_t n_given_back = 0;
    uint64_t last_step = 0;               // the last step with rows of it, counted from 1, and
    uint32_t last_rows = 0;               // the position of the first of those
    uint32_t state_slot = gpu::kNoState;  // the model's recurrent state, while it has blocks
    uint32_t state_from = gpu::kNoState;  // a snapshot that it holds, until its next rows go on from there
    // Snapshots that steps make of its state, until they have names: reserved slots, in the order of their tokens.
    struct SavedState {
        uint32_t slot = 0;
        uint32_t n_tokens = 0;  // whole blocks
        StateSnapshots::Worth worth = StateSnapshots::Worth::kHigh;
        bool replaces = false;  // the one before it that did so, if nobody has used that
    };
    std::vector<SavedState> saved_states;
    std::optional<StateSnapshots::Name> latest_state;  // the last one that replaces others
    uint32_t n_shared_tokens = 0;  // in whole blocks that others have begun with too, at look-up
    uint32_t n_published = 0;      // blocks that the prefix cache has been told of
    uint32_t first_merged_block = kNoBlock;  // this and later ones depend on merged weights
    uint32_t n_cached_tokens = 0;            // found in the prefix cache when it first ran
    uint32_t n_generated = 0;                // known tokens
    FairShare::Ticket ticket;
    uint64_t arrival = 0;             // order of arrival
    uint64_t arrived_ms = 0;          // by the engine's clock, as admitted_ms
    uint64_t admitted_ms = 0;         // the last time
    uint64_t served_ms = 0;           // when it last had rows, or was admitted
    uint32_t n_generated_before = 0;  // when it was admitted the last time
    bool lost_blocks = false;         // to one that comes before it, and waits to go on
    bool is_long = false;             // a text of more than n_short_text_tokens, turned as such
    bool prompt_logprobs_sent = false;
    bool was_admitted = false;  // has left the queue's count
    bool ended = false;
    // When it was first admitted, and its first and last token so far.
    std::chrono::steady_clock::time_point started, first_token_at, last_token_at;

    uint32_t n_known() const { return static_cast<uint32_t>(tokens.size()); }
    std::span<const TokenId> known_tokens() const {
        size_t n = tokens.size();
        while (n > 0 && tokens[n - 1] < 0) --n;
        return std::span(tokens).first(n);
    }
    // See ChoiceState.
    bool device_chooses(uint32_t position) const { return choice.device_chooses(request, position); }
    bool wants_prompt_outputs() const {
        return request.n_prompt_logprobs && !prompt_logprobs_sent &&
               choice.prompt_logprobs.size() + 1 < request.prompt.size();
    }
    // If each row of the prompt is an output, a step takes only n_prompt_rows_max of them.
    SequenceView view(uint32_t n_prompt_rows_max) const {
        uint32_t n_shown = n_known();
        // A text that is computed again while its last token is on its way: that one is fed back alone.
        if (tokens.back() < 0 && n_computed + 1 < n_shown) --n_shown;
        if (wants_prompt_outputs()) n_shown = std::min(n_shown, n_computed + n_prompt_rows_max);
        // not the row that the next token is chosen by
        if (choice.is_held()) n_shown = std::min(n_shown, n_known() - 1);
        return {n_shown, n_computed, static_cast<uint32_t>(blocks.size()), 0, blocks};
    }
};

}  // namespace lorad::server
