// One job while it runs: from its files and its last checkpoint to its adapter. Part of training_worker.cpp. Between
// prepare() and publish() it advances each time its trainer is done with something.
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
#include "server/training/durable_file.h"
#include "server/training/provenance.h"
#include "server/training/training_service.h"

namespace lorad::server::training {

// The training thread.
class TrainingService::JobRun {
  public:
    // The error that ends the work on a job without any fault of it: it was paused, cancelled, or the server ends.
    static Error stopped();

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
        plan_.n_positions = std::max(data_->longest(), validation_ ? validation_->longest() : 0);
        TRY_ASSIGN(MadeTrainer made, service_.host_.make_trainer(plan_, job_.init_from, beside));
        trainer_ = std::move(made.trainer);
        job_.n_parameters = made.n_parameters;
        identity_ = {job_.data_digest, job_.validation_digest, job_.base_fingerprint, proto::recipe_json(job_.recipe),
                     facts.version};
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
        last_checkpoint_ = last_look_ = Clock::now();
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
        return run_->is_begun() || run_->is_done() ? ok_status() : run_->begin_next();
    }

    // True if nothing is left to train.
    bool is_over() const { return run_->is_done(); }

    // Keeps the work done so far, for any kind of end.
    void leave() {
        if (!run_) return;
        trainer_->abandon();
        const Status saved = service_.is_cancelled(id_) ? ok_status() : checkpoint();
        if (!saved.ok()) log_error("the training job {} cannot write a checkpoint: {}", id_, saved.error().message);
    }

    Status publish() {
        if (run_->state().is_stopped_early)
            service_.tell(id_,
                          format("Stopped early behind step {}: the validation loss has not fallen for {} evaluations.",
                                 run_->state().step, run_->state().n_without_gain));
        TRY(checkpoint());
        TRY(service_.step(id_, JobEvent::kLastStep));
        return publish_adapter();
    }

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr uint64_t kStepEventsMax = 1000;  // per job; every step is in its CSV

    // From the last checkpoint, if there is one.
    Result<RunState> read_state() {
        RunState state;
        const Result<Checkpoint> found = read_checkpoint(folder_.checkpoint());
        if (!found.ok() && found.error().code != ErrorCode::kNotFound) {
            service_.tell(id_, format("{}: the job begins again", found.error().message), "warn");
        } else if (found.ok()) {
            if (const std::string other = difference(found->identity, identity_); !other.empty())
                return make_error(ErrorCode::kStorageFailed, format("{} is not what the job's checkpoint had", other));
            TRY(trainer_->restore(found->trainer));
            state = found->state;
            if (found->identity.version != identity_.version)
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
            job_.seconds = job.seconds;
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
        if (outcome.is_best) TRY(keep_adapter(folder_.best()));
        if (!run_->is_at_rest()) return ok_status();
        const bool is_settled = !run_->has_validation() || state.is_evaluated();
        if (run_->is_at_epoch_end() && is_settled && epoch_step_ != state.step) TRY(add_checkpoint());
        const std::optional<uint32_t> every = plan_.recipe.checkpoint_steps;
        const bool is_due = every ? state.step >= checkpoint_step_ + *every
                                  : now - last_checkpoint_ >= service_.limits_.checkpoint_every;
        return is_due ? checkpoint() : ok_status();
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

    Status keep_adapter(const std::filesystem::path& folder) const {
        TRY_ASSIGN(const model::TrainableAdapter adapter, trainer_->adapter());
        return adapters::write_peft_folder(service_.host_.files_of(adapter, plan_), folder);
    }

    Status checkpoint() {
        Checkpoint kept{identity_, run_->state(), {}};
        TRY_ASSIGN(kept.trainer, trainer_->checkpoint());
        TRY(write_checkpoint(folder_.checkpoint(), kept));
        last_checkpoint_ = Clock::now();
        checkpoint_step_ = kept.state.step;
        return service_.keep(id_);
    }

    // Adds a checkpoint that clients see, at the end of an epoch.
    Status add_checkpoint() {
        epoch_step_ = run_->state().step;
        TRY(keep_adapter(folder_.step_folder(epoch_step_)));
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
        std::vector<uint64_t> dropped;
        service_.update(id_, [&](Job& job) {
            std::erase_if(job.checkpoints,
                          [&](const proto::JobCheckpointObject& one) { return one.metrics.step == epoch_step_; });
            job.checkpoints.push_back(made);
            while (job.checkpoints.size() > plan_.recipe.n_checkpoints) {
                dropped.push_back(job.checkpoints.front().metrics.step);
                job.checkpoints.erase(job.checkpoints.begin());
            }
        });
        TRY(service_.keep(id_));
        for (const uint64_t step : dropped) {
            std::error_code ignored;
            std::filesystem::remove_all(folder_.step_folder(step), ignored);
        }
        service_.tell(id_, format("Checkpoint created at step {}.", epoch_step_));
        return checkpoint();
    }

    Result<adapters::PeftFiles> best_files() const {
        constexpr uint64_t kTensorBytesMax = uint64_t(64) << 30;
        adapters::PeftFiles files;
        TRY_ASSIGN(files.config, read_whole(folder_.best() / "adapter_config.json", uint64_t(1) << 20));
        TRY_ASSIGN(const std::string tensors,
                   read_whole(folder_.best() / "adapter_model.safetensors", kTensorBytesMax));
        const auto* bytes = reinterpret_cast<const std::byte*>(tensors.data());
        files.tensors.assign(bytes, bytes + tensors.size());
        return files;
    }

    Status publish_adapter() {
        const RunState& state = run_->state();
        const bool is_best = plan_.recipe.use_best && state.best_valid_loss && state.best_step != state.step;
        adapters::PeftFiles files;
        if (is_best) {
            TRY_ASSIGN(files, best_files());
        } else {
            TRY_ASSIGN(const model::TrainableAdapter adapter, trainer_->adapter());
            files = service_.host_.files_of(adapter, plan_);
        }
        TRY(adapters::write_peft_folder(files, folder_.result()));
        TRY(write_papers(is_best ? state.best_step : state.step));
        const std::string present = service_.host_.generation_of(job_.name);
        const bool is_ours = is_expected(present, service_.host_.generation_of(files));
        const std::string name = is_ours ? job_.name : format("{}-{}", job_.name, id_.substr(6, 8));
        if (!is_ours)
            service_.tell(
                id_, format("{} was changed by others while the job ran: its adapter is called {}", job_.name, name),
                "warn");
        TRY_ASSIGN(const std::string generation,
                   service_.host_.publish(name, files, job_.replace, is_ours ? present : std::string(), job_.activate));
        // The adapter is there: a full disk takes the losses alone.
        const Result<StoredFile> csv =
            service_.files_->add(job_.tenant, "step_metrics.csv", "fine-tune-results", folder_.steps_csv());
        if (!csv.ok())
            service_.tell(id_, format("The losses of the steps are not kept: {}", csv.error().message), "warn");
        service_.update(id_, [&](Job& job) {
            job.name = name;
            job.generation = generation;
            if (csv.ok()) job.result_files = {csv->object.id};
            job.finished_s = unix_time_s();
        });
        service_.tell(id_, format("New fine-tuned model created: {}", name));
        service_.tell(id_, "The job has successfully completed");
        TRY(service_.step(id_, JobEvent::kPublished));
        folder_.remove_work();
        return ok_status();
    }

    // Returns true if the name's present generation is no stranger's work: it is unchanged since the job was made, made
    // by another job of this tenant, or this job's own, published before a restart.
    bool is_expected(const std::string& present, const std::string& own) const {
        return present == job_.expected_generation || present == own ||
               service_.was_made_by_job(job_.tenant, job_.name, present);
    }

    Status write_papers(uint64_t used_step) const {
        Provenance provenance;
        provenance.base_name = service_.host_.facts().base_name;
        provenance.identity = identity_;
        provenance.recipe = plan_.recipe;
        provenance.state = run_->state();
        provenance.used_step = used_step;
        provenance.n_steps = plan_.n_steps();
        provenance.n_parameters = job_.n_parameters;
        TRY_ASSIGN(provenance.data, DataReport::parse(job_.report_json));
        provenance.device = service_.host_.facts().device_name;
        provenance.init_from = job_.init_from;
        provenance.seconds = job_.seconds;
        TRY(write_durably(folder_.result() / kProvenanceFile, provenance_json(provenance)));
        return write_durably(folder_.result() / kCardFile, model_card(provenance));
    }

    TrainingService& service_;
    const std::string id_;
    Job job_;
    const JobFolder folder_;
    std::unique_ptr<const TokenFile> data_, validation_;
    RunPlan plan_;
    RunIdentity identity_;
    std::unique_ptr<StepTrainer> trainer_;
    std::unique_ptr<TrainingRun> run_;
    StepResult last_step_;
    std::optional<EvalResult> last_full_;
    Clock::time_point last_checkpoint_, last_look_;
    uint64_t checkpoint_step_ = 0, epoch_step_ = 0;
};

}  // namespace lorad::server::training
