#include "proto/base/thread.h"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

namespace lorad {
namespace {

// std::thread takes no attributes. Another thread that starts meanwhile gets as much address space, which does it no
// harm.
class StackOfNewThreads {
  public:
    explicit StackOfNewThreads(size_t n_bytes) : lock_(mutex()) {
        pthread_getattr_default_np(&before_);
        pthread_attr_t wanted;
        pthread_getattr_default_np(&wanted);
        pthread_attr_setstacksize(&wanted, n_bytes);
        pthread_setattr_default_np(&wanted);
        pthread_attr_destroy(&wanted);
    }
    ~StackOfNewThreads() {
        pthread_setattr_default_np(&before_);
        pthread_attr_destroy(&before_);
    }
    StackOfNewThreads(const StackOfNewThreads&) = delete;
    StackOfNewThreads& operator=(const StackOfNewThreads&) = delete;

  private:
    static std::mutex& mutex() {
        static std::mutex one;
        return one;
    }
    std::lock_guard<std::mutex> lock_;
    pthread_attr_t before_;
};

bool start(std::thread& to, std::function<void()> run) {
    try {
        to = std::thread(std::move(run));
        return true;
    } catch (const std::system_error&) {
        return false;
    }
}

}  // namespace

bool start_thread(std::thread& to, std::function<void()> run, size_t stack_bytes) {
    if (stack_bytes == 0) return start(to, std::move(run));
    const StackOfNewThreads stack(stack_bytes);
    return start(to, std::move(run));
}

void run_on_threads(uint64_t n_max, const std::function<void()>& work) {
    const uint64_t n = std::min<uint64_t>(n_max, std::max(std::thread::hardware_concurrency(), 1u));
    std::vector<std::thread> others;
    for (uint64_t i = 1; i < n; ++i) {
        if (start_thread(others.emplace_back(), work)) continue;
        others.pop_back();  // fewer will do
        break;
    }
    work();
    for (std::thread& thread : others) thread.join();
}

void name_thread(const char* name) { (void)pthread_setname_np(pthread_self(), name); }

void give_way(int how) {
    const auto self = id_t(gettid());
    errno = 0;
    const int nice_now = getpriority(PRIO_PROCESS, self);
    if (errno == 0) (void)setpriority(PRIO_PROCESS, self, nice_now + how);
    const sched_param none{};
    (void)sched_setscheduler(0, SCHED_BATCH, &none);
}

}  // namespace lorad
