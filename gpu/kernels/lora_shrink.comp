// lora_shrink: low[i][m][r] = sum_k A_m(slot)[r][k] * x[t][k] for the rows t of one segment, i = low_begin + t - row_begin
//   A    [rank][x_stride]          the adapter's own type
//   x    [T][x_stride]             ACT_TYPE
//   low  [i][n_modules][kMaxRank]  f32; ranks up to the next multiple of 8 are zeroed
// grid (ceil8(max rank) / kShrinkRanks, segments, modules), read from the step state; moves kShrinkRanks rows of A per
// workgroup once for every kRowBlock rows of the segment (from cache after the first).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/lora_shrink.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(push_constant, scalar) uniform Push { LoraShrinkParams p; };

const uint kRowBlock = 4;
const uint kSums = kRowBlock * kShrinkRanks;
const uint kMaxSubgroups = 128;
shared float slots_sum[kSums * kMaxSubgroups];

// acc[j][r] += this thread's chunks of a[r] . x[j]; type is a literal, so that no load waits behind a branch.
void add_products(inout float acc[kRowBlock][kShrinkRanks], const uint64_t a[kShrinkRanks], const uint64_t x[kRowBlock],
                  uint n_chunks, uint count, const uint type) {
    if (count == 1) {
        for (uint chunk = gl_LocalInvocationIndex; chunk < n_chunks; chunk += gl_WorkGroupSize.x) {
            Eight b = load8(x[0], chunk, kActType);
            [[unroll]] for (uint r = 0; r < kShrinkRanks; r++) acc[0][r] = dot8(load8(a[r], chunk, type), b, acc[0][r]);
        }
    } else {
        for (uint chunk = gl_LocalInvocationIndex; chunk < n_chunks; chunk += gl_WorkGroupSize.x) {
            Eight e[kShrinkRanks];
            [[unroll]] for (uint r = 0; r < kShrinkRanks; r++) e[r] = load8(a[r], chunk, type);
            [[unroll]] for (uint j = 0; j < kRowBlock; j++) {
                Eight b = load8(x[j], chunk, kActType);
                [[unroll]] for (uint r = 0; r < kShrinkRanks; r++) acc[j][r] = dot8(e[r], b, acc[j][r]);
            }
        }
    }
}

void main() {
    LoraSegment segment = SegmentRef(p.segments + uint64_t(gl_WorkGroupID.y) * 16).v;
    uint m_idx = gl_WorkGroupID.z;
    LoraModule m = ModuleRef(p.lora_layer + (uint64_t(segment.slot) * p.lora_slot_stride + p.first_module + m_idx) * 64).v;
    uint r0 = gl_WorkGroupID.x * kShrinkRanks;
    if (r0 >= (m.rank + 7) / 8 * 8) return;

    uint64_t a[kShrinkRanks];
    [[unroll]] for (uint r = 0; r < kShrinkRanks; r++) {
        a[r] = m.a + uint64_t(min(r0 + r, m.rank - 1)) * p.x_stride * bytes_of(m.type);
    }
    uint n_chunks = (p.k + 7) / 8;
    uint thread = gl_LocalInvocationIndex;
    for (uint first = 0; first < segment.n_rows; first += kRowBlock) {
        uint count = min(kRowBlock, segment.n_rows - first);
        uint64_t x[kRowBlock];
        float acc[kRowBlock][kShrinkRanks];
        [[unroll]] for (uint j = 0; j < kRowBlock; j++) {
            uint t = segment.row_begin + first + min(j, count - 1);
            x[j] = p.x + uint64_t(t) * p.x_stride * bytes_of(kActType);
            [[unroll]] for (uint r = 0; r < kShrinkRanks; r++) acc[j][r] = 0.0;
        }
        if (m.type == 0) {
            add_products(acc, a, x, n_chunks, count, 0);
        } else if (m.type == 1) {
            add_products(acc, a, x, n_chunks, count, 1);
        } else {
            add_products(acc, a, x, n_chunks, count, 2);
        }
        barrier();  // the sums of the block before have been read
        [[unroll]] for (uint j = 0; j < kRowBlock; j++) {
            if (j >= count) break;
            [[unroll]] for (uint r = 0; r < kShrinkRanks; r++) {
                float sum = subgroupAdd(acc[j][r]);
                if (subgroupElect()) slots_sum[(j * kShrinkRanks + r) * gl_NumSubgroups + gl_SubgroupID] = sum;
            }
        }
        barrier();
        for (uint i = thread; i < count * kShrinkRanks; i += gl_WorkGroupSize.x) {
            float sum = 0.0;
            for (uint s = 0; s < gl_NumSubgroups; s++) sum += slots_sum[i * gl_NumSubgroups + s];
            uint row = segment.low_begin + first + i / kShrinkRanks;
            uint r = r0 + i % kShrinkRanks;
            FloatRef(p.low + (uint64_t(row * p.n_modules + m_idx) * kMaxRank + r) * 4).v = r < m.rank ? sum : 0.0;
        }
    }
}
