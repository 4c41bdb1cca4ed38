// One job while it runs: from its files and its last checkpoint to its adapter. Part of training_thread.cpp. Between
// prepare() and hand_over() it advances each time its trainer is done with something. Whatever it writes but its losses
// and events is the disk thread's to write: a run takes numbers off the device, and goes on.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "server/training/checkpoint_file.h"
#include "server/training/jobs/job_disk.h"
#include "server/training/training_service.h"

namespace lorad::server::training {

// The training thread.
class TrainingService::JobRun {
  public:
    JobRun(TrainingService& service, Job job)
        : service_(service), id_(job.id), job_(std::move(job)), folder_(service.folder_of(id_)) {}

    const std::string& id() const { return id_; }
    StepTrainer& trainer() { return *trainer_; }

    // Changes nothing of the job yet. beside: whose passes are its own, too; null: nobody's.
    Status prepare(StepTrainer* beside) {
        const HostFacts& facts = service_.host_.facts();
        if (job_.base_fingerprint != facts.base_fingerprint)
            return make_error(ErrorCode::kInvalidModel, "the base model is not the one that the job began with",
                              "base_model_changed");
        TRY_ASSIGN(data_, TokenFile::open(folder_.data(), job_.data_digest));
        if (!job_.validation_digest.empty()) {
            TRY_ASSIGN(validation_, TokenFile::open(folder_.validation(), job_.validation_digest));
        }
        TRY_ASSIGN(plan_, plan_run(job_.recipe, job_.n_sequences));
        plan_.owner = std::hash<std::string>{}(job_.tenant);
        plan_.n_positions = std::max(data_->longest(), validation_ ? validation_->longest() : 0);
        TRY(find_start());
        TRY_ASSIGN(MadeTrainer made,
                   service_.host_.make_trainer(
                       plan_, job_.init_from.empty() ? std::filesystem::path() : folder_.start(), beside));
        trainer_ = std::move(made.trainer);
        job_.n_parameters = made.n_parameters;
        disk_ =
            std::make_shared<const JobDisk>(service_, job_, plan_,
                                            RunIdentity{job_.data_digest, job_.validation_digest, job_.base_fingerprint,
                                                        proto::recipe_json(job_.recipe), facts.version});
        return ok_status();
    }

    // Continues from the last checkpoint.
    Status take_up() {
        TRY_ASSIGN(RunState state, read_state());
        run_ = std::make_unique<TrainingRun>(plan_, *trainer_, *data_, validation_.get(), state);
        service_.update(id_, [&](Job& job) {
            job.n_parameters = job_.n_parameters;
            job.device_bytes = trainer_->device_bytes();
            job.run = state;
            std::erase_if(job.checkpoints,
                          [&](const proto::JobCheckpointObject& one) { return one.metrics.step > state.step; });
        });
        last_checkpoint_ = last_look_ = turn_begin_ = Clock::now();
        checkpoint_step_ = state.step;
        return ok_status();
    }

    // Takes the trainer's finished work, and begins the next. A finished step counts even if a stop is wanted.
    Status advance() {
        if (run_->is_begun() && trainer_->is_done()) {
            TRY_ASSIGN(const RunOutcome outcome, run_->finish_current());
            TRY(take(outcome));
        }
        if (service_.is_wanted_to_stop(id_)) return stopped();
        if (gives_way_ && run_->is_at_rest() && !run_->is_done()) return stopped();
        if (run_->is_begun() || run_->is_done()) return ok_status();
        // Steps whose adapters cannot be written yet would fill the memory.
        return service_.disk_.has_room(id_) ? run_->begin_next() : ok_status();
    }

    bool is_begun() const { return run_->is_begun(); }
    uint64_t n_steps() const { return run_->state().step; }
    // True if nothing is left to train.
    bool is_over() const { return run_->is_done(); }
    TurnJob turn() const { return {id_, job_.tenant, job_.number, turn_begin_}; }
    // At the end of its step; the next advance() says that it is stopped.
    void give_way() { gives_way_ = true; }
    bool gives_way() const { return gives_way_; }

    // Keeps the work done so far, for any kind of end.
    void leave() {
        if (!run_) return;
        trainer_->abandon();
        const Status saved = service_.has_ended(id_) ? ok_status() : checkpoint();
        if (!saved.ok()) log_error("the training job {} cannot write a checkpoint: {}", id_, saved.error().message);
    }

    // The last checkpoint and the adapter are the disk's now, and the trainer may end.
    Status hand_over() {
        const RunState& state = run_->state();
        if (state.is_stopped_early)
            service_.tell(id_,
                          format("Stopped early behind step {}: the validation loss has not fallen for {} evaluations.",
                                 state.step, state.n_without_gain));
        TRY_ASSIGN(Checkpoint last, present());
        model::TrainableAdapter adapter;
        if (!JobDisk::uses_best(plan_, state)) {
            TRY_ASSIGN(adapter, trainer_->adapter());
        }
        const auto parts =
            std::make_shared<const std::pair<Checkpoint, model::TrainableAdapter>>(std::move(last), std::move(adapter));
        service_.disk_.put(id_, [disk = disk_, parts] { return disk->publish(parts->first, parts->second); });
        return ok_status();
    }

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr uint64_t kStepEventsMax = 1000;  // per job; every step is in its CSV

    // Jobs of older versions have no files of the adapter that they begin with yet.
    Status find_start() {
        if (job_.init_from.empty()) return ok_status();
        if (!job_.start_digest.empty()) {
            TRY_ASSIGN(const adapters::PeftFiles kept, read_peft_folder(folder_.start()));
            if (start_digest_of(kept) == job_.start_digest) return ok_status();
            return make_error(ErrorCode::kStorageFailed,
                              "the files of the adapter that the job begins with are damaged");
        }
        const Status kept = service_.keep_start(job_);
        if (!kept.ok() && kept.error().code == ErrorCode::kAdapterNotFound)
            return make_error(
                ErrorCode::kAdapterNotFound,
                format("init_from: the adapter that the job begins with was deleted (generation {})", job_.init_from),
                "init_from");
        TRY(kept);
        // Where the job ended meanwhile, its work was removed before this was written.
        if (service_.has_ended(id_)) {
            folder_.remove_work();
            return stopped();
        }
        service_.update(id_, [&](Job& job) { job.start_digest = job_.start_digest; });
        return ok_status();
    }

    // From the last checkpoint, if there is one.
    Result<RunState> read_state() {
        RunState state;
        const Result<Checkpoint> found = read_checkpoint(folder_.checkpoint());
        if (!found.ok() && found.error().code != ErrorCode::kNotFound) {
            service_.tell(id_, format("{}: the job begins again", found.error().message), "warn");
        } else if (found.ok()) {
            if (const std::string other = difference(found->identity, disk_->identity()); !other.empty())
                return make_error(ErrorCode::kStorageFailed, format("{} is not what the job's checkpoint had", other));
            TRY(trainer_->restore(found->trainer));
            state = found->state;
            if (found->identity.version != disk_->identity().version)
                service_.tell(id_, format("the checkpoint is of lorad {}", found->identity.version), "warn");
        }
        TRY(service_.cut_behind(id_, state));
        if (found.ok() && state.step > 0) service_.tell(id_, format("Resumed from step {}.", state.step));
        return state;
    }

    Status take(const RunOutcome& outcome) {
        const Clock::time_point now = Clock::now();
        const double seconds = std::chrono::duration<double>(now - last_look_).count();
        last_look_ = now;
        const RunState& state = run_->state();
        service_.update(id_, [&](Job& job) {
            job.run = state;
            job.seconds += seconds;
        });
        if (outcome.trained) {
            last_step_ = *outcome.trained;
            TRY(folder_.append_step(last_step_));
            tell_step(seconds);
        }
        if (outcome.evaluated) {
            folder_.append_valid(state.step, *outcome.evaluated);
            if (outcome.is_full) last_full_ = outcome.evaluated;
            tell_evaluation(*outcome.evaluated, outcome.is_full);
        }
        if (outcome.is_best) TRY(keep_best());
        if (!run_->is_at_rest()) return ok_status();
        const bool is_settled = !run_->has_validation() || state.is_evaluated();
        if (run_->is_at_epoch_end() && is_settled && epoch_step_ != state.step) TRY(add_checkpoint());
        const std::optional<uint32_t> every = plan_.recipe.checkpoint_steps;
        const bool is_due = every ? state.step >= checkpoint_step_ + *every
                                  : now - last_checkpoint_ >= service_.limits_.checkpoint_every;
        // While the disk is behind, the next one waits.
        return is_due && !service_.disk_.is_busy(id_) ? checkpoint() : ok_status();
    }

    proto::StepMetrics metrics() const {
        proto::StepMetrics metrics;
        metrics.step = run_->state().step;
        metrics.n_steps = plan_.n_steps();
        return metrics;
    }

    // Tells every step up to kStepEventsMax, fewer beyond.
    bool is_told(uint64_t step) const {
        return step % ((plan_.n_steps() + kStepEventsMax - 1) / kStepEventsMax) == 0 || step == plan_.n_steps();
    }

    void tell_step(double seconds) {
        if (!is_told(last_step_.step)) return;
        proto::StepMetrics told = metrics();
        told.train_loss = last_step_.loss;
        told.train_accuracy = last_step_.accuracy;
        told.learning_rate = last_step_.learning_rate;
        told.grad_norm = last_step_.grad_norm;
        told.tokens = last_step_.n_tokens;
        if (seconds > 0) told.tokens_per_s = double(last_step_.n_tokens) / seconds;
        service_.tell(id_,
                      format("Step {}/{}: training loss={:.4f}", last_step_.step, plan_.n_steps(), last_step_.loss),
                      "info", told);
    }

    void tell_evaluation(const EvalResult& result, bool is_full) {
        if (!is_full && !is_told(run_->state().step)) return;
        proto::StepMetrics told = metrics();
        (is_full ? told.full_valid_loss : told.valid_loss) = result.loss;
        (is_full ? told.full_valid_accuracy : told.valid_accuracy) = result.accuracy;
        service_.tell(id_,
                      format("Step {}/{}: {}validation loss={:.4f}", told.step, plan_.n_steps(), is_full ? "full " : "",
                             result.loss),
                      "info", told);
    }

    Status keep_best() {
        TRY_ASSIGN(model::TrainableAdapter adapter, trainer_->adapter());
        const auto best = std::make_shared<const model::TrainableAdapter>(std::move(adapter));
        service_.disk_.put(id_,
                           [disk = disk_, best, step = run_->state().step] { return disk->keep_best(*best, step); });
        return ok_status();
    }

    Result<Checkpoint> present() const {
        Checkpoint made{disk_->identity(), run_->state(), {}};
        TRY_ASSIGN(made.trainer, trainer_->checkpoint());
        return made;
    }

    Status checkpoint() {
        TRY_ASSIGN(Checkpoint made, present());
        const auto kept = std::make_shared<const Checkpoint>(std::move(made));
        service_.disk_.put(id_, [disk = disk_, kept] { return disk->keep_checkpoint(*kept); });
        last_checkpoint_ = Clock::now();
        checkpoint_step_ = kept->state.step;
        return ok_status();
    }

    // Adds a checkpoint that clients see, at the end of an epoch.
    Status add_checkpoint() {
        epoch_step_ = run_->state().step;
        proto::JobCheckpointObject made;
        made.id = new_id("ftckpt-");
        made.job = id_;
        made.model = format("{}:ckpt-step-{}", job_.name, epoch_step_);
        made.created_s = unix_time_s();
        made.metrics.step = epoch_step_;
        made.metrics.train_loss = last_step_.loss;
        made.metrics.train_accuracy = last_step_.accuracy;
        if (last_full_)
            made.metrics.full_valid_loss = last_full_->loss, made.metrics.full_valid_accuracy = last_full_->accuracy;
        TRY_ASSIGN(model::TrainableAdapter adapter, trainer_->adapter());
        const auto kept = std::make_shared<const model::TrainableAdapter>(std::move(adapter));
        service_.disk_.put(id_, [disk = disk_, kept, made] { return disk->add_checkpoint(*kept, made); });
        return checkpoint();
    }

    TrainingService& service_;
    const std::string id_;
    Job job_;
    const JobFolder folder_;
    std::unique_ptr<const TokenFile> data_, validation_;
    RunPlan plan_;
    std::shared_ptr<const JobDisk> disk_;  // what it was given to write may end behind the run
    std::unique_ptr<StepTrainer> trainer_;
    std::unique_ptr<TrainingRun> run_;
    StepResult last_step_;
    std::optional<EvalResult> last_full_;
    Clock::time_point last_checkpoint_, last_look_, turn_begin_;
    bool gives_way_ = false;
    uint64_t checkpoint_step_ = 0, epoch_step_ = 0;
};

}  // namespace lorad::server::training
