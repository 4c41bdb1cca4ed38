// add_norm: x[t] += sum_s y[s][t] + bias + LoRA;  xn[t] = x[t] * rsqrt(mean(x[t]^2) + eps) * gamma
//   y      [S][T][y_stride]  f32
//   x      [T][x_stride]     f32, in place
//   xn     [T][xn_stride]    ACT_TYPE, elements H.. are zeroed; not touched without gamma
// grid (ceil(T / ROW_BLOCK)); one workgroup per ROW_BLOCK rows; moves 4 (S + 1) H in and 4-8 H out, per row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/add_norm.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kHidden = 64;
layout(constant_id = 3) const uint kSplits = 1;
layout(constant_id = 4) const uint kHasLora = 0;
layout(constant_id = 5) const uint kHasBias = 0;
layout(constant_id = 6) const uint kHasNorm = 1;
layout(constant_id = 7) const uint kRowBlock = 1;
layout(push_constant, scalar) uniform Push { AddNormParams p; };

#include "gpu/kernels/lora_expand.glsl"

const uint kThreads = gl_WorkGroupSize.x;
const uint kChunks = (kHidden + 3) / 4;
const uint kPerThread = (kChunks + kThreads - 1) / kThreads;
const uint kMaxSubgroups = 256;
shared float slots_sum[kRowBlock][kMaxSubgroups];

vec4 masked(vec4 v, uint chunk) {
    if (kHidden % 4 == 0 || chunk * 4 + 4 <= kHidden) return v;
    return mix(vec4(0.0), v, lessThan(chunk * 4 + uvec4(0, 1, 2, 3), uvec4(kHidden)));
}

void main() {
    uint t0 = gl_WorkGroupID.x * kRowBlock;
    uint n_rows = gl_NumWorkGroups.x * kRowBlock == 1 ? 1 : step_n_rows(p.step);
    if (t0 >= n_rows) return;
    uint thread = gl_LocalInvocationIndex;

    uint slots[kRowBlock];
    LoraModule first_module;
    if (kHasLora != 0) {
        for (uint j = 0; j < kRowBlock; j++) {
            slots[j] = t0 + j < n_rows ? step_row(p.step, t0 + j).v.adapter_slot : kNoSlot;
        }
        first_module = lora_module(p.lora_layer, slots[0], p.lora_slot_stride, p.lora_module);
    }

    vec4 v[kPerThread][kRowBlock];
    vec4 gamma[kPerThread];  // loaded before the sum over the row is known
    float squares[kRowBlock];
    for (uint j = 0; j < kRowBlock; j++) squares[j] = 0.0;
    for (uint i = 0; i < kPerThread; i++) {
        uint chunk = i * kThreads + thread;
        if (chunk >= kChunks) {
            for (uint j = 0; j < kRowBlock; j++) v[i][j] = vec4(0.0);
            continue;
        }
        vec4 bias = kHasBias != 0 ? load4(p.bias, chunk, 0) : vec4(0.0);
        if (kHasNorm != 0) gamma[i] = load4(p.gamma, chunk, 0);
        vec4 acc[kRowBlock];
        for (uint j = 0; j < kRowBlock; j++) {
            uint64_t y = p.y + (uint64_t(t0 + j) * p.y_stride) * 4;
            acc[j] = load4(y, chunk, 0);
            for (uint s = 1; s < kSplits; s++) acc[j] += load4(y + uint64_t(s) * p.split_stride * 4, chunk, 0);
            acc[j] += bias;
            v[i][j] = load4(p.x + uint64_t(t0 + j) * p.x_stride * 4, chunk, 0);
        }
        if (kHasLora != 0) {
            add_lora(acc, slots, first_module, t0, p.lora_layer, p.lora_slot_stride, p.lora_module, p.low, 0, 1, chunk * 4, kHidden);
        }
        for (uint j = 0; j < kRowBlock; j++) {
            uint64_t x = p.x + uint64_t(t0 + j) * p.x_stride * 4;
            v[i][j] = masked(v[i][j] + acc[j], chunk);
            if (t0 + j < n_rows) store4(x, chunk, v[i][j], 0);
            squares[j] = sum_squares4(v[i][j], squares[j]);
        }
    }
    if (kHasNorm == 0) return;

    for (uint j = 0; j < kRowBlock; j++) {
        squares[j] = subgroupAdd(squares[j]);
        if (gl_NumSubgroups > 1 && subgroupElect()) slots_sum[j][gl_SubgroupID] = squares[j];
    }
    if (gl_NumSubgroups > 1) {
        barrier();
        for (uint j = 0; j < kRowBlock; j++) {
            squares[j] = 0.0;
            for (uint i = 0; i < gl_NumSubgroups; i++) squares[j] += slots_sum[j][i];
        }
    }
    for (uint j = 0; j < kRowBlock; j++) {
        if (t0 + j >= n_rows) break;
        float inverse = inversesqrt(squares[j] / float(kHidden) + p.eps);
        uint64_t xn = p.xn + uint64_t(t0 + j) * p.xn_stride * bytes_of(kActType);
        for (uint i = 0; i < kPerThread; i++) {
            uint chunk = i * kThreads + thread;
            if (chunk < kChunks) {
                store4(xn, chunk, masked(v[i][j] * inverse * gamma[i], chunk), kActType);
            }
        }
        for (uint chunk = kChunks + thread; chunk < p.xn_stride / 4; chunk += kThreads) {
            store4(xn, chunk, vec4(0.0), kActType);
        }
    }
}
