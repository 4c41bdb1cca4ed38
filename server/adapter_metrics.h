// Shows adapters in /metrics: where they are, and the cost of bringing them there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "adapters/pool/registry.h"

namespace lorad::server {

// Series with a name in their labels, at most; counts cover all.
inline constexpr size_t kNamedSeriesMax = 600;

std::string adapter_metrics_text(const std::vector<adapters::AdapterInfo>& adapters,
                                 const adapters::RegistryStats& stats, std::string_view model_name);

// Names whose requests wait for a place on the device, before the engine knows of them; comma-separated.
std::string names_waiting_for_place(const std::vector<adapters::AdapterInfo>& adapters);

}  // namespace lorad::server
