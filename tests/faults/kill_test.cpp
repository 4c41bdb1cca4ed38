// A process that is killed before any one of its system calls, as it uploads, registers, replaces, activates and
// deletes adapters on a real disk.
//
// LORAD_TEST_KILLS: of all the system calls, about how many are tried (default 60; 0: all).
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base/log.h"
#include "tests/faults/store_life.h"
#include "tests/support/number_from.h"

namespace lorad::adapters::kill_test {
namespace {

using namespace lorad::testing;

struct Killed {
    size_t n_done = 0;     // steps that the child had acknowledged
    uint64_t n_calls = 0;  // system calls of all its threads
    bool was_killed = false;
};

// Runs a life in a child and kills it when it enters its system call number `at`, from 1; 0: never.
Killed live_and_die(const StoreLife& life, const std::filesystem::path& folder, uint64_t at) {
    Killed result;
    int acknowledged[2];
    CHECK(::pipe(acknowledged) == 0);
    const pid_t child = ::fork();
    CHECK(child >= 0);
    if (child == 0) {
        ::close(acknowledged[0]);
        ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
        ::raise(SIGSTOP);
        const bool ok = life.run(folder, [&](int, const KnownState&) {
            const char byte = 1;
            if (::write(acknowledged[1], &byte, 1) != 1) ::_exit(2);
        });
        ::_exit(ok ? 0 : 1);
    }
    ::close(acknowledged[1]);
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    CHECK(::ptrace(PTRACE_SETOPTIONS, child, nullptr,
                   PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL) == 0);
    CHECK(::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) == 0);
    std::set<pid_t> inside;  // threads that are in a system call
    for (;;) {
        const pid_t thread = ::waitpid(-1, &status, __WALL);
        if (thread < 0) break;
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (thread == child) {
                result.was_killed = WIFSIGNALED(status);
                EXPECT_TRUE(result.was_killed || WEXITSTATUS(status) == 0) << "the child failed by itself";
            }
            continue;
        }
        int signal = 0;
        if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
            if (!inside.erase(thread)) {
                inside.insert(thread);
                if (++result.n_calls == at) ::kill(child, SIGKILL);
            }
        } else if (WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGSTOP) {
            signal = WSTOPSIG(status);
        }
        ::ptrace(PTRACE_SYSCALL, thread, nullptr, signal);
    }
    char byte = 0;
    while (::read(acknowledged[0], &byte, 1) == 1) ++result.n_done;
    ::close(acknowledged[0]);
    return result;
}

TEST(KilledStore, BeforeAnySystemCallLosesNothing) {
    set_log_level(LogLevel::kError);
    const StoreLife life;
    const TempDir scratch;
    const std::vector<KnownState> states = life.states(scratch.path() / "whole");
    const Killed whole = live_and_die(life, scratch.path() / "counted", 0);
    ASSERT_FALSE(whole.was_killed);
    ASSERT_EQ(whole.n_done, size_t{StoreLife::kSteps});
    const uint64_t n_wanted = number_from("LORAD_TEST_KILLS", 60);
    const uint64_t step = n_wanted == 0 ? 1 : std::max<uint64_t>(1, whole.n_calls / n_wanted);
    uint64_t n_kills = 0;
    // Threads make the number of calls vary a little: until a child has lived to its end.
    for (uint64_t at = 1 + ::time(nullptr) % step;; at += step) {
        const std::filesystem::path folder = scratch.path() / "killed";
        std::filesystem::remove_all(folder);
        const Killed killed = live_and_die(life, folder, at);
        if (!killed.was_killed) break;
        ++n_kills;
        ASSERT_EQ(StoreLife::problem(folder, states, killed.n_done), "")
            << "killed before system call " << at << " of " << whole.n_calls;
    }
    EXPECT_GT(n_kills, whole.n_calls / step / 2);
    RecordProperty("system calls", std::to_string(whole.n_calls));
    RecordProperty("kills", std::to_string(n_kills));
    RecordProperty("trials", std::to_string(n_kills));
    set_log_level(LogLevel::kInfo);
}

// For a trace of the system calls, from outside: the life in LORAD_TEST_STORE. And LORAD_TEST_STORES, a file with lines
// "steps folder": each is looked at.
TEST(StoreOfAnother, RunsWhereItIsTold) {
    const TempDir scratch;
    const char* const told = std::getenv("LORAD_TEST_STORE");
    const std::filesystem::path folder = told ? std::filesystem::path(told) : scratch.path() / "store";
    EXPECT_TRUE(StoreLife().run(folder, [&](int n, const KnownState&) {
        // Told by a call that a trace shows.
        const std::string line = format("acknowledged {}\n", n + 1);
        if (told == nullptr) return;
        EXPECT_EQ(::write(STDOUT_FILENO, line.data(), line.size()), static_cast<ssize_t>(line.size()));
    }));
}

TEST(StoreOfAnother, IsSoundWhereverItIs) {
    set_log_level(LogLevel::kError);
    const StoreLife life;
    const TempDir scratch;
    const std::vector<KnownState> states = life.states(scratch.path() / "whole");
    uint64_t n_looked_at = 0;
    const char* const told = std::getenv("LORAD_TEST_STORES");
    std::ifstream lines(told ? told : "");
    size_t n_done = 0;
    for (std::string folder; lines >> n_done && std::getline(lines >> std::ws, folder); ++n_looked_at) {
        EXPECT_EQ(StoreLife::problem(folder, states, n_done), "") << folder;
        if (::testing::Test::HasFailure()) break;
    }
    EXPECT_EQ(StoreLife::problem(scratch.path() / "whole", states, StoreLife::kSteps), "");
    RecordProperty("trials", std::to_string(n_looked_at));
    set_log_level(LogLevel::kInfo);
}

}  // namespace
}  // namespace lorad::adapters::kill_test
