// Options of the server's parts, made from the settings. cli_serve.cpp only.
#pragma once

#include <string>

#include "proto/base/result.h"
#include "server/config.h"
#include "server/config_service.h"
#include "server/engine/engine.h"
#include "server/http/listener.h"
#include "server/http/routes.h"
#include "server/loaded_model.h"
#include "server/metrics.h"
#include "server/ops/vitals.h"

namespace lorad::server {

Result<ListenerOptions> listener_options(const Config& config, const ServiceEnvironment& service);
EngineOptions engine_options(const Config& config, const LoadedModel& loaded);
Metrics::Shape metrics_shape(const Config& config, const std::string& base_name, const LoadedModel& loaded);
ops::VitalLimits vital_limits(const Config& config, bool is_cpu);
// Applies the settings that change the meaning and the bounds of requests.
void configure(ServerContext& context, const Config& config);

}  // namespace lorad::server
