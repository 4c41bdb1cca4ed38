// The input of one step: rows (one token of one sequence each) and for which of them the next token is chosen.
//
// Three sequences: A decodes at position 70, B runs a chunk of its prompt (positions 64..66, its end), C one of its
// middle (positions 0..1) and so asks for no token:
//
//   row        0        1     2     3     4     5
//   sequence   A        B     B     B     C     C
//   position   70       64    65    66    0     1
//   adapters   slot 3   none  none  none  slots 5 and 2 with their scales, for both rows
//   output     0 (row 0)            1 (row 3)
//
// Sequences with the same adapters should follow each other: the LoRA kernels work on runs of rows with one list of
// adapters.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/kernels/sampling/choice_rule.h"
#include "gpu/kernels/step_state.h"
#include "proto/base/ids.h"

namespace lorad::model {

struct BatchRow {
    int32_t token = 0;          // >= 0: a token id; < 0: output ~token of the step before this one
    uint32_t position = 0;      // in its sequence
    uint32_t table_begin = 0;   // where its sequence's block table begins in block_tables
    uint32_t n_blocks = 0;      // length of that table; covers `position`
    uint32_t window_begin = 0;  // where its table of the window group begins, as long; the same one where there is none
    uint32_t use_begin = 0;     // its adapters are lora_uses()[use_begin .. use_begin + n_uses)
    uint32_t n_uses = 0;        // 0: the base
    uint32_t adapter_slot = kNoAdapterSlot;  // of its first adapter
    uint32_t rope_begin = 0;                 // as in RowAdapters
    uint32_t state_run = 0;                  // index in state_runs()
};

// The adapters of one sequence's rows; no uses: the base. At most kLoraUsesMax, no scale of 0.
struct RowAdapters {
    std::span<const LoraUse> uses;
    uint32_t from_position = 0;  // rows at earlier positions run with the base (activated LoRA)
    uint32_t rope_begin = 0;     // short_text_tokens() (model/config/rope.h) for a text of more tokens than that
    // The sequence's own slot, in models with recurrent state (model/exec/state_cache.h). Without one it has that of
    // its place in the batch, which is right only for a batch that has the device to itself.
    uint32_t state_slot = gpu::kNoState;
    // another slot, which the rows go on from and leave as it is; keeps at most kStateSaves states in between
    uint32_t state_from = gpu::kNoState;
    std::span<const gpu::StateSave> state_saves = {};
    // Blocks of the window group (model/exec/kv_groups.h), if the device has them apart: as many as the sequence's
    // other blocks. Blocks behind the window may be any that exist.
    std::span<const BlockId> window_blocks = {};
};

struct OutputRow {
    uint32_t row = 0;
    bool want_logits = false;  // copy the row's logits to the host; the argmax comes in any case
    bool want_hidden = false;  // copy what the final norm makes of the row to the host
    int32_t choice = -1;       // how the device chooses the token, in choices(); -1: the argmax
};

// Entries of one rule's list: 64 KiB of the step state for each output.
constexpr uint32_t kChoiceListMax = 4096;

// Filled by the engine thread, handed to Executor::submit. Reusable: clear() keeps the memory.
class StepBatch {
  public:
    void clear();

    // Appends tokens at positions first_position, first_position + 1, ... of one sequence, whose KV blocks are `blocks`
    // (covering at least these positions). Rows that see one another's keys and values come by one call. Returns the
    // index of the first row.
    uint32_t add_rows(std::span<const TokenId> tokens, uint32_t first_position, std::span<const BlockId> blocks,
                      const RowAdapters& adapters);
    // The rows have one adapter without a change of its scale, or none with kNoAdapterSlot.
    uint32_t add_rows(std::span<const TokenId> tokens, uint32_t first_position, std::span<const BlockId> blocks,
                      uint32_t adapter_slot);
    // Appends one row whose token is what output `output` of the previous step chooses (greedy), not yet known here.
    uint32_t add_fed_back_row(uint32_t output, uint32_t position, std::span<const BlockId> blocks,
                              const RowAdapters& adapters);
    uint32_t add_fed_back_row(uint32_t output, uint32_t position, std::span<const BlockId> blocks,
                              uint32_t adapter_slot);
    // All rows belong to what is merged: they run on the merged weights (Executor::use_merged), which stand for their
    // uses.
    void set_merged() { merged_ = true; }
    // Asks for the token after `row`. Returns the index of the answer in StepOutput.
    uint32_t add_output(uint32_t row, bool want_logits);
    // The same; the device chooses the token by the rule. Lists are at most kChoiceListMax long; changes have each
    // token once, allowed (empty: all) is sorted. The rule's own fields about the lists are filled in. With
    // gpu::kRuleMasked the output gets the batch's next mask, which is written after submit (Executor::masks).
    uint32_t add_output(uint32_t row, const gpu::ChoiceRule& rule, std::span<const gpu::TokenChange> changes = {},
                        std::span<const TokenId> allowed = {});

    // The output's hidden state is wanted as well.
    void want_hidden(uint32_t output) { outputs_[output].want_hidden = true; }

    uint32_t n_rows() const { return static_cast<uint32_t>(rows_.size()); }
    uint32_t n_outputs() const { return static_cast<uint32_t>(outputs_.size()); }
    std::span<const BatchRow> rows() const { return rows_; }
    std::span<const OutputRow> outputs() const { return outputs_; }
    // The rules' lists are parts of choice_changes() and choice_allowed(), from change_begin and allowed_begin on.
    std::span<const gpu::ChoiceRule> choices() const { return choices_; }
    std::span<const gpu::TokenChange> choice_changes() const { return choice_changes_; }
    std::span<const TokenId> choice_allowed() const { return choice_allowed_; }
    std::span<const BlockId> block_tables() const { return block_tables_; }
    std::span<const LoraUse> lora_uses() const { return lora_uses_; }
    // One for each call that added rows; at position 0 they begin without a state.
    std::span<const gpu::StateRun> state_runs() const { return state_runs_; }
    bool has_lora() const { return !lora_uses_.empty(); }
    uint32_t n_masks() const { return n_masks_; }
    bool is_merged() const { return merged_; }
    // No row has more than one adapter, and none a scale of its own.
    bool has_single_uses_only() const { return single_uses_only_; }

  private:
    std::vector<BatchRow> rows_;
    std::vector<OutputRow> outputs_;
    std::vector<gpu::ChoiceRule> choices_;
    std::vector<gpu::TokenChange> choice_changes_;
    std::vector<TokenId> choice_allowed_;
    std::vector<BlockId> block_tables_;
    std::vector<gpu::StateRun> state_runs_;
    std::vector<LoraUse> lora_uses_;  // lists of rows, one after the other; neighbours with equal lists share one
    uint32_t last_list_ = 0;          // where the last list begins
    uint32_t n_masks_ = 0;
    bool single_uses_only_ = true;
    bool merged_ = false;

    uint32_t list_of(std::span<const LoraUse> uses);
};

}  // namespace lorad::model
