// Tells the service manager how the process is: systemd's notification protocol, one datagram for each message
// (sd_notify(3)).
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "proto/base/mutex.h"
#include "server/config_service.h"

namespace lorad::server::ops {

// Any thread. Nothing is sent, and nothing fails, where nobody listens.
class ServiceManager {
  public:
    explicit ServiceManager(const ServiceEnvironment& environment);
    ~ServiceManager();
    ServiceManager(const ServiceManager&) = delete;
    ServiceManager& operator=(const ServiceManager&) = delete;

    bool listens() const { return socket_ >= 0; }
    // The interval for calling watchdog() while all is well: a quarter of the manager's limit. Nothing: it has no
    // watchdog.
    std::optional<std::chrono::milliseconds> watchdog_interval() const { return watchdog_interval_; }
    std::optional<std::chrono::milliseconds> watchdog_time() const { return watchdog_time_; }

    void ready(std::string_view status);
    void reloading();  // ready() follows
    void stopping(std::string_view status, std::chrono::milliseconds at_most);
    void status(std::string_view text);
    void watchdog();
    // A start or stop under way may take this much longer from now on.
    void extend(std::chrono::milliseconds time, std::string_view status);

  private:
    void send(std::string_view message) const;

    int socket_ = -1;
    std::string address_;  // in the form of sun_path
    std::optional<std::chrono::milliseconds> watchdog_interval_, watchdog_time_;
};

// Asks for more time while something long goes on: for as long as this lives, and the process gets on. A process that
// neither computes nor reads is not waited for. One thread of its own.
class LongStart {
  public:
    // `is_alive`, for tests, says whether there was progress since it was last asked; empty: processor time and bytes
    // read tell.
    LongStart(ServiceManager& manager, std::string what, std::chrono::milliseconds interval = std::chrono::seconds(5),
              std::function<bool()> is_alive = {});
    ~LongStart();
    LongStart(const LongStart&) = delete;
    LongStart& operator=(const LongStart&) = delete;

  private:
    void run();

    ServiceManager& manager_;
    const std::string what_;
    const std::chrono::milliseconds interval_;
    const std::function<bool()> is_alive_;
    Mutex mutex_;
    Condition changed_;
    bool over_ GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

}  // namespace lorad::server::ops
