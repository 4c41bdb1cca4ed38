// The thread of TrainingService that reads data, and what its threads do with the records of jobs.
#include <algorithm>
#include <utility>

#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/mutex.h"
#include "proto/base/thread.h"
#include "proto/error.h"
#include "server/training/token_file.h"
#include "server/training/training_service.h"

namespace lorad::server::training {
namespace {

Error with_param(Error error, std::string_view param) {
    error.param = std::string(param);
    return error;
}

proto::JobError job_error_of(const Error& error) {
    if (error.param == "training_file" || error.param == "validation_file")
        return {"invalid_" + error.param, proto::error_message(error), error.param};
    return {std::string(proto::error_info(error.code).wire_code), proto::error_message(error), error.param};
}

}  // namespace

Error TrainingService::stopped() { return make_error(ErrorCode::kClientClosed, "the job was stopped"); }

// The oldest; nothing if the service stops.
std::optional<std::string> TrainingService::wait_for_data() {
    MutexLock lock(mutex_);
    const Job* next = nullptr;
    changed_.wait(lock, [&]() REQUIRES(mutex_) {
        for (const auto& [id, entry] : entries_) {
            const Job& job = entry.job;
            if (job.state == JobState::kValidating && (next == nullptr || job.number < next->number)) next = &job;
        }
        return stopping_ || next != nullptr;
    });
    return stopping_ ? std::nullopt : std::optional(next->id);
}

// Reads data beside running jobs, so that the owner of a waiting job learns at once if it is invalid.
void TrainingService::run_reading() {
    name_thread("lorad-dataset");
    give_way();
    while (const std::optional<std::string> id = wait_for_data()) {
        const Status read = validate(copy_of(*id));
        if (is_fault(read)) fail(*id, read.error());
    }
}

// Returns true if it fails a job. A lost device ends the process, and jobs go on after a restart.
bool TrainingService::is_fault(const Status& status) {
    if (status.ok() || status.error().code == ErrorCode::kClientClosed) return false;
    if (status.error().code != ErrorCode::kDeviceLost) return true;
    stopping_ = true;
    return false;
}

DataOptions TrainingService::options_of(const proto::TrainingRecipe& recipe) const {
    DataOptions options = data_options(recipe, host_.facts().n_positions_max, host_.facts().vocab_size);
    options.n_tokens_max = limits_.n_tokens_max;
    return options;
}

Result<DataReport> TrainingService::check_file(const StoredFile& file, const proto::TrainingRecipe& recipe) const {
    DataOptions options = options_of(recipe);
    options.cancelled = [this] { return stopping_.load(); };
    return prepare_data(files_->content_of(file.object.id), host_.text(), options, nullptr);
}

Status TrainingService::validate(Job job) {
    const JobFolder folder = folder_of(job.id);
    DataOptions options = options_of(job.recipe);
    options.cancelled = [this, id = job.id] { return is_wanted_to_stop(id); };
    const auto read = [&](const std::string& file_id, const std::filesystem::path& to,
                          std::string_view param) -> Result<DataReport> {
        const std::optional<StoredFile> file = files_->find(job.tenant, file_id);
        if (!file) return make_error(ErrorCode::kInvalidRequest, "the file was deleted", std::string(param));
        TRY_ASSIGN(const std::unique_ptr<TokenFileWriter> writer, TokenFileWriter::create(to));
        Result<DataReport> report = prepare_data(files_->content_of(file_id), host_.text(), options, writer.get());
        if (!report.ok())
            return report.error().code == ErrorCode::kInvalidRequest ? with_param(report.error(), param)
                                                                     : report.error();
        if (report->n_bad_lines > 0 && !job.recipe.skip_bad_lines) {
            const LineProblem& first = report->problems.front();
            return make_error(
                ErrorCode::kInvalidRequest,
                format(
                    "line {}: {}{}", first.line, first.reason,
                    report->n_bad_lines == 1 ? std::string() : format(" (and {} more lines)", report->n_bad_lines - 1)),
                std::string(param));
        }
        if (report->n_sequences == 0)
            return make_error(ErrorCode::kInvalidRequest, "no line can be trained on", std::string(param));
        return report;
    };
    const Result<DataReport> report = read(job.training_file, folder.data(), "training_file");
    if (!report.ok()) return report.error();
    std::string validation_digest;
    if (!job.validation_file.empty()) {
        const Result<DataReport> validation = read(job.validation_file, folder.validation(), "validation_file");
        if (!validation.ok()) return validation.error();
        validation_digest = validation->digest;
    }
    proto::TrainingRecipe recipe = job.recipe;
    recipe.max_seq_length = options.encode.max_seq_length;
    TRY_ASSIGN(const RunPlan plan, plan_run(recipe, report->n_sequences));
    if (is_wanted_to_stop(job.id)) return stopped();
    update(job.id, [&](Job& kept) {
        kept.recipe = plan.recipe;
        kept.n_sequences = report->n_sequences;
        kept.n_steps = plan.n_steps();
        kept.report_json = report->json();
        kept.data_digest = report->digest;
        kept.validation_digest = validation_digest;
        kept.base_fingerprint = host_.facts().base_fingerprint;
    });
    TRY(step(job.id, JobEvent::kValidated));
    tell(
        job.id,
        format("Files validated, moving job to queued state: {} sequences, {} tokens of which {} are trained, {} steps",
               report->n_sequences, report->n_tokens, report->n_trained_tokens, plan.n_steps()));
    return ok_status();
}

void TrainingService::wait_until_saved(Entry& entry, MutexLock& lock) {
    ++entry.n_waiting;
    changed_.wait(lock, [&] { return !entry.is_being_saved; });
    --entry.n_waiting;
}

Status TrainingService::save(Entry& entry, MutexLock& lock, const std::function<bool(Job&)>& change) {
    wait_until_saved(entry, lock);
    Job job = entry.job;
    if (!change(job)) return stopped();  // somebody else was first
    entry.is_being_saved = true;
    mutex_.unlock();
    const Status saved = folder_of(job.id).save(job);
    mutex_.lock();
    entry.is_being_saved = false;
    changed_.notify_all();
    return saved;
}

Status TrainingService::step(Entry& entry, JobEvent event, MutexLock& lock) {
    const auto change = [&](Job& job) {
        const std::optional<JobState> next = next_state(job.state, event);
        if (!next) return false;
        job.state = *next;
        if (event == JobEvent::kPause) job.paused_by = "user";
        if (event == JobEvent::kResume) job.paused_by.clear();
        if (is_ended(*next) && !job.finished_s) job.finished_s = unix_time_s();
        return true;
    };
    TRY(save(entry, lock, change));
    // No other step was made meanwhile.
    (void)change(entry.job);
    const JobState state = entry.job.state;
    if (state == JobState::kCancelled || state == JobState::kFailed) folder_of(entry.job.id).remove_work();
    return ok_status();
}

Status TrainingService::step(const std::string& id, JobEvent event) {
    MutexLock lock(mutex_);
    return step(entries_.find(id)->second, event, lock);
}

void TrainingService::fail(const std::string& id, const Error& error) {
    MutexLock lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return;  // it had ended before, and was forgotten
    Entry& entry = found->second;
    wait_until_saved(entry, lock);
    // Somebody else was first: what was cancelled or paused meanwhile is no failure.
    if (!next_state(entry.job.state, JobEvent::kFault)) {
        log_warn("the training job {}, which is {}: {}", id, state_name(entry.job.state), error.message);
        return;
    }
    log_warn("the training job {} failed: {}", id, error.message);
    entry.job.error = job_error_of(error);
    const Status stepped = step(entry, JobEvent::kFault, lock);
    // If even that cannot be written, a restart finds the job's old state.
    if (!stepped.ok()) entry.job.state = JobState::kFailed;
    tell(entry, format("The job failed: {}", proto::error_message(error)), "error");
    changed_.notify_all();
}

void TrainingService::tell(Entry& entry, std::string message, std::string level,
                           const std::optional<proto::StepMetrics>& metrics) {
    proto::JobEventObject event;
    event.id = format("ftevent-{}-{}", entry.job.id.substr(6), entry.events.size() + 1);
    event.level = std::move(level);
    event.message = std::move(message);
    event.created_s = unix_time_s();
    event.metrics = metrics;
    const Status kept = folder_of(entry.job.id).append_event(event);
    if (!kept.ok()) log_warn("an event of the training job {} is not kept: {}", entry.job.id, kept.error().message);
    entry.events.push_back(std::move(event));
}

void TrainingService::tell(const std::string& id, std::string message, std::string level,
                           const std::optional<proto::StepMetrics>& metrics) {
    MutexLock lock(mutex_);
    tell(entries_.find(id)->second, std::move(message), std::move(level), metrics);
    changed_.notify_all();
}

Status TrainingService::cut_behind(const std::string& id, const RunState& state) {
    MutexLock lock(mutex_);
    TRY(folder_of(id).cut_behind(state));
    entries_.find(id)->second.events = folder_of(id).events();
    return ok_status();
}

Job TrainingService::copy_of(const std::string& id) const {
    MutexLock lock(mutex_);
    return entries_.find(id)->second.job;
}

void TrainingService::update(const std::string& id, const std::function<void(Job&)>& change) {
    MutexLock lock(mutex_);
    change(entries_.find(id)->second.job);
}

Status TrainingService::keep(const std::string& id) {
    MutexLock lock(mutex_);
    return save(entries_.find(id)->second, lock, [](Job&) { return true; });
}

bool TrainingService::has_ended(const std::string& id) const {
    MutexLock lock(mutex_);
    return is_ended(entries_.find(id)->second.job.state);
}

bool TrainingService::was_made_by_job(const std::string& tenant, const std::string& name,
                                      const std::string& generation) const {
    MutexLock lock(mutex_);
    return std::ranges::any_of(entries_, [&](const auto& entry) {
        const Job& job = entry.second.job;
        return job.tenant == tenant && job.name == name && job.generation == generation;
    });
}

bool TrainingService::is_wanted_to_stop(const std::string& id) const {
    MutexLock lock(mutex_);
    return is_to_stop(id);
}

bool TrainingService::is_to_stop(const std::string& id) const {
    if (stopping_) return true;
    const JobState state = entries_.find(id)->second.job.state;
    return state != JobState::kValidating && state != JobState::kRunning && state != JobState::kPublishing;
}

}  // namespace lorad::server::training
