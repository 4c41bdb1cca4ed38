// row_normalize, each row by itself, columns i in 0..C-1:
//   softmax     y[t][i] = exp(value x[t][i]) / sum over j of exp(value x[t][j]), exponents less the row's largest
//   layer norm  y[t][i] = (x[t][i] - mean) / sqrt(variance + value) * gamma[i] + beta[i]
//   RMS norm    y[t][i] = x[t][i] / sqrt(mean(x[t]^2) + value) * gamma[i]
//   x, y  [T][stride]  TYPE; columns C.. of y up to the next multiple of 4 are zeroed
// grid (T); one workgroup per row, which stays in registers; moves C elements in and out.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/row_normalize.params.h"

layout(constant_id = 1) const uint kType = 0;
layout(constant_id = 2) const uint kColumns = 64;
layout(constant_id = 3) const uint kOperation = 0;
layout(push_constant, scalar) uniform Push { RowNormalizeParams p; };

const uint kSoftmax = 0;
const uint kLayerNorm = 1;
const uint kThreads = gl_WorkGroupSize.x;
const uint kChunks = (kColumns + 3) / 4;
const uint kPerThread = (kChunks + kThreads - 1) / kThreads;
const float kMinusInf = -1.0 / 0.0;
const uint kMaxSubgroups = 256;
shared float first_slots[kMaxSubgroups];
shared float second_slots[kMaxSubgroups];

uint chunk_of(uint i) { return i * kThreads + gl_LocalInvocationIndex; }

// What lies behind the row's end takes part in no sum and no maximum.
vec4 masked(vec4 v, uint chunk, float other) {
    if (chunk * 4 + 4 <= kColumns) return v;
    return mix(vec4(other), v, lessThan(chunk * 4 + uvec4(0, 1, 2, 3), uvec4(kColumns)));
}

float sum4(vec4 v) { return (v.x + v.y) + (v.z + v.w); }

float first_sum(float value) {
    value = subgroupAdd(value);
    if (gl_NumSubgroups == 1) return value;
    if (subgroupElect()) first_slots[gl_SubgroupID] = value;
    barrier();
    float total = 0.0;
    for (uint i = 0; i < gl_NumSubgroups; i++) total += first_slots[i];
    return total;
}

float second_sum(float value) {
    value = subgroupAdd(value);
    if (gl_NumSubgroups == 1) return value;
    if (subgroupElect()) second_slots[gl_SubgroupID] = value;
    barrier();
    float total = 0.0;
    for (uint i = 0; i < gl_NumSubgroups; i++) total += second_slots[i];
    return total;
}

// Each subgroup takes its own largest value out, so that one barrier is enough. Subgroups are joined in order.
void softmax(inout vec4 v[kPerThread]) {
    float top = kMinusInf;
    for (uint i = 0; i < kPerThread; i++) {
        v[i] *= p.value;
        v[i] = masked(v[i], chunk_of(i), kMinusInf);
        top = max(top, max(max(v[i].x, v[i].y), max(v[i].z, v[i].w)));
    }
    top = subgroupMax(top);
    float shift = top == kMinusInf ? 0.0 : top;  // a subgroup beyond the row's end
    float sum = 0.0;
    for (uint i = 0; i < kPerThread; i++) {
        v[i] = exp(v[i] - shift);
        sum += sum4(v[i]);
    }
    sum = subgroupAdd(sum);
    if (gl_NumSubgroups > 1) {
        if (subgroupElect()) {
            first_slots[gl_SubgroupID] = top;
            second_slots[gl_SubgroupID] = sum;
        }
        barrier();
        float row_top = kMinusInf;
        for (uint i = 0; i < gl_NumSubgroups; i++) row_top = max(row_top, first_slots[i]);
        sum = 0.0;
        for (uint i = 0; i < gl_NumSubgroups; i++) sum += second_slots[i] * exp(first_slots[i] - row_top);
        sum /= exp(shift - row_top);
    }
    for (uint i = 0; i < kPerThread; i++) v[i] /= sum;
}

void norm(inout vec4 v[kPerThread]) {
    vec4 gamma[kPerThread], beta[kPerThread];  // loaded before the sums over the row are known
    float sum = 0.0;
    for (uint i = 0; i < kPerThread; i++) {
        uint chunk = chunk_of(i);
        gamma[i] = chunk < kChunks ? load4(p.gamma, chunk, 0) : vec4(0.0);
        beta[i] = kOperation == kLayerNorm && chunk < kChunks ? load4(p.beta, chunk, 0) : vec4(0.0);
        if (kOperation == kLayerNorm) sum += sum4(v[i]);
    }
    float mean = kOperation == kLayerNorm ? first_sum(sum) / float(kColumns) : 0.0;
    float squares = 0.0;
    for (uint i = 0; i < kPerThread; i++) {
        if (kOperation == kLayerNorm) v[i] = masked(v[i] - mean, chunk_of(i), 0.0);
        squares = sum_squares4(v[i], squares);
    }
    float inverse = inversesqrt(second_sum(squares) / float(kColumns) + p.value);
    for (uint i = 0; i < kPerThread; i++) v[i] = v[i] * inverse * gamma[i] + beta[i];
}

void main() {
    uint t = gl_WorkGroupID.x;
    uint64_t x = p.x + uint64_t(t) * p.x_stride * bytes_of(kType);
    uint64_t y = p.y + uint64_t(t) * p.y_stride * bytes_of(kType);
    vec4 v[kPerThread];
    for (uint i = 0; i < kPerThread; i++) {
        uint chunk = chunk_of(i);
        v[i] = chunk < kChunks ? masked(load4(x, chunk, kType), chunk, 0.0) : vec4(0.0);
    }
    if (kOperation == kSoftmax) {
        softmax(v);
    } else {
        norm(v);
    }
    for (uint i = 0; i < kPerThread; i++) {
        uint chunk = chunk_of(i);
        if (chunk < kChunks) store4(y, chunk, masked(v[i], chunk, 0.0), kType);
    }
}
