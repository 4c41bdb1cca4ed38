// Memory that large requests leave with the allocator. glibc keeps what is freed in arenas, up to eight for each core,
// and a text of 16 MiB passes hundreds of times its size through them: without this a daemon stays as large as its
// largest moments, once for each arena.
#pragma once

#include <cstdint>

namespace lorad::server {

// Requests with bodies this large leave enough free memory behind to be worth a check.
inline constexpr uint64_t kLargeBodyBytes = 64 << 10;

// Few arenas, and large blocks that go back to the system as they are freed. Once, before other threads start.
void bound_allocator();

// Any thread: a large request has ended, with all that it had.
void note_large_request();
// A thread that may wait some milliseconds; at times: gives the system what is free if large requests have ended since
// the last time. At most once a second.
void return_memory();

}  // namespace lorad::server
