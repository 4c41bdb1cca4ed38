// A thread that may fail to start.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>

namespace lorad {

// For whoever runs a library that calls itself for each level of a client's input. Address space until it is used.
inline constexpr size_t kBigStackBytes = size_t(64) << 20;

// False where the system gives no more threads; `to` is as it was. stack_bytes 0: as much as the system gives.
bool start_thread(std::thread& to, std::function<void()> run, size_t stack_bytes = 0);

}  // namespace lorad
