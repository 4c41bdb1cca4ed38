// Reading the configuration again while serving: everything that changes is checked first, then all of it is taken;
// where anything is wrong, nothing is.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/result.h"
#include "server/config.h"

namespace lorad::server::ops {

// The reloads shown in /metrics; written by the main thread, read by any.
struct ReloadState {
    std::atomic<bool> last_taken{true};
    std::atomic<int64_t> taken_at_s{0};  // Unix time; the start counts
};

// The main thread.
class Reload {
  public:
    using Commit = std::function<void()>;                               // takes what was prepared; cannot fail
    using Prepare = std::function<Result<Commit>(const Config& next)>;  // checks, changes nothing

    // `read` gives the configuration from all of its sources.
    Reload(Config current, std::function<Result<Config>()> read)
        : current_(std::move(current)), read_(std::move(read)) {
        state_.taken_at_s = unix_time_s();
    }
    void add(Prepare prepare) { parts_.push_back(std::move(prepare)); }

    const Config& current() const { return current_; }

    struct Taken {
        std::vector<std::string> changed;       // settings that hold from now on
        std::vector<std::string> need_restart;  // settings that still differ from the running ones
    };
    Result<Taken> run();
    const ReloadState& state() const { return state_; }

  private:
    Result<Taken> take();

    Config current_;
    const std::function<Result<Config>()> read_;
    std::vector<Prepare> parts_;
    ReloadState state_;
};

// Settings that a reload changes; of the files that settings name (keys, certificates) the contents as well.
bool takes_effect_on_reload(const std::string& setting);

}  // namespace lorad::server::ops
