#include "proto/training/training_write.h"

#include "proto/json/json_fields.h"

namespace lorad::proto {
namespace {

void write_text_or_null(JsonWriter& writer, std::string_view key, std::string_view text) {
    writer.key(key);
    if (text.empty())
        writer.null();
    else
        writer.value(text);
}

template <typename T>
void write_or_null(JsonWriter& writer, std::string_view key, const std::optional<T>& value) {
    writer.key(key);
    if (value)
        writer.value(*value);
    else
        writer.null();
}

// "auto" where the server has not chosen yet.
template <typename T>
void write_or_auto(JsonWriter& writer, std::string_view key, const std::optional<T>& value) {
    writer.key(key);
    if (value)
        writer.value(*value);
    else
        writer.value("auto");
}

void write_hyperparameters(JsonWriter& writer, const TrainingRecipe& recipe) {
    writer.key("hyperparameters").begin_object();
    write_or_auto(writer, "n_epochs", recipe.n_epochs);
    write_or_auto(writer, "batch_size", recipe.batch_size);
    write_or_auto(writer, "learning_rate_multiplier", recipe.learning_rate_multiplier);
    writer.end_object();
}

void write_job_error(JsonWriter& writer, const std::optional<JobError>& error) {
    writer.key("error");
    if (!error) {
        writer.null();
        return;
    }
    writer.begin_object().field("code", error->code).field("message", error->message);
    write_text_or_null(writer, "param", error->param);
    writer.end_object();
}

void write_extras(JsonWriter& writer, const JobObject& job) {
    writer.key("lorad").begin_object().field("step", job.step).field("n_steps", job.n_steps).field("epoch", job.epoch);
    writer.field("tokens_per_s", job.tokens_per_s);
    write_or_null(writer, "train_loss", job.train_loss);
    write_or_null(writer, "valid_loss", job.valid_loss);
    write_text_or_null(writer, "paused_by", job.paused_by);
    write_text_or_null(writer, "generation", job.generation);
    write_text_or_null(writer, "init_from", job.init_from);
    write_or_null(writer, "queue_position", job.queue_position);
    writer.field("device_bytes", job.device_bytes).key("recipe").raw(recipe_json(job.recipe)).key("data");
    if (job.report_json.empty())
        writer.null();
    else
        writer.raw(job.report_json);
    writer.end_object();
}

constexpr auto kMetricFields = [](auto& fields, auto& metrics) {
    fields("train_loss", metrics.train_loss);
    fields("train_mean_token_accuracy", metrics.train_accuracy);
    fields("valid_loss", metrics.valid_loss);
    fields("valid_mean_token_accuracy", metrics.valid_accuracy);
    fields("full_valid_loss", metrics.full_valid_loss);
    fields("full_valid_mean_token_accuracy", metrics.full_valid_accuracy);
    fields("learning_rate", metrics.learning_rate);
    fields("grad_norm", metrics.grad_norm);
    fields("tokens", metrics.tokens);
    fields("tokens_per_s", metrics.tokens_per_s);
};

constexpr auto kEventMetricFields = [](auto& fields, auto& metrics) {
    fields("step", metrics.step);
    fields("total_steps", metrics.n_steps);
    kMetricFields(fields, metrics);
};

constexpr auto kEventFields = [](auto& fields, auto& event) {
    fields("id", event.id);
    fields("created_at", event.created_s);
    fields("level", event.level);
    fields("message", event.message);
};

constexpr std::string_view kMetricsType = "metrics";  // of events with metrics

}  // namespace

std::string file_json(const FileObject& file) {
    JsonWriter writer;
    writer.begin_object()
        .field("id", file.id)
        .field("object", "file")
        .field("bytes", file.bytes)
        .field("created_at", file.created_s);
    write_or_null(writer, "expires_at", file.expires_s);
    writer.field("filename", file.filename)
        .field("purpose", file.purpose)
        .field("status", "processed")
        .key("status_details")
        .null();
    return writer.end_object().take();
}

std::string deleted_file_json(std::string_view id) {
    return JsonWriter()
        .begin_object()
        .field("id", id)
        .field("object", "file")
        .field("deleted", true)
        .end_object()
        .take();
}

std::string job_json(const JobObject& job) {
    JsonWriter writer;
    writer.begin_object().field("object", "fine_tuning.job").field("id", job.id).field("created_at", job.created_s);
    write_or_null(writer, "finished_at", job.finished_s);
    write_or_null(writer, "estimated_finish", job.estimated_finish_s);
    writer.field("status", job.status).field("model", job.model);
    write_text_or_null(writer, "fine_tuned_model", job.fine_tuned_model);
    writer.field("organization_id", job.tenant).field("training_file", job.training_file);
    write_text_or_null(writer, "validation_file", job.validation_file);
    writer.key("result_files").begin_array();
    for (const std::string& file : job.result_files) writer.value(file);
    writer.end_array();
    write_or_null(writer, "trained_tokens", job.trained_tokens);
    writer.field("seed", job.recipe.seed);
    write_job_error(writer, job.error);
    write_text_or_null(writer, "user_provided_suffix", job.suffix);
    writer.key("integrations").begin_array().end_array().key("metadata").begin_object();
    for (const auto& [key, value] : job.metadata) writer.field(key, value);
    writer.end_object();
    write_hyperparameters(writer, job.recipe);
    writer.key("method").begin_object().field("type", "supervised").key("supervised").begin_object();
    write_hyperparameters(writer, job.recipe);
    writer.end_object().end_object();
    write_extras(writer, job);
    return writer.end_object().take();
}

std::string job_event_json(const JobEventObject& event) {
    JsonWriter writer;
    writer.begin_object().field("object", "fine_tuning.job.event");
    write_fields(writer, event, kEventFields)
        .field("type", event.metrics ? kMetricsType : "message")
        .key("data")
        .begin_object();
    if (event.metrics) write_fields(writer, *event.metrics, kEventMetricFields);
    return writer.end_object().end_object().take();
}

Result<JobEventObject> parse_job_event(std::string_view json) {
    TRY_ASSIGN(const JsonDocument document, parse_json(json));
    const JsonValue root = document.root();
    JobEventObject event;
    TRY(read_fields(root, event, kEventFields));
    TRY_ASSIGN(const std::string_view type, root.string_or("type", "message"));
    if (type != kMetricsType) return event;
    TRY_ASSIGN(const JsonValue data, root.require("data"));
    TRY(read_fields(data, event.metrics.emplace(), kEventMetricFields));
    return event;
}

std::string job_checkpoint_json(const JobCheckpointObject& checkpoint) {
    JsonWriter writer;
    writer.begin_object()
        .field("object", "fine_tuning.job.checkpoint")
        .field("id", checkpoint.id)
        .field("created_at", checkpoint.created_s);
    writer.field("fine_tuning_job_id", checkpoint.job)
        .field("fine_tuned_model_checkpoint", checkpoint.model)
        .field("step_number", checkpoint.metrics.step);
    writer.key("metrics").begin_object().field("step", checkpoint.metrics.step);
    return write_fields(writer, checkpoint.metrics, kMetricFields).end_object().end_object().take();
}

std::string list_json(std::span<const std::string> objects, bool has_more, std::string_view first_id,
                      std::string_view last_id) {
    JsonWriter writer;
    writer.begin_object().field("object", "list").key("data").begin_array();
    for (const std::string& one : objects) writer.raw(one);
    writer.end_array().field("has_more", has_more);
    write_text_or_null(writer, "first_id", first_id);
    write_text_or_null(writer, "last_id", last_id);
    return writer.end_object().take();
}

}  // namespace lorad::proto
