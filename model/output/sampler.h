// Chooses a token from one row of logits on the host. Pure: the result depends on the logits, the parameters and the
// position alone, so the same seed gives the same text whatever else is in the batch. The device's sample_draw gives
// the same tokens bit for bit: both use gpu/kernels/sampling/sample_math.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/kernels/sampling/choice_rule.h"
#include "proto/base/ids.h"
#include "proto/generate/sampling_params.h"

namespace lorad::model {

// The parameters as the device needs them to choose the token at `position`; the caller adds changes, bans and
// log-probabilities.
gpu::ChoiceRule choice_rule(const proto::SamplingParams& params, uint32_t position);

// Working memory of sample(), kept between calls. One per thread.
struct SamplerScratch {
    std::vector<uint32_t> keys;  // of all ids
    std::vector<uint32_t> ids;
};

// Order of the filters: temperature, top_k, top_p, min_p, typical_p, as in transformers; each sees what the one before
// left, renormalised. top_p keeps the fewest most probable tokens whose probabilities reach it, always one at least; of
// equal ones the lower id comes first. typical_p keeps those whose information -ln p is nearest to the entropy, and
// what is as near as the last of them. Tokens 2^-40 times as probable as the best one, or less, are never drawn.
// `position` is that of the token being chosen. Greedy parameters take the argmax (lowest id on ties).
// -infinity is a token that may not come. -1 if a logit is not a number or +infinity, or none may come: the caller ends
// the request with an error.
TokenId sample(std::span<const float> logits, const proto::SamplingParams& params, uint32_t position,
               SamplerScratch& scratch);
// The same by a rule, whose lists are not looked at.
TokenId sample(std::span<const float> logits, const gpu::ChoiceRule& rule, SamplerScratch& scratch);

// The k highest of a row, the highest first; among equals the lower id. Fewer if the row has fewer.
void top_ids(std::span<const float> logits, uint32_t k, std::vector<uint32_t>& ids);

}  // namespace lorad::model
