// A training job as it is kept: what was asked for, what was chosen, and how far it is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/training/fine_tuning_request.h"
#include "proto/training/training_write.h"
#include "server/training/job_state.h"
#include "server/training/training_run.h"

namespace lorad::server::training {

struct Job {
    std::string id, tenant;
    uint64_t number = 0;  // jobs take turns by it
    JobState state = JobState::kValidating;
    std::string paused_by;  // user, restart; empty where it is not paused

    std::string model, training_file, validation_file, suffix, init_from;
    std::string name;                 // of the resulting adapter
    std::string start_digest;         // of the files of the adapter that it begins with; empty: none are kept
    std::string expected_generation;  // the name's generation when the job was made; empty: none
    std::vector<std::pair<std::string, std::string>> metadata;
    bool replace = true, activate = true;
    proto::TrainingRecipe recipe;  // as requested until the data is read, then with all choices made

    int64_t created_s = 0;
    std::optional<int64_t> finished_s;
    std::optional<proto::JobError> error;

    // Once the data is read.
    std::string report_json, data_digest, validation_digest, base_fingerprint;
    uint64_t n_sequences = 0, n_steps = 0;

    // Once it runs.
    RunState run;
    double seconds = 0.0;  // running time
    uint64_t n_parameters = 0, device_bytes = 0;
    std::string generation;
    std::vector<std::string> result_files;
    std::vector<proto::JobCheckpointObject> checkpoints;  // the oldest first

    std::string json() const;
    static Result<Job> parse(std::string_view json);
    // The job for clients. queue_position: among its tenant's waiting jobs, from 0.
    proto::JobObject object(std::optional<uint32_t> queue_position) const;
};

}  // namespace lorad::server::training
