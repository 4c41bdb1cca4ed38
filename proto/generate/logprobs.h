// Log-probabilities of tokens, as the engine finds them and answers show them.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/base/ids.h"

namespace lorad::proto {

inline constexpr uint32_t kTopLogprobsMax = 20;

struct TokenLogprob {
    TokenId id = -1;
    float logprob = 0.0f;  // under the model's own distribution, before bias, penalties and temperature
    uint32_t rank = 0;     // 1: no token is more probable
};

struct TokenLogprobs {
    TokenLogprob token;             // the one that stands there
    std::vector<TokenLogprob> top;  // the most probable ones, in order; as many as were asked for
};

}  // namespace lorad::proto
