// The thread of TrainingService that trains, and how it shares the device among jobs.
#include <algorithm>
#include <utility>

#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/mutex.h"
#include "proto/base/thread.h"
#include "server/training/job_run.h"
#include "server/training/training_service.h"

namespace lorad::server::training {
namespace {

constexpr std::chrono::seconds kLook{1};  // what nobody says is looked at this often

size_t n_ready(const std::vector<TurnJob>& waiting) {
    return static_cast<size_t>(std::ranges::count(waiting, true, &TurnJob::is_ready));
}

}  // namespace

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
    for (const auto& one : running) end_run(*one, stopped());
    running.clear();
    if (called_ != nullptr) called_->end();
}

// Until a job can begin or calls have come; returns now and then, so that models end that nobody calls. False: the
// service stops.
bool TrainingService::wait_for_work() {
    MutexLock lock(mutex_);
    const auto has_work = [&]() REQUIRES(mutex_) {
        if (stopping_ || (called_ != nullptr && called_->has_work())) return true;
        const std::vector<TurnJob> waiting = waiting_jobs();
        return std::ranges::any_of(turns_.order(waiting, {}),
                                   [&](size_t i) { return !unfit_.contains(waiting[i].id); });
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

// A job begins with its last checkpoint, once that is written.
std::vector<TurnJob> TrainingService::waiting_jobs() const {
    std::vector<TurnJob> waiting;
    for (const auto& [id, entry] : entries_) {
        if (entry.job.state == JobState::kQueued)
            waiting.push_back({id, entry.job.tenant, entry.job.number, {}, !disk_.is_busy(id)});
    }
    return waiting;
}

void TrainingService::admit(Running& running) {
    while (!stopping_ && std::ranges::none_of(running, &JobRun::gives_way) && admit_one(running)) {
    }
}

// Returns false if nobody begins now.
bool TrainingService::admit_one(Running& running) {
    std::vector<TurnJob> turns, waiting;
    for (const auto& one : running) turns.push_back(one->turn());
    {
        MutexLock lock(mutex_);
        waiting = waiting_jobs();
        n_ready_ = n_ready(waiting);
    }
    // One that was paused and is wanted again, while what was begun of it is not given up yet, has the next turn.
    std::erase_if(waiting, [&](const TurnJob& job) { return std::ranges::count(turns, job.id, &TurnJob::id) > 0; });
    const uint32_t n_called = called_ != nullptr ? called_->n_trainers() : 0;
    for (const size_t i : turns_.order(waiting, turns)) {
        const TurnJob& job = waiting[i];
        if (!unfit_.contains(job.id) && turns_.has_place(turns, n_called)) {
            std::unique_ptr<JobRun> begun = begin_run(job.id, running);
            if (begun) {
                turns_.begun(job);
                running.push_back(std::move(begun));
            }
            if (!unfit_.contains(job.id)) return true;
        }
        const bool is_unfit = unfit_.contains(job.id);
        const std::vector<size_t> leaving =
            turns_.who_gives_way(job, turns, is_unfit, std::chrono::steady_clock::now(), n_called);
        for (const size_t one : leaving) running[one]->give_way();
        if (!leaving.empty()) return false;
        // One that has to be alone holds back others until the turns of those that run are over, or they would always
        // go before it. Behind jobs of its own key it holds back these alone.
        // Where no job runs it waits for models that are trained by calls, which have no turns.
        const bool holds_back = !turns.empty() && std::ranges::count(turns, job.tenant, &TurnJob::tenant) == 0;
        if (is_unfit && holds_back) return false;
    }
    return false;
}

// Null: it failed, cannot be beside those that run, or is no longer to run.
std::unique_ptr<TrainingService::JobRun> TrainingService::begin_run(const std::string& id, const Running& running) {
    Job job = copy_of(id);
    if (job.data_digest.empty()) {  // its data is read first
        const Status unread = step(id, JobEvent::kUnread);
        if (is_fault(unread)) fail(id, unread.error());
        return nullptr;
    }
    disk_.forgive(id);
    auto run = std::make_unique<JobRun>(*this, std::move(job));
    StepTrainer* const company = company_of(running);
    const Status prepared = run->prepare(company);
    if (!prepared.ok() && company != nullptr &&
        (prepared.error().code == ErrorCode::kInvalidConfig || prepared.error().code == ErrorCode::kOutOfMemory)) {
        unfit_.insert(id);
        const std::string why = format("Waits for the jobs under way: {}", prepared.error().message);
        MutexLock lock(mutex_);
        Entry& entry = entries_.find(id)->second;
        if (entry.events.empty() || entry.events.back().message != why) tell(entry, why);
        changed_.notify_all();
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
        unfit_.clear();
        return true;
    });
    if (called_ != nullptr && !stopping_) {
        StepTrainer* const beside = running.empty() ? nullptr : &running.front()->trainer();
        if (called_->advance(beside, static_cast<uint32_t>(running.size()))) unfit_.clear();
    }
    if (!stopping_) run_pieces(running);
}

void TrainingService::run_pieces(Running& running) {
    std::vector<StepTrainer*> trainers;
    for (const auto& one : running) {
        if (one->is_begun()) trainers.push_back(&one->trainer());
    }
    if (called_ != nullptr) {
        for (StepTrainer* trainer : called_->busy()) trainers.push_back(trainer);
    }
    if (trainers.empty()) {
        if (!running.empty()) wait_for_disk(running);
        return;
    }
    const Result<bool> ran = host_.run_pieces(trainers, [&] {
        return stopping_ || (called_ != nullptr && called_->has_work()) ||
               std::ranges::any_of(running, [&](const auto& one) { return is_wanted_to_stop(one->id()); });
    });
    if (ran.ok()) return;
    for (const auto& one : running) end_run(*one, ran.error());
    running.clear();
    unfit_.clear();
    if (called_ == nullptr) return;
    called_->fail(ran.error());
    if (ran.error().code == ErrorCode::kDeviceLost) stopping_ = true;
}

// Each job has as much to be written as it may. Turns may be over meanwhile.
void TrainingService::wait_for_disk(const Running& running) {
    MutexLock lock(mutex_);
    changed_.wait_for(lock, kLook, [&]() REQUIRES(mutex_) {
        if (stopping_ || (called_ != nullptr && called_->has_work())) return true;
        for (const auto& one : running) {
            if (disk_.has_room(one->id()) || is_to_stop(one->id())) return true;
        }
        return n_ready(waiting_jobs()) > n_ready_;
    });
}

// how: what ended it; ok: it is over.
void TrainingService::end_run(JobRun& run, Status how) {
    if (how.ok()) how = run.hand_over();
    if (!how.ok() && how.error().code == ErrorCode::kClientClosed) {
        run.leave();
        const Status left = run.gives_way() && !stopping_ ? step(run.id(), JobEvent::kGaveWay) : Status(stopped());
        if (left.ok()) tell(run.id(), format("Gives way to a job of another key behind step {}.", run.n_steps()));
        if (is_fault(left)) how = left;
    }
    if (is_fault(how)) fail(run.id(), how.error());
}

void TrainingService::end_task(const std::string& id, const Status& how) {
    if (!how.ok() && how.error().code != ErrorCode::kClientClosed) {
        // At the end of the server the checkpoint before stands.
        if (stopping_) log_error("the training job {}: {}", id, how.error().message);
        if (!stopping_ && is_fault(how)) fail(id, how.error());
    }
    MutexLock lock(mutex_);  // or a thread misses it between its look and its sleep
    changed_.notify_all();
}

}  // namespace lorad::server::training
