// Writes the progress of a run, for people at a terminal or readers of a log.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "server/training/training_run.h"

namespace lorad::server::training {

// "3 s", "4:12", "2:03:04".
std::string shown_duration(double seconds);

// Returns one line: "step 120/450 [####......] loss 1.2143 val 1.3108 acc 0.71 13412 tok/s lr 1.7e-04 |g| 0.82 4:12
// left".
std::string progress_line(const StepResult& step, uint64_t n_steps, const RunState& state, double tokens_per_s,
                          double seconds_left);

// On a terminal one line that changes, else a line each ten seconds; to the standard error. One thread.
class Progress {
  public:
    Progress(uint64_t n_steps, uint64_t n_done, bool is_terminal);
    void stepped(const StepResult& step, const RunState& state);
    void evaluated(const EvalResult& result, const RunState& state);
    void end();  // the line stays

  private:
    using Clock = std::chrono::steady_clock;
    void show(const std::string& line, bool is_forced);

    const uint64_t n_steps_, n_done_;
    const bool is_terminal_;
    const Clock::time_point begun_ = Clock::now();
    std::optional<Clock::time_point> shown_;
    uint64_t n_tokens_ = 0;
    std::string line_;  // the last one, where it was not shown
    size_t width_ = 0;
};

}  // namespace lorad::server::training
