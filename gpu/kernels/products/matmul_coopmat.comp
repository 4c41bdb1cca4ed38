// y[split][t][n] = sum over the split's k of x[t][k] * w[n][k] on KHR cooperative matrices, 16-bit w and x of one type
// (macro ELEMENT), f32 sums. For two rows and more; up to 128 the weights are streamed once, w and x tiles are staged
// through shared memory, the next step's 16-byte loads are in flight in registers while the current step is multiplied.
// Grid: (row tiles, splits, tiles of w rows): neighbours in it read the same rows of w, so a group of multiprocessors
// touches few pages at a time. With UNITS neighbouring tiles and splits go to one multiprocessor: see own_place().
// With whole tiles of rows (row tiles, tiles of w rows, splits + 1): z 0 is these, each with all of k, and the others
// are the rest's splits.
// Bytes: the matrix once per row tile, x once per workgroup from the caches.
// With PERSISTENT the grid has fewer workgroups than there are tiles of w rows: each takes several neighbouring ones,
// and the first words of the next tile are on their way while the last ones of this are multiplied. Not with LATE,
// WHOLE or splits.
// With FRAGMENTS, which takes LATE, x lies in fragments and goes straight into registers, w alone is staged: a fifth
// less to move past a multiprocessor's data path.
// With LORA the adapters' part comes on top: see matmul_adapters.glsl. With GATED the rows of w are gate 0..n-1 and up
// n..2n-1, y is activation(gate) * up in ELEMENT [t][y_stride], and a workgroup has the same N_TILE / 2 columns of
// both; no splits. A subgroup has matrices of gates and of the ups that belong to them, or, where its matrices are an
// odd number, of 8 gates and 8 ups each.
// With DEFERRED, of up to 16 rows, x is of a norm whose factors come on top of the sums: see deferred_norm.h.
// Workgroup: SUB_N subgroups along n, the others along the rows; every subgroup holds its part of the tile as
// accumulators.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#ifdef BF16
#extension GL_EXT_bfloat16 : require
#define ELEMENT bfloat16_t
#else
#define ELEMENT float16_t
#endif
#ifdef FRAGMENTS
#include "gpu/kernels/element_pairs.glsl"
#endif
#if defined(LORA) || defined(GATED) || defined(DEFERRED)
#include "gpu/kernels/common.glsl"
#else
layout(local_size_x_id = 0) in;
#endif
#ifdef GATED
#include "gpu/kernels/rows/activation.glsl"
#include "gpu/kernels/products/activation_fragments.glsl"
#elif defined(FRAGMENTS)
#include "gpu/kernels/products/activation_fragments.h"
#endif
#ifdef DEFERRED
#include "gpu/kernels/products/deferred_norm.h"
#endif
#include "gpu/kernels/products/matmul.params.h"

layout(constant_id = 0) const uint THREADS = 128;
layout(constant_id = 1) const uint N_TILE = 64;    // rows of w per workgroup
layout(constant_id = 2) const uint ROWS = 32;      // rows of x per workgroup
layout(constant_id = 3) const uint K_TILE = 64;    // elements of k per step
layout(constant_id = 4) const uint SUB_N = 4;      // subgroups along n
// w_stride and x_stride: literal, so that one base address serves all loads
layout(constant_id = 5) const uint STRIDE = 64;
layout(constant_id = 6) const uint SUBGROUP = 32;
// 1: the next step's loads are issued when this one's stores are done
layout(constant_id = 7) const uint LATE = 0;
layout(constant_id = 8) const uint ACTIVATION = 0;
layout(constant_id = 9) const uint WHOLE = 0;      // tiles of rows in front whose k is not split
layout(constant_id = 10) const uint PERSISTENT = 0;  // tiles of w rows
layout(constant_id = 11) const uint UNITS = 0;     // multiprocessors; 0: tiles go by the workgroup's number
#ifdef DEFERRED
layout(constant_id = 12) const uint NORM_TILES = 1;
layout(constant_id = 13) const uint NORM_ROWS = 16;  // 8 or 16
#endif
#if defined(FRAGMENTS) || defined(GATED)
layout(constant_id = 14) const uint Y_ORDER = 0;  // of y in fragments (activation_fragments.h); x has kFragmentsByColumns
#endif

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Count { uint value; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Floats { float data[]; };
#ifdef LORA
layout(push_constant, scalar) uniform Push { MatmulLoraParams p; };
#define params p.product
#elif defined(DEFERRED)
layout(push_constant, scalar) uniform Push { MatmulDeferredParams p; };
#define params p.product
#else
layout(push_constant, scalar) uniform Push { MatmulParams params; };
#endif

const uint kElementType =
#ifdef BF16
    2;
#else
    1;
#endif
#ifdef GATED
const uint kColumns = N_TILE / 2;  // of y that a workgroup writes
#else
const uint kColumns = N_TILE;
#endif
const uint kParts = N_TILE / kColumns;
#ifdef GATED
const bool kInterleaved = N_TILE / SUB_N % 32 != 0;  // matrices have 8 gates and 8 ups
#else
const bool kInterleaved = false;
#endif
const uint kSubParts = kInterleaved ? 1 : kParts;  // parts of the stage that a subgroup has matrices in

// Shared rows are padded by 16 bytes, so that eight rows of a matrix load fall into different banks.
const uint kWords = K_TILE / 8;       // 16-byte words of one row in one step
const uint kStride = kWords + 1;
const uint kWLoads = N_TILE * kWords / THREADS;
#ifdef FRAGMENTS
const bool kXIsStaged = false;
const uint kXLoads = 0;
#else
const bool kXIsStaged = true;
const uint kXLoads = (ROWS * kWords + THREADS - 1) / THREADS;
#endif
const uint kLoads = kWLoads + kXLoads;
const uint kLoadRows = THREADS / kWords;           // rows that all threads together fetch with one load each
const uint kSubRows = THREADS / SUBGROUP / SUB_N;  // subgroups along the rows of x
const uint kMatsN = N_TILE / SUB_N / 16;
const uint kMatsRows = ROWS / kSubRows / 16;

shared uvec4 stage[(N_TILE + ROWS) * kStride];

uvec4 held[kLoads];  // the next step
uint64_t w_at, x_at;  // where this thread's first word of the next step lies
uint64_t part_bytes;  // from the first part's rows of w to the second's

// Where there are more loads than rows of x, the last load is of a row that this thread had before, with the same bits:
// a branch around a load costs far more than the load.
uint first_x_row() { return gl_LocalInvocationIndex / kWords % ROWS; }
uint x_row_offset(const uint i) {
    const uint rows = i * kLoadRows;
    return i > 0 && rows + kLoadRows > ROWS && first_x_row() + rows >= ROWS ? rows - kLoadRows : rows;
}

void fetch() {
    [[unroll]] for (uint part = 0; part < kParts; ++part) {
        Words w = Words(w_at + part * part_bytes);
        [[unroll]] for (uint i = 0; i < kWLoads / kParts; ++i) held[part * (kWLoads / kParts) + i] = w.data[i * kLoadRows * (STRIDE / 8)];
    }
    [[unroll]] for (uint i = 0; i < kXLoads; ++i) held[kWLoads + i] = Words(x_at).data[x_row_offset(i) * (STRIDE / 8)];
}

void advance(uint bytes) {
    w_at += bytes;
    x_at += bytes;
}

// The place in the stage of a row of one part of w.
uint staged_row(uint part, uint row) { return kInterleaved ? row + (row & ~7u) + part * 8 : part * kColumns + row; }

void put() {
    const uint w_row = gl_LocalInvocationIndex / kWords, w_word = gl_LocalInvocationIndex % kWords;
    const uint per_part = kWLoads / kParts;
    [[unroll]] for (uint part = 0; part < kParts; ++part) {
        [[unroll]] for (uint i = 0; i < per_part; ++i) stage[staged_row(part, w_row + i * kLoadRows) * kStride + w_word] = held[part * per_part + i];
    }
    const uint x_stage = (N_TILE + first_x_row()) * kStride + gl_LocalInvocationIndex % kWords;
    [[unroll]] for (uint i = 0; i < kXLoads; ++i) stage[x_stage + x_row_offset(i) * kStride] = held[kWLoads + i];
}

coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> acc[kMatsN * kMatsRows];

#ifdef FRAGMENTS
const uint kFragments = K_TILE / kFragmentColumns;  // of a step
const uint kFragmentWords = kFragmentBytes / 16;
uint64_t fragments_at;                 // this lane's word of the subgroup's first fragment of the step
uvec4 x_held[kFragments * kMatsRows];  // of this step

void fetch_fragments(const uint first, const uint end) {
    const uint row_words = STRIDE / kFragmentColumns * kFragmentWords;
    [[unroll]] for (uint k = first; k < end; ++k) {
        [[unroll]] for (uint j = 0; j < kMatsRows; ++j) x_held[k * kMatsRows + j] = Words(fragments_at).data[j * row_words + k * kFragmentWords];
    }
}

// 16 rows of x and 16 of the step's k.
coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> fragment_matrix(const uint j, const uint k) {
    coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b;
    const uvec4 words = x_held[k * kMatsRows + j];
    [[unroll]] for (uint i = 0; i < 4; ++i) {
        const PAIR pair = pair_of(words[i]);
        b[2 * i] = pair.x;
        b[2 * i + 1] = pair.y;
    }
    return b;
}
#endif

// Row of the staged w where the subgroup's matrix i begins.
uint matrix_row(uint i, uint sub_n) {
    const uint per_part = kMatsN / kSubParts;
    return i / per_part * kColumns + sub_n + i % per_part * 16;
}

// 16 of the step's k, x staged as w is, or held.
void multiply_16(const uint k, uint sub_n, uint sub_row, const bool is_staged) {
    coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a[kMatsN];
    [[unroll]] for (uint i = 0; i < kMatsN; ++i)
        coopMatLoad(a[i], stage, matrix_row(i, sub_n) * kStride + k * 2, kStride, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint j = 0; j < kMatsRows; ++j) {
        coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b;
#ifdef FRAGMENTS
        if (!is_staged) b = fragment_matrix(j, k);
        else
#endif
        coopMatLoad(b, stage, (N_TILE + sub_row + j * 16) * kStride + k * 2, kStride, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint i = 0; i < kMatsN; ++i) acc[i * kMatsRows + j] = coopMatMulAdd(a[i], b, acc[i * kMatsRows + j]);
    }
}

#ifdef LORA
#include "gpu/kernels/products/matmul_adapters.glsl"
#endif
#ifdef DEFERRED
#include "gpu/kernels/products/deferred_norm.glsl"
#endif

#ifdef GATED
// Stores through shared memory, so that rows of y are written in long pieces: results, or gates and ups that are not
// yet combined.
void store_gated(uint row0, uint n0, uint sub_n, uint sub_row) {
    const uint row_words = (kInterleaved ? N_TILE : kColumns) / 4 + 1;  // f32
    const uint first = sub_row * row_words + sub_n / 4, per_part = kMatsN / kSubParts;
    barrier();
    [[unroll]] for (uint i = 0; i < per_part; ++i) {
        [[unroll]] for (uint j = 0; j < kMatsRows; ++j) {
            coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sums = acc[i * kMatsRows + j];
            if (!kInterleaved) {  // the ups' matrices are the last per_part ones
                const coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> up = acc[(kMatsN - per_part + i) * kMatsRows + j];
                for (uint e = 0; e < sums.length(); ++e) sums[e] = activate(sums[e], ACTIVATION) * up[e];
            }
            coopMatStore(sums, stage, first + j * 16 * row_words + i * 4, row_words, gl_CooperativeMatrixLayoutColumnMajor);
        }
    }
    barrier();
    const uint n_rows = min(Count(params.n_rows).value - row0, ROWS);
    for (uint i = gl_LocalInvocationIndex; i < n_rows * (kColumns / 8); i += THREADS) {
        const uint row = i / (kColumns / 8), word = i % (kColumns / 8), at = row * row_words + word * (kInterleaved ? 4 : 2);
        Eight e = Eight(uintBitsToFloat(stage[at]), uintBitsToFloat(stage[at + 1]));
        if (kInterleaved) {
            const vec4 up_lo = uintBitsToFloat(stage[at + 2]), up_hi = uintBitsToFloat(stage[at + 3]);
            [[unroll]] for (uint c = 0; c < 4; ++c) {
                e.lo[c] = activate(e.lo[c], ACTIVATION) * up_lo[c];
                e.hi[c] = activate(e.hi[c], ACTIVATION) * up_hi[c];
            }
        }
        const uvec4 words = pack8(e, kElementType);
        if (params.y != 0) Uvec4Ref(params.y + 2 * (uint64_t(row0 + row) * params.y_stride + n0 + word * 8)).v = words;
        if (params.y_fragments != 0) store8_in_fragments(params.y_fragments, row0 + row, n0 / 8 + word, params.y_stride, words, Y_ORDER);
    }
}
#endif

// The last tile is moved back into the matrix; what it shares with its neighbour is written twice, with the same bits.
uint first_column(uint column_tile) { return min(column_tile * kColumns, params.y_stride - kColumns); }

void point_at(uint n0, uint row0, uint first_k) {
    w_at = params.w + 2 * (uint64_t(n0 + gl_LocalInvocationIndex / kWords) * STRIDE + first_k);
    x_at = params.x + 2 * (uint64_t(row0 + first_x_row()) * STRIDE + first_k);
}

// Computes acc; the first step is already in flight. With `more` the first step of the tile at next_n0 is loaded behind
// the last one.
void sum_tile(uint n_steps, uint sub_n, uint sub_row, bool more, uint next_n0, uint row0, uint first_k) {
    [[unroll]] for (uint i = 0; i < kMatsN * kMatsRows; ++i)
        acc[i] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
    for (uint step_idx = 0; step_idx < n_steps; ++step_idx) {
        const bool is_last = step_idx + 1 == n_steps;
        barrier();
        put();
#ifdef FRAGMENTS
        fetch_fragments(0, kFragments / 2);
#endif
        if (LATE == 0 && (!is_last || more)) {
            if (is_last) point_at(next_n0, row0, first_k);
            else advance(K_TILE * 2);
            fetch();
        }
        barrier();
        if (LATE != 0) {
            // No branch: the last step loads itself again. Loads behind a branch, or before the stores, cost a large
            // tile more registers than there are, and what is spilled is waited for.
            advance(is_last ? 0 : K_TILE * 2);
#ifdef FRAGMENTS
            // Comes in front of the next step's w, as loads complete in order.
            fetch_fragments(kFragments / 2, kFragments);
            fragments_at += kFragments * kFragmentBytes;
#endif
            fetch();
        }
        [[unroll]] for (uint k = 0; k < K_TILE / 16; ++k) multiply_16(k, sub_n, sub_row, kXIsStaged);
    }
}

// The number of this workgroup's tile and split. Workgroups that are all at work at once are given to the
// multiprocessors one after the other, round after round, in the same order in each dispatch. Those of a
// multiprocessor, and of the group that shares a cache of address translations, get neighbouring tiles, and the same in
// each step (docs/PERFORMANCE.md, "The same rows for a group of multiprocessors").
uint own_place() {
    const uint i = gl_WorkGroupID.z * gl_NumWorkGroups.y + gl_WorkGroupID.y;
    if (UNITS == 0) return i;
    const uint n = gl_NumWorkGroups.y * gl_NumWorkGroups.z, rounds = (n + UNITS - 1) / UNITS, in_last = n - (rounds - 1) * UNITS;
    const uint unit = i % UNITS, round = i / UNITS;
    return unit * rounds - (unit > in_last ? unit - in_last : 0) + round;
}

void main() {
    const bool is_whole = WHOLE > 0 && gl_WorkGroupID.z == 0;
    if (is_whole && gl_WorkGroupID.x >= WHOLE) return;
    const uint place = own_place();
    const uint split = WHOLE == 0 ? place % gl_NumWorkGroups.y : is_whole ? 0 : gl_WorkGroupID.z - 1;
    uint column_tile = WHOLE == 0 ? place / gl_NumWorkGroups.y : gl_WorkGroupID.y;
    uint end_tile = column_tile + 1;
    if (PERSISTENT != 0) {
        const uint n_tiles = (params.n + kColumns - 1) / kColumns;
        column_tile = n_tiles * column_tile / gl_NumWorkGroups.z;
        end_tile = n_tiles * end_tile / gl_NumWorkGroups.z;
    }
    const uint row0 = (gl_WorkGroupID.x + (is_whole ? 0 : WHOLE)) * ROWS;
    // The first rows are always there: a product of one tile of rows need not wait for their number.
    if (row0 > 0 && row0 >= Count(params.n_rows).value) return;
    const uint begin = split * params.k_per_split;
    const uint n_steps = ((is_whole ? STRIDE : min(begin + params.k_per_split, STRIDE)) - begin) / K_TILE;
    const uint first_k = begin + gl_LocalInvocationIndex % kWords * 8;
    part_bytes = 2 * uint64_t(params.n) * STRIDE;
    point_at(first_column(column_tile), row0, first_k);

    const uint sub_n = gl_SubgroupID % SUB_N * (kMatsN / kSubParts * 16);
    const uint sub_row = gl_SubgroupID / SUB_N * (kMatsRows * 16);
#ifdef FRAGMENTS
    fragments_at = params.x + fragment_offset(row0 + sub_row, begin, STRIDE, kFragmentsByColumns) + gl_SubgroupInvocationID * 16;
#endif
#ifdef DEFERRED
    ask_for_squares();
#endif
    if (n_steps > 0) fetch();
#ifdef DEFERRED
    find_row_factors(place == 0);
#endif
    for (;;) {
        const uint n0 = first_column(column_tile);
        column_tile++;
        const bool more = PERSISTENT != 0 && column_tile < end_tile;
        sum_tile(n_steps, sub_n, sub_row, more, first_column(column_tile), row0, first_k);
#ifdef LORA
        if (split == 0) add_adapters(row0, n0, sub_n, sub_row);
#endif
#ifdef DEFERRED
        {
            const coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> factors = row_factor_matrix();
            [[unroll]] for (uint i = 0; i < kMatsN * kMatsRows; ++i) acc[i] = acc[i] * factors;
        }
#endif
#ifdef GATED
        store_gated(row0, n0, sub_n, sub_row);
#else
        Floats y = Floats(params.y + 4 * (uint64_t(split) * params.split_stride + uint64_t(row0) * params.y_stride + n0));
        [[unroll]] for (uint i = 0; i < kMatsN; ++i) {
            [[unroll]] for (uint j = 0; j < kMatsRows; ++j)
                coopMatStore(acc[i * kMatsRows + j], y.data, (sub_row + j * 16) * params.y_stride + sub_n + i * 16,
                             params.y_stride, gl_CooperativeMatrixLayoutColumnMajor);
        }
#endif
        if (!more) break;
    }
}
