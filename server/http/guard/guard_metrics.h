// Writes the guard's counters in Prometheus' text format.
#pragma once

#include <string>

#include "server/http/guard/guard.h"

namespace lorad::server {

std::string guard_metrics_text(const GuardCounts& counts);

}  // namespace lorad::server
