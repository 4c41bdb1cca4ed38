// lora_expand: y[t][n] += scale * sum_r B_m(slot)[n][r] * low[t][m][r] for the rows t of all segments, at LoraLevel
// kPlain
//   B    [n][rank rounded up to 8]      the adapter's own type
//   low  [t][n_modules][kMaxRank] f32   shrink result of the group
//   y    [T][y_stride] f32              in place
// Replaces the expand in the consumers of a product (lora_expand.glsl) where that takes too long: one of their threads
// has all ranks of four outputs, eight or sixteen at a time, and a row's add_norm is one workgroup. Here lanes share
// the ranks of an output, and the device all outputs of a segment.
// A piece of work is a block of outputs of one module for one segment; moves that part of B once for every kRowBlock
// rows of the segment and once for each row that is left.
// grid: any number of workgroups in x, which take pieces in turns.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/lora/lora_expand.params.h"

layout(constant_id = 1) const uint kPieces = 4;  // for each workgroup, about
// that share the ranks of an output: a power of two, kExpandLanesMin at least, of one subgroup
layout(constant_id = 2) const uint kLanesMax = 16;
layout(push_constant, scalar) uniform Push { LoraExpandParams p; };

const uint kRowBlock = 4;
const uint kOutputs = kExpandLanesMin;  // of lanes that share their ranks, loaded together; each lane writes one

// kRows rows from t on, whose shrink results lie at `low`, row after row. type and kRows are literals, so that no load
// waits behind a branch.
void add_rows(LoraModule m, uint t, uint64_t low, uint64_t low_step, uint first, uint end, uint column, uint lanes, const uint kRows, const uint type) {
    const uint rank8 = (m.rank + 7) / 8;
    const uint64_t row_bytes = uint64_t(rank8 * 8 * bytes_of(type));
    const uint lane = gl_LocalInvocationIndex % lanes, team = gl_LocalInvocationIndex / lanes;
    for (uint begin = first; begin < end; begin += gl_WorkGroupSize.x / lanes * kOutputs) {
        const uint o = begin + team * kOutputs;
        const uint own = o + lane;
        const bool writes = lane < kOutputs && own < end;
        float old[kRowBlock];
        [[unroll]] for (uint j = 0; j < kRows; j++) {
            old[j] = 0.0;
            if (writes) old[j] = FloatRef(p.y + (uint64_t(t + j) * p.y_stride + column + own) * 4).v;
        }
        float acc[kOutputs][kRowBlock];
        [[unroll]] for (uint u = 0; u < kOutputs; u++) {
            [[unroll]] for (uint j = 0; j < kRows; j++) acc[u][j] = 0.0;
        }
        for (uint chunk = lane; chunk < rank8; chunk += lanes) {
            Eight b[kOutputs], v[kRowBlock];
            [[unroll]] for (uint u = 0; u < kOutputs; u++) b[u] = load8(m.b + uint64_t(min(o + u, end - 1)) * row_bytes, chunk, type);
            [[unroll]] for (uint j = 0; j < kRows; j++) v[j] = load8(low + j * low_step, chunk, 0);
            [[unroll]] for (uint u = 0; u < kOutputs; u++) {
                [[unroll]] for (uint j = 0; j < kRows; j++) acc[u][j] = dot8(b[u], v[j], acc[u][j]);
            }
        }
        for (uint mask = 1; mask < lanes; mask *= 2) {
            [[unroll]] for (uint u = 0; u < kOutputs; u++) {
                [[unroll]] for (uint j = 0; j < kRows; j++) acc[u][j] += subgroupShuffleXor(acc[u][j], mask);
            }
        }
        [[unroll]] for (uint j = 0; j < kRows; j++) {
            float sum = acc[0][j];
            [[unroll]] for (uint u = 1; u < kOutputs; u++) sum = lane == u ? acc[u][j] : sum;
            if (writes) FloatRef(p.y + (uint64_t(t + j) * p.y_stride + column + own) * 4).v = fma(sum, m.scale, old[j]);
        }
    }
}

void add_segment(LoraSegment segment, LoraModule m, uint m_idx, uint first, uint end, uint column, const uint type) {
    uint lanes = kExpandLanesMin;
    while (lanes < kLanesMax && lanes * 8 < m.rank) lanes *= 2;
    const uint64_t low_step = uint64_t(p.n_modules) * (kMaxRank * 4);
    const uint64_t low = low_row(p.low, segment.low_begin, m_idx, p.n_modules);
    uint j = 0;
    for (; j + kRowBlock <= segment.n_rows; j += kRowBlock) {
        add_rows(m, segment.row_begin + j, low + j * low_step, low_step, first, end, column, lanes, kRowBlock, type);
    }
    for (; j < segment.n_rows; j++) add_rows(m, segment.row_begin + j, low + j * low_step, low_step, first, end, column, lanes, 1, type);
}

const uint kBlockUnit = 128, kBlockMax = 1024;
uint block_size;

uint blocks_of(uint n) { return (n + block_size - 1) / block_size; }

void main() {
    const uint n_segments = UintRef(p.n_segments).v;
    const uint share = n_segments * p.module_end[p.n_modules - 1] / (kPieces * gl_NumWorkGroups.x);
    block_size = clamp((share + kBlockUnit - 1) / kBlockUnit, 1u, kBlockMax / kBlockUnit) * kBlockUnit;
    uint n_blocks = blocks_of(p.module_end[0]);
    for (uint m = 1; m < p.n_modules; m++) n_blocks += blocks_of(p.module_end[m] - p.module_end[m - 1]);
    // A segment's blocks are neighbours, so that all workgroups share one with many ranks.
    for (uint piece = gl_WorkGroupID.x; piece < n_segments * n_blocks; piece += gl_NumWorkGroups.x) {
        const LoraSegment segment = SegmentRef(p.segments + uint64_t(piece / n_blocks) * 16).v;
        uint block = piece % n_blocks, m_idx = 0, column = 0;
        while (block >= blocks_of(p.module_end[m_idx] - column)) {
            block -= blocks_of(p.module_end[m_idx] - column);
            column = p.module_end[m_idx++];
        }
        const LoraModule m = ModuleRef(p.lora_layer + (uint64_t(segment.slot) * p.lora_slot_stride + p.first_module + m_idx) * 64).v;
        if (m.rank == 0) continue;
        const uint first = block * block_size, end = min(first + block_size, p.module_end[m_idx] - column);
        if (m.type == 0) add_segment(segment, m, m_idx, first, end, column, 0);
        else if (m.type == 1) add_segment(segment, m, m_idx, first, end, column, 1);
        else add_segment(segment, m, m_idx, first, end, column, 2);
    }
}
