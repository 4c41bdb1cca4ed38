// The arithmetic of a draw, for host and device: the same source, so the same bits. Weights are whole numbers, so sums
// of them do not depend on their order; the only roundings are those of one difference and one product of floats.
// docs/adr/0010.
#ifdef __cplusplus
#pragma once
#endif
#ifndef LORAD_GPU_KERNELS_SAMPLE_MATH_H
#define LORAD_GPU_KERNELS_SAMPLE_MATH_H

#include "gpu/kernels/interop.h"
#include "gpu/kernels/sampling/choice_rule.h"

#ifdef __cplusplus
#include <limits>
#define SAMPLE_FN inline
#define SAMPLE_EXACT const
#else
#define SAMPLE_FN
#define SAMPLE_EXACT precise
#endif

INTEROP_BEGIN

#ifdef __cplusplus
inline constexpr float kForbiddenLogit = -std::numeric_limits<float>::infinity();
#else
const float kForbiddenLogit = -1.0 / 0.0;
#endif

// A token's key: how much less probable it is than the most probable one, in units of 2^-24 powers of two. Keys from
// kDrawKeyEnd on weigh nothing, and such tokens are never drawn.
INTEROP_CONST kDrawKeyBits = 30;
INTEROP_CONST kDrawKeyEnd = 40u << 24;

// scale: log2(e) / temperature. -infinity: a token that may not come.
SAMPLE_FN uint32_t draw_key(float max_logit, float logit, float scale) {
    SAMPLE_EXACT float distance = (max_logit - logit) * scale;
    return uint32_t((distance < 40.0f ? distance : 40.0f) * 16777216.0f);
}

SAMPLE_FN uint32_t mul_high(uint32_t a, uint32_t b) { return uint32_t((uint64_t(a) * uint64_t(b)) >> 32); }

// 2^(40 - key / 2^24), rounded down, by a polynomial whose relative error is below 1.5e-9; 2^40 - 2^8 for key 0. Never
// rises with key.
SAMPLE_FN uint64_t draw_weight(uint32_t key) {
    uint32_t whole = key >> 24;
    if (whole >= 40u) return uint64_t(0);
    uint32_t f = key << 8;
    uint32_t p = 0x0000b58du;
    p = 0x0009a6a6u - mul_high(p, f);
    p = 0x005704afu - mul_high(p, f);
    p = 0x02762a6du - mul_high(p, f);
    p = 0x0e357996u - mul_high(p, f);
    p = 0x3d7f7aa6u - mul_high(p, f);
    p = 0xb17217e7u - mul_high(p, f);
    p = 0xffffffffu - mul_high(p, f);
    return (uint64_t(p) << 8) >> whole;
}

// A key's distance from the entropy: entropy is the mean of draw_information() by weight.
SAMPLE_FN uint64_t draw_information(uint32_t key) { return uint64_t(key >> 8); }
SAMPLE_FN uint64_t draw_entropy_share(uint32_t key) { return (draw_weight(key) >> 16) * draw_information(key); }
SAMPLE_FN uint32_t typical_key(uint32_t key, uint64_t entropy) {
    uint64_t own = draw_information(key);
    return uint32_t(own > entropy ? own - entropy : entropy - own);
}

// A logit after bias, penalties and bans. state: TokenChange.state, with kChangeIsEnd only where ends may not come.
// Nothing here may be contracted to a fused operation: both sides round after each one.
SAMPLE_FN float changed_logit(float logit, float bias, uint32_t state, float repetition, float inverse_repetition,
                              float frequency, float presence) {
    if ((state & kChangeIsEnd) != 0u) return kForbiddenLogit;
    SAMPLE_EXACT float biased = logit + bias;
    if ((state & kChangeIsHeld) == 0u) return biased;
    SAMPLE_EXACT float repeated = biased * (biased < 0.0f ? repetition : inverse_repetition);
    uint32_t count = state & kChangeCountMask;
    if (count == 0u) return repeated;
    SAMPLE_EXACT float often = frequency * float(count);
    SAMPLE_EXACT float rarer = repeated - often;
    SAMPLE_EXACT float result = rarer - presence;
    return result;
}

// The least sum that is `share` / 2^32 of the total; at least 1. Totals are below 2^61.
SAMPLE_FN uint64_t share_of(uint64_t total, uint32_t share) {
    uint64_t part = (total >> 32) * uint64_t(share) + (((total & uint64_t(0xffffffffu)) * uint64_t(share)) >> 32);
    return part > uint64_t(0) ? part : uint64_t(1);
}

// floor(a * b / 2^64).
SAMPLE_FN uint64_t mul_high_64(uint64_t a, uint64_t b) {
    uint64_t low_mask = uint64_t(0xffffffffu);
    uint64_t a_low = a & low_mask, a_high = a >> 32, b_low = b & low_mask, b_high = b >> 32;
    uint64_t middle = a_high * b_low + ((a_low * b_low) >> 32);
    uint64_t other = a_low * b_high + (middle & low_mask);
    return a_high * b_high + (middle >> 32) + (other >> 32);
}

// A bijective mixing of 64 bits: each input bit changes each output bit with probability about one half.
SAMPLE_FN uint64_t mix_bits(uint64_t x) {
    uint64_t factor = (uint64_t(0xd6e8feb8u) << 32) | uint64_t(0x6659fd93u);
    x ^= x >> 32;
    x *= factor;
    x ^= x >> 32;
    x *= factor;
    x ^= x >> 32;
    return x;
}

// 64 random bits for the token at `position`, from a counter-based generator.
SAMPLE_FN uint64_t draw_bits(uint64_t seed, uint32_t position) {
    uint64_t step = (uint64_t(0x9e3779b9u) << 32) | uint64_t(0x7f4a7c15u);
    return mix_bits(mix_bits(seed + step) + step * (uint64_t(position) + uint64_t(1)));
}

INTEROP_END

#endif
