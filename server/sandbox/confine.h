// Restricts a helper before it works on input from clients. In a process of one thread.
#pragma once

#include <cstdint>

namespace lorad::server::sandbox {

// Limits the main thread's own stack, which grows as it is used. Half of kBigStackBytes (proto/base/thread.h), which
// the daemon's threads have.
void limit_stack(uint64_t n_bytes);

// No core files, few descriptors, no more rights by running other programs, a lower priority. Call it before any input
// of a client is read.
void limit_process();

// Memory that the process may have beyond what it has at `size_bytes` (process_bytes()).
bool limit_memory(uint64_t size_bytes, uint64_t more_bytes);
// Address space of this process; 0 where the system does not say.
uint64_t process_bytes();

// The kernel ends the process once it has used, or has been given, this much time; 0 and 0: it no longer does.
bool limit_time(uint32_t cpu_ms, uint32_t wall_ms);

// From now on the kernel answers EPERM to all calls except those that use memory, time and the open descriptors: no
// files, no sockets, no processes, no memory that is both written and run. False if the kernel has no filters.
bool filter_calls();

}  // namespace lorad::server::sandbox
