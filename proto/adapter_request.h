// Bodies of POST /v1/load_lora_adapter and /v1/unload_lora_adapter, in vLLM's shape.
#pragma once

#include <string>
#include <string_view>

#include "proto/base/result.h"

namespace lorad::proto {

struct LoadAdapterRequest {
    std::string name;
    std::string path;
    bool load_inplace = false;        // replace an adapter of this name
    std::string expected_generation;  // with load_inplace: only if this is the present one; empty:
                                      // whatever it is
};
Result<LoadAdapterRequest> parse_load_adapter_request(std::string_view body);

// The name of the adapter to unload.
Result<std::string> parse_unload_adapter_request(std::string_view body);

}  // namespace lorad::proto
