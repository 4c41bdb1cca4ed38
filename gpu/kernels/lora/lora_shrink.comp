// lora_shrink: low[i][m][r] = sum_k A_m(slot)[r][k] * x[t][k] for the rows t of one segment, i = low_begin + t -
// row_begin
//   A    [rank][x_stride]          the adapter's own type
//   x    [T][x_stride]             ACT_TYPE
//   low  [i][n_modules][kMaxRank]  f32; ranks up to the next multiple of 8 are zeroed
// A piece of work is kRanks ranks of one module for one segment: moves so many rows of A once for every kRowBlock rows
// of the segment (from cache after the first). grid: ShrinkDispatch.grid, whose unit is kShrinkRanks ranks; with
// kGridStride any number of workgroups in x, which read it from the step state and take the pieces in turns.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/lora/lora_shrink.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kRanks = 2;    // kShrinkRanks without kGridStride, with it a divisor of that
layout(constant_id = 3) const uint kAhead = 1;    // chunks of a lone row that a thread loads at once
layout(constant_id = 4) const uint kGridStride = 0;
layout(push_constant, scalar) uniform Push { LoraShrinkParams p; };

const uint kRowBlock = 4;
const uint kSums = kRowBlock * kRanks;
const uint kMinSubgroup = 4;
shared float slots_sum[kSums * ((gl_WorkGroupSize.x + kMinSubgroup - 1) / kMinSubgroup)];

// acc[j][r] += this thread's chunks of a[r] . x[j]; type is a literal, so that no load waits behind a branch.
void add_products(inout float acc[kRowBlock][kRanks], const uint64_t a[kRanks], const uint64_t x[kRowBlock], uint n_chunks, uint count, const uint type) {
    const uint threads = gl_WorkGroupSize.x;
    uint chunk = gl_LocalInvocationIndex;
    if (count == 1) {
        for (; chunk + (kAhead - 1) * threads < n_chunks; chunk += kAhead * threads) {
            Eight e[kAhead][kRanks], b[kAhead];
            [[unroll]] for (uint i = 0; i < kAhead; i++) {
                [[unroll]] for (uint r = 0; r < kRanks; r++) e[i][r] = load8(a[r], chunk + i * threads, type);
                b[i] = load8(x[0], chunk + i * threads, kActType);
            }
            [[unroll]] for (uint i = 0; i < kAhead; i++) {
                [[unroll]] for (uint r = 0; r < kRanks; r++) acc[0][r] = dot8(e[i][r], b[i], acc[0][r]);
            }
        }
        for (; chunk < n_chunks; chunk += threads) {
            const Eight b = load8(x[0], chunk, kActType);
            [[unroll]] for (uint r = 0; r < kRanks; r++) acc[0][r] = dot8(load8(a[r], chunk, type), b, acc[0][r]);
        }
        return;
    }
    for (; chunk < n_chunks; chunk += threads) {
        Eight e[kRanks];
        [[unroll]] for (uint r = 0; r < kRanks; r++) e[r] = load8(a[r], chunk, type);
        [[unroll]] for (uint j = 0; j < kRowBlock; j++) {
            const Eight b = load8(x[j], chunk, kActType);
            [[unroll]] for (uint r = 0; r < kRanks; r++) acc[j][r] = dot8(e[r], b, acc[j][r]);
        }
    }
}

// Sums by shuffles, all side by side: subgroupAdd() finds the active lanes for each sum, one sum after the other. Rows
// that do not exist have the last one's sums, which nobody reads.
void keep_sums(float acc[kRowBlock][kRanks], const uint n_rows) {
    for (uint lanes = gl_SubgroupSize / 2; lanes > 0; lanes /= 2) {
        [[unroll]] for (uint j = 0; j < n_rows; j++) {
            [[unroll]] for (uint r = 0; r < kRanks; r++) acc[j][r] += subgroupShuffleXor(acc[j][r], lanes);
        }
    }
    if (gl_SubgroupInvocationID != 0) return;
    [[unroll]] for (uint j = 0; j < n_rows; j++) {
        [[unroll]] for (uint r = 0; r < kRanks; r++) slots_sum[(j * kRanks + r) * gl_NumSubgroups + gl_SubgroupID] = acc[j][r];
    }
}

void shrink(uint rank_group, uint segment_idx, uint m_idx) {
    LoraSegment segment = SegmentRef(p.segments + uint64_t(segment_idx) * 16).v;
    LoraModule m = ModuleRef(p.lora_layer + (uint64_t(segment.slot) * p.lora_slot_stride + p.first_module + m_idx) * 64).v;
    uint r0 = rank_group * kRanks;
    if (r0 >= (m.rank + 7) / 8 * 8) return;

    uint64_t a[kRanks];
    [[unroll]] for (uint r = 0; r < kRanks; r++) {
        a[r] = m.a + uint64_t(min(r0 + r, m.rank - 1)) * p.x_stride * bytes_of(m.type);
    }
    uint n_chunks = (p.k + 7) / 8;
    uint thread = gl_LocalInvocationIndex;
    for (uint first = 0; first < segment.n_rows; first += kRowBlock) {
        uint count = min(kRowBlock, segment.n_rows - first);
        uint64_t x[kRowBlock];
        float acc[kRowBlock][kRanks];
        [[unroll]] for (uint j = 0; j < kRowBlock; j++) {
            uint t = segment.row_begin + first + min(j, count - 1);
            x[j] = p.x + uint64_t(t) * p.x_stride * bytes_of(kActType);
            [[unroll]] for (uint r = 0; r < kRanks; r++) acc[j][r] = 0.0;
        }
        if (m.type == 0) {
            add_products(acc, a, x, n_chunks, count, 0);
        } else if (m.type == 1) {
            add_products(acc, a, x, n_chunks, count, 1);
        } else {
            add_products(acc, a, x, n_chunks, count, 2);
        }
        barrier();  // the sums of the block before have been read
        if (count == 1) {
            keep_sums(acc, 1);
        } else {
            keep_sums(acc, kRowBlock);
        }
        barrier();
        for (uint i = thread; i < count * kRanks; i += gl_WorkGroupSize.x) {
            float sum = 0.0;
            for (uint s = 0; s < gl_NumSubgroups; s++) sum += slots_sum[i * gl_NumSubgroups + s];
            uint row = segment.low_begin + first + i / kRanks;
            uint r = r0 + i % kRanks;
            FloatRef(p.low + (uint64_t(row * p.n_modules + m_idx) * kMaxRank + r) * 4).v = r < m.rank ? sum : 0.0;
        }
    }
}

void main() {
    if (kGridStride == 0) {
        shrink(gl_WorkGroupID.x, gl_WorkGroupID.y, gl_WorkGroupID.z);
        return;
    }
    const uvec3 grid = uvec3(UintRef(p.grid).v * (kShrinkRanks / kRanks), UintRef(p.grid + 4).v, UintRef(p.grid + 8).v);
    const uint n_pieces = grid.x * grid.y * grid.z;
    // Ranks last: where an adapter has more of them than others, the pieces that these do not have are not always the
    // same workgroups'.
    for (uint i = gl_WorkGroupID.x; i < n_pieces; i += gl_NumWorkGroups.x) shrink(i / (grid.y * grid.z), i % grid.y, i / grid.y % grid.z);
}
