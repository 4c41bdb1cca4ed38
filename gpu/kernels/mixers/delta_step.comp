// delta_step: the gated delta rule (Yang et al. 2024, equation 10), row after row of each run, for each value head with
// a state S [Dk][Dv]
//   S = e^g S;  d = beta (v - S^T k);  S += k d^T;  o = S^T q
// Without kCorrects d = beta v: the recurrence of Mamba 2 (Dao and Gu 2024), with beta = dt, k = B, q = C, v = x.
// Value head h reads key head floor(h key_heads / value_heads). All f32; a row's bits do not depend on how its sequence
// is cut into runs.
// Four neighbouring threads have a column of S, each every fourth chunk of four of its elements; columns need nothing
// of one another.
// grid (ceil(Dv / columns of a workgroup), value heads, runs); moves S in once for each run and out once and for each
// of its saves, 4 (2 Dk + Dv) bytes in and 4 Dv out for a row and head.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/mixers/delta_step.params.h"
#include "gpu/kernels/mixers/state_runs.glsl"

layout(constant_id = 1) const uint kKeyHeads = 1;
layout(constant_id = 2) const uint kValueHeads = 1;
layout(constant_id = 3) const uint kKeySize = 16;
layout(constant_id = 4) const uint kValueSize = 16;
layout(constant_id = 5) const uint kCorrects = 1;
layout(push_constant, scalar) uniform Push { DeltaStepParams p; };

const uint kParts = 4;
const uint kRows = 4;  // whose q and k are fetched together
const uint kChunks = (kKeySize + 15) / 16;
const uint kKeySize16 = kChunks * 16;
const uint kColumns = gl_WorkGroupSize.x / kParts;
const uint kKeys = kKeyHeads * kKeySize;
const uint kChannels = 2 * kKeys + kValueHeads * kValueSize;
shared float q_rows[kRows * kKeySize16];
shared float k_rows[kRows * kKeySize16];

// The sum over a column's four threads, the same bits in each.
float joined(float part) {
    part += subgroupShuffleXor(part, 1);
    return part + subgroupShuffleXor(part, 2);
}

vec4 four_of(uint row, uint chunk, uint part, const bool is_key) {
    const uint at = row * kKeySize16 + (chunk * kParts + part) * 4;
    return is_key ? vec4(k_rows[at], k_rows[at + 1], k_rows[at + 2], k_rows[at + 3]) : vec4(q_rows[at], q_rows[at + 1], q_rows[at + 2], q_rows[at + 3]);
}

float dot4(vec4 a, vec4 b, float acc) {
    acc = fma(a.x, b.x, acc);
    acc = fma(a.y, b.y, acc);
    acc = fma(a.z, b.z, acc);
    return fma(a.w, b.w, acc);
}

void main() {
    const uint run_idx = gl_WorkGroupID.z, head = gl_WorkGroupID.y;
    if (run_idx >= HeaderRef(p.step).v.n_state_runs) return;
    const StateRun run = run_at(p.runs, run_idx);
    const uint thread = gl_LocalInvocationIndex, part = thread % kParts;
    const uint column = gl_WorkGroupID.x * kColumns + thread / kParts;
    const bool is_there = column < kValueSize;
    const uint key_head = head * kKeyHeads / kValueHeads;
    const uint own_column = is_there ? column : kValueSize - 1;
    const uint64_t line = (uint64_t(head) * kValueSize + own_column) * (kKeySize16 * 4);

    vec4 s[kChunks];
    [[unroll]] for (uint i = 0; i < kChunks; i++) {
        s[i] = run.from == kNoState ? vec4(0.0) : load4(p.state + uint64_t(run.from) * p.slot_stride * 4 + line, i * kParts + part, 0);
    }
    for (uint first = 0; first < run.n_rows; first += kRows) {
        const uint count = min(kRows, run.n_rows - first);
        barrier();  // the rows before have been read
        for (uint i = thread; i < count * kKeySize16; i += gl_WorkGroupSize.x) {
            const uint d = i % kKeySize16;
            const uint64_t row = p.c + (uint64_t(run.row_begin + first + i / kKeySize16) * p.c_stride + key_head * kKeySize + min(d, kKeySize - 1)) * 4;
            q_rows[i] = d < kKeySize ? FloatRef(row).v : 0.0;
            k_rows[i] = d < kKeySize ? FloatRef(row + kKeys * 4).v : 0.0;
        }
        barrier();
        for (uint j = 0; j < count; j++) {
            const uint t = run.row_begin + first + j;
            const uint64_t row = p.c + uint64_t(t) * p.c_stride * 4;
            const float v = FloatRef(row + (2 * kKeys + head * kValueSize + own_column) * 4).v;
            const float decay = exp(FloatRef(row + (kChannels + head) * 4).v);
            const float beta = FloatRef(row + (kChannels + kValueHeads + head) * 4).v;
            float known = 0.0;
            [[unroll]] for (uint i = 0; i < kChunks; i++) {
                s[i] *= decay;
                if (kCorrects != 0) known = dot4(s[i], four_of(j, i, part, true), known);
            }
            const float d = beta * (kCorrects != 0 ? v - joined(known) : v);
            float o = 0.0;
            [[unroll]] for (uint i = 0; i < kChunks; i++) {
                s[i] = fma(four_of(j, i, part, true), vec4(d), s[i]);
                o = dot4(s[i], four_of(j, i, part, false), o);
            }
            o = joined(o);
            if (is_there && part == 0) FloatRef(p.to + (uint64_t(t) * p.to_stride + head * kValueSize + column) * 4).v = o;
            [[unroll]] for (uint save = 0; save < kStateSaves; save++) {
                if (run.saves[save].n_rows != first + j + 1 || !is_there) continue;
                const uint64_t kept = p.state + uint64_t(run.saves[save].to) * p.slot_stride * 4 + line;
                [[unroll]] for (uint i = 0; i < kChunks; i++) store4(kept, i * kParts + part, s[i], 0);
            }
        }
    }
    if (!is_there) return;
    [[unroll]] for (uint i = 0; i < kChunks; i++) store4(p.state + uint64_t(run.to) * p.slot_stride * 4 + line, i * kParts + part, s[i], 0);
}
