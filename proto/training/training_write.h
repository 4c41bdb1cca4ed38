// Answers of /v1/files and /v1/fine_tuning/jobs, as OpenAI's clients read them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/base/result.h"
#include "proto/training/fine_tuning_request.h"

namespace lorad::proto {

struct FileObject {
    std::string id, filename, purpose = "fine-tune";
    uint64_t bytes = 0;
    int64_t created_s = 0;
    std::optional<int64_t> expires_s;
};
std::string file_json(const FileObject& file);
std::string deleted_file_json(std::string_view id);

// Why a job failed.
struct JobError {
    std::string code, message, param;  // param may be empty
};

struct JobObject {
    std::string id, status, model, fine_tuned_model, tenant, training_file, validation_file, suffix;  // empty: null
    int64_t created_s = 0;
    std::optional<int64_t> finished_s, estimated_finish_s;
    std::vector<std::string> result_files;
    std::optional<uint64_t> trained_tokens;
    std::optional<JobError> error;
    std::vector<std::pair<std::string, std::string>> metadata;
    TrainingRecipe recipe;

    // Written in "lorad", beside OpenAI's fields.
    uint64_t step = 0, n_steps = 0;
    double epoch = 0.0, tokens_per_s = 0.0;
    std::optional<double> train_loss, valid_loss;
    std::string paused_by, generation, init_from;
    std::optional<uint32_t> queue_position;
    uint64_t device_bytes = 0;
    std::string report_json;  // about the data; empty: not there yet
};
std::string job_json(const JobObject& job);

// Measurements after a step; absent: not measured then.
struct StepMetrics {
    uint64_t step = 0, n_steps = 0;
    std::optional<double> train_loss, train_accuracy, valid_loss, valid_accuracy, full_valid_loss, full_valid_accuracy,
        learning_rate, grad_norm, tokens_per_s;
    std::optional<uint64_t> tokens;
};

struct JobEventObject {
    std::string id, level = "info", message;
    int64_t created_s = 0;
    std::optional<StepMetrics> metrics;  // type "metrics"; else "message"
};
std::string job_event_json(const JobEventObject& event);
// One that job_event_json() wrote.
Result<JobEventObject> parse_job_event(std::string_view json);

struct JobCheckpointObject {
    std::string id, job, model;
    int64_t created_s = 0;
    StepMetrics metrics;
};
std::string job_checkpoint_json(const JobCheckpointObject& checkpoint);

// {"object":"list","data":[...],"has_more":...}; with the first and last id where there are such.
std::string list_json(std::span<const std::string> objects, bool has_more, std::string_view first_id = {},
                      std::string_view last_id = {});

}  // namespace lorad::proto
