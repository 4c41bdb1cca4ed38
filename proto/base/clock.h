// The time of day, for people and files. Waiting and measuring take std::chrono::steady_clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace lorad {

inline int64_t unix_time_s() {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace lorad
