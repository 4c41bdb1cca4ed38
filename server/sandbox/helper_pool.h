// The daemon's side of the helpers (helper.h): some are always ready, one that has ended is replaced, one that takes
// too long is ended. Any thread.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

#include "proto/base/mutex.h"
#include "proto/base/owned_fd.h"
#include "proto/base/result.h"
#include "proto/base/thread.h"
#include "server/sandbox/helper.h"
#include "server/sandbox/turns.h"

namespace lorad::server::sandbox {

class HelperPool {
  public:
    struct Options {
        HelperSetup setup;
        uint32_t n_ready = 2;
        std::string program = "/proc/self/exe";
        std::vector<std::string> environment;  // "NAME=VALUE": nothing else of the daemon's is passed on
    };
    // Starts the process and the first helpers. kSandboxUnavailable, saying why.
    static Result<std::unique_ptr<HelperPool>> start(Options options);
    ~HelperPool();
    HelperPool(const HelperPool&) = delete;
    HelperPool& operator=(const HelperPool&) = delete;

    // The fields of what is done. The library's refusal as its own error; kInputTooComplex where the helper did not
    // live to answer;
    // kSandboxUnavailable where there is none. Blocks for at most the job's time and some.
    struct Effort {
        int niceness = kNicer;  // of a helper that compiles; others go on to serve anybody
        // What the helper took of a processor, also where the job failed; of one that has ended, which does not say it,
        // the most that it may have been.
        double cpu_seconds = 0;
    };
    Result<std::vector<std::string>> run(const Frame& job, Effort& effort);
    Result<std::vector<std::string>> run(const Frame& job) {
        Effort any;
        return run(job, any);
    }
    // As the turn's niceness says; the turn is charged for it.
    Result<std::vector<std::string>> run(const Frame& job, Turns::Turn& turn);

    bool filters_calls() const { return filters_calls_; }
    pid_t process() const;  // which forks the helpers

  private:
    struct Helper {
        OwnedFd socket;
        pid_t process = -1;       // from its greeting
        uint64_t generation = 0;  // of the process that has forked it
        uint32_t n_templates = 0, n_grammars = 0;
    };
    explicit HelperPool(Options options) : options_(std::move(options)) {}
    Status start_process() REQUIRES(mutex_);
    void end_process() REQUIRES(mutex_);
    bool process_has_ended() REQUIRES(mutex_);
    Result<Helper> new_helper() REQUIRES(mutex_);  // its greeting is still to come
    Result<Helper> take();                         // one that has greeted
    bool greets(Helper& helper);
    void give_back(Helper helper, const Frame& job);
    void refill();

    const Options options_;
    mutable Mutex mutex_;
    OwnedFd control_ GUARDED_BY(mutex_);
    pid_t process_ GUARDED_BY(mutex_) = -1;
    uint64_t generation_ GUARDED_BY(mutex_) = 0;  // how many processes there were
    std::vector<Helper> ready_ GUARDED_BY(mutex_);
    std::chrono::steady_clock::time_point started_ GUARDED_BY(mutex_){};
    std::atomic<bool> filters_calls_{false};
};

}  // namespace lorad::server::sandbox
