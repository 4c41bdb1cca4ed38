// Learning rates of a run's steps. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lorad::model {

// With w warm-up steps of n, and p = (step - w) / (n - w) behind them:
//   kConstant, kLinear, kCosine      (step + 1) / w, then 1, 1 - p, (1 + cos(pi p)) / 2
//   kHfLinear, kHfCosine             step / w, as transformers' get_linear_ and get_cosine_schedule_with_warmup: the
//       first step has rate 0
enum class Schedule : uint8_t { kConstant, kLinear, kCosine, kHfLinear, kHfCosine };

// "constant", "linear", "cosine", "hf-linear", "hf-cosine".
std::string_view name_of(Schedule schedule);
std::optional<Schedule> schedule_named(std::string_view name);

struct ScheduleSettings {
    Schedule schedule = Schedule::kCosine;
    double learning_rate = 2e-4;  // the highest
    uint64_t n_steps = 1;
    uint64_t n_warmup_steps = 0;
};

// The rate of step 0, 1, ...; behind the last step the formula's value, at least 0.
double learning_rate(const ScheduleSettings& settings, uint64_t step);

}  // namespace lorad::model
