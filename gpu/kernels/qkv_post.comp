// qkv_post: v = sum_s y[s][t] + bias + LoRA; q and k heads: optional RMS norm over the head, then rope
//   y     [S][T][y_stride]                       f32: Q query heads, K key heads, K value heads
//   rope  [max_pos][rotary_dim / 2][2]           f32: cos, sin
//   q     [T][q_stride]                          f32
//   kv    [block][K|V][K][kBlockTokens][D]       f16, written at the row's kv_slot
// Rope turns element i < rotary_dim / 2 with element i + rotary_dim / 2.
// grid (ceil((Q + 2K) / heads per workgroup), ceil(T / ROW_BLOCK)); D / 4 threads per head, four elements each.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/qkv_post.params.h"

layout(constant_id = 1) const uint kQHeads = 1;
layout(constant_id = 2) const uint kKvHeads = 1;
layout(constant_id = 3) const uint kHeadDim = 64;
layout(constant_id = 4) const uint kRotaryDim = 64;
layout(constant_id = 5) const uint kSplits = 1;
layout(constant_id = 6) const uint kHasLora = 0;
layout(constant_id = 7) const uint kHasBias = 0;
layout(constant_id = 8) const uint kHasNorm = 0;
layout(constant_id = 9) const uint kRowBlock = 1;
layout(push_constant, scalar) uniform Push { QkvPostParams p; };

#include "gpu/kernels/lora_expand.glsl"

const uint kLanes = kHeadDim / 4;
const uint kHeadsPerGroup = gl_WorkGroupSize.x / kLanes;
const uint kHalf = kRotaryDim / 2;
shared float values[kRowBlock][kHeadsPerGroup * kHeadDim];

float rotated(uint j, uint base, uint d, float own, vec2 turn, uint64_t gamma, float inverse) {
    uint partner = d < kHalf ? d + kHalf : d - kHalf;
    float other = values[j][base + partner];
    if (gamma != 0) other = other * inverse * FloatRef(gamma + partner * 4).v;
    return d < kHalf ? fma(own, turn.x, -(other * turn.y)) : fma(own, turn.x, other * turn.y);
}

void main() {
    uint n_rows = gl_NumWorkGroups.y * kRowBlock == 1 ? 1 : step_n_rows(p.step);
    uint t0 = gl_WorkGroupID.y * kRowBlock;
    if (t0 >= n_rows) return;
    uint thread = gl_LocalInvocationIndex;
    uint local_head = thread / kLanes;
    uint head = gl_WorkGroupID.x * kHeadsPerGroup + local_head;
    bool active_thread = local_head < kHeadsPerGroup && head < kQHeads + 2 * kKvHeads;
    uint d0 = thread % kLanes * 4;
    uint column = head * kHeadDim + d0;
    uint base = local_head * kHeadDim;

    StepRow rows[kRowBlock];
    for (uint j = 0; j < kRowBlock; j++) rows[j] = step_row(p.step, min(t0 + j, n_rows - 1)).v;
    vec2 turns[kRowBlock][4];  // cos, sin; loaded before they are needed
    vec4 acc[kRowBlock];
    if (active_thread) {
        uint slots[kRowBlock];
        uint module = head < kQHeads ? kLoraQ : head < kQHeads + kKvHeads ? kLoraK : kLoraV;
        LoraModule first_module;
        if (kHasLora != 0) {
            for (uint j = 0; j < kRowBlock; j++) slots[j] = t0 + j < n_rows ? rows[j].adapter_slot : kNoSlot;
            first_module = lora_module(p.lora_layer, slots[0], p.lora_slot_stride, module);
        }
        for (uint j = 0; j < kRowBlock; j++) {
            for (uint c = 0; c < 4; c++) {
                uint d = d0 + c;
                if (module == kLoraV || d >= kRotaryDim) continue;
                uint i = d < kHalf ? d : d - kHalf;
                turns[j][c] = Vec2Ref(p.rope + (uint64_t(rows[j].position) * kHalf + i) * 8).v;
            }
        }
        vec4 bias = kHasBias != 0 ? load4(p.bias, column / 4, 0) : vec4(0.0);
        for (uint j = 0; j < kRowBlock; j++) {
            uint64_t y = p.y + uint64_t(t0 + j) * p.y_stride * 4;
            acc[j] = load4(y, column / 4, 0);
            for (uint s = 1; s < kSplits; s++) acc[j] += load4(y + uint64_t(s) * p.split_stride * 4, column / 4, 0);
            acc[j] += bias;
        }
        if (kHasLora != 0) {
            uint first = module == kLoraQ ? 0 : module == kLoraK ? kQHeads : kQHeads + kKvHeads;
            add_lora(acc, slots, first_module, t0, p.lora_layer, p.lora_slot_stride, module, p.low, module, 3,
                     column - first * kHeadDim, (module == kLoraQ ? kQHeads : kKvHeads) * kHeadDim);
        }
        for (uint j = 0; j < kRowBlock; j++) {
            for (uint c = 0; c < 4; c++) values[j][base + d0 + c] = acc[j][c];
        }
    }
    barrier();
    if (!active_thread) return;

    bool is_v = head >= kQHeads + kKvHeads;
    bool is_q = head < kQHeads;
    uint64_t gamma = kHasNorm == 0 || is_v ? 0 : is_q ? p.q_gamma : p.k_gamma;
    for (uint j = 0; j < kRowBlock; j++) {
        uint t = t0 + j;
        if (t >= n_rows) break;
        vec4 value = acc[j];
        float inverse = 1.0;
        if (gamma != 0) {
            float squares = 0.0;
            for (uint d = 0; d < kHeadDim; d++) squares = fma(values[j][base + d], values[j][base + d], squares);
            inverse = inversesqrt(squares / float(kHeadDim) + p.eps);
            value = value * inverse * load4(gamma, d0 / 4, 0);
        }
        if (!is_v) {
            for (uint c = 0; c < 4; c++) {
                if (d0 + c < kRotaryDim) value[c] = rotated(j, base, d0 + c, value[c], turns[j][c], gamma, inverse);
            }
        }
        if (is_q) {
            store4(p.q + uint64_t(t) * p.q_stride * 4, column / 4, value, 0);
        } else {
            uint kv_head = is_v ? head - kQHeads - kKvHeads : head - kQHeads;
            uint plane = (rows[j].kv_slot / kBlockTokens * 2 + (is_v ? 1 : 0)) * kKvHeads + kv_head;
            uint64_t line = uint64_t(plane) * kBlockTokens + rows[j].kv_slot % kBlockTokens;
            store4(p.kv + line * (kHeadDim * 2), d0 / 4, value, 1);
        }
    }
}
