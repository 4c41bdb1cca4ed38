// The threads of TrainingService: one reads data, one trains.
#include <algorithm>
#include <utility>

#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/mutex.h"
#include "proto/base/thread.h"
#include "proto/error.h"
#include "server/training/job_run.h"
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

Error TrainingService::JobRun::stopped() { return make_error(ErrorCode::kClientClosed, "the job was stopped"); }

// The oldest.
std::optional<std::string> TrainingService::next_job(JobState state) const {
    const Job* next = nullptr;
    for (const auto& [id, entry] : entries_) {
        if (entry.job.state == state && (next == nullptr || entry.job.number < next->number)) next = &entry.job;
    }
    return next == nullptr ? std::nullopt : std::optional(next->id);
}

// Returns nothing if the service stops.
std::optional<std::string> TrainingService::wait_for_job(JobState state) {
    MutexLock lock(mutex_);
    changed_.wait(lock, [&]() REQUIRES(mutex_) { return stopping_ || next_job(state).has_value(); });
    return stopping_ ? std::nullopt : next_job(state);
}

// Reads data beside running jobs, so that the owner of a waiting job learns at once if it is invalid.
void TrainingService::run_reading() {
    name_thread("lorad-dataset");
    give_way();
    while (const std::optional<std::string> id = wait_for_job(JobState::kValidating)) {
        const Status read = validate(copy_of(*id));
        if (is_fault(read)) fail(*id, read.error());
    }
}

void TrainingService::run_training() {
    name_thread("lorad-training");
    give_way();
    Running running;
    while (!stopping_) {
        const bool is_idle = running.empty() && (called_ == nullptr || called_->busy().empty());
        if (is_idle && !wait_for_work()) break;
        admit(running);
        take_turn(running);
    }
    for (const auto& one : running) end_run(*one, JobRun::stopped());
    running.clear();
    if (called_ != nullptr) called_->end();
}

// Until a job can begin or calls have come; returns now and then, so that models end that nobody calls. False: the
// service stops.
bool TrainingService::wait_for_work() {
    constexpr std::chrono::seconds kLook{1};
    MutexLock lock(mutex_);
    const auto has_work = [&]() REQUIRES(mutex_) {
        if (stopping_ || (called_ != nullptr && called_->has_work())) return true;
        const std::optional<std::string> next = next_job(JobState::kQueued);
        return next && *next != waits_;
    };
    if (called_ == nullptr) {
        changed_.wait(lock, has_work);
    } else {
        changed_.wait_for(lock, kLook, has_work);
    }
    return !stopping_;
}

void TrainingService::wake() {
    {
        const MutexLock lock(mutex_);
    }  // or the thread misses it between its look and its sleep
    changed_.notify_all();
}

// A trainer whose passes the next one shares; null: nobody is trained.
StepTrainer* TrainingService::company_of(const Running& running) const {
    if (!running.empty()) return &running.front()->trainer();
    return called_ != nullptr ? called_->any_trainer() : nullptr;
}

// Returns true if it fails a job. A lost device ends the process, and jobs go on after a restart.
bool TrainingService::is_fault(const Status& status) {
    if (status.ok() || status.error().code == ErrorCode::kClientClosed) return false;
    if (status.error().code != ErrorCode::kDeviceLost) return true;
    stopping_ = true;
    return false;
}

// Admits in the order of arrival: a job that does not fit beside the running ones holds back later ones, or they would
// always go before it.
void TrainingService::admit(Running& running) {
    const auto n_running = [&] { return running.size() + (called_ != nullptr ? called_->n_trainers() : 0); };
    while (!stopping_ && n_running() < limits_.n_together) {
        std::optional<std::string> id;
        {
            MutexLock lock(mutex_);
            id = next_job(JobState::kQueued);
        }
        // One that was paused and is wanted again, while what was begun of it is not given up yet, has the next turn.
        const auto is_running = [&](const auto& one) { return one->id() == *id; };
        if (!id || *id == waits_ || std::ranges::any_of(running, is_running)) return;
        if (std::unique_ptr<JobRun> begun = begin_run(*id, running)) running.push_back(std::move(begun));
    }
}

// Null: it failed, waits, or is no longer to run.
std::unique_ptr<TrainingService::JobRun> TrainingService::begin_run(const std::string& id, const Running& running) {
    Job job = copy_of(id);
    if (job.data_digest.empty()) {  // its data is read first
        const Status unread = step(id, JobEvent::kUnread);
        if (is_fault(unread)) fail(id, unread.error());
        return nullptr;
    }
    auto run = std::make_unique<JobRun>(*this, std::move(job));
    StepTrainer* const company = company_of(running);
    const Status prepared = run->prepare(company);
    if (!prepared.ok() && company != nullptr &&
        (prepared.error().code == ErrorCode::kInvalidConfig || prepared.error().code == ErrorCode::kOutOfMemory)) {
        waits_ = id;
        tell(id, format("Waits for the jobs under way: {}", prepared.error().message));
        return nullptr;
    }
    const Status begun = prepared.ok() ? step(id, JobEvent::kStarted) : prepared;
    if (begun.ok()) {
        tell(id, running.empty() ? std::string("Fine-tuning job started")
                                 : format("Fine-tuning job started beside {} others", running.size()));
        const Status taken_up = run->take_up();
        if (taken_up.ok()) return run;
        end_run(*run, taken_up);
    } else if (is_fault(begun)) {
        fail(id, begun.error());
    }
    return nullptr;
}

// Takes finished work, begins the next, and runs pieces until something is done.
void TrainingService::take_turn(Running& running) {
    std::erase_if(running, [&](const std::unique_ptr<JobRun>& one) {
        const Status advanced = one->advance();
        if (advanced.ok() && !one->is_over()) return false;
        end_run(*one, advanced);
        waits_.clear();
        return true;
    });
    if (called_ != nullptr && !stopping_) {
        StepTrainer* const beside = running.empty() ? nullptr : &running.front()->trainer();
        if (called_->advance(beside, static_cast<uint32_t>(running.size()))) waits_.clear();
    }
    if (!stopping_) run_pieces(running);
}

void TrainingService::run_pieces(Running& running) {
    std::vector<StepTrainer*> trainers;
    for (const auto& one : running) trainers.push_back(&one->trainer());
    if (called_ != nullptr) {
        for (StepTrainer* trainer : called_->busy()) trainers.push_back(trainer);
    }
    if (trainers.empty()) return;
    const Result<bool> ran = host_.run_pieces(trainers, [&] {
        return stopping_ || (called_ != nullptr && called_->has_work()) ||
               std::ranges::any_of(running, [&](const auto& one) { return is_wanted_to_stop(one->id()); });
    });
    if (ran.ok()) return;
    for (const auto& one : running) end_run(*one, ran.error());
    running.clear();
    waits_.clear();
    if (called_ == nullptr) return;
    called_->fail(ran.error());
    if (ran.error().code == ErrorCode::kDeviceLost) stopping_ = true;
}

// how: what ended it; ok: it is over.
void TrainingService::end_run(JobRun& run, Status how) {
    if (how.ok()) how = run.publish();
    if (!how.ok() && how.error().code == ErrorCode::kClientClosed) run.leave();
    if (is_fault(how)) fail(run.id(), how.error());
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
    if (is_wanted_to_stop(job.id)) return JobRun::stopped();
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

Status TrainingService::step(Entry& entry, JobEvent event) {
    const std::optional<JobState> next = next_state(entry.job.state, event);
    if (!next) return JobRun::stopped();  // somebody else was first
    const JobState before = std::exchange(entry.job.state, *next);
    if (is_ended(*next) && !entry.job.finished_s) entry.job.finished_s = unix_time_s();
    const Status kept = folder_of(entry.job.id).save(entry.job);
    if (!kept.ok()) {
        entry.job.state = before;
        return kept;
    }
    if (*next == JobState::kCancelled || *next == JobState::kFailed) folder_of(entry.job.id).remove_work();
    return ok_status();
}

Status TrainingService::step(const std::string& id, JobEvent event) {
    MutexLock lock(mutex_);
    const Status stepped = step(entries_.find(id)->second, event);
    changed_.notify_all();
    return stepped;
}

void TrainingService::fail(const std::string& id, const Error& error) {
    MutexLock lock(mutex_);
    Entry& entry = entries_.find(id)->second;
    // Somebody else was first: what was cancelled or paused meanwhile is no failure.
    if (!next_state(entry.job.state, JobEvent::kFault)) return;
    log_warn("the training job {} failed: {}", id, error.message);
    entry.job.error = job_error_of(error);
    const Status stepped = step(entry, JobEvent::kFault);
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
    const Job& job = entries_.find(id)->second.job;
    return folder_of(id).save(job);
}

bool TrainingService::is_cancelled(const std::string& id) const { return copy_of(id).state == JobState::kCancelled; }

bool TrainingService::was_made_by_job(const std::string& tenant, const std::string& name,
                                      const std::string& generation) const {
    MutexLock lock(mutex_);
    return std::ranges::any_of(entries_, [&](const auto& entry) {
        const Job& job = entry.second.job;
        return job.tenant == tenant && job.name == name && job.generation == generation;
    });
}

bool TrainingService::is_wanted_to_stop(const std::string& id) const {
    if (stopping_) return true;
    MutexLock lock(mutex_);
    const JobState state = entries_.find(id)->second.job.state;
    return state != JobState::kValidating && state != JobState::kRunning && state != JobState::kPublishing;
}

}  // namespace lorad::server::training
