#include "gpu/copy_pool.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "proto/base/rounding.h"
#include "proto/base/thread.h"

namespace lorad::gpu {
namespace {

constexpr size_t kWorthSharing = 8u << 20;  // bytes; below, waking threads costs more than it gives

}  // namespace

CopyPool::~CopyPool() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    started_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void CopyPool::copy(std::byte* to, const std::byte* from, size_t n_bytes) {
    if (n_bytes < kWorthSharing || n_threads_ < 2) {
        std::memcpy(to, from, n_bytes);
        return;
    }
    while (threads_.size() + 1 < n_threads_) {
        std::thread thread;
        if (!start_thread(thread, [this, index = threads_.size() + 1] { work(index); })) {
            n_threads_ = threads_.size() + 1;
            break;
        }
        threads_.push_back(std::move(thread));
    }
    {
        std::lock_guard lock(mutex_);
        to_ = to;
        from_ = from;
        n_bytes_ = n_bytes;
        n_running_ = threads_.size();
        ++round_;
    }
    started_.notify_all();
    copy_part(0);
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return n_running_ == 0; });
}

void CopyPool::work(size_t index) {
    uint64_t done = 0;
    while (true) {
        {
            std::unique_lock lock(mutex_);
            started_.wait(lock, [&] { return stop_ || round_ != done; });
            if (stop_) return;
            done = round_;
        }
        copy_part(index);
        std::lock_guard lock(mutex_);
        if (--n_running_ == 0) finished_.notify_one();
    }
}

void CopyPool::copy_part(size_t index) const {
    const size_t share = round_up(n_bytes_ / n_threads_, 4096);
    const size_t begin = std::min(index * share, n_bytes_);
    const size_t end = index + 1 == n_threads_ ? n_bytes_ : std::min(begin + share, n_bytes_);
    if (end > begin) std::memcpy(to_ + begin, from_ + begin, end - begin);
}

}  // namespace lorad::gpu
