// train_product on KHR cooperative matrices: c[i][j] (+)= alpha * sum over l of a[i][l] * b[l][j]
//   a  [m][k], b [k][n] by strides, each f32 or ELEMENT (f16, or bf16 with the macro BF16), rounded to that;  c [m][n],
//       f32 sums
// A workgroup has 128 x TILE_N of c. 32 l of both operands are staged in shared memory as they lie, rows of k or of the
// other side, while the next ones are on their way in registers; what is beyond the operands is staged as 0. Rows of a,
// b and c begin at multiples of 16 bytes.
// grid (ceil(n / TILE_N), ceil(m / 128), items or splits of k)
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#ifdef BF16
#extension GL_EXT_bfloat16 : require
#define ELEMENT bfloat16_t
#else
#define ELEMENT float16_t
#endif
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_product.params.h"

layout(constant_id = 1) const uint kAType = 0;  // 0 f32, else ELEMENT
layout(constant_id = 2) const uint kBType = 0;
layout(constant_id = 3) const uint kAdds = 0;
layout(constant_id = 4) const uint kAAlongK = 1;  // neighbours of a in memory have neighbouring l, else neighbouring i
layout(constant_id = 5) const uint kBAlongK = 1;
layout(constant_id = 6) const uint kSubgroup = 32;
layout(constant_id = 7) const uint kTileN = 128;  // or 32 or 64, with subgroups of 32 or 64
layout(push_constant, scalar) uniform Push { TrainProductParams p; };
#include "gpu/kernels/train/train_product.glsl"

const uint kThreads = 256;
const uint kTile = kCausalTile, kDepth = 32;
const uint kSubgroups = kThreads / kSubgroup;
const uint kSubN = kTileN == kTile ? kSubgroups / 2 : 1;  // subgroups along n
const uint kSubM = kSubgroups / kSubN;                    // and along m
const uint kMatsM = kTile / kSubM / 16, kMatsN = kTileN / kSubN / 16;
// words of a staged row of k, with one for the banks; of other rows one more than they have
const uint kAlongLine = kDepth / 8 + 1;
// no fewer than rows of the other kind take
const uint kStageWords = kTile * kAlongLine, kBStageWords = kTileN * kAlongLine;
const uint kStoreLine = kMatsN * 4 + 1;
const uint kStoreWords = kSubgroups * 16 * kStoreLine;
// a, then b; at the end sums
shared uvec4 stage[kStoreWords > kStageWords + kBStageWords ? kStoreWords : kStageWords + kBStageWords];

uvec4 packed(vec4 lo, vec4 hi) {
#ifdef BF16
    // Not by conversions, which on NVIDIA's devices cut bits off: sums over many rows would shrink.
    return uvec4(pack_pair(lo.xy, 2), pack_pair(lo.zw, 2), pack_pair(hi.xy, 2), pack_pair(hi.zw, 2));
#else
    lo = bounded(lo, 1);
    hi = bounded(hi, 1);
    return uvec4(packHalf2x16(lo.xy), packHalf2x16(lo.zw), packHalf2x16(hi.xy), packHalf2x16(hi.zw));
#endif
}

// Eight neighbours from element `index` on.
uvec4 eight(uint64_t base, uint64_t index, const uint type) {
    if (type != 0) return Uvec4Ref(base + index * 2).v;
    return packed(Vec4Ref(base + index * 4).v, Vec4Ref(base + index * 4 + 16).v);
}

// The first n of eight, with zeros behind.
uvec4 some_of_eight(uint64_t base, uint64_t index, const uint type, uint n) {
    float v[8];
    for (uint e = 0; e < 8; e++) v[e] = e < n ? load_at(base, index + e, type) : 0.0;
    return packed(vec4(v[0], v[1], v[2], v[3]), vec4(v[4], v[5], v[6], v[7]));
}

// The thread's words of a step.
const uint kALoads = kTile * (kDepth / 8) / kThreads, kBLoads = (kTileN * (kDepth / 8) + kThreads - 1) / kThreads;
uvec4 a_held[kALoads], b_held[kBLoads];

// first: of the tile's rows of c, or columns; n_side: how many there are in all. is_whole: the tile and all steps of k
// lie within them, so that nothing is asked.
uvec4 fetch_word(uint64_t base, uint64_t begin, const uint type, const uint along_k, const uint tile, uint stride, uint first, uint n_side, uint l0, uint k, const uint i, const bool is_whole) {
    const uint word = gl_LocalInvocationIndex + i * kThreads;
    const uint row = along_k != 0 ? first + word / (kDepth / 8) : l0 + word / (tile / 8);
    const uint column = along_k != 0 ? l0 + word % (kDepth / 8) * 8 : first + word % (tile / 8) * 8;
    const uint n_rows = along_k != 0 ? n_side : k, n_columns = along_k != 0 ? k : n_side;
    const uint64_t index = begin + uint64_t(row) * stride + column;
    if (is_whole) return eight(base, index, type);
    if (row >= n_rows || column >= n_columns) return uvec4(0);
    return column + 8 <= n_columns ? eight(base, index, type) : some_of_eight(base, index, type, n_columns - column);
}

uint stage_place(const uint along_k, const uint tile, const uint i) {
    const uint word = gl_LocalInvocationIndex + i * kThreads;
    return along_k != 0 ? word / (kDepth / 8) * kAlongLine + word % (kDepth / 8) : word / (tile / 8) * (tile / 8 + 1) + word % (tile / 8);
}

// A narrow tile has fewer words of b than there are threads.
bool has_b_word(const uint i) { return kTileN == kTile || gl_LocalInvocationIndex + i * kThreads < kTileN * (kDepth / 8); }

coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> acc[kMatsM * kMatsN];

void fetch(const TrainProductItem item, uint i0, uint j0, uint l0, const bool is_whole) {
    const uint a_stride = kAAlongK != 0 ? p.a_i : p.a_l, b_stride = kBAlongK != 0 ? p.b_j : p.b_l;
    [[unroll]] for (uint i = 0; i < kALoads; ++i) a_held[i] = fetch_word(p.a, item.a, kAType, kAAlongK, kTile, a_stride, i0, item.m, l0, item.k, i, is_whole);
    [[unroll]] for (uint i = 0; i < kBLoads; ++i) {
        if (has_b_word(i)) b_held[i] = fetch_word(p.b, item.b, kBType, kBAlongK, kTileN, b_stride, j0, item.n, l0, item.k, i, is_whole);
    }
}

void sum_tile(const TrainProductItem item, uint i0, uint j0, uint sub_m, uint sub_n, const bool is_whole) {
    [[unroll]] for (uint i = 0; i < kMatsM * kMatsN; ++i) acc[i] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
    fetch(item, i0, j0, 0, is_whole);
    for (uint l0 = 0; l0 < item.k; l0 += kDepth) {
        barrier();
        [[unroll]] for (uint i = 0; i < kALoads; ++i) stage[stage_place(kAAlongK, kTile, i)] = a_held[i];
        [[unroll]] for (uint i = 0; i < kBLoads; ++i) {
            if (has_b_word(i)) stage[kStageWords + stage_place(kBAlongK, kTileN, i)] = b_held[i];
        }
        barrier();
        // The last step loads itself again where that needs no branch.
        if (is_whole) fetch(item, i0, j0, min(l0 + kDepth, item.k - kDepth), true);
        else if (l0 + kDepth < item.k) fetch(item, i0, j0, l0 + kDepth, false);
        [[unroll]] for (uint l = 0; l < kDepth / 16; ++l) {
            coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a[kMatsM];
            [[unroll]] for (uint i = 0; i < kMatsM; ++i) {
                if (kAAlongK != 0) coopMatLoad(a[i], stage, (sub_m + i * 16) * kAlongLine + l * 2, kAlongLine, gl_CooperativeMatrixLayoutRowMajor);
                else coopMatLoad(a[i], stage, l * 16 * (kTile / 8 + 1) + (sub_m + i * 16) / 8, kTile / 8 + 1, gl_CooperativeMatrixLayoutColumnMajor);
            }
            [[unroll]] for (uint j = 0; j < kMatsN; ++j) {
                coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b;
                if (kBAlongK != 0) coopMatLoad(b, stage, kStageWords + (sub_n + j * 16) * kAlongLine + l * 2, kAlongLine, gl_CooperativeMatrixLayoutColumnMajor);
                else coopMatLoad(b, stage, kStageWords + l * 16 * (kTileN / 8 + 1) + (sub_n + j * 16) / 8, kTileN / 8 + 1, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (uint i = 0; i < kMatsM; ++i) acc[i * kMatsN + j] = coopMatMulAdd(a[i], b, acc[i * kMatsN + j]);
            }
        }
    }
}

void main() {
    TrainProductItem item = workgroup_product();
    const uint i0 = gl_WorkGroupID.y * kTile, j0 = gl_WorkGroupID.x * kTileN;
    if (i0 >= item.m || j0 >= item.n) return;
    if (p.causal == kCausalScores && j0 >= item.first_query + i0 + kTile) return;
    if (p.causal == kCausalQueries) item.k = min(item.k, item.first_query + i0 + kTile);
    if (p.causal == kCausalKeys && i0 > item.first_query) {
        const uint begin = min(i0 - item.first_query, item.k - 1) / kDepth * kDepth;
        item.a += uint64_t(begin) * p.a_l;
        item.b += uint64_t(begin) * p.b_l;
        item.k -= begin;
    }
    const uint sub_m = gl_SubgroupID / kSubN * (kTile / kSubM), sub_n = gl_SubgroupID % kSubN * (kTileN / kSubN);
    if (i0 + kTile <= item.m && j0 + kTileN <= item.n && item.k % kDepth == 0) sum_tile(item, i0, j0, sub_m, sub_n, true);
    else sum_tile(item, i0, j0, sub_m, sub_n, false);

    // Through shared memory, 16 rows of a subgroup's matrices at a time: what is beyond c is not written, and rows are
    // written in long pieces.
    const uint line = kStoreLine, part = gl_SubgroupID * 16 * line;
    const uint words_per_row = kMatsN * 4;
    [[unroll]] for (uint i = 0; i < kMatsM; ++i) {
        barrier();
        [[unroll]] for (uint j = 0; j < kMatsN; ++j) coopMatStore(acc[i * kMatsN + j], stage, part + j * 4, line, gl_CooperativeMatrixLayoutRowMajor);
        barrier();
        for (uint word = gl_SubgroupInvocationID; word < 16 * words_per_row; word += kSubgroup) {
            const uint row = i0 + sub_m + i * 16 + word / words_per_row, column = j0 + sub_n + word % words_per_row * 4;
            if (row >= item.m) break;
            const vec4 sums = uintBitsToFloat(stage[part + word / words_per_row * line + word % words_per_row]);
            const uint64_t to = item.c + uint64_t(row) * p.c_i + uint64_t(column) * p.c_j;
            if (column + 4 <= item.n && p.c_j == 1) {
                Vec4Ref c = Vec4Ref(p.c + to * 4);
                c.v = kAdds != 0 ? fma(vec4(p.alpha), sums, c.v) : p.alpha * sums;
            } else {
                for (uint e = 0; e < 4 && column + e < item.n; e++) store_product(to + uint64_t(e) * p.c_j, sums[e], kAdds);
            }
        }
    }
}
