// Proof that a loop turns: written by its thread, read by probes and by what feeds the watchdog.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace lorad::server {

struct Heartbeat {
    uint64_t n_turns = 0;  // 0: the loop has not begun
    // since the turn under way began; 0 before the loop's begin and after its end
    std::chrono::milliseconds age{0};
    // of recent ones: fades by half within 64 turns, and one alone does not count in full
    std::chrono::milliseconds longest_turn{0};
};

// beat() and end(): the loop's thread. read(): any.
class Pulse {
  public:
    // At the begin of every turn; a loop without work turns as well.
    void beat() {
        const int64_t now = now_ns();
        const int64_t before = turned_ns_.load(std::memory_order_relaxed);
        if (before != 0) {
            const int64_t longest = longest_ns_.load(std::memory_order_relaxed);
            const int64_t believed = std::min(now - before, longest + longest / 4 + kSurpriseNs);
            longest_ns_.store(std::max(believed, longest - longest / 92), std::memory_order_relaxed);
        }
        turned_ns_.store(now, std::memory_order_relaxed);
        n_turns_.fetch_add(1, std::memory_order_relaxed);
    }
    // The loop is over and nobody waits for its next turn.
    void end() { turned_ns_.store(0, std::memory_order_relaxed); }

    Heartbeat read() const {
        Heartbeat out;
        out.n_turns = n_turns_.load(std::memory_order_relaxed);
        const int64_t turned = turned_ns_.load(std::memory_order_relaxed);
        if (turned != 0) out.age = milliseconds_of(std::max<int64_t>(0, now_ns() - turned));
        out.longest_turn = milliseconds_of(longest_ns_.load(std::memory_order_relaxed));
        return out;
    }

  private:
    static constexpr int64_t kSurpriseNs = 300'000'000;
    static std::chrono::milliseconds milliseconds_of(int64_t ns) { return std::chrono::milliseconds(ns / 1'000'000); }
    static int64_t now_ns() {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }

    std::atomic<uint64_t> n_turns_{0};
    std::atomic<int64_t> turned_ns_{0}, longest_ns_{0};
};

}  // namespace lorad::server
