#include "server/training/training_service.h"

#include <algorithm>

#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/mutex.h"
#include "proto/base/thread.h"
#include "proto/json/json.h"
#include "server/training/durable_file.h"

namespace lorad::server::training {
namespace {

Error no_such_job(std::string_view id) {
    return make_error(ErrorCode::kNotFound, format("no fine-tuning job is called {}", json_quote_short(id)),
                      "fine_tuning_job_id");
}

std::string_view verb_of(JobEvent event) {
    if (event == JobEvent::kPause) return "paused";
    return event == JobEvent::kResume ? "resumed" : "cancelled";
}

}  // namespace

TrainingService::TrainingService(std::filesystem::path folder, TrainingHost& host, const TrainingLimits& limits)
    : folder_(std::move(folder)),
      host_(host),
      limits_(limits),
      disk_([this](const std::string& id, const Status& how) { end_task(id, how); }),
      turns_(limits.n_together, limits.turn) {}

Result<std::unique_ptr<TrainingService>> TrainingService::open(const std::filesystem::path& folder, TrainingHost& host,
                                                               const TrainingLimits& limits) {
    TRY(make_folder(folder));
    TRY(make_folder(folder / "jobs"));
    auto service = std::unique_ptr<TrainingService>(new TrainingService(folder, host, limits));
    TRY_ASSIGN(service->files_, FileStore::open(folder / "files", limits.files));
    TRY(service->read_jobs());
    return service;
}

TrainingService::~TrainingService() { stop(); }

Status TrainingService::read_jobs() {
    MutexLock lock(mutex_);
    std::vector<JobFolder> unmade;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "jobs", error)) {
        const std::string id = entry.path().filename().string();
        if (!is_id(id, "ftjob-")) continue;
        const JobFolder folder = folder_of(id);
        if (!folder.has_record()) {  // the process was killed while it was made, or removed
            unmade.push_back(folder);
            continue;
        }
        Result<Job> job = folder.load();
        if (!job.ok() || job->id != id) {
            log_error("the record of the training job {} cannot be read: {}", id,
                      job.ok() ? std::string("it is another's") : job.error().message);
            continue;
        }
        next_number_ = std::max(next_number_, job->number + 1);
        Entry& known = entries_.emplace(id, Entry{std::move(*job), folder.events()}).first->second;
        if (!is_ended(known.job.state)) restart(known, lock);
        folder.remove_leftovers(known.job);
    }
    for (const JobFolder& folder : unmade) folder.remove();
    if (error)
        return make_error(ErrorCode::kStorageFailed,
                          format("the folder of training jobs cannot be read: {}", error.message()));
    return ok_status();
}

// A full disk keeps no server from starting: where the new state cannot be written, the next start finds the job as
// this one did.
void TrainingService::restart(Entry& entry, MutexLock& lock) {
    const Status stepped = step(entry, JobEvent::kRestart, lock);
    if (stepped.ok()) return;
    log_warn("the record of the training job {} cannot be written: {}", entry.job.id, stepped.error().message);
    entry.job.state = next_state(entry.job.state, JobEvent::kRestart).value_or(entry.job.state);
}

void TrainingService::start() {
    disk_.start();
    if (!start_thread(reader_, [this] { run_reading(); }) || !start_thread(trainer_, [this] { run_training(); }))
        log_error("the system gives no thread to train with: jobs wait until a restart");
}

void TrainingService::stop() {
    {
        MutexLock lock(mutex_);  // or a thread misses it between its look and its sleep
        stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread* thread : {&reader_, &trainer_}) {
        if (thread->joinable()) thread->join();
    }
    disk_.stop();  // behind the last checkpoints
}

const TrainingService::Entry* TrainingService::entry_of(std::string_view tenant, std::string_view id) const {
    const auto found = entries_.find(id);
    return found == entries_.end() || found->second.job.tenant != tenant ? nullptr : &found->second;
}

proto::JobObject TrainingService::object_of(const Entry& entry) const {
    std::optional<uint32_t> position;
    if (entry.job.state == JobState::kQueued || entry.job.state == JobState::kValidating) {
        position = uint32_t(std::ranges::count_if(entries_, [&](const auto& other) {
            const Job& job = other.second.job;
            return job.tenant == entry.job.tenant && job.number < entry.job.number &&
                   (job.state == JobState::kQueued || job.state == JobState::kValidating);
        }));
    }
    return entry.job.object(position);
}

Result<bool> TrainingService::remove_file(std::string_view tenant, std::string_view id) {
    {
        MutexLock lock(mutex_);
        for (const auto& [job_id, entry] : entries_) {
            const Job& job = entry.job;
            const bool is_named = job.tenant == tenant && (job.training_file == id || job.validation_file == id);
            if (is_named && job.state == JobState::kValidating)
                return make_error(ErrorCode::kGenerationConflict, format("the job {} still reads this file", job_id),
                                  "file_id");
        }
    }
    return files_->remove(tenant, id);
}

std::optional<proto::JobObject> TrainingService::find(std::string_view tenant, std::string_view id) const {
    MutexLock lock(mutex_);
    const Entry* entry = entry_of(tenant, id);
    return entry == nullptr ? std::nullopt : std::optional(object_of(*entry));
}

std::vector<proto::JobObject> TrainingService::list(std::string_view tenant) const {
    MutexLock lock(mutex_);
    std::vector<const Entry*> own;
    for (const auto& [id, entry] : entries_) {
        if (entry.job.tenant == tenant) own.push_back(&entry);
    }
    std::ranges::sort(own, [](const Entry* a, const Entry* b) { return a->job.number > b->job.number; });
    std::vector<proto::JobObject> jobs;
    for (const Entry* entry : own) jobs.push_back(object_of(*entry));
    return jobs;
}

Result<proto::JobObject> TrainingService::change(std::string_view tenant, std::string_view id, JobEvent event) {
    MutexLock lock(mutex_);
    if (entry_of(tenant, id) == nullptr) return no_such_job(id);
    Entry& entry = entries_.find(id)->second;
    wait_until_saved(entry, lock);
    if (!next_state(entry.job.state, event))
        return make_error(ErrorCode::kInvalidRequest,
                          format("a job that is {} cannot be {}", wire_name(entry.job.state), verb_of(event)),
                          "fine_tuning_job_id");
    if (event != JobEvent::kCancel && entry.events.size() >= limits_.n_events_max)
        return make_error(
            ErrorCode::kRateLimited,
            format("{} events of this job are kept, as many as may be: it can be cancelled alone", entry.events.size()),
            "fine_tuning_job_id");
    // The thread that works on it sees this at its next check, and drops what it did meanwhile.
    TRY(step(entry, event, lock));
    tell(entry, format("The job was {}.", verb_of(event)));
    changed_.notify_all();
    return object_of(entry);
}

Result<TrainingService::Events> TrainingService::events(std::string_view tenant, std::string_view id, size_t from,
                                                        std::chrono::milliseconds wait) const {
    MutexLock lock(mutex_);
    const auto is_there = [&]() REQUIRES(mutex_) {
        const Entry* entry = entry_of(tenant, id);
        return entry == nullptr || entry->events.size() > from || is_ended(entry->job.state) || stopping_;
    };
    if (wait.count() > 0) changed_.wait_for(lock, wait, is_there);
    const Entry* entry = entry_of(tenant, id);
    if (entry == nullptr) return no_such_job(id);
    Events found;
    found.is_ended = is_ended(entry->job.state);
    if (from < entry->events.size()) found.events.assign(entry->events.begin() + ptrdiff_t(from), entry->events.end());
    return found;
}

Result<std::vector<proto::JobCheckpointObject>> TrainingService::checkpoints(std::string_view tenant,
                                                                             std::string_view id) const {
    MutexLock lock(mutex_);
    const Entry* entry = entry_of(tenant, id);
    if (entry == nullptr) return no_such_job(id);
    return entry->job.checkpoints;
}

Result<std::vector<NamedBytes>> TrainingService::adapter_files(std::string_view tenant, std::string_view id,
                                                               std::string_view checkpoint) const {
    constexpr uint64_t kFileBytesMax = uint64_t(64) << 30;
    std::filesystem::path folder;
    {
        MutexLock lock(mutex_);
        const Entry* entry = entry_of(tenant, id);
        if (entry == nullptr) return no_such_job(id);
        if (checkpoint.empty() && entry->job.state != JobState::kSucceeded)
            return make_error(
                ErrorCode::kNotFound,
                format("the job is {}: it has no adapter; its checkpoints may be asked for by ?checkpoint=",
                       wire_name(entry->job.state)));
        const auto found = std::ranges::find(entry->job.checkpoints, checkpoint, &proto::JobCheckpointObject::id);
        if (!checkpoint.empty() && found == entry->job.checkpoints.end())
            return make_error(ErrorCode::kNotFound,
                              format("the job has no checkpoint {}", json_quote_short(checkpoint)), "checkpoint");
        folder = checkpoint.empty() ? folder_of(id).result() : folder_of(id).step_folder(found->metrics.step);
    }
    std::vector<NamedBytes> files;
    for (const char* name : {"adapter_config.json", "adapter_model.safetensors", "README.md", "lorad_training.json"}) {
        Result<std::string> content = read_whole(folder / name, kFileBytesMax);
        if (!content.ok() && content.error().code == ErrorCode::kNotFound) continue;
        if (!content.ok()) return content.error();
        files.push_back({name, std::move(*content)});
    }
    if (files.size() < 2) return make_error(ErrorCode::kNotFound, "the files of this adapter are no longer kept");
    return files;
}

Result<std::string> TrainingService::publish_checkpoint(std::string_view tenant, std::string_view id,
                                                        std::string_view checkpoint) {
    TRY_ASSIGN(const std::vector<NamedBytes> files, adapter_files(tenant, id, checkpoint));
    std::string name;
    {
        MutexLock lock(mutex_);
        const Entry* entry = entry_of(tenant, id);
        if (entry == nullptr) return no_such_job(id);
        name = entry->job.name;
    }
    adapters::PeftFiles peft;
    for (const NamedBytes& file : files) {
        if (file.name == "adapter_config.json") peft.config = file.content;
        const auto* bytes = reinterpret_cast<const std::byte*>(file.content.data());
        if (file.name == "adapter_model.safetensors") peft.tensors.assign(bytes, bytes + file.content.size());
    }
    return host_.publish(name, peft, true, {}, true);
}

std::string TrainingService::metrics_text(double device_seconds) const {
    std::map<std::string_view, uint64_t> n_by_state;
    uint64_t n_tokens = 0, n_steps = 0;
    {
        MutexLock lock(mutex_);
        for (const auto& [id, entry] : entries_) {
            ++n_by_state[wire_name(entry.job.state)];
            n_tokens += entry.job.run.n_tokens;
            n_steps += entry.job.run.step;
        }
    }
    std::string out =
        "# HELP lorad_training_jobs Fine-tuning jobs that are kept, by state.\n# TYPE lorad_training_jobs gauge\n";
    for (const std::string_view state :
         {"validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"})
        out += format("lorad_training_jobs{{state=\"{}\"}} {}\n", state, n_by_state[state]);
    out += format("# HELP lorad_training_tokens Tokens that the kept jobs have trained on.\n# TYPE "
                  "lorad_training_tokens gauge\nlorad_training_tokens {}\n",
                  n_tokens);
    out += format("# HELP lorad_training_steps Optimizer steps of the kept jobs.\n# TYPE lorad_training_steps "
                  "gauge\nlorad_training_steps {}\n",
                  n_steps);
    out += format("# HELP lorad_training_device_seconds_total Time of the device that training has had.\n# TYPE "
                  "lorad_training_device_seconds_total counter\n"
                  "lorad_training_device_seconds_total {}\n",
                  device_seconds);
    return out;
}

}  // namespace lorad::server::training
