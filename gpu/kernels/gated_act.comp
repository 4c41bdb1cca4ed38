// gated_act: act[t][f] = activation(gate) * up, with gate and up each = sum_s y[s][t] + bias + LoRA
//   y    [S][T][y_stride]   f32: gate 0..F-1, up F..2F-1
//   act  [T][act_stride]    ACT_TYPE, elements F.. are zeroed
// grid (ceil(act_stride / 4 / workgroup), ceil(T / ROW_BLOCK)); four outputs of ROW_BLOCK rows per thread.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/gated_act.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kActivation = 0;  // 0 silu, 1 gelu (tanh form)
layout(constant_id = 3) const uint kSplits = 1;
layout(constant_id = 4) const uint kHasLora = 0;
layout(constant_id = 5) const uint kHasBias = 0;
layout(constant_id = 6) const uint kAligned = 1;     // F is a multiple of 4
layout(constant_id = 7) const uint kRowBlock = 1;
layout(push_constant, scalar) uniform Push { GatedActParams p; };

#include "gpu/kernels/lora_expand.glsl"

vec4 activate(vec4 g) {
    if (kActivation == 0) return g / (1.0 + exp(-g));
    // sqrt(2 / pi) (g + 0.044715 g^3), clamped where tanh is 1 in f32
    vec4 u = clamp(0.7978845608 * fma(0.044715 * g * g, g, g), vec4(-15.0), vec4(15.0));
    return 0.5 * g * (1.0 + tanh(u));
}

void load_sum(out vec4 acc[kRowBlock], uint t0, uint column) {
    bool aligned = kAligned != 0;
    vec4 bias = kHasBias != 0 ? load4_f32(p.bias, column, aligned) : vec4(0.0);
    for (uint j = 0; j < kRowBlock; j++) {
        uint64_t y = p.y + uint64_t(t0 + j) * p.y_stride * 4;
        acc[j] = load4_f32(y, column, aligned);
        for (uint s = 1; s < kSplits; s++) {
            acc[j] += load4_f32(y + uint64_t(s) * p.split_stride * 4, column, aligned);
        }
        acc[j] += bias;
    }
}

void main() {
    uint t0 = gl_WorkGroupID.y * kRowBlock;
    uint n_rows = gl_NumWorkGroups.y * kRowBlock == 1 ? 1 : step_n_rows(p.step);
    uint f = gl_GlobalInvocationID.x * 4;
    if (t0 >= n_rows || f >= p.act_stride) return;

    vec4 gate[kRowBlock];
    vec4 up[kRowBlock];
    if (f < p.ffn) {
        uint slots[kRowBlock];
        LoraModule first_gate;
        LoraModule first_up;
        if (kHasLora != 0) {
            for (uint j = 0; j < kRowBlock; j++) {
                slots[j] = t0 + j < n_rows ? step_row(p.step, t0 + j).v.adapter_slot : kNoSlot;
            }
            first_gate = lora_module(p.lora_layer, slots[0], p.lora_slot_stride, kLoraGate);
            first_up = lora_module(p.lora_layer, slots[0], p.lora_slot_stride, kLoraUp);
        }
        load_sum(gate, t0, f);
        load_sum(up, t0, p.ffn + f);
        if (kHasLora != 0) {
            add_lora(gate, slots, first_gate, t0, p.lora_layer, p.lora_slot_stride, kLoraGate, p.low, 0, 2, f, p.ffn);
            add_lora(up, slots, first_up, t0, p.lora_layer, p.lora_slot_stride, kLoraUp, p.low, 1, 2, f, p.ffn);
        }
    }
    for (uint j = 0; j < kRowBlock; j++) {
        if (t0 + j >= n_rows) break;
        vec4 value = vec4(0.0);
        if (f < p.ffn) {
            value = activate(gate[j]) * up[j];
            if (kAligned == 0) value = mix(vec4(0.0), value, lessThan(f + uvec4(0, 1, 2, 3), uvec4(p.ffn)));
        }
        store4(p.act + uint64_t(t0 + j) * p.act_stride * bytes_of(kActType), f / 4, value, kActType);
    }
}
