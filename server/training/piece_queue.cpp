#include "server/training/piece_queue.h"

#include <chrono>

namespace lorad::server::training {

Result<bool> PieceQueue::run_all(std::span<StepTrainer* const> trainers, const std::function<bool()>& stop,
                                 const std::function<void()>& wake) {
    constexpr std::chrono::milliseconds kLook{50};
    {
        std::lock_guard lock(mutex_);
        trainers_.assign(trainers.begin(), trainers.end());
        done_.reset();
        has_work_ = true;
    }
    wake();
    for (;;) {
        {
            std::unique_lock lock(mutex_);
            if (changed_.wait_for(lock, kLook, [this] { return done_.has_value(); })) {
                TRY(*done_);
                return true;
            }
        }
        // Not under the lock: whoever answers may have locks of his own.
        if (!stop()) continue;
        std::lock_guard lock(mutex_);
        if (done_) continue;  // the last piece has changed an adapter already
        trainers_.clear();
        has_work_ = false;
        return false;
    }
}

bool PieceQueue::has_work() const { return has_work_; }

void PieceQueue::run(std::chrono::microseconds budget) {
    std::lock_guard lock(mutex_);
    if (trainers_.empty()) return;
    const Result<bool> is_over = run_pieces_of(trainers_, budget);
    if (is_over.ok() && !*is_over) return;
    done_ = is_over.ok() ? ok_status() : Status(is_over.error());
    trainers_.clear();
    has_work_ = false;
    changed_.notify_all();
}

}  // namespace lorad::server::training
