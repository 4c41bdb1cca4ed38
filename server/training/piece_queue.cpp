#include "server/training/piece_queue.h"

#include <algorithm>
#include <chrono>

#include "proto/base/mutex.h"

namespace lorad::server::training {

Result<bool> PieceQueue::run_all(std::span<StepTrainer* const> trainers, const std::function<bool()>& stop,
                                 const std::function<void()>& wake) {
    constexpr std::chrono::milliseconds kLook{50};
    {
        MutexLock lock(mutex_);
        trainers_.assign(trainers.begin(), trainers.end());
        done_.reset();
        has_work_ = true;
    }
    wake();
    for (;;) {
        {
            MutexLock lock(mutex_);
            if (changed_.wait_for(lock, kLook, [this]() REQUIRES(mutex_) { return done_.has_value(); })) {
                TRY(*done_);
                return true;
            }
        }
        // Called without the lock: stop() may take locks of its own.
        if (!stop()) continue;
        MutexLock lock(mutex_);
        if (done_) continue;  // the last piece has changed an adapter already
        trainers_.clear();
        has_work_ = false;
        // What is submitted counts: it may be the update of a step, which is that trainer's from now on.
        for (StepTrainer* trainer : trainers) TRY(trainer->settle());
        return std::ranges::any_of(trainers, &StepTrainer::is_done);
    }
}

bool PieceQueue::has_work() const { return has_work_; }

double PieceQueue::run(std::chrono::microseconds budget, bool waits) {
    MutexLock lock(mutex_);
    if (trainers_.empty()) return 0;
    // Trainers that share a base count together.
    double seconds = -trainers_.front()->device_seconds();
    const Result<bool> is_over = run_pieces_of(trainers_, budget, waits);
    seconds += trainers_.front()->device_seconds();
    if (is_over.ok() && !*is_over) return seconds;
    done_ = is_over.ok() ? ok_status() : Status(is_over.error());
    trainers_.clear();
    has_work_ = false;
    changed_.notify_all();
    return seconds;
}

}  // namespace lorad::server::training
