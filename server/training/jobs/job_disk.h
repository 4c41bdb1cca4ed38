// What is done on the disk for one running job, on the thread of the disk: checkpoints, adapters, the place among the
// server's adapters. Part of training_thread.cpp.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "server/training/checkpoint_file.h"
#include "server/training/durable_file.h"
#include "server/training/provenance.h"
#include "server/training/training_service.h"

namespace lorad::server::training {

// Made by the training thread; each method runs on the disk's, one after the other.
class TrainingService::JobDisk {
  public:
    JobDisk(TrainingService& service, Job job, RunPlan plan, RunIdentity identity)
        : service_(service),
          id_(job.id),
          job_(std::move(job)),
          folder_(service.folder_of(id_)),
          plan_(std::move(plan)),
          identity_(std::move(identity)) {}

    const RunIdentity& identity() const { return identity_; }

    // The best one yet.
    Status keep_best(const model::TrainableAdapter& adapter, uint64_t step) const {
        return named(format("the best adapter, of step {}, cannot be kept", step),
                     keep_adapter(adapter, folder_.best()));
    }

    Status keep_checkpoint(const Checkpoint& checkpoint) const {
        const Status kept = write_checkpoint(folder_.checkpoint(), checkpoint);
        // Where the job ended meanwhile, its work was removed before this was written.
        if (service_.has_ended(id_)) folder_.remove_work();
        TRY(named(format("the checkpoint at step {} cannot be written", checkpoint.state.step), kept));
        return service_.keep(id_);
    }

    // A checkpoint that clients see.
    Status add_checkpoint(const model::TrainableAdapter& adapter, const proto::JobCheckpointObject& made) const {
        const uint64_t step = made.metrics.step;
        TRY(named(format("the adapter of step {} cannot be kept", step),
                  keep_adapter(adapter, folder_.step_folder(step))));
        std::vector<uint64_t> dropped;
        service_.update(id_, [&](Job& job) {
            std::erase_if(job.checkpoints,
                          [&](const proto::JobCheckpointObject& one) { return one.metrics.step == step; });
            job.checkpoints.push_back(made);
            while (job.checkpoints.size() > plan_.recipe.n_checkpoints) {
                dropped.push_back(job.checkpoints.front().metrics.step);
                job.checkpoints.erase(job.checkpoints.begin());
            }
        });
        TRY(service_.keep(id_));
        for (const uint64_t one : dropped) {
            std::error_code ignored;
            std::filesystem::remove_all(folder_.step_folder(one), ignored);
        }
        service_.tell(id_, format("Checkpoint created at step {}.", step));
        return ok_status();
    }

    // The last step is done. adapter: the last step's; empty where the best one that was kept is wanted.
    Status publish(const Checkpoint& last, const model::TrainableAdapter& adapter) const {
        TRY(keep_checkpoint(last));
        // It goes on from there when the server is back.
        if (service_.stopping_) return stopped();
        TRY(service_.step(id_, JobEvent::kLastStep));
        return named("the adapter cannot be published", publish_adapter(last.state, adapter));
    }

    // True if the adapter of a run that is over is the best one and not the last.
    static bool uses_best(const RunPlan& plan, const RunState& state) {
        return plan.recipe.use_best && state.best_valid_loss && state.best_step != state.step;
    }

  private:
    static Status named(const std::string& what, const Status& status) {
        if (status.ok() || status.error().code == ErrorCode::kClientClosed) return status;
        Error error = status.error();
        error.message = format("{}: {}", what, error.message);
        return error;
    }

    Status keep_adapter(const model::TrainableAdapter& adapter, const std::filesystem::path& folder) const {
        return adapters::write_peft_folder(service_.host_.files_of(adapter, plan_), folder);
    }

    Status publish_adapter(const RunState& state, const model::TrainableAdapter& adapter) const {
        const bool is_best = uses_best(plan_, state);
        adapters::PeftFiles files;
        if (is_best) {
            TRY_ASSIGN(files, read_peft_folder(folder_.best()));
        } else {
            files = service_.host_.files_of(adapter, plan_);
        }
        TRY(adapters::write_peft_folder(files, folder_.result()));
        TRY(write_papers(state, is_best ? state.best_step : state.step));
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

    Status write_papers(const RunState& state, uint64_t used_step) const {
        Provenance provenance;
        provenance.base_name = service_.host_.facts().base_name;
        provenance.identity = identity_;
        provenance.recipe = plan_.recipe;
        provenance.state = state;
        provenance.used_step = used_step;
        provenance.n_steps = plan_.n_steps();
        provenance.n_parameters = job_.n_parameters;
        TRY_ASSIGN(provenance.data, DataReport::parse(job_.report_json));
        provenance.device = service_.host_.facts().device_name;
        provenance.init_from = job_.init_from;
        provenance.seconds = service_.copy_of(id_).seconds;
        TRY(write_durably(folder_.result() / kProvenanceFile, provenance_json(provenance)));
        return write_durably(folder_.result() / kCardFile, model_card(provenance));
    }

    TrainingService& service_;
    const std::string id_;
    const Job job_;  // as it was when the run began
    const JobFolder folder_;
    const RunPlan plan_;
    const RunIdentity identity_;
};

}  // namespace lorad::server::training
