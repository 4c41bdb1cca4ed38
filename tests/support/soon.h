// Waiting for what another thread does, however busy the machine is.
#pragma once

#include <chrono>
#include <thread>

namespace lorad::testing {

// Whether it holds within 30 s: only what never comes takes so long.
template <typename Holds>
bool soon(Holds holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!holds()) {
        if (std::chrono::steady_clock::now() > end) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

}  // namespace lorad::testing
