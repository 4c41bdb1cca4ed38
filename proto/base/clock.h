// The time of day, for people and files, and what a thread has had of a processor. Waiting and measuring take
// std::chrono::steady_clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>

#include "proto/base/format.h"

namespace lorad {

inline int64_t unix_time_s() {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

// Seconds since 1970 as a date and time of RFC 3339, in UTC: 2026-01-31T09:05:00Z.
inline std::string utc_text(int64_t unix_s) {
    const std::chrono::sys_seconds time{std::chrono::seconds(unix_s)};
    const auto days = std::chrono::floor<std::chrono::days>(time);
    const std::chrono::year_month_day day(days);
    const int64_t rest = (time - days).count();
    return format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", static_cast<int>(day.year()),
                  static_cast<unsigned>(day.month()), static_cast<unsigned>(day.day()), rest / 3600, rest / 60 % 60,
                  rest % 60);
}

// The processor time that this thread has used.
inline double thread_seconds() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace lorad
