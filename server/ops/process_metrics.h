// Writes metrics of the process itself: Prometheus' usual process_* names, the engine's heartbeat and reloads.
#pragma once

#include <string>

#include "server/engine/heartbeat.h"
#include "server/ops/reload.h"

namespace lorad::server::ops {

// Any thread. Reads /proc/self. `reload`: null where there is none.
std::string process_metrics_text(const Heartbeat& engine, const ReloadState* reload);

}  // namespace lorad::server::ops
