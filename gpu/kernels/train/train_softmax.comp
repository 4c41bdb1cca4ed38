// train_softmax, of each row of scores, over the keys that its query sees (all others become 0):
//   forward   P = softmax(scale * S), in place
//   backward  dS = scale * P * (dP - sum of P dP), in place of dP
// grid (queries of the longest run, 1, runs); one workgroup a row
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/reduce.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(constant_id = 1) const uint kBackward = 0;
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer ScoresRef { TrainScores v; };
layout(push_constant, scalar) uniform Push { TrainSoftmaxParams p; };

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
    TrainScores run = ScoresRef(p.items + uint64_t(gl_WorkGroupID.z) * 24).v;
    uint row = gl_WorkGroupID.x;
    if (row >= run.n_queries) return;
    uint query = run.first_query + row;
    uint n_keys = p.zero_tile == 0 ? run.n_keys : min(run.n_keys, (query / p.zero_tile + 2) * p.zero_tile);
    uint begin = p.window == 0 || query < p.window ? 0 : query + 1 - p.window, end = query + 1;
    uint64_t scores = p.scores + (run.at + uint64_t(row) * run.stride) * 4;
    uint thread = gl_LocalInvocationIndex, step = gl_WorkGroupSize.x;
    uint first = begin / step * step + thread;  // every pass gives a thread the same keys
    if (kBackward == 0) {
        float top = -3.402823466e38;
        for (uint j = first; j < end; j += step) if (j >= begin) top = max(top, p.scale * FloatRef(scores + uint64_t(j) * 4).v);
        top = workgroup_max(top);
        float sum = 0.0;
        for (uint j = first; j < end; j += step) if (j >= begin) sum += exp(p.scale * FloatRef(scores + uint64_t(j) * 4).v - top);
        float inverse = 1.0 / workgroup_sum(sum);
        for (uint j = thread; j < n_keys; j += step) {
            FloatRef s = FloatRef(scores + uint64_t(j) * 4);
            s.v = j >= begin && j < end ? exp(p.scale * s.v - top) * inverse : 0.0;
        }
        return;
    }
    uint64_t dscores = p.dscores + (run.at + uint64_t(row) * run.stride) * 4;
    float sum = 0.0;
    for (uint j = first; j < end; j += step) if (j >= begin) sum = fma(FloatRef(scores + uint64_t(j) * 4).v, FloatRef(dscores + uint64_t(j) * 4).v, sum);
    sum = workgroup_sum(sum);
    for (uint j = thread; j < n_keys; j += step) {
        FloatRef d = FloatRef(dscores + uint64_t(j) * 4);
        d.v = j >= begin && j < end ? p.scale * FloatRef(scores + uint64_t(j) * 4).v * (d.v - sum) : 0.0;
    }
}
