// The main thread's part while the server serves: signals, the service manager, the drain.
#pragma once

#include <chrono>
#include <string>

#include "server/engine/engine.h"
#include "server/ops/reload.h"
#include "server/ops/service_manager.h"
#include "server/ops/vitals.h"

namespace lorad::server::ops {

// The main thread.
class Lifecycle {
  public:
    Lifecycle(ServiceManager& manager, const Vitals& vitals, Engine& engine, Reload& reload)
        : manager_(manager), vitals_(vitals), engine_(engine), reload_(reload) {}

    // Until a signal asks for the end or the device gives up. `status` is one line for the service manager.
    void serve(const std::string& status);
    // New requests are refused, running ones may finish for drain-timeout-s, the rest end with an error. Ends the
    // process with status 1 where the engine hangs and cannot be waited for.
    void drain();

  private:
    void tend();
    void reload();

    ServiceManager& manager_;
    const Vitals& vitals_;
    Engine& engine_;
    Reload& reload_;
    std::string status_;
    Vital told_ = Vital::kWell;
    std::chrono::steady_clock::time_point fed_{};
};

}  // namespace lorad::server::ops
