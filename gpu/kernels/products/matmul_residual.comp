// stream[t][n] += bias[n] + sum over k of x[t][k] * w[n][k]; xn[t][n] = stream[t][n] * gamma[n] * scale[t], and of each
// tile of columns the sum of the row's squares: the norm that follows is deferred, see deferred_norm.h. For up to 16
// rows. 16-bit w, x and xn of one type, f32 sums.
// A workgroup has COLUMNS rows of w whole, each of its subgroups every so many steps of their k; the subgroups' sums
// meet in shared memory. w and x go straight into the registers of KHR matrices, 16 bytes of a row for each lane: lane
// 4 g + t has elements 8t..8t+7 of 32 of k, of rows g and g + 8, and the two matrices that these fill have them in the
// same order in A and in B, so that k is permuted alike. What of a matrix a lane holds is NVIDIA's
// (activation_fragments.h);
// a test at the start shows whether a device has these.
// Grid: (tiles of columns). Bytes: the matrix once.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#ifdef BF16
#extension GL_EXT_bfloat16 : require
#define ELEMENT bfloat16_t
#else
#define ELEMENT float16_t
#endif
#include "gpu/kernels/element_pairs.glsl"
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/products/deferred_norm.h"
#include "gpu/kernels/products/matmul_residual.params.h"

layout(constant_id = 1) const uint COLUMNS = 32;  // an even number, at most 32
layout(constant_id = 2) const uint ROWS = 16;     // 8 or 16
layout(constant_id = 3) const uint K_STEP = 64;   // elements of k, a multiple of 32
layout(constant_id = 4) const uint STRIDE = 64;   // w_stride: literal, so that one base address serves all loads
layout(constant_id = 5) const uint HAS_BIAS = 0;
layout(push_constant, scalar) uniform Push { MatmulResidualParams p; };

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words { uvec4 data[]; };

const uint kType =
#ifdef BF16
    2;
#else
    1;
#endif
const uint kSubgroup = 32;
const uint kSubgroups = gl_WorkGroupSize.x / kSubgroup;
const uint kMats = (COLUMNS + 15) / 16;
const uint kLaneRows = (COLUMNS + 7) / 8;  // of w that a lane has words of
const uint kChunks = K_STEP / 32;
const uint kXRows = ROWS / 8;  // of a lane
const uint kSumStride = kMats * 16;
const uint kPairs = kSumStride / 2;

shared float sums[kSubgroups * 16 * kSumStride];

uvec4 w_held[kChunks * kMats * 2], x_held[kChunks * kXRows];  // the next step
// where this lane's words of it lie; the last rows of w where they are no whole eight
uint64_t w_at, w_last_at, x_at;

void fetch() {
    [[unroll]] for (uint c = 0; c < kChunks; ++c) {
        [[unroll]] for (uint i = 0; i < kLaneRows; ++i)
            w_held[c * kMats * 2 + i] = (i + 1) * 8 <= COLUMNS ? Words(w_at).data[i * STRIDE + c * 4] : Words(w_last_at).data[c * 4];
        [[unroll]] for (uint i = 0; i < kXRows; ++i) x_held[c * kXRows + i] = Words(x_at).data[i * STRIDE + c * 4];
    }
}

void advance() {
    const uint bytes = kSubgroups * K_STEP * 2;
    w_at += bytes;
    w_last_at += bytes;
    x_at += bytes;
}

coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> matrix_a(const uvec2 low, const uvec2 high) {
    coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a;
    const PAIR p0 = pair_of(low.x), p1 = pair_of(low.y), p2 = pair_of(high.x), p3 = pair_of(high.y);
    a[0] = p0.x;
    a[1] = p0.y;
    a[2] = p1.x;
    a[3] = p1.y;
    a[4] = p2.x;
    a[5] = p2.y;
    a[6] = p3.x;
    a[7] = p3.y;
    return a;
}

coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> matrix_b(const uvec2 low, const uvec2 high) {
    coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b;
    const PAIR p0 = pair_of(low.x), p1 = pair_of(low.y), p2 = pair_of(high.x), p3 = pair_of(high.y);
    b[0] = p0.x;
    b[1] = p0.y;
    b[2] = p1.x;
    b[3] = p1.y;
    b[4] = p2.x;
    b[5] = p2.y;
    b[6] = p3.x;
    b[7] = p3.y;
    return b;
}

coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> acc[kMats];

void multiply() {
    [[unroll]] for (uint c = 0; c < kChunks; ++c) {
        const uvec4 low = x_held[c * kXRows], high = kXRows > 1 ? x_held[c * kXRows + kXRows - 1] : uvec4(0);
        [[unroll]] for (uint part = 0; part < 2; ++part) {
            const coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b = matrix_b(part == 0 ? low.xy : low.zw, part == 0 ? high.xy : high.zw);
            [[unroll]] for (uint i = 0; i < kMats; ++i) {
                const uvec4 w_low = w_held[c * kMats * 2 + 2 * i];
                const uvec4 w_high = 2 * i + 1 < kLaneRows ? w_held[c * kMats * 2 + 2 * i + 1] : uvec4(0);
                acc[i] = coopMatMulAdd(matrix_a(part == 0 ? w_low.xy : w_low.zw, part == 0 ? w_high.xy : w_high.zw), b, acc[i]);
            }
        }
    }
}

void main() {
    const uint tile = gl_WorkGroupID.x, n0 = tile * COLUMNS, thread = gl_LocalInvocationIndex;
    const uint lane_row = gl_SubgroupInvocationID / 4, lane_k = gl_SubgroupID * K_STEP + gl_SubgroupInvocationID % 4 * 8;
    w_at = p.w + 2 * (uint64_t(n0 + lane_row) * STRIDE + lane_k);
    w_last_at = p.w + 2 * (uint64_t(n0 + min(COLUMNS / 8 * 8 + lane_row, COLUMNS - 1)) * STRIDE + lane_k);
    x_at = p.x + 2 * (uint64_t(lane_row) * STRIDE + lane_k);
    const uint first_k = gl_SubgroupID * K_STEP, n_steps = first_k < STRIDE ? (STRIDE - first_k + kSubgroups * K_STEP - 1) / (kSubgroups * K_STEP) : 0;
    if (n_steps > 0) fetch();

    // Loads what is needed at the end.
    const uint row = thread / kPairs, in_tile = thread % kPairs * 2, column = n0 + in_tile;
    const bool has_pair = row < ROWS, is_inside = has_pair && in_tile < COLUMNS;
    const uint n_rows = UintRef(p.n_rows).v;
    vec2 value = vec2(0.0), gamma = vec2(0.0), bias = vec2(0.0);
    float scale = 0.0;
    const uint64_t stream_at = p.stream + 4 * (uint64_t(row) * p.stream_stride + column);
    if (is_inside) {
        value = Vec2Ref(stream_at).v;
        gamma = Vec2Ref(p.gamma + 4 * column).v;
        if (HAS_BIAS != 0) bias = Vec2Ref(p.bias + 4 * column).v;
        scale = FloatRef(p.norms + kDeferredInverse + row * 4).v / float(kDeferredMargin);
    }

    [[unroll]] for (uint i = 0; i < kMats; ++i) acc[i] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
    for (uint step_idx = 1; step_idx < n_steps; ++step_idx) {
        multiply();
        advance();
        fetch();
    }
    if (n_steps > 0) multiply();
    [[unroll]] for (uint i = 0; i < kMats; ++i)
        coopMatStore(acc[i], sums, gl_SubgroupID * 16 * kSumStride + i * 16, kSumStride, gl_CooperativeMatrixLayoutColumnMajor);
    barrier();
    if (!has_pair) return;
    vec2 sum = vec2(0.0);
    [[unroll]] for (uint i = 0; i < kSubgroups; ++i) {
        const uint at = (i * 16 + row) * kSumStride + in_tile;
        sum += vec2(sums[at], sums[at + 1]);
    }
    value += sum + bias;
    const float own_squares = is_inside ? fma(value.x, value.x, value.y * value.y) : 0.0;
    float squares = 0.0;
    const uint row_in_subgroup = gl_SubgroupInvocationID / kPairs;
    [[unroll]] for (uint i = 0; i < kSubgroup / kPairs; ++i) {
        const float of_row = subgroupAdd(row_in_subgroup == i ? own_squares : 0.0);
        if (row_in_subgroup == i) squares = of_row;
    }
    if (row >= n_rows || !is_inside) return;
    Vec2Ref(stream_at).v = value;
    vec2 xn = value * gamma * scale;
    if (kType == 1) xn = clamp(xn, vec2(-65504.0), vec2(65504.0));
    UintRef(p.xn + 2 * (uint64_t(row) * p.xn_stride + column)).v = pack_pair(xn, kType);
    if (in_tile == 0) {
        FloatRef(p.norms + kDeferredSquares + 4 * (tile * ROWS + row)).v = squares;
        if (tile == 0) FloatRef(p.norms + kDeferredScale + row * 4).v = scale;
    }
}
