#include "server/training/job.h"

#include <cmath>

#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/json.h"

namespace lorad::server::training {
namespace {

void write_text(JsonWriter& writer, std::string_view key, std::string_view text) {
    if (!text.empty()) writer.field(key, text);
}

Result<std::string> read_text(const JsonValue& root, std::string_view key) {
    TRY_ASSIGN(const std::string_view text, root.string_or(key, ""));
    return std::string(text);
}

Result<uint64_t> read_whole_number(const JsonValue& root, std::string_view key) {
    const std::optional<JsonValue> value = root.find(key);
    return value ? value->as_uint() : Result<uint64_t>(uint64_t(0));
}

void write_checkpoints(JsonWriter& writer, const std::vector<proto::JobCheckpointObject>& checkpoints) {
    writer.key("checkpoints").begin_array();
    for (const proto::JobCheckpointObject& one : checkpoints) {
        writer.begin_object().field("id", one.id).field("model", one.model).field("created", one.created_s).field("step", one.metrics.step);
        const auto number = [&](std::string_view key, const std::optional<double>& value) {
            if (value) writer.field(key, *value);
        };
        number("train_loss", one.metrics.train_loss);
        number("train_accuracy", one.metrics.train_accuracy);
        number("full_valid_loss", one.metrics.full_valid_loss);
        number("full_valid_accuracy", one.metrics.full_valid_accuracy);
        writer.end_object();
    }
    writer.end_array();
}

Status read_checkpoints(const JsonValue& root, Job& job) {
    const std::optional<JsonValue> list = root.find("checkpoints");
    if (!list) return ok_status();
    TRY_ASSIGN(const std::vector<JsonValue> values, list->as_array());
    for (const JsonValue& value : values) {
        proto::JobCheckpointObject one;
        one.job = job.id;
        TRY_ASSIGN(one.id, read_text(value, "id"));
        TRY_ASSIGN(one.model, read_text(value, "model"));
        TRY_ASSIGN(one.created_s, value.int_or("created", 0));
        TRY_ASSIGN(one.metrics.step, read_whole_number(value, "step"));
        const auto number = [&](std::string_view key, std::optional<double>& to) -> Status {
            if (!value.find(key)) return ok_status();
            TRY_ASSIGN(to, value.number_or(key, 0.0));
            return ok_status();
        };
        TRY(number("train_loss", one.metrics.train_loss));
        TRY(number("train_accuracy", one.metrics.train_accuracy));
        TRY(number("full_valid_loss", one.metrics.full_valid_loss));
        TRY(number("full_valid_accuracy", one.metrics.full_valid_accuracy));
        job.checkpoints.push_back(std::move(one));
    }
    return ok_status();
}

void write_outcome(JsonWriter& writer, const Job& job) {
    if (job.finished_s) writer.field("finished", *job.finished_s);
    if (job.error) {
        writer.key("error").begin_object().field("code", job.error->code).field("message", job.error->message).field("param", job.error->param).end_object();
    }
    write_text(writer, "generation", job.generation);
    writer.key("result_files").begin_array();
    for (const std::string& file : job.result_files) writer.value(file);
    writer.end_array();
    write_checkpoints(writer, job.checkpoints);
}

Status read_outcome(const JsonValue& root, Job& job) {
    if (root.find("finished")) {
        TRY_ASSIGN(job.finished_s, root.int_or("finished", 0));
    }
    if (const std::optional<JsonValue> error = root.find("error")) {
        job.error.emplace();
        TRY_ASSIGN(job.error->code, read_text(*error, "code"));
        TRY_ASSIGN(job.error->message, read_text(*error, "message"));
        TRY_ASSIGN(job.error->param, read_text(*error, "param"));
    }
    TRY_ASSIGN(job.generation, read_text(root, "generation"));
    if (const std::optional<JsonValue> files = root.find("result_files")) {
        TRY_ASSIGN(const std::vector<JsonValue> list, files->as_array());
        for (const JsonValue& file : list) {
            TRY_ASSIGN(const std::string_view id, file.as_string());
            job.result_files.emplace_back(id);
        }
    }
    return read_checkpoints(root, job);
}

}  // namespace

std::string Job::json() const {
    JsonWriter writer;
    writer.begin_object().field("id", id).field("tenant", tenant).field("number", number).field("state", state_name(state));
    write_text(writer, "paused_by", paused_by);
    writer.field("model", model).field("training_file", training_file);
    write_text(writer, "validation_file", validation_file);
    write_text(writer, "suffix", suffix);
    write_text(writer, "init_from", init_from);
    writer.field("name", name);
    write_text(writer, "expected_generation", expected_generation);
    writer.key("metadata").begin_object();
    for (const auto& [key, value] : metadata) writer.field(key, value);
    writer.end_object().field("replace", replace).field("activate", activate).key("recipe").raw(proto::recipe_json(recipe)).field("created", created_s);
    if (!report_json.empty()) writer.key("report").raw(report_json);
    write_text(writer, "data_digest", data_digest);
    write_text(writer, "validation_digest", validation_digest);
    write_text(writer, "base_fingerprint", base_fingerprint);
    writer.field("sequences", n_sequences).field("steps", n_steps).key("run").raw(run.json());
    writer.field("seconds", seconds).field("parameters", n_parameters).field("device_bytes", device_bytes);
    write_outcome(writer, *this);
    return writer.end_object().take();
}

Result<Job> Job::parse(std::string_view json) {
    TRY_ASSIGN(const JsonDocument document, parse_json(json, {.name = "job"}));
    const JsonValue root = document.root();
    Job job;
    TRY_ASSIGN(job.id, read_text(root, "id"));
    TRY_ASSIGN(job.tenant, read_text(root, "tenant"));
    TRY_ASSIGN(job.number, read_whole_number(root, "number"));
    TRY_ASSIGN(const std::string state_text, read_text(root, "state"));
    const std::optional<JobState> known = state_of(state_text);
    if (!known) return root.error(format("state: there is no state {}", json_quote(state_text)));
    job.state = *known;
    TRY_ASSIGN(job.paused_by, read_text(root, "paused_by"));
    TRY_ASSIGN(job.model, read_text(root, "model"));
    TRY_ASSIGN(job.training_file, read_text(root, "training_file"));
    TRY_ASSIGN(job.validation_file, read_text(root, "validation_file"));
    TRY_ASSIGN(job.suffix, read_text(root, "suffix"));
    TRY_ASSIGN(job.init_from, read_text(root, "init_from"));
    TRY_ASSIGN(job.name, read_text(root, "name"));
    TRY_ASSIGN(job.expected_generation, read_text(root, "expected_generation"));
    TRY_ASSIGN(const JsonValue pairs, root.require("metadata"));
    TRY_ASSIGN(const std::vector<JsonMember> members, pairs.as_object());
    for (const JsonMember& member : members) {
        TRY_ASSIGN(const std::string_view value, member.value.as_string());
        job.metadata.emplace_back(member.key, value);
    }
    TRY_ASSIGN(job.replace, root.bool_or("replace", true));
    TRY_ASSIGN(job.activate, root.bool_or("activate", true));
    TRY_ASSIGN(const JsonValue kept_recipe, root.require("recipe"));
    TRY_ASSIGN(job.recipe, proto::parse_recipe(kept_recipe.dump()));
    TRY_ASSIGN(job.created_s, root.int_or("created", 0));
    if (const std::optional<JsonValue> report = root.find("report")) job.report_json = report->dump();
    TRY_ASSIGN(job.data_digest, read_text(root, "data_digest"));
    TRY_ASSIGN(job.validation_digest, read_text(root, "validation_digest"));
    TRY_ASSIGN(job.base_fingerprint, read_text(root, "base_fingerprint"));
    TRY_ASSIGN(job.n_sequences, read_whole_number(root, "sequences"));
    TRY_ASSIGN(job.n_steps, read_whole_number(root, "steps"));
    TRY_ASSIGN(const JsonValue kept_run, root.require("run"));
    TRY_ASSIGN(job.run, RunState::parse(kept_run.dump()));
    TRY_ASSIGN(job.seconds, root.number_or("seconds", 0.0));
    TRY_ASSIGN(job.n_parameters, read_whole_number(root, "parameters"));
    TRY_ASSIGN(job.device_bytes, read_whole_number(root, "device_bytes"));
    TRY(read_outcome(root, job));
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
    if (n_sequences > 0 && recipe.batch_size) out.epoch = double(run.step) * *recipe.batch_size / double(n_sequences);
    if (seconds > 0) out.tokens_per_s = double(run.n_tokens) / seconds;
    if (state == JobState::kRunning && run.step > 0 && seconds > 0)
        out.estimated_finish_s = unix_time_s() + int64_t(seconds / double(run.step) * double(n_steps - std::min(n_steps, run.step)));
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
