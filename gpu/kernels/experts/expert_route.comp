// expert_route: which experts each row has and with which weights, and how many pairs each expert has
// grid (T); a workgroup takes a row: a thread counts for its experts how many come before them. No sum depends on the
// number of rows; counts are whole numbers.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/reduce.glsl"
#include "gpu/kernels/experts/expert_route.params.h"

layout(constant_id = 1) const uint kExperts = 1;
layout(constant_id = 2) const uint kTop = 1;
layout(constant_id = 3) const uint kRule = kSoftmaxThenTop;
layout(constant_id = 4) const uint kNormalises = 0;  // weights are divided by their sum
layout(constant_id = 5) const uint kHasBias = 0;
layout(constant_id = 6) const uint kHasScale = 0;  // expert_scale
layout(constant_id = 7) const uint kSplits = 1;
layout(constant_id = 8) const uint kHasLogitBias = 0;
layout(constant_id = 9) const uint kGroups = 0;  // one row's pairs are grouped as well: each is a tile of its own
layout(push_constant, scalar) uniform Push { ExpertRouteParams p; };

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer ExpertTileRef { ExpertTile v; };

shared float logit_of[kExperts];
const uint kFours = (kExperts + 3) / 4;
shared vec4 scores[kFours];       // what experts are chosen by; behind the last nothing that anyone would choose
shared float chosen_logit[kTop];
shared uint chosen[kTop];

void main() {
    const uint t = gl_WorkGroupID.x, thread = gl_LocalInvocationIndex;
    const uint n_rows = gl_NumWorkGroups.x > 1 ? step_n_rows(p.step) : 1;
    if (t >= n_rows) return;
    const uint64_t logits = p.logits + uint64_t(t) * p.stride * 4;
    for (uint e = thread; e < kExperts; e += gl_WorkGroupSize.x) {
        float parts[kSplits];  // all loads before the first use
        [[unroll]] for (uint s = 0; s < kSplits; s++) parts[s] = FloatRef(logits + (uint64_t(s) * p.split_stride + e) * 4).v;
        float logit = parts[0];
        [[unroll]] for (uint s = 1; s < kSplits; s++) logit += parts[s];
        if (kHasLogitBias != 0) logit += FloatRef(p.logit_bias + e * 4).v;
        logit_of[e] = logit;
        scores[e / 4][e % 4] = kRule == kSigmoidBias ? 1.0 / (1.0 + exp(-logit)) + (kHasBias != 0 ? FloatRef(p.bias + e * 4).v : 0.0) : logit;
    }
    const uint behind = kExperts + thread;
    if (behind < kFours * 4) scores[behind / 4][behind % 4] = uintBitsToFloat(0xff800000u);
    // If logits are no numbers, some of these stay: they are valid experts.
    barrier();
    for (uint j = thread; j < kTop; j += gl_WorkGroupSize.x) {
        chosen[j] = j;
        chosen_logit[j] = logit_of[j];
    }
    barrier();
    for (uint e = thread; e < kExperts; e += gl_WorkGroupSize.x) {
        uint rank = 0;
        const float own = scores[e / 4][e % 4];
        for (uint four = 0; four < kFours; four++) {
            const vec4 others = scores[four];
            [[unroll]] for (uint i = 0; i < 4; i++) rank += others[i] > own || (others[i] == own && four * 4 + i < e) ? 1 : 0;
        }
        if (rank < kTop) {
            chosen[rank] = e;
            chosen_logit[rank] = logit_of[e];
        }
    }
    barrier();
    const float top = chosen_logit[0];
    float all = 0.0, sum = 0.0;
    if (kRule == kSoftmaxThenTop) {
        for (uint e = thread; e < kExperts; e += gl_WorkGroupSize.x) all += exp(logit_of[e] - top);
        all = workgroup_sum(all);
    }
    if (thread >= kTop) return;
    // Each thread sums by itself, in one order.
    for (uint j = 0; j < kTop; j++) {
        const float logit = chosen_logit[j];
        sum += kRule == kSigmoidBias ? 1.0 / (1.0 + exp(-logit)) : kRule == kSoftmaxThenTop ? exp(logit - top) / all : exp(logit - top);
    }
    const float own = chosen_logit[thread];
    float weight = kRule == kSigmoidBias ? 1.0 / (1.0 + exp(-own)) : kRule == kSoftmaxThenTop ? exp(own - top) / all : exp(own - top) / sum;
    if (kRule != kTopThenSoftmax && kNormalises != 0) weight /= sum + p.sum_eps;
    weight *= p.scale;
    if (kHasScale != 0) weight *= FloatRef(p.expert_scale + chosen[thread] * 4).v;
    const uint64_t pair = uint64_t(t) * kTop + thread;
    UintRef(p.chosen + pair * 4).v = chosen[thread];
    FloatRef(p.weights + pair * 4).v = weight;
    if (kGroups == 0) {
        atomicAdd(UintRef(p.counts + chosen[thread] * 4).v, 1);
        return;
    }
    UintRef(p.sorted + thread * 4).v = thread;
    ExpertTileRef(p.tiles + uint64_t(thread) * 16).v = ExpertTile(chosen[thread], thread, 1, 0);
    if (thread == 0) UintRef(p.n_tiles).v = kTop;
}
