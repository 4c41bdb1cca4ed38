// sum_parts: out[t][n] = sum_s y[s][t][n] + bias[n] + LoRA, of a group of up to four modules whose borders may lie
// anywhere
//   y    [S][T][y_stride]   f32
//   out  [T][to_stride]    f32
// For readers of finished sums: mixers other than attention, routers, gates.
// grid (ceil(n / workgroup), T); one column for each thread; moves 4 (S + 1) n bytes, per row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/rows/sum_parts.params.h"

layout(constant_id = 1) const uint kSplits = 1;
layout(constant_id = 2) const uint kLora = 0;       // LoraLevel
layout(constant_id = 3) const uint kHasBias = 0;
layout(constant_id = 4) const uint kWholeRows = 0;  // the first rows' sums are all in split 0
layout(push_constant, scalar) uniform Push { SumPartsParams p; };

const uint kRankSteps = 1;
const uint kExchange = 0;
#include "gpu/kernels/lora/lora_expand.glsl"

// B low for output n alone; the same order as lora_delta's.
float delta_of(LoraModule m, uint64_t low, uint n) {
    const uint rank8 = (m.rank + 7) / 8;
    const uint64_t b = m.b + uint64_t(n) * uint64_t(rank8 * 8 * bytes_of(m.type));
    float delta = 0.0;
    for (uint r = 0; r < rank8; r++) delta = dot8(load8(b, r, m.type), load8(low, r, 0), delta);
    return delta;
}

float with_use(float acc, float base, LoraModule m, uint64_t low, uint n, float use_scale) {
    float scale = m.scale * use_scale;
    if (m.gain != 0) {
        const float gain = FloatRef(m.gain + uint64_t(n) * 4).v;
        acc = fma((gain - 1.0) * use_scale, base, acc);
        scale *= gain;
    }
    if (m.bias != 0) acc = fma(FloatRef(m.bias + uint64_t(n) * 4).v, use_scale, acc);
    return m.rank == 0 ? acc : fma(delta_of(m, low, n), scale, acc);
}

void main() {
    const uint t = gl_WorkGroupID.y;
    const uint column = gl_GlobalInvocationID.x;
    const uint n_rows = gl_NumWorkGroups.y > 1 ? step_n_rows(p.step) : 1;
    if (t >= n_rows || column >= p.module_end[p.n_modules - 1]) return;
    const uint64_t y = p.y + (uint64_t(t) * p.y_stride + column) * 4;
    float acc = FloatRef(y).v;
    if (t >= kWholeRows) {
        for (uint s = 1; s < kSplits; s++) acc += FloatRef(y + uint64_t(s) * p.split_stride * 4).v;
    }
    const float base = acc;
    if (kHasBias != 0) acc += FloatRef(p.bias + uint64_t(column) * 4).v;
    if (kLora != 0) {
        uint index = 0, begin = 0;
        while (column >= p.module_end[index]) begin = p.module_end[index++];
        const uint module = p.first_module + index;
        if (kLora == 1) {
            const LoraModule m = lora_module(p.lora_layer, step_row(p.step, t).v.adapter_slot, p.lora_slot_stride, module);
            if (m.rank != 0) acc = fma(delta_of(m, low_row(p.low, t, index, p.n_modules), column - begin), m.scale, acc);
        } else {
            const StepRow row = step_row(p.step, t).v;
            for (uint u = 0; u < row.n_uses; u++) {
                const StepUse use = UseRef(p.uses + uint64_t(row.use_begin + u) * 16).v;
                const LoraModule m = lora_module(p.lora_layer, use.slot, p.lora_slot_stride, module);
                acc = with_use(acc, base, m, low_row(p.low, use.low_offset + t, index, p.n_modules), column - begin, use.scale);
            }
        }
    }
    FloatRef(p.to + (uint64_t(t) * p.to_stride + column) * 4).v = acc;
}
