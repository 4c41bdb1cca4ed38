// memcpy by several threads: one core cannot fill a staging buffer as fast as the bus empties it. Internal to gpu/.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace lorad::gpu {

// One call of copy() at a time. The threads start with the first large copy and sleep between copies.
class CopyPool {
  public:
    explicit CopyPool(size_t n_threads) : n_threads_(n_threads) {}
    ~CopyPool();

    void copy(std::byte* to, const std::byte* from, size_t n_bytes);

  private:
    void work(size_t index);
    void copy_part(size_t index) const;

    size_t n_threads_;  // including the caller; fewer where no more can be started
    std::vector<std::thread> threads_;
    std::mutex mutex_;  // guards all below
    std::condition_variable started_, finished_;
    uint64_t round_ = 0;
    size_t n_running_ = 0;
    bool stop_ = false;
    std::byte* to_ = nullptr;
    const std::byte* from_ = nullptr;
    size_t n_bytes_ = 0;
};

}  // namespace lorad::gpu
