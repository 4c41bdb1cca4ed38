// expert_lora: y[pair] += scale * B_e A_e x[row of pair], e the pair's expert, for each adapter of the row, in the
// order of its list
//   x  [x row][x_stride]  ACT_TYPE
//   y  [pair][y_stride]   f32, in place; rows without an adapter that changes experts are not touched
// grid (pairs); a workgroup shrinks and expands one pair. Moves A_e and B_e once for each pair.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/experts/expert_lora.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kLora = 1;  // LoraLevel
layout(push_constant, scalar) uniform Push { ExpertLoraParams p; };

const uint kRankSteps = 1;
const uint kExchange = 0;
#include "gpu/kernels/lora/lora_expand.glsl"

shared float low[kMaxRank];

void add_adapter(uint pair, uint expert, uint slot, float use_scale) {
    const LoraModule m = lora_module(p.lora_layer, slot, p.lora_slot_stride, p.module);
    if (m.rank == 0) return;  // the same for the whole workgroup
    const uint rank8 = (m.rank + 7) / 8;
    const uint64_t a = m.a + uint64_t(expert) * m.rank * p.x_stride * bytes_of(m.type);
    const uint64_t b = m.b + uint64_t(expert) * p.n * rank8 * 8 * bytes_of(m.type);
    const uint64_t x = p.x + uint64_t(pair / p.pairs_per_row) * p.x_stride * bytes_of(kActType);
    const uint n_chunks = (p.k + 7) / 8;
    barrier();  // the adapter before has been added
    for (uint r = gl_SubgroupID; r < rank8 * 8; r += gl_NumSubgroups) {
        float acc = 0.0;
        if (r < m.rank) {
            const uint64_t row = a + uint64_t(r) * p.x_stride * bytes_of(m.type);
            for (uint chunk = gl_SubgroupInvocationID; chunk < n_chunks; chunk += gl_SubgroupSize) acc = dot8(load8(row, chunk, m.type), load8(x, chunk, kActType), acc);
        }
        acc = subgroupAdd(acc);
        if (subgroupElect()) low[r] = acc;
    }
    barrier();
    for (uint n = gl_LocalInvocationIndex; n < p.n; n += gl_WorkGroupSize.x) {
        float delta = 0.0;
        for (uint r = 0; r < rank8; r++) {
            const Eight part = Eight(vec4(low[r * 8], low[r * 8 + 1], low[r * 8 + 2], low[r * 8 + 3]), vec4(low[r * 8 + 4], low[r * 8 + 5], low[r * 8 + 6], low[r * 8 + 7]));
            delta = dot8(load8(b, n * rank8 + r, m.type), part, delta);
        }
        FloatRef y = FloatRef(p.y + (uint64_t(pair) * p.y_stride + n) * 4);
        y.v = fma(delta, m.scale * use_scale, y.v);
    }
}

void main() {
    const uint pair = gl_WorkGroupID.x;
    if (pair >= step_n_rows(p.step) * p.top) return;
    const uint expert = UintRef(p.chosen + uint64_t(pair) * 4).v;
    const StepRow row = step_row(p.step, pair / p.top).v;
    if (kLora == 1) {
        if (row.adapter_slot != kNoSlot) add_adapter(pair, expert, row.adapter_slot, 1.0);
        return;
    }
    for (uint u = 0; u < row.n_uses; u++) {
        const StepUse use = UseRef(p.uses + uint64_t(row.use_begin + u) * 16).v;
        add_adapter(pair, expert, use.slot, use.scale);
    }
}
