// The time of day, for people and files, and what a thread has had of a processor. Waiting and measuring take
// std::chrono::steady_clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>

namespace lorad {

inline int64_t unix_time_s() {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

// The processor time that this thread has used.
inline double thread_seconds() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace lorad
