// A thread that may fail to start.
#pragma once

#include <functional>
#include <thread>

namespace lorad {

// False where the system gives no more threads; `to` is as it was.
bool start_thread(std::thread& to, std::function<void()> run);

}  // namespace lorad
