// Hands what trainers have begun to the engine's thread, which runs it between the steps of those who are served.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/base/result.h"
#include "server/engine/background_work.h"
#include "server/training/step_trainer.h"

namespace lorad::server::training {

class PieceQueue final : public BackgroundWork {
  public:
    // The training thread: until one of them is done (true) or `stop` says so (false), which is asked every 50 ms or
    // so. `wake`: tells the engine. While this runs nobody else uses the trainers.
    Result<bool> run_all(std::span<StepTrainer* const> trainers, const std::function<bool()>& stop,
                         const std::function<void()>& wake);

    bool has_work() const override;
    double run(std::chrono::microseconds budget, bool waits) override;

  private:
    mutable Mutex mutex_;  // held while pieces run
    Condition changed_;
    std::vector<StepTrainer*> trainers_ GUARDED_BY(mutex_);  // empty: there is nothing to run
    std::optional<Status> done_ GUARDED_BY(mutex_);
    std::atomic<bool> has_work_{false};
};

}  // namespace lorad::server::training
