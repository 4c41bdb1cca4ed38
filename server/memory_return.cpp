#include "server/memory_return.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace lorad::server {
namespace {

using SteadyClock = std::chrono::steady_clock;

// The allocator is the process's own, and so is this.
std::atomic<bool> g_has_large_ended{false};

}  // namespace

void bound_allocator() {
#if defined(__GLIBC__)
    constexpr int kMappedBytes = 1 << 20;
    mallopt(M_ARENA_MAX, static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 2u, 8u)));
    mallopt(M_MMAP_THRESHOLD, kMappedBytes);  // given, it does not grow with what is freed
#endif
}

void note_large_request() { g_has_large_ended.store(true, std::memory_order_relaxed); }

void return_memory() {
#if defined(__GLIBC__)
    constexpr std::chrono::seconds kBetween{1};
    static SteadyClock::time_point next{};
    const SteadyClock::time_point now = SteadyClock::now();
    if (now < next || !g_has_large_ended.exchange(false, std::memory_order_relaxed)) return;
    malloc_trim(0);
    next = SteadyClock::now() + kBetween;
#endif
}

}  // namespace lorad::server
