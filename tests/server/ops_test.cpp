#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/config_service.h"
#include "server/engine/heartbeat.h"
#include "server/ops/reload.h"
#include "server/ops/service_manager.h"
#include "server/ops/signals.h"
#include "server/ops/vitals.h"
#include "tests/support/soon.h"
#include "tests/support/temp_dir.h"

namespace lorad::server::ops::ops_test {
namespace {

using lorad::testing::soon;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// What systemd would receive.
class Mailbox {
  public:
    explicit Mailbox(const std::string& address) {
        fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        sockaddr_un to{};
        to.sun_family = AF_UNIX;
        std::memcpy(to.sun_path, address.data(), address.size());
        if (to.sun_path[0] == '@') to.sun_path[0] = '\0';
        const auto size = socklen_t(offsetof(sockaddr_un, sun_path) + address.size() + (address[0] == '@' ? 0 : 1));
        EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&to), size), 0);
        timeval patience{30, 0};
        setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    }
    ~Mailbox() { close(fd_); }
    std::string next() {
        char buffer[1024];
        const ssize_t size = recv(fd_, buffer, sizeof buffer, 0);
        return size < 0 ? std::string("nothing came") : std::string(buffer, size_t(size));
    }
    bool empty() {
        char c = 0;
        return recv(fd_, &c, 1, MSG_DONTWAIT | MSG_PEEK) < 0;
    }

  private:
    int fd_ = -1;
};

TEST(ServiceManager, TellsEachStateInOneDatagram) {
    lorad::testing::TempDir folder;
    for (const std::string& address :
         {(folder.path() / "notify").string(), std::string("@lorad-test-") + std::to_string(getpid())}) {
        Mailbox mailbox(address);
        ServiceManager manager({address, std::chrono::microseconds(8'000'000), {}});
        EXPECT_EQ(manager.watchdog_interval(), milliseconds(2000));
        manager.ready("serves\nwell");
        EXPECT_THAT(mailbox.next(), StartsWith("READY=1\nSTATUS=serves\\nwell\nMAINPID=" + std::to_string(getpid())));
        manager.reloading();
        EXPECT_THAT(mailbox.next(), StartsWith("RELOADING=1\nMONOTONIC_USEC="));
        manager.watchdog();
        EXPECT_EQ(mailbox.next(), "WATCHDOG=1");
        manager.stopping("draining", milliseconds(1500));
        EXPECT_EQ(mailbox.next(), "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=1500000");
    }
}

TEST(ServiceManager, IsSilentWhereNobodyListens) {
    for (const char* address : {"", "relative", "/nowhere/at/all"}) {
        ServiceManager manager({address, {}, {}});
        manager.ready("x");
        manager.watchdog();
        EXPECT_FALSE(manager.watchdog_interval());
    }
}

TEST(LongStart, AsksForTimeOnlyWhileThereIsProgress) {
    lorad::testing::TempDir folder;
    const std::string address = (folder.path() / "notify").string();
    Mailbox mailbox(address);
    ServiceManager manager({address, {}, {}});
    std::atomic<bool> alive = true;
    std::atomic<int> n_asked = 0;
    {
        LongStart loading(manager, "loading", milliseconds(20), [&] { return ++n_asked, alive.load(); });
        const auto asked_again = [&](int n) { return soon([&, until = n_asked + n] { return n_asked >= until; }); };
        EXPECT_EQ(mailbox.next(), "EXTEND_TIMEOUT_USEC=60000\nSTATUS=loading");
        EXPECT_THAT(mailbox.next(), StartsWith("EXTEND_TIMEOUT_USEC=60000\nSTATUS=loading, "));
        alive = false;
        EXPECT_TRUE(asked_again(1));  // what was on its way is there
        while (!mailbox.empty()) mailbox.next();
        EXPECT_TRUE(asked_again(5));
        EXPECT_TRUE(mailbox.empty());
        alive = true;
        EXPECT_THAT(mailbox.next(), StartsWith("EXTEND_TIMEOUT_USEC="));
    }
    while (!mailbox.empty()) mailbox.next();
    std::this_thread::sleep_for(milliseconds(60));
    EXPECT_TRUE(mailbox.empty());
}

TEST(LongStart, ASleepingProcessIsNoProgress) {
    lorad::testing::TempDir folder;
    const std::string address = (folder.path() / "notify").string();
    Mailbox mailbox(address);
    ServiceManager manager({address, {}, {}});
    LongStart loading(manager, "loading", milliseconds(200));
    mailbox.next();
    std::this_thread::sleep_for(milliseconds(700));
    EXPECT_TRUE(mailbox.empty());
    volatile uint64_t sum = 0;
    // Until it has worked enough between two looks, which a machine with other work allows it later.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (mailbox.empty() && std::chrono::steady_clock::now() < end) sum = sum + 1;
    EXPECT_FALSE(mailbox.empty());
}

TEST(ServiceEnvironment, TakesOnlyWhatIsMeantForThisProcess) {
    const std::string own = std::to_string(getpid());
    setenv("WATCHDOG_USEC", "5000000", 1);
    setenv("WATCHDOG_PID", "1", 1);
    setenv("LISTEN_FDS", "2", 1);
    setenv("LISTEN_PID", "1", 1);
    EXPECT_FALSE(service_environment().watchdog);
    EXPECT_TRUE(service_environment().sockets.empty());
    setenv("WATCHDOG_PID", own.c_str(), 1);
    setenv("LISTEN_PID", own.c_str(), 1);
    setenv("LISTEN_FDNAMES", "http:admin", 1);
    ServiceEnvironment environment = service_environment();
    EXPECT_EQ(environment.watchdog, std::chrono::microseconds(5'000'000));
    ASSERT_EQ(environment.sockets.size(), 2u);
    EXPECT_EQ(environment.sockets[0].fd, 3);
    EXPECT_EQ(environment.sockets[0].name, "http");
    EXPECT_EQ(environment.sockets[1].fd, 4);
    EXPECT_EQ(environment.sockets[1].name, "admin");
    setenv("LISTEN_FDS", "-1", 1);
    EXPECT_TRUE(service_environment().sockets.empty());
    for (const char* name : {"WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"})
        unsetenv(name);
}

Heartbeat beat(int age_ms, int longest_ms = 0) { return {1, milliseconds(age_ms), milliseconds(longest_ms)}; }

TEST(Vitals, SlowStepsAreWaitedForHungOnesAreNot) {
    const VitalLimits limits{milliseconds(1500), milliseconds(10'000)};
    EXPECT_EQ(judge(beat(1499), limits), Vital::kWell);
    EXPECT_EQ(judge(beat(1500), limits), Vital::kSlow);
    EXPECT_EQ(judge(beat(3900, 2000), limits), Vital::kWell);
    EXPECT_EQ(judge(beat(4000, 2000), limits), Vital::kSlow);
    EXPECT_EQ(judge(beat(5000, 60'000), limits), Vital::kSlow) << "half of what counts as hung at most";
    EXPECT_EQ(judge(beat(10'000, 60'000), limits), Vital::kHung);
}

TEST(Vitals, ALockThatIsKeptStarvesTheWatchdog) {
    std::mutex registry;
    // Well above the 250 ms between two looks, so that a busy machine does not count as a hang.
    const VitalLimits limits{milliseconds(700), milliseconds(1400)};
    Vitals vitals({[] { return beat(0); }, [&] { const std::lock_guard lock(registry); }}, limits);
    EXPECT_TRUE(soon([&] { return vitals.state() == Vital::kWell && vitals.feeds(milliseconds(1000)); }));
    {
        const std::lock_guard lock(registry);
        EXPECT_TRUE(soon([&] { return vitals.state() != Vital::kWell; }));
        EXPECT_EQ(vitals.slowest(), "registry");
        EXPECT_FALSE(vitals.feeds(milliseconds(1000)));
        EXPECT_TRUE(soon([&] { return vitals.state() == Vital::kHung; }));
    }
    EXPECT_TRUE(soon([&] { return vitals.state() == Vital::kWell; }));
}

TEST(Vitals, TheWatchdogTakesNoLongerThanAHangMay) {
    for (int age : {0, 1400, 1600, 5000, 9000}) {
        // hang 10 s, watchdog 10 s: no turn for 1.5 s ends the feeding; hang 60 s: it goes on until 50 s.
        Vitals fast({[=] { return beat(age); }, [] {}}, {milliseconds(1500), milliseconds(10'000)});
        EXPECT_EQ(fast.feeds(milliseconds(10'000)), age < 1500);
        Vitals patient({[=] { return beat(age); }, [] {}}, {milliseconds(1500), milliseconds(60'000)});
        EXPECT_TRUE(patient.feeds(milliseconds(10'000)));
    }
}

TEST(Pulse, LongTurnsCountOnceTheyAreUsual) {
    Pulse pulse;
    EXPECT_EQ(pulse.read().age, milliseconds(0)) << "nobody waits for a loop that has not begun";
    for (int i = 0; i < 3; ++i) pulse.beat();
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(milliseconds(600));
    EXPECT_GE(pulse.read().age, milliseconds(600));
    pulse.beat();
    EXPECT_LE(pulse.read().longest_turn, (std::chrono::steady_clock::now() - begin) / 2 + milliseconds(10));
    for (int i = 0; i < 2; ++i) {
        std::this_thread::sleep_for(milliseconds(600));
        pulse.beat();
    }
    EXPECT_GE(pulse.read().longest_turn, milliseconds(600));
    for (int i = 0; i < 128; ++i) pulse.beat();
    EXPECT_LE(pulse.read().longest_turn, milliseconds(300));
    pulse.end();
    EXPECT_EQ(pulse.read().age, milliseconds(0));
}

TEST(Reload, IsAllOrNothing) {
    Config first;
    first.log_level = "info";
    Result<Config> next = first;
    Reload reload(first, [&] { return next; });
    int n_commits = 0;
    bool second_is_broken = false;
    reload.add([&](const Config&) -> Result<Reload::Commit> { return Reload::Commit([&] { ++n_commits; }); });
    reload.add([&](const Config&) -> Result<Reload::Commit> {
        if (second_is_broken) return make_error(ErrorCode::kInvalidConfig, "keys: line 3");
        return Reload::Commit([&] { ++n_commits; });
    });
    next->log_level = "debug";
    next->port = 9;
    second_is_broken = true;
    EXPECT_FALSE(reload.run().ok());
    EXPECT_EQ(n_commits, 0);
    EXPECT_EQ(reload.current().log_level, "info");
    second_is_broken = false;
    Result<Reload::Taken> taken = reload.run();
    ASSERT_TRUE(taken.ok());
    EXPECT_EQ(n_commits, 2);
    EXPECT_EQ(reload.current().log_level, "debug");
    EXPECT_EQ(reload.current().port, first.port) << "needs a restart";
    EXPECT_EQ(taken->changed, std::vector<std::string>{"log-level"});
    EXPECT_EQ(taken->need_restart, std::vector<std::string>{"port"});
    next = make_error(ErrorCode::kInvalidConfig, "lorad.toml:1: no such setting");
    EXPECT_FALSE(reload.run().ok());
    EXPECT_EQ(n_commits, 2);
}

TEST(Signals, AWriteBeyondTheLimitOfFileSizesIsAnErrorAndNotTheEnd) {
    const auto write_beyond = [] {
        install_signals();
        const int fd = fileno(std::tmpfile());
        const rlimit limit{8, 8};
        if (fd < 0 || setrlimit(RLIMIT_FSIZE, &limit) != 0 || write(fd, "01234567", 8) != 8) _exit(1);
        _exit(write(fd, "8", 1) < 0 && errno == EFBIG ? 0 : 2);
    };
    EXPECT_EXIT(write_beyond(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lorad::server::ops::ops_test
