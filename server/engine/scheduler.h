// Decides what one step computes. A pure function of (sequences, limits): no clock, no device, no lock, so that a
// failure is reproduced from its input.
//
// Rules:
//   1. Decodes come before prompts, in the caller's order. Prompts, running and waiting, get rows in
//      the order of `turns` (FairShare::deal), so that a short one need not wait for a long one that
//      is half computed.
//   2. A step has at most n_rows_max rows. Each sequence limits the number of prompt rows by what its
//      own rows cost: beside decodes, so that these do not wait for a long prompt, and without
//      decodes, so that requests that arrive meanwhile do not.
//   3. A sequence that needs KV blocks takes free ones, else those of the last running sequence that
//      comes after itself (which goes back to waiting and is recomputed), else it skips this step.
//   4. Waiting sequences are admitted in the caller's order, none before one that cannot be, when
//      there are rows for them, the blocks for all tokens they have so far are free beyond what the
//      running prefills still need, and nothing was preempted in this step. A sequence need not
//      compute blocks of its prefix that are held already, or idle in the prefix cache.
//   5. If the first waiting one starves for a place or for blocks, the last running sequence that may
//      yield goes back to waiting; one in a step.
// The first running sequence can always take what it needs, and no admitted sequence can need more than the pool holds,
// so every sequence ends; see fair_share.h for the order.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/rounding.h"

namespace lorad::server {

struct SchedulerLimits {
    uint32_t n_rows_max = 0;       // rows (tokens) in one step; at least n_sequences_max
    uint32_t n_sequences_max = 0;  // running at once
    uint32_t block_tokens = 64;    // tokens in one KV block
};

// One sequence as the scheduler sees it. `known` tokens are the prompt and what was generated;
// those from `computed` on have no KV entry yet. known - computed == 1 is a decode (or the last row
// of a prompt).
struct SequenceView {
    uint32_t n_known = 0;
    uint32_t n_computed = 0;
    // Held now. While waiting: full blocks that the prefix cache has for it, which cover exactly
    // n_computed tokens, fewer than n_known.
    uint32_t n_blocks = 0;
    uint32_t n_idle_blocks = 0;  // of a waiting one's blocks, held by nobody: they count as free
    // The block ids, if the sequence runs and others may hold them too; else may be empty.
    std::span<const BlockId> blocks = {};
    bool is_decode() const { return n_known - n_computed == 1; }
    bool may_yield = false;    // running: it had its fair time and made progress
    bool is_starving = false;  // waiting: must be admitted
    // The most prompt rows in a step with decodes, and in one without. A step that gives half of that number to one
    // sequence has half of its capacity left for the others.
    uint32_t n_rows_beside = std::numeric_limits<uint32_t>::max();
    uint32_t n_rows_alone = std::numeric_limits<uint32_t>::max();
};

// Up to n_rows of a prompt. Several turns of one sequence add up.
struct PromptChunk {
    uint32_t index = 0;  // see PlannedRows
    uint32_t n_rows = 0;
};

struct PlannedRows {
    uint32_t index = 0;         // into `running` of the call, or running.size() + index into `waiting`
    uint32_t n_rows = 0;        // computes tokens [n_computed, n_computed + n_rows)
    uint32_t n_new_blocks = 0;  // to allocate first
};

struct StepPlan {
    std::vector<uint32_t> preempted;  // indices into `running`; free their blocks before anything
                                      // else
    bool has_yielded = false;         // the one that was preempted, for a starving one
    std::vector<PlannedRows> rows;
    uint32_t n_admitted = 0;  // the first n of `waiting` join the running ones
};

// `running` is in the order in which sequences keep their blocks, `waiting` in the order of admission. `turns` names
// all running prompts; its waiting ones are in the order of admission. If it is empty, prompts are served in the order
// of `running`, then `waiting`. `n_holders`: by block, the number of running sequences that hold it; empty: at most one
// each.
StepPlan plan_step(std::span<const SequenceView> running, std::span<const SequenceView> waiting, uint32_t n_free_blocks,
                   const SchedulerLimits& limits, std::span<const uint32_t> n_holders = {},
                   std::span<const PromptChunk> chunks = {});

// Blocks that n_tokens take.
inline uint32_t blocks_for(uint32_t n_tokens, uint32_t block_tokens) { return ceil_div(n_tokens, block_tokens); }

}  // namespace lorad::server
