#include "server/engine/scheduler.h"

#include <algorithm>
#include <map>

#include "proto/base/check.h"

namespace lorad::server {
namespace {

// The plan in the making: what is still free, and who may be preempted. Sequences are named as in the
// plan: the running ones, then the waiting ones.
class Planner {
  public:
    Planner(std::span<const SequenceView> running, std::span<const SequenceView> waiting, uint32_t n_free_blocks,
            const SchedulerLimits& limits, std::span<const uint32_t> n_holders)
        : running_(running),
          limits_(limits),
          n_holders_(n_holders),
          n_free_(n_free_blocks),
          n_rows_left_(limits.n_rows_max),
          now_(running.begin(), running.end()),
          preempted_(running.size(), false),
          planned_(running.size() + waiting.size(), kNone) {
        now_.insert(now_.end(), waiting.begin(), waiting.end());
    }

    bool is_decode(uint32_t index) const { return index < running_.size() && running_[index].is_decode(); }

    void plan_decode(uint32_t index) {
        if (!preempted_[index]) plan_running(index, std::min(1u, n_rows_left_));
    }

    // From now on rows are of prompts.
    void end_of_decodes() { has_decodes_ = !plan_.rows.empty(); }

    void plan_prompt(const PromptChunk& chunk) {
        if (!is_admitted(chunk.index) && !may_admit(chunk.index)) return;
        const SequenceView& sequence = now_[chunk.index];
        uint32_t n_rows = std::min(chunk.n_rows, sequence.n_known - sequence.n_computed);
        n_rows = std::min({n_rows, n_rows_left_, n_affordable(sequence)});
        if (n_rows == 0) return;
        if (chunk.index < running_.size()) {
            if (!preempted_[chunk.index]) plan_running(chunk.index, n_rows);
            return;
        }
        if (!is_admitted(chunk.index)) {
            n_free_ -= sequence.n_idle_blocks;
            ++plan_.n_admitted;
        }
        add(chunk.index, n_rows);
    }

    StepPlan finish() {
        std::erase_if(plan_.rows, [](const PlannedRows& rows) { return rows.n_rows == 0; });
        return std::move(plan_);
    }

  private:
    static constexpr uint32_t kNone = 0xffffffffu;

    // Plans n_rows more of a running one; fewer where blocks do not suffice.
    void plan_running(uint32_t index, uint32_t n_rows) {
        if (n_rows == 0) return;
        while (rows_that_fit(index, n_rows) == 0 && preempt_last_after(index)) {
        }
        n_rows = rows_that_fit(index, n_rows);
        if (n_rows > 0) add(index, n_rows);
    }

    bool is_admitted(uint32_t index) const { return index < running_.size() + plan_.n_admitted; }

    // Returns true if it is the next waiting one, and there are a place and blocks for it.
    bool may_admit(uint32_t index) {
        const SequenceView& sequence = now_[index];
        CHECK(sequence.n_blocks * limits_.block_tokens == sequence.n_computed &&
              sequence.n_computed < sequence.n_known);
        if (index != running_.size() + plan_.n_admitted || !plan_.preempted.empty()) return false;
        uint32_t n_needed = n_missing_blocks(sequence) + sequence.n_idle_blocks;
        if (index < limits_.n_sequences_max && n_needed + n_promised_blocks() <= n_free_) return true;
        if (index == running_.size() && sequence.is_starving) yield();
        return false;
    }

    // Makes a place for one that starves.
    void yield() {
        for (uint32_t victim = static_cast<uint32_t>(running_.size()); victim-- > 0;) {
            if (!running_[victim].may_yield) continue;
            preempt(victim);
            plan_.has_yielded = true;
            return;
        }
    }

    // Blocks still missing for its known tokens.
    uint32_t n_missing_blocks(const SequenceView& sequence) const {
        uint32_t n_needed = blocks_for(sequence.n_known, limits_.block_tokens);
        return n_needed > sequence.n_blocks ? n_needed - sequence.n_blocks : 0;
    }
    // Blocks that the sequences running after this step still need.
    uint32_t n_promised_blocks() const {
        uint32_t n_promised = 0;
        for (uint32_t i = 0; is_admitted(i); ++i) {
            if (i >= running_.size() || !preempted_[i]) n_promised += n_missing_blocks(now_[i]);
        }
        return n_promised;
    }

    uint32_t n_step_rows(const SequenceView& sequence) const {
        return has_decodes_ ? sequence.n_rows_beside : sequence.n_rows_alone;
    }
    // Rows of its prompt that fit beside the planned prompt rows.
    uint32_t n_affordable(const SequenceView& sequence) const {
        return static_cast<uint32_t>(std::max(prompts_left_, 0.0) * n_step_rows(sequence) + 1e-6);
    }

    uint32_t rows_that_fit(uint32_t index, uint32_t n_rows) const {
        const SequenceView& sequence = now_[index];
        uint64_t n_room =
            static_cast<uint64_t>(sequence.n_blocks + n_free_) * limits_.block_tokens - sequence.n_computed;
        return static_cast<uint32_t>(std::min<uint64_t>(n_rows, n_room));
    }

    void add(uint32_t index, uint32_t n_rows) {
        SequenceView& sequence = now_[index];
        uint32_t n_needed = blocks_for(sequence.n_computed + n_rows, limits_.block_tokens);
        uint32_t n_new = n_needed > sequence.n_blocks ? n_needed - sequence.n_blocks : 0;
        CHECK(n_new <= n_free_ && n_rows <= n_rows_left_);
        if (planned_[index] == kNone) {
            planned_[index] = static_cast<uint32_t>(plan_.rows.size());
            plan_.rows.push_back({index, 0, 0});
        }
        PlannedRows& planned = plan_.rows[planned_[index]];
        planned.n_rows += n_rows;
        planned.n_new_blocks += n_new;
        n_free_ -= n_new;
        n_rows_left_ -= n_rows;
        if (!is_decode(index)) prompts_left_ -= static_cast<double>(n_rows) / n_step_rows(sequence);
        sequence.n_computed += n_rows;
        sequence.n_blocks += n_new;
    }

    // Frees the blocks of the last running sequence that comes after `index`; false if there is
    // none.
    bool preempt_last_after(uint32_t index) {
        for (uint32_t victim = static_cast<uint32_t>(running_.size()); victim-- > index + 1;) {
            if (preempted_[victim] || now_[victim].n_blocks == 0) continue;
            preempt(victim);
            return true;
        }
        return false;
    }

    void preempt(uint32_t victim) {
        preempted_[victim] = true;
        plan_.preempted.push_back(victim);
        n_free_ += n_given_up(running_[victim]);
        if (planned_[victim] == kNone) return;
        PlannedRows& rows = plan_.rows[planned_[victim]];
        n_free_ += rows.n_new_blocks;
        n_rows_left_ += rows.n_rows;
        if (!is_decode(victim)) prompts_left_ += static_cast<double>(rows.n_rows) / n_step_rows(now_[victim]);
        rows = {victim, 0, 0};
        planned_[victim] = kNone;
    }

    // Blocks that are free once this sequence, too, has let go of its own.
    uint32_t n_given_up(const SequenceView& sequence) {
        if (n_holders_.empty()) return sequence.n_blocks;
        CHECK(sequence.blocks.size() == sequence.n_blocks);
        uint32_t n_free = 0;
        for (BlockId block : sequence.blocks) {
            if (n_holders_[block] == 1 || ++n_let_go_[block] == n_holders_[block]) ++n_free;
        }
        return n_free;
    }

    std::span<const SequenceView> running_;
    const SchedulerLimits& limits_;
    std::span<const uint32_t> n_holders_;
    std::map<BlockId, uint32_t> n_let_go_;  // blocks with several holders: how many were preempted
    uint32_t n_free_;
    uint32_t n_rows_left_;
    bool has_decodes_ = false;
    double prompts_left_ = 1;        // unplanned part of the step's capacity for them
    std::vector<SequenceView> now_;  // with the plan applied, except to the preempted ones
    std::vector<bool> preempted_;
    std::vector<uint32_t> planned_;  // index into plan_.rows, or kNone
    StepPlan plan_;
};

}  // namespace

StepPlan plan_step(std::span<const SequenceView> running, std::span<const SequenceView> waiting, uint32_t n_free_blocks,
                   const SchedulerLimits& limits, std::span<const uint32_t> n_holders,
                   std::span<const PromptChunk> chunks) {
    CHECK(limits.n_sequences_max > 0 && limits.n_rows_max >= limits.n_sequences_max && limits.block_tokens > 0);
    CHECK(running.size() <= limits.n_sequences_max);
    Planner planner(running, waiting, n_free_blocks, limits, n_holders);
    for (uint32_t i = 0; i < running.size(); ++i) {
        if (planner.is_decode(i)) planner.plan_decode(i);
    }
    planner.end_of_decodes();
    for (const PromptChunk& chunk : chunks) planner.plan_prompt(chunk);
    if (chunks.empty()) {
        for (uint32_t i = 0; i < running.size() + waiting.size(); ++i) {
            if (!planner.is_decode(i)) planner.plan_prompt({i, limits.n_rows_max});
        }
    }
    return planner.finish();
}

}  // namespace lorad::server
