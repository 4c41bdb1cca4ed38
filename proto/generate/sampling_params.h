// The sampling parameters of one request. Their ranges are checked where requests are parsed
// (generate_sampling_parse.cpp).
#pragma once

#include <cstdint>
#include <vector>

#include "proto/base/ids.h"

namespace lorad::proto {

struct TokenBias {
    TokenId token = 0;
    float bias = 0.0f;  // added to the token's logit
};

// Applied in this order: what is allowed, bias, repetition, frequency and presence penalty,
// temperature, top_k, top_p, min_p, typical_p, draw.
struct SamplingParams {
    float temperature = 1.0f;                // 0 = greedy; the fields from here to typical_p then have no effect
    float top_p = 1.0f;                      // (0, 1]; 1 = off
    uint32_t top_k = 0;                      // 0 = off
    float min_p = 0.0f;                      // [0, 1]; 0 = off
    float typical_p = 1.0f;                  // (0, 1]; 1 = off
    float repetition_penalty = 1.0f;         // (0, 10]; 1 = off; on what the prompt or the answer holds
    float frequency_penalty = 0.0f;          // [-2, 2]; times how often the answer holds the token
    float presence_penalty = 0.0f;           // [-2, 2]; where the answer holds the token
    std::vector<TokenBias> logit_bias;       // each token once
    std::vector<TokenId> allowed_token_ids;  // sorted; empty: all
    uint64_t seed = 0;                       // the draw at a position depends on this, the position, the logits and the
                                             // request's own earlier tokens alone

    bool greedy() const { return temperature == 0.0f || top_k == 1; }
    bool has_penalties() const {
        return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
    }
    // Returns true if the token is chosen from logits that differ from the model's own.
    bool changes_logits() const { return has_penalties() || !logit_bias.empty() || !allowed_token_ids.empty(); }
};

}  // namespace lorad::proto
