// A thread that may fail to start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>

namespace lorad {

// For threads with libraries that recurse on a client's input. It is only address space until it is used.
inline constexpr size_t kBigStackBytes = size_t{64} << 20;

// False where the system gives no more threads; `to` is as it was. stack_bytes 0: as much as the system gives.
bool start_thread(std::thread& to, std::function<void()> run, size_t stack_bytes = 0);

// Runs `work` on the calling thread and on others beside it, at most n_max in all and no more than there are
// processors, fewer where the system gives no more. Returns when it has returned on all of them.
void run_on_threads(uint64_t n_max, const std::function<void()>& work);

// Names the calling thread for the system's tools: 15 characters at most.
void name_thread(const char* name);
// Lowers the calling thread's priority for good: while all processors are busy it gets about a tenth (kNicer) or a
// seventieth (kNicest) of another thread's time in this process, and does not preempt one at once when it wakes up.
// Does nothing where the system forbids it.
inline constexpr int kNicer = 10, kNicest = 19;  // kNicer is added to the present niceness; kNicest is the highest
void give_way(int how = kNicer);

}  // namespace lorad
