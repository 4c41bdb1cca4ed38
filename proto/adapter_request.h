// Bodies of POST /v1/load_lora_adapter and /v1/unload_lora_adapter, in vLLM's shape.
#pragma once

#include <string>
#include <string_view>

#include "proto/base/result.h"

namespace lorad::proto {

struct LoadAdapterRequest {
    std::string name;
    std::string path;
};
Result<LoadAdapterRequest> parse_load_adapter_request(std::string_view body);

// The name of the adapter to unload.
Result<std::string> parse_unload_adapter_request(std::string_view body);

// 1 to 128 letters, digits and . _ - / : so that a name is safe in logs, metrics and URLs. `place` begins the message.
Status check_adapter_name(std::string_view name, std::string_view place);

}  // namespace lorad::proto
