#include "server/engine/scheduler.h"

#include <algorithm>
#include <map>

#include "proto/base/check.h"

namespace lorad::server {
namespace {

// The plan in the making: what is still free, and who may be preempted.
class Planner {
  public:
    Planner(std::span<const SequenceView> running, uint32_t n_free_blocks,
            const SchedulerLimits& limits, std::span<const uint32_t> n_holders)
        : running_(running),
          limits_(limits),
          n_holders_(n_holders),
          n_free_(n_free_blocks),
          n_rows_left_(limits.n_rows_max),
          preempted_(running.size(), false),
          planned_(running.size(), kNone) {}

    // Plans up to n_rows of running sequence `index`; fewer where neither rows nor blocks suffice.
    void plan_running(uint32_t index, uint32_t n_rows) {
        const SequenceView& sequence = running_[index];
        n_rows = std::min(n_rows, n_rows_left_);
        if (n_rows == 0) return;
        while (rows_that_fit(sequence, n_rows) == 0 && preempt_last_after(index)) {
        }
        n_rows = rows_that_fit(sequence, n_rows);
        if (n_rows == 0) return;
        planned_[index] = uint32_t(plan_.rows.size());
        add(index, sequence, n_rows);
    }

    // Blocks that the running prefills of this step have yet to take for the tokens they already
    // know.
    uint32_t n_promised_blocks() const {
        uint32_t n_promised = 0;
        for (size_t i = 0; i < running_.size(); ++i) {
            if (preempted_[i]) continue;
            uint32_t n_needed = blocks_for(running_[i].n_known, limits_.block_tokens);
            uint32_t n_held = running_[i].n_blocks;
            if (planned_[i] != kNone) n_held += plan_.rows[planned_[i]].n_new_blocks;
            if (n_needed > n_held) n_promised += n_needed - n_held;
        }
        return n_promised + n_promised_to_admitted_;
    }

    // What is left of the step for prompts, once the decodes are planned.
    void end_of_decodes() {
        if (!plan_.rows.empty())
            n_rows_left_ = std::min(n_rows_left_, limits_.n_prefill_rows_max);
    }

    // Makes a place for one that starves.
    void yield() {
        for (uint32_t victim = uint32_t(running_.size()); victim-- > 0;) {
            if (!running_[victim].may_yield) continue;
            preempt(victim);
            plan_.has_yielded = true;
            return;
        }
    }

    bool admit(uint32_t waiting_index, const SequenceView& sequence) {
        CHECK(sequence.n_blocks * limits_.block_tokens == sequence.n_computed &&
              sequence.n_computed < sequence.n_known);
        uint32_t n_running = uint32_t(running_.size() - plan_.preempted.size()) + plan_.n_admitted;
        if (n_rows_left_ == 0 || n_running >= limits_.n_sequences_max) return false;
        uint32_t n_needed =
            blocks_for(sequence.n_known, limits_.block_tokens) - sequence.n_blocks;
        if (n_needed + sequence.n_idle_blocks + n_promised_blocks() > n_free_) return false;
        n_free_ -= sequence.n_idle_blocks;
        uint32_t n_rows = std::min(sequence.n_known - sequence.n_computed, n_rows_left_);
        add(uint32_t(running_.size()) + waiting_index, sequence, n_rows);
        n_promised_to_admitted_ += n_needed - plan_.rows.back().n_new_blocks;
        ++plan_.n_admitted;
        return true;
    }

    bool preempted(uint32_t index) const { return preempted_[index]; }
    StepPlan finish() {
        std::erase_if(plan_.rows, [](const PlannedRows& rows) { return rows.n_rows == 0; });
        return std::move(plan_);
    }
    bool preempted_any() const { return !plan_.preempted.empty(); }

  private:
    static constexpr uint32_t kNone = 0xffffffffu;

    uint32_t rows_that_fit(const SequenceView& sequence, uint32_t n_rows) const {
        uint64_t n_room =
            uint64_t(sequence.n_blocks + n_free_) * limits_.block_tokens - sequence.n_computed;
        return uint32_t(std::min<uint64_t>(n_rows, n_room));
    }

    void add(uint32_t index, const SequenceView& sequence, uint32_t n_rows) {
        uint32_t n_needed = blocks_for(sequence.n_computed + n_rows, limits_.block_tokens);
        uint32_t n_new = n_needed > sequence.n_blocks ? n_needed - sequence.n_blocks : 0;
        CHECK(n_new <= n_free_ && n_rows <= n_rows_left_);
        n_free_ -= n_new;
        n_rows_left_ -= n_rows;
        plan_.rows.push_back({index, n_rows, n_new});
    }

    // Frees the blocks of the last running sequence that comes after `index`; false if there is
    // none.
    bool preempt_last_after(uint32_t index) {
        for (uint32_t victim = uint32_t(running_.size()); victim-- > index + 1;) {
            if (preempted_[victim] || running_[victim].n_blocks + planned_blocks(victim) == 0)
                continue;
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

    uint32_t planned_blocks(uint32_t index) const {
        return planned_[index] == kNone ? 0 : plan_.rows[planned_[index]].n_new_blocks;
    }

    std::span<const SequenceView> running_;
    const SchedulerLimits& limits_;
    std::span<const uint32_t> n_holders_;
    std::map<BlockId, uint32_t> n_let_go_;  // of blocks with several holders, by preempted ones
    uint32_t n_free_;
    uint32_t n_rows_left_;
    uint32_t n_promised_to_admitted_ = 0;
    std::vector<bool> preempted_;
    std::vector<uint32_t> planned_;  // index into plan_.rows, or kNone
    StepPlan plan_;
};

}  // namespace

StepPlan plan_step(std::span<const SequenceView> running, std::span<const SequenceView> waiting,
                   uint32_t n_free_blocks, const SchedulerLimits& limits,
                   std::span<const uint32_t> n_holders) {
    CHECK(limits.n_sequences_max > 0 && limits.n_rows_max >= limits.n_sequences_max &&
          limits.block_tokens > 0);
    CHECK(running.size() <= limits.n_sequences_max);
    Planner planner(running, n_free_blocks, limits, n_holders);
    auto is_decode = [&](uint32_t i) { return running[i].n_known - running[i].n_computed == 1; };
    for (uint32_t i = 0; i < running.size(); ++i) {
        if (!planner.preempted(i) && is_decode(i)) planner.plan_running(i, 1);
    }
    planner.end_of_decodes();
    for (uint32_t i = 0; i < running.size(); ++i) {
        if (planner.preempted(i) || is_decode(i)) continue;
        planner.plan_running(i, running[i].n_known - running[i].n_computed);
    }
    if (!planner.preempted_any()) {
        for (uint32_t i = 0; i < waiting.size(); ++i) {
            if (planner.admit(i, waiting[i])) continue;
            if (i == 0 && waiting[0].is_starving) planner.yield();
            break;
        }
    }
    return planner.finish();
}

}  // namespace lorad::server
