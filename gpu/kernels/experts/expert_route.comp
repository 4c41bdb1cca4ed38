// expert_route: which experts each row has and with which weights, and how many pairs each expert has
// grid (T); a workgroup takes a row: a thread counts for its experts how many come before them. No sum depends on the
// number of rows; counts are whole numbers.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/experts/expert_route.params.h"

layout(constant_id = 1) const uint kExperts = 1;
layout(constant_id = 2) const uint kTop = 1;
layout(constant_id = 3) const uint kRule = kSoftmaxThenTop;
layout(constant_id = 4) const uint kNormalises = 0;  // weights are divided by their sum
layout(constant_id = 5) const uint kHasBias = 0;
layout(constant_id = 6) const uint kHasScale = 0;  // expert_scale
layout(push_constant, scalar) uniform Push { ExpertRouteParams p; };

shared float score[kExperts];     // what experts are chosen by
shared float chosen_logit[kTop];
shared uint chosen[kTop];

void main() {
    const uint t = gl_WorkGroupID.x, thread = gl_LocalInvocationIndex;
    const uint n_rows = gl_NumWorkGroups.x > 1 ? step_n_rows(p.step) : 1;
    if (t >= n_rows) return;
    const uint64_t logits = p.logits + uint64_t(t) * p.stride * 4;
    for (uint e = thread; e < kExperts; e += gl_WorkGroupSize.x) {
        const float logit = FloatRef(logits + e * 4).v;
        score[e] = kRule == kSigmoidBias ? 1.0 / (1.0 + exp(-logit)) + (kHasBias != 0 ? FloatRef(p.bias + e * 4).v : 0.0) : logit;
    }
    // Where logits are no numbers some of these stay: experts all the same.
    for (uint j = thread; j < kTop; j += gl_WorkGroupSize.x) {
        chosen[j] = j;
        chosen_logit[j] = FloatRef(logits + j * 4).v;
    }
    barrier();
    for (uint e = thread; e < kExperts; e += gl_WorkGroupSize.x) {
        uint rank = 0;
        for (uint other = 0; other < kExperts; other++) {
            if (score[other] > score[e] || (score[other] == score[e] && other < e)) rank++;
        }
        if (rank < kTop) {
            chosen[rank] = e;
            chosen_logit[rank] = FloatRef(logits + e * 4).v;
        }
    }
    barrier();
    if (thread >= kTop) return;

    // Each thread sums by itself, in one order.
    const float top = chosen_logit[0];
    float all = 0.0, sum = 0.0;
    if (kRule == kSoftmaxThenTop) {
        for (uint e = 0; e < kExperts; e++) all += exp(score[e] - top);
    }
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
    atomicAdd(UintRef(p.counts + chosen[thread] * 4).v, 1);
}
