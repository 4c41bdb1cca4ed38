// add_norm: z = sum_s y[s][t] + bias + LoRA;  x[t] += z;  xn[t] = x[t] * rsqrt(mean(x[t]^2) + eps) * gamma
// With constants for them: z is first normed likewise (after), then multiplied; x is multiplied at the end; xn is x as
// it is (raw).
//   y      [S][T][y_stride]  f32
//   x      [T][x_stride]     f32, in place
//   xn     [T][xn_stride]    ACT_TYPE, elements H.. are zeroed; not touched without gamma; in rows, in fragments or
//                            both
// grid (T); one workgroup per row; moves 4 (S + 1) H bytes in and 4-8 H out, per row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/reduce.glsl"
#include "gpu/kernels/products/activation_fragments.glsl"
#include "gpu/kernels/rows/add_norm.params.h"
#include "gpu/kernels/lora/slot_norms.glsl"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kHidden = 64;
layout(constant_id = 3) const uint kSplits = 1;
layout(constant_id = 4) const uint kLora = 0;  // LoraLevel
layout(constant_id = 5) const uint kHasBias = 0;
layout(constant_id = 6) const uint kHasNorm = 1;
layout(constant_id = 7) const uint kSlotNorms = 0;
layout(constant_id = 8) const uint kWholeRows = 0;  // the first rows' sums are all in split 0
layout(constant_id = 9) const uint kInRows = 1;     // whether xn is wanted in rows,
layout(constant_id = 10) const uint kInFragments = 0;  // and in fragments, 1 + their order
// a norm of z: 1 the base's, 1 + slots of the LoRA table: an adapter may have its own, whose addresses lie in front of
// slot_norms
layout(constant_id = 11) const uint kAfter = 0;
layout(constant_id = 12) const float kMultiplier = 1.0;
layout(constant_id = 13) const float kStreamScale = 1.0;
layout(constant_id = 14) const uint kRaw = 0;
layout(push_constant, scalar) uniform Push { AddNormParams p; };

const uint kRankSteps = 1;  // large workgroups have few registers
const uint kExchange = kHidden % 16 == 0 ? 1 : 0;
#include "gpu/kernels/lora/lora_expand.glsl"

const uint kThreads = gl_WorkGroupSize.x;
const uint kChunks = (kHidden + 3) / 4;
const uint kPerThread = (kChunks + kThreads - 1) / kThreads;

vec4 masked(vec4 v, uint chunk) {
    if (kHidden % 4 == 0 || chunk * 4 + 4 <= kHidden) return v;
    return mix(vec4(0.0), v, lessThan(chunk * 4 + uvec4(0, 1, 2, 3), uvec4(kHidden)));
}

void store_normed(uint t, uint chunk, vec4 value) {
    if (kInRows != 0) store4(p.xn + uint64_t(t) * p.xn_stride * bytes_of(kActType), chunk, value, kActType);
    if (kInFragments != 0) store4_in_fragments(p.xn_fragments, t, chunk, p.xn_stride, value, kActType, kInFragments - 1);
}

void main() {
    uint t = gl_WorkGroupID.x;
    const uint n_rows = gl_NumWorkGroups.x > 1 ? step_n_rows(p.step) : 1;
    if (leaves_at_once(kLora != 0 || kSlotNorms != 0, gl_NumWorkGroups.x, t, n_rows)) return;
    uint thread = gl_LocalInvocationIndex;
    uint64_t row_gamma = p.gamma;
    if (kSlotNorms != 0) row_gamma = slot_gamma(p.slot_norms, step_row(p.step, t).v.extras_slot, row_gamma);
    StepRow row;
    LoraModule module;
    if (kLora == 1) {
        module = lora_module(p.lora_layer, step_row(p.step, t).v.adapter_slot, p.lora_slot_stride, p.lora_module);
    }
    if (kLora == 2) row = step_row(p.step, t).v;
    LoraPlace place = LoraPlace(p.uses, p.lora_layer, p.low, p.lora_slot_stride, p.lora_module, 0, 1);

    uint64_t y = p.y + uint64_t(t) * p.y_stride * 4;
    uint64_t x = p.x + uint64_t(t) * p.x_stride * 4;
    vec4 v[kPerThread];
    vec4 olds[kPerThread];
    vec4 gamma[kPerThread];  // loaded before the sum over the row is known
    float squares = 0.0, after_squares = 0.0;
    for (uint i = 0; i < kPerThread; i++) {
        uint chunk = i * kThreads + thread;
        v[i] = vec4(0.0);
        if (chunk >= kChunks) continue;
        vec4 part[kSplits];  // all loads before the first use
        part[0] = load4(y, chunk, 0);
        if (t < kWholeRows) {
            [[unroll]] for (uint s = 1; s < kSplits; s++) part[s] = vec4(0.0);
        } else {
            [[unroll]] for (uint s = 1; s < kSplits; s++) part[s] = load4(y + uint64_t(s) * p.split_stride * 4, chunk, 0);
        }
        vec4 old = load4(x, chunk, 0);
        if (kHasNorm != 0) gamma[i] = load4(row_gamma, chunk, 0);
        vec4 acc = part[0];
        [[unroll]] for (uint s = 1; s < kSplits; s++) acc += part[s];
        vec4 base = acc;
        if (kHasBias != 0) acc += load4(p.bias, chunk, 0);
        if (kLora == 2) acc = add_lora_uses(acc, base, place, row, t, chunk * 4, kHidden);
        if (kLora == 1) acc = add_lora(acc, module, low_row(p.low, t, 0, 1), chunk * 4, kHidden);
        if (kAfter != 0) {
            olds[i] = old;
            v[i] = masked(acc, chunk);
            after_squares = sum_squares4(v[i], after_squares);
            continue;
        }
        v[i] = masked(old + kMultiplier * acc, chunk) * kStreamScale;
        squares = sum_squares4(v[i], squares);
    }
    if (kAfter != 0) {
        uint64_t after = p.after_gamma;
        if (kAfter > 1) after = slot_gamma(p.slot_norms - (kAfter - 1) * 8, step_row(p.step, t).v.extras_slot, after);
        const float factor = inversesqrt(workgroup_sum(after_squares) / float(kHidden) + p.eps) * kMultiplier;
        barrier();
        for (uint i = 0; i < kPerThread; i++) {
            uint chunk = i * kThreads + thread;
            if (chunk >= kChunks) continue;
            v[i] = masked(olds[i] + v[i] * factor * load4(after, chunk, 0), chunk) * kStreamScale;
            squares = sum_squares4(v[i], squares);
        }
    }
    float inverse = kHasNorm != 0 ? inversesqrt(workgroup_sum(squares) / float(kHidden) + p.eps) : 0.0;
    if (t >= n_rows) return;
    for (uint i = 0; i < kPerThread; i++) {
        uint chunk = i * kThreads + thread;
        if (chunk < kChunks) store4(x, chunk, v[i], 0);
    }
    if (kHasNorm == 0 && kRaw == 0) return;
    for (uint i = 0; i < kPerThread; i++) {
        uint chunk = i * kThreads + thread;
        if (chunk < kChunks) store_normed(t, chunk, kRaw != 0 ? v[i] : masked(v[i] * inverse * gamma[i], chunk));
    }
    for (uint chunk = kChunks + thread; chunk < p.xn_stride / 4; chunk += kThreads) {
        store_normed(t, chunk, vec4(0.0));
    }
}
