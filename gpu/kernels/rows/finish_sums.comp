// finish_sums: y[0][t] = sum_s y[s][t] + bias + LoRA, for the columns of all modules of a product; then of each of the
// first two modules that has a gamma
//   y[0][t][c] = y[0][t][c] * rsqrt(mean over the module's columns of y^2 + eps) * gamma[c]
//   y  [S][T][y_stride]  f32, in place; columns behind the last module stay as they are
// grid (T, modules); a workgroup for each row and module; moves 4 S n bytes in and 4 n out, twice that with a norm.
// Columns of modules are multiples of 4.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/reduce.glsl"
#include "gpu/kernels/rows/finish_sums.params.h"
#include "gpu/kernels/lora/slot_norms.glsl"

layout(constant_id = 1) const uint kSplits = 1;
layout(constant_id = 2) const uint kLora = 0;  // LoraLevel
layout(constant_id = 3) const uint kWholeRows = 0;  // the first rows' sums are all in split 0
layout(push_constant, scalar) uniform Push { FinishSumsParams p; };

const uint kRankSteps = 1;
const uint kExchange = 0;
#include "gpu/kernels/lora/lora_expand.glsl"

void main() {
    const uint t = gl_WorkGroupID.x, m = gl_WorkGroupID.y;
    if (t >= step_n_rows(p.step)) return;
    const uint begin = m == 0 ? 0 : p.module_end[m - 1], end = p.module_end[m], n_out = end - begin;
    const StepRow row = step_row(p.step, t).v;
    LoraModule module;
    if (kLora == 1) module = lora_module(p.lora_layer, row.adapter_slot, p.lora_slot_stride, p.first_module + m);
    const LoraPlace place = LoraPlace(p.uses, p.lora_layer, p.low, p.lora_slot_stride, p.first_module + m, m, p.n_modules);
    const uint64_t y = p.y + uint64_t(t) * p.y_stride * 4;
    float squares = 0.0;
    for (uint column = begin + gl_LocalInvocationIndex * 4; column < end; column += gl_WorkGroupSize.x * 4) {
        vec4 acc = load4(y, column / 4, 0);
        if (t >= kWholeRows) {
            for (uint s = 1; s < kSplits; s++) acc += load4(y + uint64_t(s) * p.split_stride * 4, column / 4, 0);
        }
        const vec4 base = acc;
        if (p.bias != 0) acc += load4(p.bias, column / 4, 0);
        if (kLora == 1) acc = add_lora(acc, module, low_row(p.low, t, m, p.n_modules), column - begin, n_out);
        if (kLora == 2) acc = add_lora_uses(acc, base, place, row, t, column - begin, n_out);
        store4(y, column / 4, acc, 0);
        squares = sum_squares4(acc, squares);
    }
    uint64_t gamma = m < 2 ? p.gamma[m] : 0;
    if (gamma == 0) return;
    if (p.slot_norms != 0) gamma = slot_gamma(p.slot_norms + uint64_t(m) * p.n_slots * 8, row.extras_slot, gamma);
    const float inverse = inversesqrt(workgroup_sum(squares) / float(n_out) + p.eps);
    for (uint column = begin + gl_LocalInvocationIndex * 4; column < end; column += gl_WorkGroupSize.x * 4) {
        store4(y, column / 4, load4(y, column / 4, 0) * inverse * load4(gamma, (column - begin) / 4, 0), 0);
    }
}
