#include "server/training/job.h"

#include <algorithm>

#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/json/json_fields.h"

namespace lorad::server::training {
namespace {

// A record has its own names, independent of clients'.
constexpr auto kCheckpointFields = [](auto& fields, auto& one) {
    fields("id", one.id);
    fields("model", one.model);
    fields("created", one.created_s);
    fields("step", one.metrics.step);
    fields("train_loss", one.metrics.train_loss);
    fields("train_accuracy", one.metrics.train_accuracy);
    fields("full_valid_loss", one.metrics.full_valid_loss);
    fields("full_valid_accuracy", one.metrics.full_valid_accuracy);
};

constexpr auto kErrorFields = [](auto& fields, auto& error) {
    fields("code", error.code);
    fields("message", error.message);
    fields("param", error.param);
};

// All but the state and the recipe, which have words of their own.
constexpr auto kJobFields = [](auto& fields, auto& job) {
    fields("id", job.id);
    fields("tenant", job.tenant);
    fields("number", job.number);
    fields("paused_by", job.paused_by);
    fields("model", job.model);
    fields("training_file", job.training_file);
    fields("validation_file", job.validation_file);
    fields("suffix", job.suffix);
    fields("init_from", job.init_from);
    fields("start_digest", job.start_digest);
    fields("name", job.name);
    fields("expected_generation", job.expected_generation);
    fields("metadata", job.metadata);
    fields("replace", job.replace);
    fields("activate", job.activate);
    fields("created", job.created_s);
    fields.raw("report", job.report_json);
    fields("data_digest", job.data_digest);
    fields("validation_digest", job.validation_digest);
    fields("base_fingerprint", job.base_fingerprint);
    fields("sequences", job.n_sequences);
    fields("steps", job.n_steps);
    fields.object("run", job.run, kRunStateFields);
    fields("seconds", job.seconds);
    fields("parameters", job.n_parameters);
    fields("device_bytes", job.device_bytes);
    fields("finished", job.finished_s);
    fields.object("error", job.error, kErrorFields);
    fields("generation", job.generation);
    fields("result_files", job.result_files);
    fields.objects("checkpoints", job.checkpoints, kCheckpointFields);
};

}  // namespace

std::string Job::json() const {
    JsonWriter writer;
    writer.begin_object().field("state", state_name(state)).key("recipe").raw(proto::recipe_json(recipe));
    return write_fields(writer, *this, kJobFields).end_object().take();
}

Result<Job> Job::parse(std::string_view json) {
    TRY_ASSIGN(const JsonDocument document, parse_json(json, {.name = "job"}));
    const JsonValue root = document.root();
    Job job;
    TRY_ASSIGN(const JsonValue kept_state, root.require("state"));
    TRY_ASSIGN(const std::string_view state_text, kept_state.as_string());
    const std::optional<JobState> known = state_of(state_text);
    if (!known) return kept_state.error(format("there is no state {}", json_quote(state_text)));
    job.state = *known;
    TRY_ASSIGN(const JsonValue kept_recipe, root.require("recipe"));
    TRY_ASSIGN(job.recipe, proto::parse_recipe(kept_recipe.dump()));
    TRY(read_fields(root, job, kJobFields));
    for (proto::JobCheckpointObject& one : job.checkpoints) one.job = job.id;
    return job;
}

proto::JobObject Job::object(std::optional<uint32_t> queue_position) const {
    proto::JobObject out;
    out.id = id;
    out.status = wire_name(state);
    out.model = model;
    if (state == JobState::kSucceeded) out.fine_tuned_model = name;
    out.tenant = tenant;
    out.training_file = training_file;
    out.validation_file = validation_file;
    out.suffix = suffix;
    out.created_s = created_s;
    out.finished_s = finished_s;
    out.result_files = result_files;
    if (is_ended(state)) out.trained_tokens = run.n_trained_tokens;
    out.error = error;
    out.metadata = metadata;
    out.recipe = recipe;
    out.step = run.step;
    out.n_steps = n_steps;
    if (n_sequences > 0 && recipe.batch_size)
        out.epoch = static_cast<double>(run.step) * *recipe.batch_size / static_cast<double>(n_sequences);
    if (seconds > 0) out.tokens_per_s = static_cast<double>(run.n_tokens) / seconds;
    if (state == JobState::kRunning && run.step > 0 && seconds > 0)
        out.estimated_finish_s =
            unix_time_s() + static_cast<int64_t>(seconds / static_cast<double>(run.step) *
                                                 static_cast<double>(n_steps - std::min(n_steps, run.step)));
    out.train_loss = run.last_loss;
    out.valid_loss = run.last_valid_loss;
    out.paused_by = paused_by;
    out.generation = generation;
    out.init_from = init_from;
    out.queue_position = queue_position;
    out.device_bytes = device_bytes;
    out.report_json = report_json;
    return out;
}

}  // namespace lorad::server::training
