#include "server/training/piece_queue.h"

#include <chrono>

#include "proto/base/mutex.h"

namespace lorad::server::training {

Result<bool> PieceQueue::run_all(StepTrainer& trainer, const std::function<bool()>& stop,
                                 const std::function<void()>& wake) {
    constexpr std::chrono::milliseconds kLook{50};
    {
        MutexLock lock(mutex_);
        trainer_ = &trainer;
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
        // Not under the lock: whoever answers may have locks of his own.
        if (!stop()) continue;
        MutexLock lock(mutex_);
        if (done_) continue;  // the last piece has changed the adapter already
        trainer_ = nullptr;
        has_work_ = false;
        return false;
    }
}

bool PieceQueue::has_work() const { return has_work_; }

void PieceQueue::run(std::chrono::microseconds budget) {
    MutexLock lock(mutex_);
    if (trainer_ == nullptr) return;
    const Result<bool> is_over = trainer_->run_piece(budget);
    if (is_over.ok() && !*is_over) return;
    done_ = is_over.ok() ? ok_status() : Status(is_over.error());
    trainer_ = nullptr;
    has_work_ = false;
    changed_.notify_all();
}

}  // namespace lorad::server::training
