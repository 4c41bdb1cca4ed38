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
#include "server/sandbox/admission.h"
#include "server/sandbox/helper.h"

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

    // Returns the fields of the result. A refusal by the library is an error of its own; kInputTooComplex if the helper
    // died; kSandboxUnavailable if there is none. Blocks little longer than the job's time limit.
    struct Effort {
        int niceness = kNicer;  // of a helper that compiles; others are used again
        // The helper's processor time, also if the job failed. A helper that died cannot report it: then the most that
        // it may have used.
        double cpu_seconds = 0;
    };
    Result<std::vector<std::string>> run(const Frame& job, Effort& effort);
    Result<std::vector<std::string>> run(const Frame& job) {
        Effort any;
        return run(job, any);
    }
    // Runs with the permit's niceness; the permit is charged for it.
    Result<std::vector<std::string>> run(const Frame& job, Admission::Permit& permit);

    bool filters_calls() const { return filters_calls_; }
    pid_t process() const;  // the one that forks the helpers

  private:
    struct Helper {
        OwnedFd socket;
        pid_t process = -1;       // from its greeting
        uint64_t generation = 0;  // of the process that forked it
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
    uint64_t generation_ GUARDED_BY(mutex_) = 0;  // the number of processes so far
    std::vector<Helper> ready_ GUARDED_BY(mutex_);
    std::chrono::steady_clock::time_point started_ GUARDED_BY(mutex_){};
    std::atomic<bool> filters_calls_{false};
};

}  // namespace lorad::server::sandbox
