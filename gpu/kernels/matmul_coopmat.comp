// y[split][t][n] = sum over the split's k of x[t][k] * w[n][k] on KHR cooperative matrices, 16-bit w and x of one type
// (macro ELEMENT), f32 sums. Made for 9 to 128 rows: the weights are streamed once, w and x tiles are staged through shared
// memory, the next step's 16-byte loads are in flight in registers while the current step is multiplied.
// Grid: (row tiles, tiles of w rows, splits). Bytes: the matrix once per row tile, x once per workgroup from the caches.
// With LORA the adapters' part comes on top: see matmul_adapters.glsl.
// Workgroup: SUB_N subgroups along n, the others along the rows; every subgroup holds its part of the tile as accumulators.
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
#ifdef LORA
#include "gpu/kernels/common.glsl"
#else
layout(local_size_x_id = 0) in;
#endif
#include "gpu/kernels/matmul.params.h"

layout(constant_id = 0) const uint THREADS = 128;
layout(constant_id = 1) const uint N_TILE = 64;    // rows of w per workgroup
layout(constant_id = 2) const uint ROWS = 32;      // rows of x per workgroup
layout(constant_id = 3) const uint K_TILE = 64;    // elements of k per step
layout(constant_id = 4) const uint SUB_N = 4;      // subgroups along n
layout(constant_id = 5) const uint STRIDE = 64;    // w_stride and x_stride: literal, so that one base address serves all loads
layout(constant_id = 6) const uint SUBGROUP = 32;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Count { uint value; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Floats { float data[]; };
#ifdef LORA
layout(push_constant, scalar) uniform Push { MatmulLoraParams p; };
#define params p.product
#else
layout(push_constant, scalar) uniform Push { MatmulParams params; };
#endif

// Shared rows are padded by 16 bytes, so that eight rows of a matrix load fall into different banks.
const uint kWords = K_TILE / 8;       // 16-byte words of one row in one step
const uint kStride = kWords + 1;
const uint kWLoads = N_TILE * kWords / THREADS;
const uint kXLoads = (ROWS * kWords + THREADS - 1) / THREADS;
const uint kLoads = kWLoads + kXLoads;
const uint kLoadRows = THREADS / kWords;           // rows that all threads together fetch with one load each
const uint kSubRows = THREADS / SUBGROUP / SUB_N;  // subgroups along the rows of x
const uint kMatsN = N_TILE / SUB_N / 16;
const uint kMatsRows = ROWS / kSubRows / 16;
const bool kXExact = ROWS * kWords % THREADS == 0;

shared uvec4 stage[(N_TILE + ROWS) * kStride];

uvec4 held[kLoads];  // the next step
uint64_t w_at, x_at;  // where this thread's first word of the next step lies

bool has_x(uint i) { return kXExact || i * THREADS + gl_LocalInvocationIndex < ROWS * kWords; }

void fetch() {
    [[unroll]] for (uint i = 0; i < kWLoads; ++i) held[i] = Words(w_at).data[i * kLoadRows * (STRIDE / 8)];
    [[unroll]] for (uint i = 0; i < kXLoads; ++i) {
        if (has_x(i)) held[kWLoads + i] = Words(x_at).data[i * kLoadRows * (STRIDE / 8)];
    }
    w_at += K_TILE * 2;
    x_at += K_TILE * 2;
}

void put() {
    const uint at = gl_LocalInvocationIndex / kWords * kStride + gl_LocalInvocationIndex % kWords;
    [[unroll]] for (uint i = 0; i < kWLoads; ++i) stage[at + i * kLoadRows * kStride] = held[i];
    [[unroll]] for (uint i = 0; i < kXLoads; ++i) {
        if (has_x(i)) stage[at + (N_TILE + i * kLoadRows) * kStride] = held[kWLoads + i];
    }
}

coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> acc[kMatsN * kMatsRows];

// 16 of the staged k.
void multiply_16(uint k, uint sub_n, uint sub_row) {
    coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a[kMatsN];
    [[unroll]] for (uint i = 0; i < kMatsN; ++i)
        coopMatLoad(a[i], stage, (sub_n + i * 16) * kStride + k * 2, kStride, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint j = 0; j < kMatsRows; ++j) {
        coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b;
        coopMatLoad(b, stage, (N_TILE + sub_row + j * 16) * kStride + k * 2, kStride, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint i = 0; i < kMatsN; ++i) acc[i * kMatsRows + j] = coopMatMulAdd(a[i], b, acc[i * kMatsRows + j]);
    }
}

#ifdef LORA
#include "gpu/kernels/matmul_adapters.glsl"
#endif

void main() {
    const uint row0 = gl_WorkGroupID.x * ROWS;
    if (row0 >= Count(params.n_rows).value) return;
    // The last tile is moved back into the matrix; what it shares with its neighbour is written twice, with the same bits.
    const uint n0 = min(gl_WorkGroupID.y * N_TILE, params.y_stride - N_TILE);
    const uint begin = gl_WorkGroupID.z * params.k_per_split;
    const uint n_steps = (min(begin + params.k_per_split, STRIDE) - begin) / K_TILE;
    const uint first_row = gl_LocalInvocationIndex / kWords;
    const uint first_k = begin + gl_LocalInvocationIndex % kWords * 8;
    w_at = params.w + 2 * (uint64_t(n0 + first_row) * STRIDE + first_k);
    x_at = params.x + 2 * (uint64_t(row0 + first_row) * STRIDE + first_k);

    const uint sub_n = gl_SubgroupID % SUB_N * (kMatsN * 16);
    const uint sub_row = gl_SubgroupID / SUB_N * (kMatsRows * 16);
    [[unroll]] for (uint i = 0; i < kMatsN * kMatsRows; ++i)
        acc[i] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);

    if (n_steps > 0) fetch();
    for (uint step_idx = 0; step_idx < n_steps; ++step_idx) {
        barrier();
        put();
        if (step_idx + 1 < n_steps) fetch();
        barrier();
        [[unroll]] for (uint k = 0; k < K_TILE / 16; ++k) multiply_16(k, sub_n, sub_row);
    }

#ifdef LORA
    if (gl_WorkGroupID.z == 0) add_adapters(row0, n0, sub_n, sub_row);
#endif
    Floats y = Floats(params.y + 4 * (uint64_t(gl_WorkGroupID.z) * params.split_stride + uint64_t(row0) * params.y_stride + n0));
    [[unroll]] for (uint i = 0; i < kMatsN; ++i) {
        [[unroll]] for (uint j = 0; j < kMatsRows; ++j)
            coopMatStore(acc[i * kMatsRows + j], y.data, (sub_row + j * 16) * params.y_stride + sub_n + i * 16,
                         params.y_stride, gl_CooperativeMatrixLayoutColumnMajor);
    }
}
