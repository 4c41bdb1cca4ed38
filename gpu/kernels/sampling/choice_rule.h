// The rule by which the device chooses one output's token: part of the step state, in steps where some row wants more
// than the argmax of the model's own logits.
#ifdef __cplusplus
#pragma once
#endif
#ifndef LORAD_GPU_KERNELS_CHOICE_RULE_H
#define LORAD_GPU_KERNELS_CHOICE_RULE_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

// ChoiceRule.what, bits.
INTEROP_CONST kRuleDraws = 1;     // else the most probable token, of equals the lowest
INTEROP_CONST kRuleAdjusts = 2;   // has changes or penalties
INTEROP_CONST kRuleBansEnds = 4;  // changes with kChangeIsEnd forbid their token
INTEROP_CONST kRuleLogprobs = 8;  // wants ChoiceLogprobs
// only tokens of the rule's mask may come: a bit for each, uploaded after the step has begun
INTEROP_CONST kRuleMasked = 16;

#ifdef __cplusplus
inline constexpr int32_t kNothingAllowed = -2;  // in the place of a token: the rule leaves none
#else
const int kNothingAllowed = -2;
#endif
INTEROP_CONST kTopTokensMax = 20;  // log-probabilities beside the chosen token's

struct ChoiceRule {
    uint64_t seed;
    uint64_t min_weight;  // of draw_weight(): lighter tokens are left out; 0: none is
    uint32_t what;
    float scale;            // log2(e) / temperature
    uint32_t top_k;         // 0: off
    uint32_t top_p;         // in 2^-32; 0: off
    uint32_t typical_p;     // in 2^-32; 0: off
    uint32_t position;      // of the token that is chosen
    uint32_t change_begin;  // its TokenChange entries lie at this index of 16 bytes from the begin of the step state
    uint32_t n_changes;
    uint32_t allowed_begin;  // sorted ids, at this index of 4 bytes from the begin of the step state
    uint32_t n_allowed;      // 0: all tokens are allowed
    float repetition;        // penalties, see model/output/logits.h
    float inverse_repetition;
    float frequency;
    float presence;
    uint32_t n_top;  // with kRuleLogprobs: how many of the most probable tokens
    // Written by sample_changes: the row's own token where the step before has chosen it, so that no change counts it
    // yet; -1 elsewhere. Then the logit that it had, if it has no change of its own.
    int32_t last_token;
    float last_original;
    uint32_t last_is_saved;
    uint32_t mask;  // with kRuleMasked: its index among the step's masks
    uint32_t pad;
};
INTEROP_SIZE(ChoiceRule, 96);
INTEROP_CONST kRuleBytes = 96;

// TokenChange.state: how often the answer holds the token, and bits.
INTEROP_CONST kChangeCountMask = 0x0fffffffu;
INTEROP_CONST kChangeIsHeld = 0x80000000u;  // prompt or answer hold the token: penalties apply
INTEROP_CONST kChangeIsEnd = 0x40000000u;   // the token would end the answer

// The changes of one token's logit; a list has each token once.
struct TokenChange {
    uint32_t token;
    uint32_t state;
    float bias;
    float original;  // written by sample_changes: the logit before
};
INTEROP_SIZE(TokenChange, 16);

// The log-probabilities of an output with kRuleLogprobs, beside its token.
struct ChoiceLogprobs {
    float logprob;  // of the chosen token, in the model's own distribution
    uint32_t rank;  // 1: no token is more probable
    uint32_t n_top;
    uint32_t tokens[kTopTokensMax];  // the most probable first, of equals the lowest id
    float logprobs[kTopTokensMax];
};
INTEROP_SIZE(ChoiceLogprobs, 172);

INTEROP_END

#endif
