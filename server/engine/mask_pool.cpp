#include "server/engine/mask_pool.h"

#include <algorithm>
#include <utility>

#include "proto/base/clock.h"
#include "proto/base/mutex.h"
#include "proto/base/thread.h"

namespace lorad::server {

MaskPool::MaskPool(uint32_t n_quick, uint32_t n_patient, std::function<void()> on_patient)
    : on_patient_(std::move(on_patient)), quick_(n_quick, n_quick - 1), patient_(n_patient, 1) {
    for (bool is_patient : {false, true}) {
        Lane& lane = is_patient ? patient_ : quick_;
        for (uint32_t i = 0; i < lane.n_threads; ++i) {
            std::thread thread;
            // fewer will do
            if (!start_thread(thread, [this, &lane, is_patient] { run(lane, is_patient); }, kBigStackBytes)) break;
            threads_.push_back(std::move(thread));
            ++n_started_[is_patient];
        }
    }
}

MaskPool::~MaskPool() {
    {
        MutexLock lock(mutex_);
        stop_ = true;
    }
    quick_.changed.notify_all();
    patient_.changed.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void MaskPool::make(MaskJob& job) {
    const double begin = thread_seconds();
    job.status = job.chosen ? job.constraint->accept(*job.chosen) : ok_status();
    // Also behind a token that it does not take: it gives the words their size.
    const Status masked = job.constraint->next_mask(job.words);
    if (job.status.ok()) job.status = masked;
    job.seconds = thread_seconds() - begin;
}

std::shared_ptr<MaskJob> MaskPool::begin(std::shared_ptr<TokenConstraint> constraint, std::string tenant,
                                         bool is_patient, std::optional<TokenId> chosen) {
    auto job = std::make_shared<MaskJob>();
    job->constraint = std::move(constraint);
    job->tenant = std::move(tenant);
    job->chosen = chosen;
    job->is_patient = is_patient;
    if (n_started_[is_patient] == 0) {
        make(*job);
        job->is_done = true;
        return job;
    }
    Lane& lane = is_patient ? patient_ : quick_;
    {
        MutexLock lock(mutex_);
        lane.waiting[job->tenant].push_back(job);
    }
    lane.changed.notify_one();
    return job;
}

bool MaskPool::wait(std::span<const std::shared_ptr<MaskJob>> jobs, std::chrono::steady_clock::duration at_most) {
    const auto all_done = [&] { return std::ranges::all_of(jobs, [](const auto& job) { return job->done(); }); };
    if (all_done()) return true;
    MutexLock lock(mutex_);
    return done_.wait_for(lock, at_most, all_done);
}

// The next tenant's first job, where that tenant may have one more thread.
MaskPool::Task MaskPool::next(Lane& lane) {
    auto at = lane.waiting.upper_bound(lane.last);
    for (size_t i = 0, n = lane.waiting.size(); i < n; ++i) {
        if (at == lane.waiting.end()) at = lane.waiting.begin();
        auto& [tenant, jobs] = *at;
        while (!jobs.empty() && jobs.front().use_count() == 1) jobs.pop_front();  // whose sequence has ended
        if (jobs.empty()) {
            at = lane.waiting.erase(at);
            continue;
        }
        access::SharedPlaces::Place place = lane.threads_now.take({tenant, {}});
        if (place.taken()) {
            Task task{std::move(jobs.front()), std::move(place)};
            jobs.pop_front();
            lane.last = tenant;
            if (jobs.empty()) lane.waiting.erase(at);
            return task;
        }
        ++at;
    }
    return {};
}

void MaskPool::run(Lane& lane, bool is_patient) {
    name_thread(is_patient ? "lorad-masks-low" : "lorad-masks");
    if (is_patient) give_way();
    MutexLock lock(mutex_);
    for (;;) {
        Task task;
        lane.changed.wait(lock, [&]() REQUIRES(mutex_) {
            if (!stop_) task = next(lane);
            return stop_ || task.job != nullptr;
        });
        if (stop_) return;
        lock.unlock();
        make(*task.job);
        lock.lock();
        task.job->is_done = true;
        const bool is_waited_for = !task.job->is_patient;
        task.place.give_back();
        done_.notify_all();
        lane.changed.notify_one();  // one whose tenant had its share may be next
        lock.unlock();
        task.job.reset();  // perhaps with the grammar
        if (!is_waited_for) on_patient_();
        lock.lock();
    }
}

}  // namespace lorad::server
