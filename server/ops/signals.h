// Signals of the serving process. SIGTERM and SIGINT ask for a drain, the second of them ends the process at once;
// SIGHUP asks to read the configuration again, unless it came ignored (nohup).
#pragma once

#include <chrono>

namespace lorad::server::ops {

inline constexpr int kExitAtOnce = 130;

// Once, before other threads start. Until signals_drain() there is nothing to drain: SIGTERM ends the process with
// status 0.
void install_signals();
void signals_drain();

// The main thread: waits until a signal comes or the time is over. stop_asked() stays true; reload_asked() tells once.
void wait_for_signal(std::chrono::milliseconds at_most);
bool stop_asked();
bool reload_asked();

}  // namespace lorad::server::ops
