// sample_argmax: argmax, maximum and log-sum-exp of each logit row, in two dispatches
//   STAGE 1: logits [i][logits_stride] f32 -> partials SamplePart[i][n_parts]; also copies the row to host_logits where
//            LogitRow.readback asks for it. grid (any, rows), parts in turns; kPerThread chunks of 4 per thread and
//                part
//   STAGE 2: partials -> sampled[i], results[i]. grid (1, rows)
// Ties go to the lowest index. A row with any infinite or NaN logit gives id -1. Moves 4 V bytes per row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/sampling/sample_argmax.params.h"

layout(constant_id = 1) const uint kStage = 1;
layout(constant_id = 2) const uint kPerThread = 2;
layout(push_constant, scalar) uniform Push { SampleArgmaxParams p; };

const float kMinusInf = -1.0 / 0.0;
const uint kNoIndex = 0xffffffffu;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer PartRef { SamplePart v; };
const uint kMaxSubgroups = 256;
shared SamplePart slots[kMaxSubgroups];

SamplePart join(SamplePart a, SamplePart b) {
    SamplePart both;
    both.top = max(a.top, b.top);
    both.index = a.top > b.top ? a.index : b.top > a.top ? b.index : min(a.index, b.index);
    float shift = both.top == kMinusInf ? 0.0 : both.top;
    both.sum = a.sum * exp(a.top - shift) + b.sum * exp(b.top - shift);
    both.finite = a.finite & b.finite;
    return both;
}

// The same in thread 0 as a sequential join in a fixed order.
SamplePart workgroup_best(SamplePart mine) {
    float top = subgroupMax(mine.top);
    float shift = top == kMinusInf ? 0.0 : top;
    SamplePart joined = SamplePart(subgroupMin(mine.top == top ? mine.index : kNoIndex), top,
                                   subgroupAdd(mine.sum * exp(mine.top - shift)), subgroupAnd(mine.finite));
    if (gl_NumSubgroups == 1) return joined;
    if (subgroupElect()) slots[gl_SubgroupID] = joined;
    barrier();
    if (gl_LocalInvocationIndex == 0) {
        joined = slots[0];
        for (uint i = 1; i < gl_NumSubgroups; i++) joined = join(joined, slots[i]);
    }
    return joined;
}

void scan_part(uint i, uint part) {
    uint64_t row = p.logits + uint64_t(i) * p.logits_stride * 4;
    uint readback = LogitRowRef(p.logit_rows + uint64_t(i) * 8).v.readback;
    uint first = part * gl_WorkGroupSize.x * kPerThread;
    vec4 v[kPerThread];
    SamplePart mine = SamplePart(kNoIndex, kMinusInf, 0.0, 1);
    for (uint c = 0; c < kPerThread; c++) {
        uint chunk = first + c * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
        v[c] = chunk * 4 < p.vocab ? load4(row, chunk, 0) : vec4(0.0);
        for (uint e = 0; e < 4; e++) {
            uint index = chunk * 4 + e;
            if (index >= p.vocab) break;
            if ((floatBitsToUint(v[c][e]) & 0x7f800000u) == 0x7f800000u) mine.finite = 0;
            if (v[c][e] > mine.top) {
                mine.top = v[c][e];
                mine.index = index;
            }
        }
    }
    for (uint c = 0; c < kPerThread; c++) {
        uint chunk = first + c * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
        for (uint e = 0; e < 4; e++) {
            if (chunk * 4 + e >= p.vocab) break;
            mine.sum += exp(v[c][e] - mine.top);
            if (readback != kNoReadback) {
                FloatRef(p.host_logits + (uint64_t(readback) * p.vocab + chunk * 4 + e) * 4).v = v[c][e];
            }
        }
    }
    SamplePart best = workgroup_best(mine);
    if (gl_LocalInvocationIndex == 0) {
        PartRef(p.partials + (uint64_t(i) * p.n_parts + part) * kSamplePartBytes).v = best;
    }
}

void join_parts(uint i) {
    SamplePart mine = SamplePart(kNoIndex, kMinusInf, 0.0, 1);
    for (uint part = gl_LocalInvocationIndex; part < p.n_parts; part += gl_WorkGroupSize.x) {
        mine = join(mine, PartRef(p.partials + (uint64_t(i) * p.n_parts + part) * kSamplePartBytes).v);
    }
    SamplePart best = workgroup_best(mine);
    if (gl_LocalInvocationIndex != 0) return;
    int token = best.finite != 0 ? int(best.index) : -1;
    IntRef(p.sampled + uint64_t(i) * 4).v = token;
    ResultRef(p.results + uint64_t(i) * 16).v = SampleResult(token, best.top, best.top + log(best.sum), 0);
}

void main() {
    uint i = gl_WorkGroupID.y;
    if (i >= UintRef(p.n_logit_rows).v) return;
    if (kStage == 1) {
        for (uint part = gl_WorkGroupID.x; part < p.n_parts; part += gl_NumWorkGroups.x) {
            scan_part(i, part);
            barrier();  // slots[] is free again
        }
    } else {
        join_parts(i);
    }
}
