// Work of the training thread that comes by calls, beside jobs: models that clients train step by step. Its trainers
// share passes with those of jobs.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/base/result.h"
#include "server/training/step_trainer.h"

namespace lorad::server::training {

// The training thread's, but has_work().
class CalledWork {
  public:
    virtual ~CalledWork() = default;
    // Any thread: advance() would begin or end something now.
    virtual bool has_work() const = 0;
    // Takes what is done and begins what waits. `beside`: a job's trainer, whose passes new ones share; null: none
    // runs. Returns true if a trainer was let go, so that others may find room.
    virtual bool advance(StepTrainer* beside, uint32_t n_jobs) = 0;
    // Those that have begun something.
    virtual std::vector<StepTrainer*> busy() const = 0;
    virtual uint32_t n_trainers() const = 0;
    // Any trainer; null: there is none.
    virtual StepTrainer* any_trainer() const = 0;
    // Pieces failed: what has begun is lost.
    virtual void fail(const Error& error) = 0;
    // The thread ends: trainers are let go.
    virtual void end() = 0;
};

}  // namespace lorad::server::training
