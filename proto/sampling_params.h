// How one request draws its tokens. Ranges are checked where requests are parsed
// (generate_request_parse.cpp).
#pragma once

#include <cstdint>

namespace lorad::proto {

struct SamplingParams {
    float temperature = 1.0f;  // 0 = greedy; the other fields then have no effect
    float top_p = 1.0f;        // (0, 1]; 1 = off
    uint32_t top_k = 0;        // 0 = off
    float min_p = 0.0f;        // [0, 1]; 0 = off
    uint64_t seed = 0;  // the draw at a position depends on this, the position and the logits alone

    bool greedy() const { return temperature == 0.0f || top_k == 1; }
};

}  // namespace lorad::proto
