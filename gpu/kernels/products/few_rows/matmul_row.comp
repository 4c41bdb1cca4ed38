// One row of x by plain weights, with what comes behind it: sum[n] = sum over k of x[k] * w[n][k], then by END
//   sums      y[n] = sum[n]
//   gated     y[f] = activation(sum[f]) * sum[n + f], elements n.. of y are zeroed
//   residual  stream[n] += bias[n] + sum[n]; xn[n] = stream[n] * gamma[n]; of each tile of columns the stream's squares
// With NORM_TILES x is what a product that ended in the residual stream left in as many tiles: sums are multiplied by
// the norm's factor, which is 1 / sqrt(mean of the stream's squares + eps).
//   w  [n_padded][w_stride]  WEIGHT_TYPE
//   x  [x_stride]            ACT_TYPE, as y of a gated product and xn
// A workgroup has COLUMNS rows of w, of a gated product half of them gates and half their ups, and k whole: thread i
// takes the words i, i + workgroup, ..., UNROLL of each row at once, so that neighbours load neighbouring 16 bytes.
// Grid: (tiles of columns). Bytes: the matrix once, x once per workgroup from the caches.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/products/deferred_norm.h"
#include "gpu/kernels/products/few_rows/matmul_row.params.h"
#include "gpu/kernels/rows/activation.glsl"

layout(constant_id = 1) const uint kWeightType = 0;
layout(constant_id = 2) const uint kActType = 0;
layout(constant_id = 3) const uint kColumns = 4;
layout(constant_id = 4) const uint kUnroll = 2;
layout(constant_id = 5) const uint kEnd = 0;
layout(constant_id = 6) const uint kNormTiles = 0;
layout(constant_id = 7) const uint kActivation = 0;
layout(constant_id = 8) const uint kHasBias = 0;
layout(push_constant, scalar) uniform Push { MatmulRowParams p; };

const uint kEndSums = 0, kEndGated = 1, kEndResidual = 2;
const uint kThreads = gl_WorkGroupSize.x;
const uint kOutputs = kEnd == kEndGated ? kColumns / 2 : kColumns;
const uint kParts = kColumns + 1;  // of a subgroup: its sums and squares
const uint kSubgroupsMax = kThreads < 4 ? 1 : kThreads / 4;
shared float parts[kSubgroupsMax * kParts];
shared float output_squares[kColumns];

// Eight elements as they lie in memory; hi is of f32 alone.
struct Raw {
    uvec4 lo, hi;
};
Raw load_raw(uint64_t base, uint chunk, const uint type) {
    if (type != 0) return Raw(Uvec4Ref(base + uint64_t(chunk) * 16).v, uvec4(0));
    const uint64_t at = base + uint64_t(chunk) * 32;
    return Raw(Uvec4Ref(at).v, Uvec4Ref(at + 16).v);
}
Eight eight_of(Raw raw, const uint type) {
    return type == 0 ? Eight(uintBitsToFloat(raw.lo), uintBitsToFloat(raw.hi)) : unpack8(raw.lo, type);
}

uint64_t w_row[kColumns];
float acc[kColumns];

// UNROLL words of each row from `first` on; beyond the last word of a row it adds nothing.
void add_words(uint first, uint n_chunks, const bool may_end) {
    Raw w[kUnroll][kColumns];
    [[unroll]] for (uint u = 0; u < kUnroll; u++) {
        const uint chunk = may_end ? min(first + u * kThreads, n_chunks - 1) : first + u * kThreads;
        [[unroll]] for (uint i = 0; i < kColumns; i++) w[u][i] = load_raw(w_row[i], chunk, kWeightType);
    }
    [[unroll]] for (uint u = 0; u < kUnroll; u++) {
        const uint chunk = first + u * kThreads;
        if (may_end && chunk >= n_chunks) break;
        const Eight x = load8(p.product.x, chunk, kActType);
        [[unroll]] for (uint i = 0; i < kColumns; i++) acc[i] = dot8(eight_of(w[u][i], kWeightType), x, acc[i]);
    }
}

// The sum of this thread's share of the squares that the product before left.
float load_squares() {
    const uint n_quads = (kNormTiles + 3) / 4, n_loads = (n_quads + kThreads - 1) / kThreads;
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < n_loads; i++) {
        const uint quad = i * kThreads + gl_LocalInvocationIndex;
        const vec4 four = Vec4Ref(p.norms + kDeferredSquares + uint64_t(min(quad, n_quads - 1)) * 16).v;
        [[unroll]] for (uint c = 0; c < 4; c++) sum += quad * 4 + c < kNormTiles ? four[c] : 0.0;
    }
    return sum;
}

void main() {
    const uint thread = gl_LocalInvocationIndex, tile = gl_WorkGroupID.x, n0 = tile * kOutputs;
    const uint n_rows_w = kEnd == kEndGated ? 2 * p.product.n : p.product.n;
    const uint64_t row_bytes = uint64_t(p.product.w_stride) * bytes_of(kWeightType);
    [[unroll]] for (uint i = 0; i < kColumns; i++) {
        const uint row = i < kOutputs ? n0 + i : p.product.n + n0 + i - kOutputs;
        w_row[i] = p.product.w + uint64_t(min(row, n_rows_w - 1)) * row_bytes;
        acc[i] = 0.0;
    }
    const float squares = kNormTiles > 0 ? load_squares() : 0.0;
    const uint column = n0 + thread;
    const bool is_mine = thread < kOutputs && column < p.product.n;
    float value = 0.0, gamma = 0.0;  // loaded before the sums are known
    if (kEnd == kEndResidual && is_mine) {
        value = FloatRef(p.stream + uint64_t(column) * 4).v;
        if (kHasBias != 0) value += FloatRef(p.bias + uint64_t(column) * 4).v;
        gamma = FloatRef(p.gamma + uint64_t(column) * 4).v;
    }

    const uint n_chunks = p.product.w_stride / 8;
    uint first = thread;
    for (uint end = kUnroll * kThreads; end <= n_chunks; end += kUnroll * kThreads) {
        add_words(first, n_chunks, false);
        first += kUnroll * kThreads;
    }
    if (n_chunks % (kUnroll * kThreads) != 0) add_words(first, n_chunks, true);

    [[unroll]] for (uint i = 0; i < kColumns; i++) {
        const float sum = subgroupAdd(acc[i]);
        if (subgroupElect()) parts[gl_SubgroupID * kParts + i] = sum;
    }
    if (kNormTiles > 0) {
        const float sum = subgroupAdd(squares);
        if (subgroupElect()) parts[gl_SubgroupID * kParts + kColumns] = sum;
    }
    barrier();
    float sum = 0.0, up = 0.0, all_squares = 0.0;
    if (thread < kOutputs) {
        for (uint s = 0; s < gl_NumSubgroups; s++) {
            sum += parts[s * kParts + thread];
            if (kEnd == kEndGated) up += parts[s * kParts + kOutputs + thread];
            if (kNormTiles > 0) all_squares += parts[s * kParts + kColumns];
        }
    }
    if (kNormTiles > 0) {
        const float factor = inversesqrt(all_squares / float(p.hidden) + p.eps);
        sum *= factor;
        up *= factor;
    }
    if (kEnd == kEndSums) {
        if (is_mine) FloatRef(p.product.y + uint64_t(column) * 4).v = sum;
        return;
    }
    if (kEnd == kEndGated) {
        if (thread < kOutputs && column < p.product.y_stride)
            FloatRef(p.product.y + uint64_t(column) * 4).v = is_mine ? activate(sum, kActivation) * up : 0.0;
        return;
    }
    value += sum;
    if (is_mine) {
        FloatRef(p.stream + uint64_t(column) * 4).v = value;
        FloatRef(p.xn + uint64_t(column) * 4).v = value * gamma;
    }
    if (thread < kOutputs) output_squares[thread] = is_mine ? value * value : 0.0;
    barrier();
    if (thread != 0) return;
    float total = 0.0;
    [[unroll]] for (uint i = 0; i < kColumns; i++) total += output_squares[i];
    FloatRef(p.norms + kDeferredSquares + uint64_t(tile) * 4).v = total;
}
