// gated_act: act[t][f] = activation(gate) * up, with gate and up each = sum_s y[s][t] + bias + LoRA
//   y    [S][T][y_stride]   f32: gate 0..F-1, up F..2F-1
//   act  [T][act_stride]    ACT_TYPE, elements F.. are zeroed; in rows, in fragments or both
// A workgroup takes kRows rows of the same columns, so that rows with one adapter find its B in the multiprocessor's
// cache.
// So that all threads run side by side, one can take several rows (kRowsEach of them, kRows apart) or, with LoRA,
// columns in turns.
// grid (groups of columns, ceil(T / kRows / kRowsEach)); ceil(act_stride / 4 / (workgroup / kRows)) groups, with LoRA
// any number of them; four outputs per thread, row and turn; moves 8 S F bytes in and 2-4 F out, per row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/rows/activation.glsl"
#include "gpu/kernels/products/activation_fragments.glsl"
#include "gpu/kernels/rows/gated_act.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kActivation = 0;  // an Activation
layout(constant_id = 3) const uint kSplits = 1;
layout(constant_id = 4) const uint kLora = 0;        // LoraLevel
layout(constant_id = 5) const uint kHasBias = 0;
layout(constant_id = 6) const uint kAligned = 1;     // F is a multiple of 4
layout(constant_id = 7) const uint kExchange = 0;    // F is a multiple of 16
layout(constant_id = 8) const uint kRows = 1;
layout(constant_id = 9) const uint kWholeRows = 0;   // the first rows' sums are all in split 0
layout(constant_id = 10) const uint kRowsEach = 1;   // more only without LoRA
layout(constant_id = 11) const uint kInRows = 1;     // whether act is wanted in rows,
layout(constant_id = 12) const uint kInFragments = 0;   // and in fragments, 1 + their order
layout(push_constant, scalar) uniform Push { GatedActParams p; };

const uint kRankSteps = 2;
#include "gpu/kernels/lora/lora_expand.glsl"

vec4 activate(vec4 g) {
    return vec4(activate(g.x, kActivation), activate(g.y, kActivation), activate(g.z, kActivation), activate(g.w, kActivation));
}

vec4 load_sum(uint t, uint column) {
    bool aligned = kAligned != 0;
    uint64_t y = p.y + uint64_t(t) * p.y_stride * 4;
    vec4 acc = load4_f32(y, column, aligned);
    if (t < kWholeRows) return acc;
    for (uint s = 1; s < kSplits; s++) acc += load4_f32(y + uint64_t(s) * p.split_stride * 4, column, aligned);
    return acc;
}

vec4 add_bias(vec4 acc, uint column) {
    return kHasBias != 0 ? acc + load4_f32(p.bias, column, kAligned != 0) : acc;
}

// The modules are the row's at level kPlain, and not read otherwise.
vec4 gated(uint t, uint f, LoraModule gate_module, LoraModule up_module) {
    vec4 gate_base = load_sum(t, f);
    vec4 gate = add_bias(gate_base, f);
    vec4 up_base = load_sum(t, p.ffn + f);
    vec4 up = add_bias(up_base, p.ffn + f);
    if (kLora == 2) {
        StepRow row = step_row(p.step, t).v;
        LoraPlace place = LoraPlace(p.uses, p.lora_layer, p.low, p.lora_slot_stride, kLoraGate, 0, 2);
        gate = add_lora_uses(gate, gate_base, place, row, t, f, p.ffn);
        place.module = kLoraUp;
        place.index = 1;
        up = add_lora_uses(up, up_base, place, row, t, f, p.ffn);
    }
    if (kLora == 1) {
        gate = add_lora(gate, gate_module, low_row(p.low, t, 0, 2), f, p.ffn);
        up = add_lora(up, up_module, low_row(p.low, t, 1, 2), f, p.ffn);
    }
    vec4 value = activate(gate) * up;
    if (kAligned == 0) value = mix(vec4(0.0), value, lessThan(f + uvec4(0, 1, 2, 3), uvec4(p.ffn)));
    return value;
}

void main() {
    const uint width = gl_WorkGroupSize.x / kRows;
    const uint t = gl_WorkGroupID.y * (kRows * kRowsEach) + gl_LocalInvocationIndex / width;
    uint f = (gl_WorkGroupID.x * width + gl_LocalInvocationIndex % width) * 4;
    const bool one_row = kRows * kRowsEach == 1 && gl_NumWorkGroups.y == 1;
    const uint n_rows = one_row ? 1 : step_n_rows(p.step);
    if (t >= n_rows || f >= p.act_stride) return;
    LoraModule gate_module, up_module;
    if (kLora == 1) {
        uint slot = step_row(p.step, t).v.adapter_slot;
        gate_module = lora_module(p.lora_layer, slot, p.lora_slot_stride, kLoraGate);
        up_module = lora_module(p.lora_layer, slot, p.lora_slot_stride, kLoraUp);
    }
    do {
        vec4 value[kRowsEach];
        [[unroll]] for (uint j = 0; j < kRowsEach; j++) {
            value[j] = f < p.ffn ? gated(min(t + j * kRows, n_rows - 1), f, gate_module, up_module) : vec4(0.0);
        }
        [[unroll]] for (uint j = 0; j < kRowsEach; j++) {
            const uint row = t + j * kRows;
            if (row >= n_rows) continue;
            if (kInRows != 0) store4(p.act + uint64_t(row) * p.act_stride * bytes_of(kActType), f / 4, value[j], kActType);
            if (kInFragments != 0) store4_in_fragments(p.act_fragments, row, f / 4, p.act_stride, value[j], kActType, kInFragments - 1);
        }
        f += gl_NumWorkGroups.x * width * 4;
    } while (kLora != 0 && f < p.act_stride);
}
