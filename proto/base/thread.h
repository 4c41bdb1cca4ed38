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

// As the system's tools show the calling thread: 15 characters at most.
void name_thread(const char* name);
// The calling thread gives way to others from here on: where all processors are busy it has about a tenth (kNicer) or a
// seventieth (kNicest) of what one of the process's others has, and takes none away from them at once when it wakes up.
// Nothing where the system does not let it.
inline constexpr int kNicer = 10, kNicest = 19;  // kNicer above what it had; kNicest: the system's last
void give_way(int how = kNicer);

}  // namespace lorad
