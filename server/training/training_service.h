// Files and jobs of a server: what clients ask for, and the threads that work it off: one reads data, one trains, one
// writes what jobs keep. Some jobs run beside each other, in the same steps where they can, and each to the bits that
// it has alone; others wait for their turns (jobs/turns.h).
//
// A job is its record on disk: a change is there before it is told. A daemon that ends at any moment, and however it
// ends, takes jobs up where their last checkpoints are, and comes to the same bits.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/base/result.h"
#include "proto/training/fine_tuning_request.h"
#include "proto/training/training_write.h"
#include "server/training/called_work.h"
#include "server/training/dataset.h"
#include "server/training/file_store.h"
#include "server/training/job.h"
#include "server/training/job_folder.h"
#include "server/training/jobs/disk_thread.h"
#include "server/training/jobs/turns.h"
#include "server/training/training_host.h"

namespace lorad::server::training {

struct TrainingLimits {
    FileLimits files;
    uint32_t n_active_max = 4;   // jobs of a tenant that are not ended
    uint32_t n_together = 1;     // jobs that run beside each other
    uint32_t n_kept_max = 1000;  // jobs in all; those that ended first are forgotten, of the key that has most
    uint64_t n_tokens_max = uint64_t(1) << 32;  // per job, in its data
    uint32_t n_events_max = 20'000;             // per job, beyond which nobody pauses and resumes it
    std::chrono::milliseconds checkpoint_every{120'000};
    std::chrono::milliseconds turn{120'000};  // of a job, where more keys have jobs than may run
};

// Tenants see their own alone. Any thread, but stop().
class TrainingService {
  public:
    // Takes up what the folder has. `host` outlives it.
    static Result<std::unique_ptr<TrainingService>> open(const std::filesystem::path& folder, TrainingHost& host,
                                                         const TrainingLimits& limits);
    ~TrainingService();
    TrainingService(const TrainingService&) = delete;
    TrainingService& operator=(const TrainingService&) = delete;

    // Before start(): work beside the jobs, which outlives the threads. Null: none.
    void set_called_work(CalledWork* work) { called_ = work; }
    // Any thread: the called work has some.
    void wake();
    // Begins to work. Before it nothing runs.
    void start();
    // The jobs under way are checkpointed and stay as they are for the next start.
    void stop();

    FileStore& files() { return *files_; }
    // False where there is none; kGenerationConflict while a job needs it.
    Result<bool> remove_file(std::string_view tenant, std::string_view id);
    // Lines, counts and problems of a file, as a job would find them.
    Result<DataReport> check_file(const StoredFile& file, const proto::TrainingRecipe& recipe) const;

    // kInvalidRequest, kOverloaded (jobs of this tenant), kStorageFull. The request's file and init_from are checked
    // here, its data later.
    Result<proto::JobObject> create(const std::string& tenant, const proto::FineTuningRequest& request);
    std::optional<proto::JobObject> find(std::string_view tenant, std::string_view id) const;
    // The newest first.
    std::vector<proto::JobObject> list(std::string_view tenant) const;
    // kCancel, kPause, kResume. kNotFound; kInvalidRequest where the job's state does not allow it.
    Result<proto::JobObject> change(std::string_view tenant, std::string_view id, JobEvent event);
    // The oldest first, from the one with this index on. Waits until there are some, the job has ended, or the time is
    // over.
    struct Events {
        std::vector<proto::JobEventObject> events;
        bool is_ended = false;  // no more will come
    };
    Result<Events> events(std::string_view tenant, std::string_view id, size_t from,
                          std::chrono::milliseconds wait = {}) const;
    // The oldest first.
    Result<std::vector<proto::JobCheckpointObject>> checkpoints(std::string_view tenant, std::string_view id) const;
    // Makes a checkpoint what the job's name, or this one, stands for.
    Result<std::string> publish_checkpoint(std::string_view tenant, std::string_view id, std::string_view checkpoint);
    // Files of the job's adapter, or of a checkpoint's: config, tensors, card, provenance. kNotFound.
    Result<std::vector<NamedBytes>> adapter_files(std::string_view tenant, std::string_view id,
                                                  std::string_view checkpoint) const;
    // Prometheus text. device_seconds: that training has had of the device.
    std::string metrics_text(double device_seconds) const;

  private:
    struct Entry {
        Job job;
        std::vector<proto::JobEventObject> events;
        bool is_being_saved = false;  // without the lock; its state changes behind that
        uint32_t n_waiting = 0;       // who wait for that
    };
    TrainingService(std::filesystem::path folder, TrainingHost& host, const TrainingLimits& limits);
    Status read_jobs();
    void restart(Entry& entry, MutexLock& lock) REQUIRES(mutex_);
    JobFolder folder_of(std::string_view id) const { return JobFolder(folder_ / "jobs" / std::string(id)); }
    const Entry* entry_of(std::string_view tenant, std::string_view id) const REQUIRES(mutex_);
    proto::JobObject object_of(const Entry& entry) const REQUIRES(mutex_);
    Status check_request(const std::string& tenant, const proto::FineTuningRequest& request) const;
    Status check_recipe(const proto::FineTuningRequest& request) const;
    Status check_room(const std::string& tenant) const REQUIRES(mutex_);
    Status keep_start(Job& job) const;
    Result<proto::JobObject> add(Job& job);
    void forget_old() REQUIRES(mutex_);

    class JobRun;
    class JobDisk;
    using Running = std::vector<std::unique_ptr<JobRun>>;
    // The threads', but under mutex_ where they touch entries_.
    void run_reading();
    std::optional<std::string> wait_for_data();  // of a job, to be read
    Status validate(Job job);
    void run_training();
    std::vector<TurnJob> waiting_jobs() const REQUIRES(mutex_);
    void admit(Running& running);
    bool admit_one(Running& running);
    std::unique_ptr<JobRun> begin_run(const std::string& id, const Running& running);
    void take_turn(Running& running);
    void run_pieces(Running& running);
    bool wait_for_work();
    StepTrainer* company_of(const Running& running) const;
    void wait_for_disk(const Running& running);
    void end_run(JobRun& run, Status how);
    void end_task(const std::string& id, const Status& how);  // of the disk's thread
    // The error that ends the work on a job without any fault of it: it was paused, cancelled, gives way, or the server
    // ends.
    static Error stopped();
    bool is_fault(const Status& status);
    DataOptions options_of(const proto::TrainingRecipe& recipe) const;
    // The next state, kept. Without the lock while it is written.
    Status step(Entry& entry, JobEvent event, MutexLock& lock) REQUIRES(mutex_);
    Status step(const std::string& id, JobEvent event);
    void wait_until_saved(Entry& entry, MutexLock& lock) REQUIRES(mutex_);
    // Saves what `change` makes of the record; the entry stays as it is. Without the lock while it is written.
    Status save(Entry& entry, MutexLock& lock, const std::function<bool(Job&)>& change) REQUIRES(mutex_);
    void fail(const std::string& id, const Error& error);
    void tell(Entry& entry, std::string message, std::string level = "info",
              const std::optional<proto::StepMetrics>& metrics = {});
    void tell(const std::string& id, std::string message, std::string level = "info",
              const std::optional<proto::StepMetrics>& metrics = {});
    Job copy_of(const std::string& id) const;
    void update(const std::string& id, const std::function<void(Job&)>& change);
    Status keep(const std::string& id);
    Status cut_behind(const std::string& id, const RunState& state);
    bool has_ended(const std::string& id) const;
    bool was_made_by_job(const std::string& tenant, const std::string& name, const std::string& generation) const;
    bool is_wanted_to_stop(const std::string& id) const;
    bool is_to_stop(const std::string& id) const REQUIRES(mutex_);

    const std::filesystem::path folder_;
    TrainingHost& host_;
    const TrainingLimits limits_;
    std::unique_ptr<FileStore> files_;

    mutable Mutex mutex_;
    mutable Condition changed_;
    std::map<std::string, Entry, std::less<>> entries_ GUARDED_BY(mutex_);  // by id
    uint64_t next_number_ GUARDED_BY(mutex_) = 1;
    std::atomic<bool> stopping_{false};
    CalledWork* called_ = nullptr;
    DiskThread disk_;
    // The training thread's.
    Turns turns_;
    std::set<std::string> unfit_;  // jobs that cannot run beside those that do
    size_t n_ready_ = 0;           // when it was last looked who may begin
    std::thread reader_, trainer_;
};

}  // namespace lorad::server::training
