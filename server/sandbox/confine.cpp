#include "server/sandbox/confine.h"

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <vector>

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "proto/base/thread.h"

namespace lorad::server::sandbox {
namespace {

void lower_limit(__rlimit_resource_t resource, uint64_t to) {
    rlimit limit{};
    if (getrlimit(resource, &limit) != 0) return;
    if (limit.rlim_max == RLIM_INFINITY || limit.rlim_max > to) limit.rlim_max = rlim_t(to);
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(resource, &limit);
}

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;  // no filter
#endif

// By name, since numbers differ; some systems lack some.
constexpr int kAllowed[] = {
    SYS_read,
    SYS_write,
    SYS_recvfrom,
    SYS_sendto,
    SYS_munmap,
    SYS_mremap,
    SYS_brk,
    SYS_madvise,
    SYS_futex,
    SYS_exit,
    SYS_exit_group,
    SYS_rt_sigreturn,
    SYS_rt_sigprocmask,
    SYS_clock_gettime,
    SYS_gettimeofday,
    SYS_getrandom,
    SYS_setitimer,
    SYS_getrusage,
    SYS_getpid,
    SYS_gettid,
    SYS_sched_yield,
    SYS_restart_syscall,
    SYS_close,
    SYS_clock_nanosleep,
    SYS_nanosleep,
#ifdef SYS_poll
    SYS_poll,
#endif
    SYS_ppoll,
#ifdef SYS_time
    SYS_time,
#endif
};
// Allowed by the lower half of one argument; both architectures are little-endian.
struct CallCondition {
    int call;
    uint32_t argument;
    uint16_t test;  // BPF_JEQ: is `value`; BPF_JSET: has none of its bits
    uint32_t value;
};
std::vector<CallCondition> conditions() {
    return {{SYS_mmap, 2, BPF_JSET, PROT_EXEC},
            {SYS_mprotect, 2, BPF_JSET, PROT_EXEC},
            {SYS_prlimit64, 0, BPF_JEQ, 0},                              // its own limits
            {SYS_tgkill, 0, BPF_JEQ, static_cast<uint32_t>(getpid())}};  // abort()
}

}  // namespace

void limit_stack(uint64_t n_bytes) {
    rlimit limit{};
    if (getrlimit(RLIMIT_STACK, &limit) != 0) return;
    if (limit.rlim_max == RLIM_INFINITY || limit.rlim_max >= n_bytes) limit.rlim_cur = rlim_t(n_bytes);
    (void)setrlimit(RLIMIT_STACK, &limit);
}

void limit_process() {
    lower_limit(RLIMIT_CORE, 0);
    lower_limit(RLIMIT_NOFILE, 32);
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    (void)prctl(PR_SET_NAME, "lorad-text", 0, 0, 0);
    give_way();  // tokens of others come first
}

uint64_t process_bytes() {
    std::FILE* file = std::fopen("/proc/self/statm", "re");
    if (file == nullptr) return 0;
    unsigned long n_pages = 0;
    const int n_read = std::fscanf(file, "%lu", &n_pages);
    (void)std::fclose(file);
    return n_read == 1 ? static_cast<uint64_t>(n_pages) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

bool limit_memory(uint64_t size_bytes, uint64_t more_bytes) {
    rlimit limit{};
    if (size_bytes == 0 || getrlimit(RLIMIT_AS, &limit) != 0) return false;
    const uint64_t wanted = size_bytes + more_bytes;
    limit.rlim_cur = limit.rlim_max == RLIM_INFINITY || limit.rlim_max > wanted ? rlim_t(wanted) : limit.rlim_max;
    return setrlimit(RLIMIT_AS, &limit) == 0;
}

bool limit_time(uint32_t cpu_ms, uint32_t wall_ms) {
    auto set = [](__itimer_which_t which, uint32_t ms) {
        itimerval timer{};
        timer.it_value.tv_sec = ms / 1000;
        timer.it_value.tv_usec = suseconds_t(ms % 1000) * 1000;
        return setitimer(which, &timer, nullptr) == 0;
    };
    // SIGPROF and SIGALRM end a process that has not asked for them.
    return set(ITIMER_PROF, cpu_ms) && set(ITIMER_REAL, wall_ms);
}

bool filter_calls() {
    if (kArchitecture == 0) return false;
    using Data = seccomp_data;
    std::vector<sock_filter> program;
    auto add = [&](uint16_t code, uint32_t k, uint8_t if_true = 0, uint8_t if_false = 0) {
        program.push_back({code, if_true, if_false, k});
    };
    auto load = [&](size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); };
    auto answer = [&](uint32_t what) { add(BPF_RET | BPF_K, what); };
    load(offsetof(Data, arch));
    add(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0);
    answer(SECCOMP_RET_KILL_PROCESS);
    load(offsetof(Data, nr));
    for (const int call : kAllowed) {
        add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1);
        answer(SECCOMP_RET_ALLOW);
    }
    for (const CallCondition& condition : conditions()) {
        add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(condition.call), 0, 4);
        load(offsetof(Data, args) + condition.argument * sizeof(uint64_t));
        const bool if_true = condition.test == BPF_JEQ;
        add(static_cast<uint16_t>(BPF_JMP | condition.test | BPF_K), condition.value, if_true ? 0 : 1, if_true ? 1 : 0);
        answer(SECCOMP_RET_ALLOW);
        answer(SECCOMP_RET_ERRNO | EPERM);
    }
    answer(SECCOMP_RET_ERRNO | EPERM);
    const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0;
}

}  // namespace lorad::server::sandbox
