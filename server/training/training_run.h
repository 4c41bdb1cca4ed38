// A run over prepared data: which step or evaluation is next, what came of it, when a checkpoint is due, when it is
// over. Knows no files of jobs, no clock and no HTTP.
//
//   while (!run.is_done()) { run.begin_next(); pieces of the trainer until it has none; RunOutcome out =
//       run.finish_current(); }
//
// The state between two of them is a few numbers (RunState) and the trainer's own checkpoint: with both restored a run
// goes on with the same bits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/base/result.h"
#include "server/training/run_plan.h"
#include "server/training/step_trainer.h"
#include "server/training/token_file.h"

namespace lorad::server::training {

struct EvalResult {
    double loss = 0.0, accuracy = 0.0;
    uint64_t n_trained_tokens = 0;
};

// The state of a run between two steps. All of it is kept with a checkpoint.
struct RunState {
    uint64_t step = 0;  // steps made
    uint64_t n_tokens = 0, n_trained_tokens = 0;
    std::optional<double> first_loss, last_loss, start_valid_loss, last_valid_loss, best_valid_loss;
    uint64_t best_step = 0;       // the step of best_valid_loss
    uint32_t n_without_gain = 0;  // full evaluations since the best one
    bool is_stopped_early = false;
    std::optional<uint64_t> evaluated_step;  // behind which the last evaluation was made
    bool is_evaluated() const { return evaluated_step == step; }
};
// For proto/json/json_fields.h.
inline constexpr auto kRunStateFields = [](auto& fields, auto& state) {
    fields("step", state.step);
    fields("tokens", state.n_tokens);
    fields("trained_tokens", state.n_trained_tokens);
    fields("first_loss", state.first_loss);
    fields("last_loss", state.last_loss);
    fields("start_valid_loss", state.start_valid_loss);
    fields("last_valid_loss", state.last_valid_loss);
    fields("best_valid_loss", state.best_valid_loss);
    fields("best_step", state.best_step);
    fields("without_gain", state.n_without_gain);
    fields("stopped_early", state.is_stopped_early);
    fields("evaluated_step", state.evaluated_step);
};

struct StepResult {
    uint64_t step = 0;  // from 1
    double loss = 0.0, accuracy = 0.0, grad_norm = 0.0, learning_rate = 0.0;
    bool is_clipped = false;
    uint64_t n_trained_tokens = 0, n_tokens = 0;
};

struct RunOutcome {
    std::optional<StepResult> trained;    // a step was made
    std::optional<EvalResult> evaluated;  // an evaluation is complete
    bool is_full = false;                 // with all that is held out
    bool is_best = false;                 // better than all full ones before: what the trainer holds now is to be kept
};

class TrainingRun {
  public:
    // `validation` null: what the plan holds out of `data`, if anything. All outlive the run. kInvalidRequest: a
    // validation file without sequences.
    TrainingRun(const RunPlan& plan, StepTrainer& trainer, const TokenFile& data, const TokenFile* validation,
                RunState state = {});

    // No step and no evaluation is left.
    bool is_done() const;
    bool is_begun() const { return is_begun_; }
    // Errors are the trainer's, and kNotFinite of finish_current() with step and lines.
    Status begin_next();
    Result<RunOutcome> finish_current();
    // Returns true if nothing has begun, so that a checkpoint may be taken. A restored run repeats an interrupted
    // evaluation from its start.
    bool is_at_rest() const { return !is_begun_ && eval_done_ == 0; }
    // Returns true if an epoch ended with the last step.
    bool is_at_epoch_end() const;
    const RunState& state() const { return state_; }
    bool has_validation() const { return n_validation() > 0; }

  private:
    enum class Next : uint8_t { kNone, kStep, kBatchEval, kFullEval };
    Next next() const;
    bool is_full_eval_due() const;
    uint64_t n_validation() const;
    model::TrainExample validation_example(uint64_t i) const;
    RunOutcome take_step(const model::TrainReport& report);
    RunOutcome take_evaluation(const model::TrainReport& report);
    Error not_finite(const model::TrainReport& report) const;

    const RunPlan& plan_;
    StepTrainer& trainer_;
    const TokenFile& data_;
    const TokenFile* validation_;
    RunState state_;

    bool is_begun_ = false;
    Next current_ = Next::kNone;
    std::vector<uint64_t> batch_;  // of the step under way: sequences of the file
    // State of the evaluation under way.
    uint64_t eval_done_ = 0;
    double eval_loss_sum_ = 0.0;
    uint64_t eval_trained_ = 0, eval_correct_ = 0;
};

// Returns the trainer's form of a sequence.
model::TrainExample train_example(const SequenceView& sequence);

}  // namespace lorad::server::training
