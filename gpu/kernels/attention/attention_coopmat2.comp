// attention_coopmat2: what attention_tile computes, on NV cooperative matrices 2 of a whole workgroup: keys and values
// come straight from memory, and the compiler stages them. An f16 cache only.
//   q         [T][q_stride]                      f32, q_stride a multiple of 64, as D; kRows rows behind the last one
//       are readable
//   kv        [block][K|V][K][kBlockTokens][D]   f16
//   y         [T][y_stride]                      ACT_TYPE, elements Q*D.. are zeroed; y_stride a multiple of 64
//   partials  as in attention.comp, instead of y if SPLIT
// grid (Q, tiles, splits), indirect; a workgroup takes one tile, one query head and one part of the context. 4 D flops
// per row, head and token.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_NV_cooperative_matrix2 : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_16bit_storage : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/attention/attention.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kHeadDim = 64;
layout(constant_id = 3) const uint kGroup = 1;   // query heads that share a KV head
layout(constant_id = 4) const uint kKvHeads = 1;
layout(constant_id = 5) const uint kSplit = 0;
layout(push_constant, scalar) uniform Push { AttentionParams p; };

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Halves { float16_t data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer HalfRef { float16_t v; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer ShortRef { uint16_t v; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer HalvesOut { float16_t data[]; };

#include "gpu/kernels/attention/attention_tile.glsl"

const uint kRows = kAttentionTileRows;
#define MATRIX coopmat<float, gl_ScopeWorkgroup, kRows, kColumns, gl_MatrixUseAccumulator>
#define NARROW coopmat<float, gl_ScopeWorkgroup, kRows, 16, gl_MatrixUseAccumulator>
#define MATRIX_A coopmat<float16_t, gl_ScopeWorkgroup, kRows, kColumns, gl_MatrixUseA>
#define MATRIX_B coopmat<float16_t, gl_ScopeWorkgroup, kColumns, kColumns, gl_MatrixUseB>

// Scores, weights and each part of queries and results have as many columns, so that what belongs to a row fits all of
// them.
const uint kColumns = kBlockTokens;
const uint kParts = kHeadDim / kColumns;

// The score of what a row does not see, and the least maximum: so what is not seen weighs exp2(-1e28) = 0 also in a row
// that sees nothing.
const float kUnseen = -1e30, kLeast = -1e20;
const float kLog2E = 1.4426950408889634;

float larger(const in float a, const in float b) { return max(a, b); }
float either(const in float a, const in float b) { return a; }  // of equal ones
float power_of_two(const in uint32_t row, const in uint32_t col, const in float e) { return exp2(e); }
// Maxima are of score * scale * log2(e).
float weight_of(const in uint32_t row, const in uint32_t col, const in float score, const in float top) {
    return exp2(fma(score, p.scale * kLog2E, -top));
}
float top_of(const in uint32_t row, const in uint32_t col, const in float score, const in float top) {
    return max(score * (p.scale * kLog2E), top);
}
float capped(const in uint32_t row, const in uint32_t col, const in float score) {
    return p.softcap / p.scale * tanh(clamp(score * p.scale / p.softcap, -15.0, 15.0));
}

// first: the position of row 0, last: that of the last row that counts.
float seen(const in uint32_t row, const in uint32_t col, const in float e, const in uint32_t first, const in uint32_t last, const in uint32_t token0) {
    const uint position = min(first + row, last), token = token0 + col;
    return token <= position && (p.window == 0 || token + p.window > position) ? e : kUnseen;
}

float divided(const in uint32_t row, const in uint32_t col, const in float e, const in float sum) { return e / sum; }

float keep(const in uint32_t row, const in uint32_t col, const in float e, const in uint32_t row_begin, const in uint32_t n_rows, const in uint32_t column0) {
    if (row >= n_rows) return e;
    const uint64_t at = p.y + (uint64_t(row_begin + row) * p.y_stride + column0 + col) * bytes_of(kActType);
    if (kActType == 0) FloatRef(at).v = e;
    else if (kActType == 1) HalfRef(at).v = float16_t(e);
    else ShortRef(at).v = uint16_t(bf16_bits(e));
    return e;
}

uint64_t partial_row(uint32_t t, uint32_t head) { return partial_of(t, head, gl_NumWorkGroups.x); }

float keep_partial(const in uint32_t row, const in uint32_t col, const in float e, const in uint32_t row_begin, const in uint32_t n_rows, const in uint32_t head,
                   const in uint32_t column0) {
    if (row < n_rows) FloatRef(partial_row(row_begin + row, head) + 16 + (column0 + col) * 4).v = e;
    return e;
}

// Maximum and sum of a row.
float keep_marks(const in uint32_t row, const in uint32_t col, const in float top, const in float sum, const in uint32_t row_begin, const in uint32_t n_rows,
                 const in uint32_t head) {
    if (row < n_rows && col == 0) Vec4Ref(partial_row(row_begin + row, head)).v = vec4(top / kLog2E, sum, 0.0, 0.0);
    return top;
}

void main() {
    const AttentionTile tile = TileRef(p.tiles + uint64_t(gl_WorkGroupID.y) * 8).v;
    const uint head = gl_WorkGroupID.x;
    const uint kv_head = head / kGroup;
    const StepRow first = step_row(p.step, tile.row_begin).v;
    const uint64_t table = p.block_tables + uint64_t(first.block_table) * 4;
    const uint last = first.position + tile.n_rows - 1;
    const Span span = split_span(first.position, tile.n_rows);

    const uint q_stride = p.q_stride & ~63u;
    tensorLayoutNV<2> q_layout = createTensorLayoutNV(2);
    q_layout = setTensorLayoutDimensionNV(q_layout, kRows, kHeadDim);
    q_layout = setTensorLayoutStrideNV(q_layout, q_stride, 1);
    Floats q = Floats(p.q + (uint64_t(tile.row_begin) * q_stride + head * kHeadDim) * 4);
    MATRIX_A query[kParts];
    MATRIX acc[kParts];
    [[unroll]] for (uint i = 0; i < kParts; i++) {
        MATRIX wide;
        coopMatLoadTensorNV(wide, q.data, 0, sliceTensorLayoutNV(q_layout, 0, kRows, i * kColumns, kColumns));
        query[i] = MATRIX_A(wide);
        acc[i] = MATRIX(0.0);
    }

    tensorLayoutNV<2> kv_layout = createTensorLayoutNV(2);
    kv_layout = setTensorLayoutDimensionNV(kv_layout, kBlockTokens, kHeadDim);
    tensorViewNV<2, false, 1, 0> transposed = createTensorViewNV(2, false, 1, 0);
    // Tokens beyond the last block's end are zero: the cache may hold anything there, and 0 * NaN is no 0.
    tensorLayoutNV<2, gl_CooperativeMatrixClampModeConstantNV> end_layout = createTensorLayoutNV(2, gl_CooperativeMatrixClampModeConstantNV);
    end_layout = setTensorLayoutDimensionNV(end_layout, last % kBlockTokens + 1, kHeadDim);
    end_layout = setTensorLayoutStrideNV(end_layout, kHeadDim, 1);

    MATRIX top = MATRIX(kLeast);
    // Sums of weights by a product with ones, as 16 equal columns: that takes fewer registers than sums of each column.
    const coopmat<float16_t, gl_ScopeWorkgroup, kColumns, 16, gl_MatrixUseB> ones = coopmat<float16_t, gl_ScopeWorkgroup, kColumns, 16, gl_MatrixUseB>(1.0);
    NARROW total = NARROW(0.0);
    // A block's number is loaded one block ahead.
    const uint last_block = span.end > 0 ? span.end - 1 : 0;
    uint block = span.begin < span.end ? UintRef(table + uint64_t(span.begin) * 4).v : 0;
    for (uint block_idx = span.begin; block_idx < span.end; block_idx++) {
        const uint token0 = block_idx * kBlockTokens;
        const uint64_t plane = p.kv + (uint64_t(block) * 2 * kKvHeads + kv_head) * (kBlockTokens * kHeadDim * 2);
        const uint64_t value_plane = plane + uint64_t(kKvHeads) * (kBlockTokens * kHeadDim * 2);
        block = UintRef(table + uint64_t(min(block_idx + 1, last_block)) * 4).v;
        MATRIX score = MATRIX(0.0);
        [[unroll]] for (uint i = 0; i < kParts; i++) {
            MATRIX_B keys;
            coopMatLoadTensorNV(keys, Halves(plane).data, 0, sliceTensorLayoutNV(kv_layout, 0, kBlockTokens, i * kColumns, kColumns), transposed);
            score = coopMatMulAdd(query[i], keys, score);
        }
        if (p.softcap != 0.0) coopMatPerElementNV(score, score, capped);
        if (token0 + kBlockTokens - 1 > first.position || (p.window != 0 && token0 + p.window <= last)) {
            coopMatPerElementNV(score, score, seen, first.position, last, token0);
        }
        MATRIX new_top;
        coopMatReduceNV(new_top, score, gl_CooperativeMatrixReduceRowNV, larger);
        coopMatPerElementNV(new_top, new_top, top_of, top);
        MATRIX fade = top - new_top;
        coopMatPerElementNV(fade, fade, power_of_two);
        top = new_top;
        coopMatPerElementNV(score, score, weight_of, new_top);
        const MATRIX_A weight = MATRIX_A(score);
        NARROW narrow_fade;
        coopMatReduceNV(narrow_fade, fade, gl_CooperativeMatrixReduceRowNV, either);
        total = coopMatMulAdd(weight, ones, total * narrow_fade);
        const bool all_there = last - token0 >= kBlockTokens - 1;
        [[unroll]] for (uint i = 0; i < kParts; i++) {
            MATRIX_B values;
            if (all_there) coopMatLoadTensorNV(values, Halves(value_plane).data, 0, sliceTensorLayoutNV(kv_layout, 0, kBlockTokens, i * kColumns, kColumns));
            else coopMatLoadTensorNV(values, Halves(value_plane).data, 0, sliceTensorLayoutNV(end_layout, 0, kBlockTokens, i * kColumns, kColumns));
            acc[i] = coopMatMulAdd(weight, values, acc[i] * fade);
        }
    }

    MATRIX sums;
    coopMatReduceNV(sums, total, gl_CooperativeMatrixReduceRowNV, either);
    if (kSplit != 0) {
        coopMatPerElementNV(top, top, keep_marks, sums, tile.row_begin, tile.n_rows, head);
        [[unroll]] for (uint i = 0; i < kParts; i++) coopMatPerElementNV(acc[i], acc[i], keep_partial, tile.row_begin, tile.n_rows, head, i * kColumns);
        return;
    }
    [[unroll]] for (uint i = 0; i < kParts; i++) coopMatPerElementNV(acc[i], acc[i], divided, sums);
    if (kActType == 1 && tile.n_rows == kRows) {
        const uint y_stride = p.y_stride & ~63u;
        tensorLayoutNV<2> y_layout = createTensorLayoutNV(2);
        y_layout = setTensorLayoutDimensionNV(y_layout, kRows, kHeadDim);
        y_layout = setTensorLayoutStrideNV(y_layout, y_stride, 1);
        HalvesOut y = HalvesOut(p.y + (uint64_t(tile.row_begin) * y_stride + head * kHeadDim) * 2);
        [[unroll]] for (uint i = 0; i < kParts; i++) {
            coopMatStoreTensorNV(coopmat<float16_t, gl_ScopeWorkgroup, kRows, kColumns, gl_MatrixUseAccumulator>(acc[i]), y.data, 0,
                                 sliceTensorLayoutNV(y_layout, 0, kRows, i * kColumns, kColumns));
        }
    } else {
        [[unroll]] for (uint i = 0; i < kParts; i++) coopMatPerElementNV(acc[i], acc[i], keep, tile.row_begin, tile.n_rows, head * kHeadDim + i * kColumns);
    }
    clear_padding(tile, head, gl_NumWorkGroups.x);
}
