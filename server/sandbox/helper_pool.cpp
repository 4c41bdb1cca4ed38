#include "server/sandbox/helper_pool.h"

#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/mutex.h"
#include "server/sandbox/socket_passing.h"

namespace lorad::server::sandbox {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kStartMax{60};  // the vocabulary's tree, on a busy machine
constexpr std::chrono::seconds kGreetMax{10};  // a fork
constexpr std::chrono::seconds kBeyondJob{5};  // the kernel's own deadline comes first
constexpr std::chrono::seconds kRestartEvery{1};
constexpr int kAttemptsMax = 3;

Error unavailable(std::string_view why) {
    return make_error(
        ErrorCode::kSandboxUnavailable,
        format("the process in which grammars and adapters' chat templates are tried cannot be started: {}", why));
}

bool socket_pair(OwnedFd& ours, OwnedFd& theirs) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return false;
    ours = OwnedFd(pair[0]);
    theirs = OwnedFd(pair[1]);
    return true;
}

// Passes nothing of the daemon but the log's stream and one socket.
int spawn(pid_t& process, const std::string& program, const std::vector<std::string>& environment, int socket) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDWR, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_RDWR, 0);
    posix_spawn_file_actions_adddup2(&actions, socket, kControlFd);
    posix_spawn_file_actions_addclosefrom_np(&actions, kControlFd + 1);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    std::string name = "lorad", command = kHelperCommand;
    char* arguments[] = {name.data(), command.data(), nullptr};
    std::vector<std::string> values = environment;
    std::vector<char*> pointers;
    for (std::string& value : values) pointers.push_back(value.data());
    pointers.push_back(nullptr);
    const int error = posix_spawn(&process, program.c_str(), &actions, &attributes, arguments, pointers.data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

Error error_of(const Frame& frame) {
    if (frame.kind != kFailed || frame.fields.size() != 3)
        return make_error(ErrorCode::kInternal, "a helper says what none should");
    const uint64_t code =
        std::min<uint64_t>(field_number(frame.fields[0]), static_cast<uint64_t>(ErrorCode::kInternal));
    return make_error(ErrorCode(code), frame.fields[1], frame.fields[2]);
}

}  // namespace

Result<std::unique_ptr<HelperPool>> HelperPool::start(Options options) {
    auto pool = std::unique_ptr<HelperPool>(new HelperPool(std::move(options)));
    {
        MutexLock lock(pool->mutex_);
        TRY(pool->start_process());
    }
    TRY_ASSIGN(Helper first, pool->take());
    {
        MutexLock lock(pool->mutex_);
        pool->ready_.push_back(std::move(first));
    }
    pool->refill();
    if (!pool->filters_calls_) {
        log_warn("this system has no filters for system calls: grammars and adapters' templates are tried in a process "
                 "of their own with limits on "
                 "memory, time and stack, but without that");
    }
    return pool;
}

HelperPool::~HelperPool() {
    MutexLock lock(mutex_);
    end_process();
}

pid_t HelperPool::process() const {
    MutexLock lock(mutex_);
    return process_;
}

void HelperPool::end_process() {
    ready_.clear();
    control_.reset();
    if (process_ < 0) return;
    kill(process_, SIGKILL);  // and with it, its helpers
    while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
    process_ = -1;
}

bool HelperPool::process_has_ended() {
    if (process_ >= 0 && waitpid(process_, nullptr, WNOHANG) == process_) {
        process_ = -1;
        ready_.clear();  // they have ended with it
        control_.reset();
    }
    return process_ < 0;
}

Status HelperPool::start_process() {
    end_process();
    const auto now = steady_clock::now();
    if (started_ != steady_clock::time_point{} && now < started_ + kRestartEvery)
        return unavailable("it has just ended");
    started_ = now;
    ++generation_;
    OwnedFd theirs;
    if (!socket_pair(control_, theirs)) return unavailable(std::strerror(errno));
    if (const int error = spawn(process_, options_.program, options_.environment, theirs.get()); error != 0) {
        process_ = -1;
        return unavailable(std::strerror(error));
    }
    theirs.reset();
    Frame answer;
    const Deadline deadline = now + kStartMax;
    if (write_frame(control_.get(), setup_frame(options_.setup), deadline) != Transfer::kDone ||
        read_frame(control_.get(), answer, deadline) != Transfer::kDone || answer.kind != kDone) {
        end_process();
        return unavailable("it does not answer");
    }
    return ok_status();
}

Result<HelperPool::Helper> HelperPool::new_helper() {
    Helper helper;
    helper.generation = generation_;
    OwnedFd theirs;
    if (!socket_pair(helper.socket, theirs)) return unavailable(std::strerror(errno));
    if (!control_.ok() || !send_socket(control_.get(), theirs.get())) return unavailable("it has ended");
    return helper;
}

bool HelperPool::greets(Helper& helper) {
    if (helper.process >= 0) return true;
    Frame hello;
    if (read_frame(helper.socket.get(), hello, steady_clock::now() + kGreetMax) != Transfer::kDone) return false;
    if (hello.kind != kHello || hello.fields.size() != 2) return false;
    helper.process = pid_t(field_number(hello.fields[0]));
    filters_calls_ = field_number(hello.fields[1]) != 0;
    return true;
}

Result<HelperPool::Helper> HelperPool::take() {
    for (int attempt = 0;; ++attempt) {
        MutexLock lock(mutex_);
        while (!ready_.empty()) {
            Helper helper = std::move(ready_.back());
            ready_.pop_back();
            lock.unlock();
            if (greets(helper)) return helper;
            lock.lock();  // it was ready when its process ended, as others may have been
        }
        Result<Helper> made = new_helper();
        lock.unlock();
        if (made.ok() && greets(*made)) return std::move(*made);
        if (attempt > 0) return made.ok() ? unavailable("it gives no helper") : made.error();
        lock.lock();
        if (!process_has_ended()) continue;
        log_warn("the process in which grammars and adapters' templates are tried has ended; another one is started");
        TRY(start_process());
    }
}

Result<std::vector<std::string>> HelperPool::run(const Frame& job, Admission::Permit& permit) {
    Effort effort{.niceness = permit.niceness()};
    auto done = run(job, effort);
    permit.charge(effort.cpu_seconds);
    return done;
}

Result<std::vector<std::string>> HelperPool::run(const Frame& job, Effort& effort) {
    for (int attempt = 0;; ++attempt) {
        TRY_ASSIGN(Helper helper, take());
        if (job.kind == kCompile && effort.niceness == kNicest)
            (void)setpriority(PRIO_PROCESS, id_t(helper.process), kNicest);
        const auto begin = steady_clock::now();
        const JobLimits& limits = options_.setup.limits;
        const Deadline deadline = begin + std::chrono::milliseconds(limits.wall_ms) + kBeyondJob;
        Frame answer;
        Transfer done = write_frame(helper.socket.get(), job, deadline);
        const bool took_job = done == Transfer::kDone;
        if (took_job) done = read_frame(helper.socket.get(), answer, deadline);
        if (done == Transfer::kDone && answer.fields.empty()) done = Transfer::kGone;  // all have the time at least
        if (done == Transfer::kDone) {
            effort.cpu_seconds = static_cast<double>(field_number(answer.fields.back())) / 1e6;
            answer.fields.pop_back();
            give_back(std::move(helper), job);
            if (answer.kind == kDone) return std::move(answer.fields);
            return error_of(answer);
        }
        if (done == Transfer::kTooLarge) {
            give_back(std::move(helper), job);
            return make_error(ErrorCode::kInputTooComplex, "it is more than a helper process is given");
        }
        if (done == Transfer::kLate) kill(helper.process, SIGKILL);
        helper.socket.reset();
        bool has_ended = false;
        {
            MutexLock lock(mutex_);
            has_ended = process_has_ended() || helper.generation != generation_;
        }
        // The helper was lost for a reason other than this job: try again.
        if ((has_ended && attempt == 0) || (!took_job && done == Transfer::kGone && attempt < kAttemptsMax)) continue;
        refill();
        const uint32_t cpu_ms = job.kind == kCompile ? limits.grammar_cpu_ms : limits.template_cpu_ms;
        const auto passed = steady_clock::now() - begin;
        effort.cpu_seconds =
            std::min(std::chrono::duration<double>(passed).count(), static_cast<double>(cpu_ms) / 1000);
        if (passed >= std::chrono::milliseconds(limits.wall_ms))
            return make_error(ErrorCode::kOverloaded,
                              "reading it took too long on a busy machine; try again in a moment");
        const bool was_time = passed >= std::chrono::milliseconds(cpu_ms);
        return make_error(ErrorCode::kInputTooComplex,
                          was_time ? format("reading it takes more than the {} s of computing that one may",
                                            static_cast<double>(cpu_ms) / 1000)
                                   : "reading it takes more memory or goes deeper than one may");
    }
}

void HelperPool::give_back(Helper helper, const Frame& job) {
    ++(job.kind == kCompile ? helper.n_grammars : helper.n_templates);
    if (helper.n_grammars < kGrammarJobsMax && helper.n_templates < kTemplateJobsMax) {
        MutexLock lock(mutex_);
        if (ready_.size() < options_.n_ready) ready_.push_back(std::move(helper));
        return;
    }
    helper.socket.reset();
    refill();
}

void HelperPool::refill() {
    MutexLock lock(mutex_);
    while (ready_.size() < options_.n_ready) {
        Result<Helper> made = new_helper();
        if (!made.ok()) return;  // reported when a helper is needed
        ready_.push_back(std::move(*made));
    }
}

}  // namespace lorad::server::sandbox
