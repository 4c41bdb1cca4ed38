#include "server/ops/service_manager.h"

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <ctime>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/mutex.h"
#include "proto/base/printable.h"
#include "proto/base/thread.h"

namespace lorad::server::ops {
namespace {

using std::chrono::milliseconds;

// The manager's time is given three intervals, so that one late message does no harm.
constexpr int kIntervalsOfExtension = 3;

uint64_t microseconds_of(milliseconds time) { return static_cast<uint64_t>(time.count()) * 1000; }

uint64_t clock_ns(clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(time.tv_nsec);
}

// The bytes that the process has read so far, with page faults on files.
uint64_t bytes_read() {
    std::FILE* file = std::fopen("/proc/self/io", "re");
    if (file == nullptr) return 0;
    char line[128];
    unsigned long long sum = 0, value = 0;
    while (std::fgets(line, sizeof line, file) != nullptr) {
        if (std::sscanf(line, "rchar: %llu", &value) == 1 || std::sscanf(line, "read_bytes: %llu", &value) == 1)
            sum += value;
    }
    std::fclose(file);
    return sum;
}

// A thread that only wakes up and looks needs far less than this.
constexpr uint64_t kWorkNs = 20'000'000;
constexpr uint64_t kWorkBytes = 1 << 20;

std::function<bool()> process_progress() {
    return [cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID), bytes = bytes_read()]() mutable {
        const uint64_t cpu_now = clock_ns(CLOCK_PROCESS_CPUTIME_ID), bytes_now = bytes_read();
        const bool worked = cpu_now - cpu >= kWorkNs || bytes_now - bytes >= kWorkBytes;
        cpu = cpu_now;
        bytes = bytes_now;
        return worked;
    };
}

}  // namespace

ServiceManager::ServiceManager(const ServiceEnvironment& environment) {
    if (environment.watchdog) {
        watchdog_time_ = std::chrono::duration_cast<milliseconds>(*environment.watchdog);
        watchdog_interval_ = std::max(*watchdog_time_ / 4, milliseconds(1));
    }
    const std::string& address = environment.notify_socket;
    if (address.empty()) return;
    if ((address[0] != '/' && address[0] != '@') || address.size() >= sizeof(sockaddr_un::sun_path)) {
        log_warn("NOTIFY_SOCKET is no address of a Unix socket: the service manager is not told anything");
        return;
    }
    address_ = address;
    if (address_[0] == '@') address_[0] = '\0';
    socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

ServiceManager::~ServiceManager() {
    if (socket_ >= 0) close(socket_);
}

void ServiceManager::send(std::string_view message) const {
    if (socket_ < 0) return;
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::memcpy(to.sun_path, address_.data(), address_.size());
    // A path ends with a zero, an abstract name with its length.
    const socklen_t size = socklen_t(offsetof(sockaddr_un, sun_path) + address_.size() + (address_[0] == '\0' ? 0 : 1));
    while (sendto(socket_, message.data(), message.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&to), size) <
               0 &&
           errno == EINTR) {
    }
}

void ServiceManager::ready(std::string_view status) {
    send(format("READY=1\nSTATUS={}\nMAINPID={}", escape_unprintable(status), getpid()));
}

void ServiceManager::reloading() {
    send(format("RELOADING=1\nMONOTONIC_USEC={}\nSTATUS=reading the configuration again",
                clock_ns(CLOCK_MONOTONIC) / 1000));
}

void ServiceManager::stopping(std::string_view status, milliseconds at_most) {
    send(format("STOPPING=1\nSTATUS={}\nEXTEND_TIMEOUT_USEC={}", escape_unprintable(status), microseconds_of(at_most)));
}

void ServiceManager::status(std::string_view text) { send(format("STATUS={}", escape_unprintable(text))); }

void ServiceManager::watchdog() { send("WATCHDOG=1"); }

void ServiceManager::extend(milliseconds time, std::string_view status) {
    send(format("EXTEND_TIMEOUT_USEC={}\nSTATUS={}", microseconds_of(time), escape_unprintable(status)));
}

LongStart::LongStart(ServiceManager& manager, std::string what, milliseconds interval, std::function<bool()> is_alive)
    : manager_(manager),
      what_(std::move(what)),
      interval_(interval),
      is_alive_(is_alive ? std::move(is_alive) : process_progress()) {
    manager_.extend(interval_ * kIntervalsOfExtension, what_);
    if (manager_.listens()) thread_ = std::thread([this] { run(); });
}

LongStart::~LongStart() {
    {
        const MutexLock lock(mutex_);
        over_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void LongStart::run() {
    name_thread("lorad-start");
    const auto began = std::chrono::steady_clock::now();
    MutexLock lock(mutex_);
    while (!changed_.wait_for(lock, interval_, [this]() REQUIRES(mutex_) { return over_; })) {
        if (!is_alive_()) continue;
        const auto seconds =
            std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - began).count();
        manager_.extend(interval_ * kIntervalsOfExtension, format("{}, {} s so far", what_, seconds));
    }
}

}  // namespace lorad::server::ops
