#include "model/train/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace lorad::model {
namespace {

constexpr std::array<std::string_view, 5> kRateNames = {"constant", "linear", "cosine", "hf-linear", "hf-cosine"};

}  // namespace

std::string_view name_of(Schedule schedule) { return kRateNames[static_cast<size_t>(schedule)]; }

std::optional<Schedule> schedule_named(std::string_view name) {
    const auto found = std::ranges::find(kRateNames, name);
    if (found == kRateNames.end()) return std::nullopt;
    return static_cast<Schedule>(found - kRateNames.begin());
}

double learning_rate(const ScheduleSettings& settings, uint64_t step) {
    const double warmup = static_cast<double>(settings.n_warmup_steps), s = static_cast<double>(step);
    const bool is_hf = settings.schedule == Schedule::kHfLinear || settings.schedule == Schedule::kHfCosine;
    if (step < settings.n_warmup_steps) return settings.learning_rate * (is_hf ? s : s + 1) / warmup;
    const double n_behind = std::max(1.0, static_cast<double>(settings.n_steps) - warmup);
    const double progress = std::min((s - warmup) / n_behind, 1.0);
    switch (settings.schedule) {
        case Schedule::kConstant: return settings.learning_rate;
        case Schedule::kLinear:
        case Schedule::kHfLinear: return settings.learning_rate * (1.0 - progress);
        case Schedule::kCosine:
        case Schedule::kHfCosine: break;
    }
    return settings.learning_rate * (1.0 + std::cos(std::numbers::pi * progress)) / 2.0;
}

}  // namespace lorad::model
