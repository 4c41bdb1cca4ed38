#include "server/training/training_run.h"

#include <algorithm>
#include <cmath>

#include "proto/base/format.h"
#include "proto/training/training_line.h"

namespace lorad::server::training {
namespace {

constexpr uint64_t kEvalSequences = 16;  // evaluated at a time

uint64_t n_correct_of(const model::TrainReport& report) {
    uint64_t n = 0;
    for (const model::ExampleLoss& one : report.examples) n += one.n_correct;
    return n;
}

double accuracy_of(uint64_t n_correct, uint64_t n) {
    return n == 0 ? 0.0 : static_cast<double>(n_correct) / static_cast<double>(n);
}

}  // namespace

model::TrainExample train_example(const SequenceView& sequence) {
    model::TrainExample example;
    example.tokens.assign(sequence.tokens.begin(), sequence.tokens.end());
    example.weights.reserve(sequence.labels.size());
    for (const int32_t label : sequence.labels) example.weights.push_back(label == proto::kUntrained ? 0.0f : 1.0f);
    if (!example.weights.empty()) example.weights[0] = 0.0f;
    return example;
}

TrainingRun::TrainingRun(const RunPlan& plan, StepTrainer& trainer, const TokenFile& data, const TokenFile* validation,
                         RunState state)
    : plan_(plan), trainer_(trainer), data_(data), validation_(validation), state_(std::move(state)) {}

uint64_t TrainingRun::n_validation() const { return validation_ != nullptr ? validation_->size() : plan_.n_held_out; }

model::TrainExample TrainingRun::validation_example(uint64_t i) const {
    return train_example(validation_ != nullptr ? validation_->at(i) : data_.at(plan_.held_out_sequence(i)));
}

bool TrainingRun::is_at_epoch_end() const { return state_.step > 0 && plan_.order.ends_epoch(state_.step - 1); }

// Before the first step, at epochs' ends and at the end.
bool TrainingRun::is_full_eval_due() const {
    if (!has_validation() || state_.is_evaluated()) return false;
    return state_.step == 0 || state_.step == plan_.n_steps() || is_at_epoch_end();
}

TrainingRun::Next TrainingRun::next() const {
    if (is_full_eval_due()) return Next::kFullEval;
    if (state_.is_stopped_early || state_.step >= plan_.n_steps()) return Next::kNone;
    const std::optional<uint32_t> every = plan_.recipe.eval_steps;
    const bool is_batch_eval =
        every && has_validation() && !state_.is_evaluated() && state_.step > 0 && state_.step % *every == 0;
    return is_batch_eval ? Next::kBatchEval : Next::kStep;
}

bool TrainingRun::is_done() const { return !is_begun_ && next() == Next::kNone; }

Status TrainingRun::begin_next() {
    CHECK(!is_begun_);
    current_ = next();
    CHECK(current_ != Next::kNone);
    std::vector<model::TrainExample> examples;
    if (current_ == Next::kStep) {
        batch_.clear();
        for (const uint64_t sample : plan_.order.batch(state_.step)) {
            batch_.push_back(plan_.trained_sequence(sample));
            examples.push_back(train_example(data_.at(batch_.back())));
        }
        TRY(trainer_.begin_step(std::move(examples), model::learning_rate(plan_.schedule, state_.step)));
        is_begun_ = true;
        return ok_status();
    }
    const uint64_t n = n_validation();
    if (current_ == Next::kFullEval) {
        for (uint64_t i = eval_done_; i < std::min(n, eval_done_ + kEvalSequences); ++i)
            examples.push_back(validation_example(i));
    } else {
        // The next ones of the file each time, from its beginning again behind the last.
        const uint64_t begin = state_.step / *plan_.recipe.eval_steps * plan_.order.batch_size;
        for (uint64_t i = 0; i < std::min<uint64_t>(n, plan_.order.batch_size); ++i)
            examples.push_back(validation_example((begin + i) % n));
    }
    TRY(trainer_.begin_evaluation(std::move(examples)));
    is_begun_ = true;
    return ok_status();
}

Error TrainingRun::not_finite(const model::TrainReport& report) const {
    std::string lines;
    for (size_t i = 0; i < report.examples.size() && i < batch_.size(); ++i) {
        if (std::isfinite(report.examples[i].loss_sum)) continue;
        lines += lorad::format("{}{}", lines.empty() ? "" : ", ", data_.at(batch_[i]).line);
    }
    if (lines.empty()) {
        for (const uint64_t sequence : batch_)
            lines += lorad::format("{}{}", lines.empty() ? "" : ", ", data_.at(sequence).line);
        return make_error(
            ErrorCode::kNotFinite,
            lorad::format("step {}: the gradients are not finite (lines {}); a lower learning_rate may help",
                          state_.step + 1, lines));
    }
    return make_error(ErrorCode::kNotFinite,
                      lorad::format("step {}: the loss is not finite (line {}); a lower learning_rate may help",
                                    state_.step + 1, lines));
}

RunOutcome TrainingRun::take_step(const model::TrainReport& report) {
    StepResult result;
    result.learning_rate = model::learning_rate(plan_.schedule, state_.step);
    result.step = ++state_.step;
    result.loss = report.loss;
    result.accuracy = accuracy_of(n_correct_of(report), report.n_trained_tokens);
    result.grad_norm = report.grad_norm;
    result.is_clipped = report.is_clipped;
    result.n_trained_tokens = report.n_trained_tokens;
    result.n_tokens = report.n_tokens;
    state_.n_tokens += report.n_tokens;
    state_.n_trained_tokens += report.n_trained_tokens;
    if (!state_.first_loss) state_.first_loss = report.loss;
    state_.last_loss = report.loss;
    return {.trained = result};
}

RunOutcome TrainingRun::take_evaluation(const model::TrainReport& report) {
    eval_loss_sum_ += report.loss * static_cast<double>(report.n_trained_tokens);
    eval_trained_ += report.n_trained_tokens;
    eval_correct_ += n_correct_of(report);
    eval_done_ += report.examples.size();
    const bool is_full = current_ == Next::kFullEval;
    if (is_full && eval_done_ < n_validation()) return {};
    RunOutcome outcome;
    outcome.is_full = is_full;
    outcome.evaluated = EvalResult{eval_trained_ == 0 ? 0.0 : eval_loss_sum_ / static_cast<double>(eval_trained_),
                                   accuracy_of(eval_correct_, eval_trained_), eval_trained_};
    eval_done_ = eval_trained_ = eval_correct_ = 0;
    eval_loss_sum_ = 0.0;
    state_.evaluated_step = state_.step;
    state_.last_valid_loss = outcome.evaluated->loss;
    if (!is_full) return outcome;
    if (state_.step == 0) {
        state_.start_valid_loss = outcome.evaluated->loss;
        return outcome;
    }
    if (!state_.best_valid_loss || outcome.evaluated->loss < *state_.best_valid_loss) {
        state_.best_valid_loss = outcome.evaluated->loss;
        state_.best_step = state_.step;
        state_.n_without_gain = 0;
        outcome.is_best = true;
    } else {
        ++state_.n_without_gain;
        const std::optional<uint32_t> patience = plan_.recipe.early_stopping_patience;
        state_.is_stopped_early = patience && state_.n_without_gain >= *patience && state_.step < plan_.n_steps();
    }
    return outcome;
}

Result<RunOutcome> TrainingRun::finish_current() {
    CHECK(is_begun_);
    is_begun_ = false;
    TRY_ASSIGN(const model::TrainReport report, trainer_.finish());
    if (current_ != Next::kStep) {
        if (!std::isfinite(report.loss))
            return make_error(
                ErrorCode::kNotFinite,
                lorad::format("the evaluation behind step {} has a loss that is not finite", state_.step));
        return take_evaluation(report);
    }
    if (!report.is_applied) return not_finite(report);
    return take_step(report);
}

}  // namespace lorad::server::training
