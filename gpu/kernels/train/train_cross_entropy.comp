// train_cross_entropy, of each row of logits z with its target y and weight w, l = z[y] - log sum exp z:
//   loss = -w l, or with a ratio -v where v = w exp(l - sampled);
//   with GRADIENT z becomes w (softmax(z) - onehot(y)), with a ratio v (...), its padding 0
// grid (T); one workgroup a row
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/reduce.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(constant_id = 1) const uint kGradient = 0;
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer TargetRef { TrainTarget v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer LossRef { TrainLoss v; };
layout(push_constant, scalar) uniform Push { TrainCrossEntropyParams p; };

shared float top_slots[kMaxSubgroups];

float workgroup_max(float value) {
    value = subgroupMax(value);
    if (gl_NumSubgroups == 1) return value;
    if (subgroupElect()) top_slots[gl_SubgroupID] = value;
    barrier();
    float top = top_slots[0];
    for (uint i = 1; i < gl_NumSubgroups; i++) top = max(top, top_slots[i]);
    return top;
}

void main() {
    uint t = gl_WorkGroupID.x;
    uint64_t z = p.logits + uint64_t(t) * p.stride * 4;
    TrainTarget target = TargetRef(p.targets + uint64_t(t) * 16).v;
    uint first = gl_LocalInvocationIndex, step = gl_WorkGroupSize.x;
    // This invocation's greatest logit and sum, in one pass: rows of large vocabularies are in no cache.
    float own_top = -3.402823466e38, sum = 0.0;
    for (uint n = first; n < p.vocab; n += step) {
        float value = FloatRef(z + uint64_t(n) * 4).v;
        if (value > own_top) {
            sum *= exp(own_top - value);
            own_top = value;
        }
        sum += exp(value - own_top);
    }
    float top = workgroup_max(own_top);
    sum = workgroup_sum(sum * exp(own_top - top));
    float of_target = FloatRef(z + uint64_t(target.token) * 4).v;
    float entropy = log(sum) + (top - of_target);
    float weight = target.weight;
    if (target.has_ratio != 0) weight *= exp(-entropy - target.sampled);
    if (first == 0) {
        float loss = target.has_ratio != 0 ? -weight : weight * entropy;
        LossRef(p.losses + uint64_t(t) * 12).v = TrainLoss(loss, -entropy, of_target == top ? 1 : 0);
    }
    if (kGradient == 0) return;
    barrier();  // the target's logit has been read
    float inverse = weight / sum;
    for (uint n = first; n < p.stride; n += step) {
        FloatRef d = FloatRef(z + uint64_t(n) * 4);
        float value = n < p.vocab ? exp(d.v - top) * inverse : 0.0;
        d.v = n == target.token ? value - weight : value;
    }
}
