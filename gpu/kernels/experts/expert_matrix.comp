// expert_matrix: expert_product on KHR cooperative matrices, 16-bit w and x of one type (macro ELEMENT), f32 sums:
//   y[pair][i] = w[expert of pair][i] . x[row of pair]; with GATED what gate and up become, in ELEMENT
// A workgroup takes a tile of up to ROWS pairs of one expert and N_TILE rows of its matrix. w and the pairs' rows of x
// are staged through shared memory, the next step's 16-byte loads are in flight in registers while the current step is
// multiplied. A sum's order does not depend on N_TILE, ROWS or the other pairs of the tile.
// grid (tiles of w rows, tiles at most): neighbours share rows of x, and then a matrix. Moves each expert's matrix once
// for each of its tiles.
// With PACKED w is a packed part (weight_format.h): a thread has its codes and scales of the next step in registers, and
// stages what they stand for, rounded to ELEMENT.
// With GATED a workgroup has the gates of N_TILE / 2 outputs and their ups.
// Workgroup: SUB_N subgroups along n, the others along the pairs.
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
#include "gpu/kernels/common.glsl"
#ifdef PACKED
#include "gpu/kernels/formats/weights.glsl"
#endif
#include "gpu/kernels/experts/expert_route.params.h"
#include "gpu/kernels/experts/expert_product.params.h"
#include "gpu/kernels/rows/activation.glsl"

layout(constant_id = 0) const uint THREADS = 128;
layout(constant_id = 1) const uint N_TILE = 64;   // rows of w per workgroup
layout(constant_id = 2) const uint ROWS = 16;     // pairs per workgroup
layout(constant_id = 3) const uint K_TILE = 64;   // elements of k per step
layout(constant_id = 4) const uint SUB_N = 4;     // subgroups along n
layout(constant_id = 5) const uint STRIDE = 64;   // of w and x, in elements
layout(constant_id = 6) const uint SUBGROUP = 32;
layout(constant_id = 7) const uint GATED = 0;
layout(constant_id = 8) const uint kActivation = 0;
layout(constant_id = 9) const uint kClamped = 0;
layout(constant_id = 10) const uint INTERLEAVED = 0;
layout(constant_id = 11) const uint HAS_BIAS = 0;
#ifdef PACKED
layout(constant_id = 12) const uint kWeight = kWeightsMXFP4;  // WeightKind::constant()
#endif
#include "gpu/kernels/experts/expert_gate.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer ExpertTileRef { ExpertTile v; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words { uvec4 data[]; };
layout(push_constant, scalar) uniform Push { ExpertProductParams p; };

// Shared rows are padded by 16 bytes, so that eight rows of a matrix load fall into different banks.
const uint kWords = K_TILE / 8;  // 16-byte words of one row in one step
const uint kStride = kWords + 1;
const uint kWLoads = N_TILE * kWords / THREADS;
const uint kXLoads = ROWS * kWords / THREADS;
const uint kLoadRows = THREADS / kWords;           // rows that all threads together fetch with one load each
const uint kSubRows = THREADS / SUBGROUP / SUB_N;  // subgroups along the pairs
const uint kMatsN = N_TILE / SUB_N / 16;
const uint kMatsRows = ROWS / kSubRows / 16;
const uint kResultWords = N_TILE / 4 + 1;  // of 16 bytes, of one row of results
const uint kColumns = GATED != 0 ? N_TILE / 2 : N_TILE;  // of y
const uint kRowStep = GATED != 0 && INTERLEAVED != 0 ? 2 : 1;  // rows of w from one of a part to the next
const uint kPartLoads = GATED != 0 ? kWLoads / 2 : kWLoads;
const uint kElementType =
#ifdef BF16
    2;
#else
    1;
#endif

shared uvec4 stage[(N_TILE + ROWS) * kStride];
shared uint pairs[ROWS];

// The next step, and where this thread's words of it lie.
uvec4 x_held[kXLoads];
uint64_t x_at[kXLoads];
#ifdef PACKED
uvec3 codes_held[kWLoads];
uvec4 scales_held[kWLoads];
uint w_row;      // of all experts' rows
uint part_rows;  // from a gate's row of w to its up's
#else
uvec4 w_held[kWLoads];
uint64_t w_at, part_bytes;  // from a gate's row of w to its up's
#endif
coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> acc[kMatsN * kMatsRows];

#ifdef PACKED
uint row_of_load(const uint i) { return w_row + i / kPartLoads * part_rows + i % kPartLoads * (kLoadRows * kRowStep); }
// The column of this thread's eight weights in a step.
uint column_in(uint step_idx) { return step_idx * K_TILE + gl_LocalInvocationIndex % kWords * 8; }
uint piece_at(uint column) { return column % brick_columns(format_in(kWeight)) / kPieceColumns; }

void fetch_w(uint step_idx) {
    const uint format = format_in(kWeight), column = column_in(step_idx), piece = piece_at(column);
    [[unroll]] for (uint i = 0; i < kWLoads; ++i) {
        const uint row = row_of_load(i);
        const uint64_t brick = brick_at(p.w, row, column, STRIDE, format);
        codes_held[i] = code_words(brick, row, piece, column / 8 % 4, format);
        scales_held[i] = scale_words(brick, row, piece, format);
    }
}
uvec4 w_word(const uint i, uint step_idx) {
    const uint format = format_in(kWeight), column = column_in(step_idx);
    const PieceScale scale = scale_of(scales_held[i], row_of_load(i), piece_at(column), format);
    return pack8(numbers_in(codes_held[i], column / 8 % 4, scale, p.w - kPartTableBytes, format), kElementType);
}
#else
void fetch_w(uint step_idx) {
    [[unroll]] for (uint i = 0; i < kWLoads; ++i) w_held[i] = Words(w_at + i / kPartLoads * part_bytes).data[i % kPartLoads * (kLoadRows * kRowStep * (STRIDE / 8)) + step_idx * kWords];
}
uvec4 w_word(const uint i, uint step_idx) { return w_held[i]; }
#endif

void fetch(uint step_idx) {
    fetch_w(step_idx);
    [[unroll]] for (uint i = 0; i < kXLoads; ++i) x_held[i] = Words(x_at[i]).data[step_idx * kWords];
}

void put(uint step_idx) {
    const uint at = gl_LocalInvocationIndex / kWords * kStride + gl_LocalInvocationIndex % kWords;
    [[unroll]] for (uint i = 0; i < kWLoads; ++i) stage[at + i * kLoadRows * kStride] = w_word(i, step_idx);
    [[unroll]] for (uint i = 0; i < kXLoads; ++i) stage[at + (N_TILE + i * kLoadRows) * kStride] = x_held[i];
}

// 16 of the step's k.
void multiply_16(const uint k, uint sub_n, uint sub_row) {
    coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a[kMatsN];
    [[unroll]] for (uint i = 0; i < kMatsN; ++i)
        coopMatLoad(a[i], stage, (sub_n + i * 16) * kStride + k * 2, kStride, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint j = 0; j < kMatsRows; ++j) {
        coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b;
        coopMatLoad(b, stage, (N_TILE + sub_row + j * 16) * kStride + k * 2, kStride, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint i = 0; i < kMatsN; ++i) acc[i * kMatsRows + j] = coopMatMulAdd(a[i], b, acc[i * kMatsRows + j]);
    }
}

vec4 staged_sums(uint word) { return uintBitsToFloat(stage[word]); }

// Eight outputs, whose gates and ups are staged.
void store_gated(uint pair, uint expert, uint output_idx, uint gates, uint ups) {
    float value[8];
    [[unroll]] for (uint i = 0; i < 8; ++i) {
        float gate = staged_sums(gates + i / 4)[i % 4], up = staged_sums(ups + i / 4)[i % 4];
        if (HAS_BIAS != 0) {
            const uint64_t bias = p.bias + uint64_t(expert) * p.n * 4;
            gate += FloatRef(bias + (output_idx + i) * kRowStep * 4).v;
            up += FloatRef(bias + (INTERLEAVED != 0 ? 2 * (output_idx + i) + 1 : p.n / 2 + output_idx + i) * 4).v;
        }
        value[i] = gated(gate, up, p.alpha, p.limit);
    }
    const Eight e = Eight(vec4(value[0], value[1], value[2], value[3]), vec4(value[4], value[5], value[6], value[7]));
    Uvec4Ref(p.y + 2 * (uint64_t(pair) * p.y_stride + output_idx)).v = pack8(e, kElementType);
}

// Through shared memory, 16 rows of each subgroup at a time: the rows of y belong to any pairs.
void store(ExpertTile tile, uint n0, uint sub_n) {
    const uint first_row = gl_SubgroupID / SUB_N * 16;  // of those that are stored together
    const uint words = GATED != 0 ? kColumns / 8 : kColumns / 4;  // of a row, of eight or of four outputs
    [[unroll]] for (uint j = 0; j < kMatsRows; ++j) {
        barrier();
        [[unroll]] for (uint i = 0; i < kMatsN; ++i)
            coopMatStore(acc[i * kMatsRows + j], stage, first_row * kResultWords + sub_n / 4 + i * 4, kResultWords, gl_CooperativeMatrixLayoutColumnMajor);
        barrier();
        for (uint i = gl_LocalInvocationIndex; i < kSubRows * 16 * words; i += THREADS) {
            const uint staged = i / words, word = i % words, row = staged / 16 * (kMatsRows * 16) + j * 16 + staged % 16;
            if (row >= tile.n) continue;
            const uint at = staged * kResultWords;
            if (GATED != 0) store_gated(pairs[row], tile.expert, n0 + word * 8, at + word * 2, at + N_TILE / 8 + word * 2);
            else Vec4Ref(p.y + (uint64_t(pairs[row]) * p.y_stride + n0 + word * 4) * 4).v = staged_sums(at + word);
        }
    }
}

void main() {
    if (gl_WorkGroupID.y >= UintRef(p.n_tiles).v) return;
    const ExpertTile tile = ExpertTileRef(p.tiles + uint64_t(gl_WorkGroupID.y) * 16).v;
    // The last tile of columns is moved back into the matrix; what it shares with its neighbour is written twice, with
    // the same bits.
    const uint n0 = min(gl_WorkGroupID.x * kColumns, (GATED != 0 ? p.n / 2 : p.n) - kColumns);
    const uint first_row = gl_LocalInvocationIndex / kWords, first_k = gl_LocalInvocationIndex % kWords * 8;
    const uint to_up = INTERLEAVED != 0 ? 1 : p.n / 2;
#ifdef PACKED
    w_row = tile.expert * p.n + (n0 + first_row) * kRowStep;
    part_rows = to_up;
#else
    w_at = p.w + 2 * ((uint64_t(tile.expert) * p.n + (n0 + first_row) * kRowStep) * STRIDE + first_k);
    part_bytes = uint64_t(to_up) * (2 * STRIDE);
#endif
    // Pairs that there are not are read as the last one.
    [[unroll]] for (uint i = 0; i < kXLoads; ++i) {
        const uint pair = UintRef(p.sorted + uint64_t(tile.begin + min(first_row + i * kLoadRows, tile.n - 1)) * 4).v;
        x_at[i] = p.x + 2 * (uint64_t(pair / p.pairs_per_row) * STRIDE + first_k);
    }
    for (uint row = gl_LocalInvocationIndex; row < tile.n; row += THREADS) pairs[row] = UintRef(p.sorted + uint64_t(tile.begin + row) * 4).v;
    const uint sub_n = gl_SubgroupID % SUB_N * (kMatsN * 16), sub_row = gl_SubgroupID / SUB_N * (kMatsRows * 16);
    const uint n_steps = STRIDE / K_TILE;
    [[unroll]] for (uint i = 0; i < kMatsN * kMatsRows; ++i)
        acc[i] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
    fetch(0);
    for (uint step_idx = 0; step_idx < n_steps; ++step_idx) {
        barrier();
        put(step_idx);
        // The last step is loaded again: a branch around loads costs more.
        fetch(min(step_idx + 1, n_steps - 1));
        barrier();
        [[unroll]] for (uint k = 0; k < K_TILE / 16; ++k) multiply_16(k, sub_n, sub_row);
    }
    store(tile, n0, sub_n);
}
