// y[split][t][n] = sum over the split's k of x[t][k] * w[n][k] on KHR cooperative matrices, 16-bit w and x of one type
// (macro ELEMENT), f32 sums. Made for 9 to 128 rows: the weights are streamed once, w and x tiles are staged through shared
// memory, the next step's 16-byte loads are in flight in registers while the current step is multiplied.
// Grid: (tiles of w rows, splits, row tiles). Bytes: the matrix once per row tile, x once per workgroup from the caches.
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
#include "gpu/kernels/matmul.params.h"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;
layout(constant_id = 1) const uint N_TILE = 64;    // rows of w per workgroup
layout(constant_id = 2) const uint ROWS = 32;      // rows of x per workgroup
layout(constant_id = 3) const uint K_TILE = 64;    // elements of k per step
layout(constant_id = 4) const uint MAT_N = 16;     // rows of x per cooperative matrix
layout(constant_id = 5) const uint SUB_N = 4;      // subgroups along n
layout(constant_id = 6) const uint DEPTH = 1;      // steps in flight in registers
layout(constant_id = 7) const uint BUFFERS = 2;    // shared-memory buffers: 1 or 2
layout(constant_id = 8) const uint SUBGROUP = 32;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Count { uint value; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Floats { float data[]; };
layout(push_constant, scalar) uniform Push { MatmulParams params; };

// Shared rows are padded by 16 bytes, so that eight rows of a matrix load fall into different banks.
const uint kWords = K_TILE / 8;       // 16-byte words of one row in one step
const uint kStride = kWords + 1;
const uint kBuffer = (N_TILE + ROWS) * kStride;
const uint kWLoads = N_TILE * kWords / THREADS;
const uint kXLoads = (ROWS * kWords + THREADS - 1) / THREADS;
const uint kLoads = kWLoads + kXLoads;
const uint kSubRows = THREADS / SUBGROUP / SUB_N;  // subgroups along the rows
const uint kMatsN = N_TILE / SUB_N / 16;
const uint kMatsRows = ROWS / kSubRows / MAT_N;

shared uvec4 stage[BUFFERS * kBuffer];

uvec4 held[DEPTH * kLoads];
uint w_at[kWLoads];  // where this thread's words of the first step lie, in units of 16 bytes
uint x_at[kXLoads];

void fetch(uint slot, uint step_word, Words w, Words x) {
    [[unroll]] for (uint i = 0; i < kWLoads; ++i) held[slot * kLoads + i] = w.data[w_at[i] + step_word];
    [[unroll]] for (uint i = 0; i < kXLoads; ++i) {
        if (ROWS * kWords % THREADS == 0 || i * THREADS + gl_LocalInvocationIndex < ROWS * kWords)
            held[slot * kLoads + kWLoads + i] = x.data[x_at[i] + step_word];
    }
}

void put(uint slot, uint buffer_idx) {
    const uint base = buffer_idx * kBuffer;
    [[unroll]] for (uint i = 0; i < kWLoads; ++i) {
        const uint idx = i * THREADS + gl_LocalInvocationIndex;
        stage[base + idx / kWords * kStride + idx % kWords] = held[slot * kLoads + i];
    }
    [[unroll]] for (uint i = 0; i < kXLoads; ++i) {
        const uint idx = i * THREADS + gl_LocalInvocationIndex;
        if (ROWS * kWords % THREADS == 0 || idx < ROWS * kWords)
            stage[base + (N_TILE + idx / kWords) * kStride + idx % kWords] = held[slot * kLoads + kWLoads + i];
    }
}

void main() {
    const uint row0 = gl_WorkGroupID.z * ROWS;
    if (row0 >= Count(params.n_rows).value) return;
    const uint n0 = gl_WorkGroupID.x * N_TILE;
    const uint begin = gl_WorkGroupID.y * params.k_per_split;
    const uint n_steps = (min(begin + params.k_per_split, params.w_stride) - begin) / K_TILE;
    Words w = Words(params.w);
    Words x = Words(params.x);
    [[unroll]] for (uint i = 0; i < kWLoads; ++i) {
        const uint idx = i * THREADS + gl_LocalInvocationIndex;
        w_at[i] = min(n0 + idx / kWords, params.y_stride - 1) * (params.w_stride / 8) + begin / 8 + idx % kWords;
    }
    [[unroll]] for (uint i = 0; i < kXLoads; ++i) {
        const uint idx = i * THREADS + gl_LocalInvocationIndex;
        x_at[i] = (row0 + idx / kWords) * (params.x_stride / 8) + begin / 8 + idx % kWords;
    }

    const uint sub_n = gl_SubgroupID % SUB_N * (kMatsN * 16);
    const uint sub_row = gl_SubgroupID / SUB_N * (kMatsRows * MAT_N);
    coopmat<float, gl_ScopeSubgroup, 16, MAT_N, gl_MatrixUseAccumulator> acc[kMatsN * kMatsRows];
    [[unroll]] for (uint i = 0; i < kMatsN * kMatsRows; ++i)
        acc[i] = coopmat<float, gl_ScopeSubgroup, 16, MAT_N, gl_MatrixUseAccumulator>(0.0);

    [[unroll]] for (uint d = 0; d < DEPTH; ++d) {
        if (d < n_steps) fetch(d, d * kWords, w, x);
    }
    for (uint first = 0; first < n_steps; first += DEPTH) {
        [[unroll]] for (uint d = 0; d < DEPTH; ++d) {
            const uint step_idx = first + d;
            if (step_idx < n_steps) {
                const uint buffer_idx = BUFFERS == 1 ? 0 : step_idx % 2;
                if (BUFFERS == 1) barrier();
                put(d, buffer_idx);
                if (step_idx + DEPTH < n_steps) fetch(d, (step_idx + DEPTH) * kWords, w, x);
                barrier();
                const uint base = buffer_idx * kBuffer;
                [[unroll]] for (uint k = 0; k < K_TILE / 16; ++k) {
                    coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a[kMatsN];
                    [[unroll]] for (uint i = 0; i < kMatsN; ++i)
                        coopMatLoad(a[i], stage, base + (sub_n + i * 16) * kStride + k * 2, kStride,
                                    gl_CooperativeMatrixLayoutRowMajor);
                    [[unroll]] for (uint j = 0; j < kMatsRows; ++j) {
                        coopmat<ELEMENT, gl_ScopeSubgroup, 16, MAT_N, gl_MatrixUseB> b;
                        coopMatLoad(b, stage, base + (N_TILE + sub_row + j * MAT_N) * kStride + k * 2, kStride,
                                    gl_CooperativeMatrixLayoutColumnMajor);
                        [[unroll]] for (uint i = 0; i < kMatsN; ++i)
                            acc[i * kMatsRows + j] = coopMatMulAdd(a[i], b, acc[i * kMatsRows + j]);
                    }
                }
            }
        }
    }

    Floats y = Floats(params.y + 4 * (uint64_t(gl_WorkGroupID.y) * params.split_stride));
    [[unroll]] for (uint i = 0; i < kMatsN; ++i) {
        const uint n = n0 + sub_n + i * 16;
        if (n < params.y_stride) {
            [[unroll]] for (uint j = 0; j < kMatsRows; ++j)
                coopMatStore(acc[i * kMatsRows + j], y.data, (row0 + sub_row + j * MAT_N) * params.y_stride + n,
                             params.y_stride, gl_CooperativeMatrixLayoutColumnMajor);
        }
    }
}
