// What /metrics shows about adapters: where they are, and what bringing them there has cost.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "adapters/registry.h"

namespace lorad::server {

// Series with a name in their labels, at most; counts cover all.
inline constexpr size_t kNamedSeriesMax = 1000;

std::string adapter_metrics_text(const std::vector<adapters::AdapterInfo>& adapters,
                                 const adapters::RegistryStats& stats, std::string_view model_name);

}  // namespace lorad::server
