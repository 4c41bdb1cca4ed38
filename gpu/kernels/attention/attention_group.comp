// attention_group: attention with all query heads of a KV head as the columns of one or two matrices of 16x8, so that
// keys and values are read once and multiplied on cooperative matrices. A subgroup takes 16 of a block's 64 tokens,
// with its own maxima and sums, joined at the end.
// Queries and weights are rounded to f16. Reductions and conversions are those of NV cooperative matrices 2.
//   q, kv, y, partials  as in attention.comp; with KV8 planes as in kv8.glsl
// With FROM_QKV each row is the only one of its sequence, and queries, key and value come from the sums of their
// product: see attention_qkv.glsl.
// grid (K, T, splits); one workgroup for each KV head, row and part of the context. Moves 4 D bytes a token and KV
// head. Subgroups of 32.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_NV_cooperative_matrix2 : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/products/activation_fragments.glsl"
#ifdef FROM_QKV
#extension GL_KHR_shader_subgroup_shuffle : require
#include "gpu/kernels/attention/attention_from_qkv.params.h"
#define Params AttentionFromQkvParams
#else
#include "gpu/kernels/attention/attention.params.h"
#define Params AttentionParams
#endif

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kHeadDim = 64;
layout(constant_id = 3) const uint kGroup = 1;  // query heads that share a KV head, at most 16
layout(constant_id = 4) const uint kKvHeads = 1;
layout(constant_id = 5) const uint kSplit = 0;
layout(constant_id = 6) const uint kListed = 0;  // 1: the rows of p.single_rows
layout(push_constant, scalar) uniform Push { Params p; };

const uint kSubgroups = kBlockTokens / 16;
const uint kSubgroup = 32;
const uint kThreads = kSubgroups * kSubgroup;  // the workgroup's size
const uint kOutStride = kHeadDim / 4 + 1;  // words of a head's result and padding
const uint kHeadMats = (kGroup + 7) / 8;
const uint kHeads = kHeadMats * 8;  // with those that are zero

#include "gpu/kernels/attention/attention_stage.glsl"
#ifdef FROM_QKV
#include "gpu/kernels/attention/attention_qkv.glsl"
#endif
layout(constant_id = 11) const uint kYInFragments = 0;  // y is wanted in fragments, too, or with FROM_QKV instead of in rows: 1 + their order (activation_fragments.h)

shared uvec4 marks[2][kSubgroups * kHeads * 4];  // maxima and sums by subgroup and head, 16 equal f32 each

// A subgroup is enough: no other one reads or writes its place of stage[].
void own_barrier() { controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease); }

// A row is a token: begin..end-1 are seen, by every head.
float seen(const in uint32_t row, const in uint32_t col, const in float e, const in uint32_t token0, const in uint32_t begin, const in uint32_t end) {
    const uint token = token0 + row;
    return token >= begin && token < end ? e : kUnseen;
}

// Elements 4 * chunk .. + 3 of row t.
void store_result(uint t, uint chunk, vec4 value) {
#ifdef FROM_QKV
    if (kYInFragments != 0) {
        store4_in_fragments(p.y, t, chunk, p.y_stride, value, kActType, kYInFragments - 1);
        return;
    }
#else
    if (kYInFragments != 0) store4_in_fragments(p.y_fragments, t, chunk, p.y_stride, value, kActType, kYInFragments - 1);
#endif
    store4(p.y + uint64_t(t) * p.y_stride * bytes_of(kActType), chunk, value, kActType);
}

void main() {
    const uint kNoLimit = 0xffffffffu, kNoPosition = 0xffffffffu;
    uint t = gl_WorkGroupID.y, n_rows = kNoLimit;
#ifndef FROM_QKV
    if (kListed != 0) {
        if (t >= UintRef(p.step + 12).v) return;  // StepHeader.n_single_rows
        t = UintRef(p.single_rows + uint64_t(t) * 4).v;
    } else
#endif
    if (gl_NumWorkGroups.y > 1) n_rows = step_n_rows(p.step);
    const uint kv_head = gl_WorkGroupID.x, first_head = kv_head * kGroup;
    const uvec4 row = step_row_begin(p.step, t), row_end = step_row_end(p.step, t);
#ifdef FROM_QKV
    load_sums(t, kv_head);
#endif
    // No row has this position: the comparison keeps the row's load in front of the wait for the number of rows.
    const bool is_row = t < n_rows && row.y != kNoPosition;
#ifndef FROM_QKV
    if (!is_row) return;
#endif
    const uint64_t table = p.block_tables + uint64_t(row.w) * 4;
    const uint end = is_row ? row.y + 1 : 0;  // tokens
#ifdef FROM_QKV
    const Rotation rotation = rotation_at(is_row ? row_end.x + row.y : 0, gl_LocalInvocationIndex % kKvWords);
#endif
    const uint begin = p.window != 0 && end > p.window ? end - p.window : 0;
    uint block_idx = begin / kBlockTokens, end_block = (end + kBlockTokens - 1) / kBlockTokens;
    if (kSplit != 0) {
        const uint share = (end_block - block_idx + gl_NumWorkGroups.z - 1) / gl_NumWorkGroups.z;
        block_idx = min(block_idx + gl_WorkGroupID.z * share, end_block);
        end_block = min(block_idx + share, end_block);
    }

    const uint last_block = end_block > 0 ? end_block - 1 : 0;
    uint next_block = 0;
    if (block_idx < end_block) {
        uint block = row_end.y;
        next_block = row_end.z;
        if (block_idx > 0) {
            block = block_at(table, block_idx);
            next_block = block_at(table, min(block_idx + 1, last_block));
        }
        fetch(block, 0, kv_head);
        fetch(block, 1, kv_head);
    }
#ifdef FROM_QKV
    put_parts(rotation, kv_head, row.z, block_idx < end_block && end_block * kBlockTokens >= end);
    for (uint i = kGroup * kKvWords + gl_LocalInvocationIndex; i < kHeads * kKvWords; i += kThreads) queries[i / kKvWords * kKvStride + i % kKvWords] = uvec4(0);
#else
    // Queries; columns without a head are zero.
    for (uint i = gl_LocalInvocationIndex; i < kHeads * kKvWords; i += kThreads) {
        const uint g = i / kKvWords;
        Eight e = load8(p.q + (uint64_t(t) * p.q_stride + (first_head + min(g, kGroup - 1)) * kHeadDim) * 4, i % kKvWords, 0);
        const uvec4 words = pack8(e, 1);
        queries[g * kKvStride + i % kKvWords] = g < kGroup ? words : uvec4(0);
    }
#endif
    barrier();
    MATRIX_B query[kHeadMats * kMats];
    MATRIX acc[kHeadMats * kMats];  // results turned: a row for each element of a head
    [[unroll]] for (uint i = 0; i < kHeadMats * kMats; i++) {
        coopMatLoad(query[i], queries, i / kMats * 8 * kKvStride + i % kMats * 2, kKvStride, gl_CooperativeMatrixLayoutColumnMajor);
        acc[i] = MATRIX(0.0);
    }
    const int own_end = int(end) - int(gl_SubgroupID * kOwnTokens);
    if (block_idx < end_block) {
        put(0, own_end - int(block_idx * kBlockTokens));
        put(1, own_end - int(block_idx * kBlockTokens));
    }
    own_barrier();

    MATRIX top[kHeadMats], total[kHeadMats];
    [[unroll]] for (uint h = 0; h < kHeadMats; h++) {
        top[h] = MATRIX(kLeast);
        total[h] = MATRIX(0.0);
    }
    const uint mine = gl_SubgroupID * kOwnWords;
    for (; block_idx < end_block; block_idx++) {
        const uint token0 = block_idx * kBlockTokens;
        const bool more = block_idx + 1 < end_block;
        // A block's number is loaded one block ahead of its keys and values, and these, both together, one ahead of
        // their use.
        if (more) {
            fetch(next_block, 0, kv_head);
            fetch(next_block, 1, kv_head);
            next_block = block_at(table, min(block_idx + 2, last_block));
        }
        MATRIX score[kHeadMats];
        [[unroll]] for (uint h = 0; h < kHeadMats; h++) score[h] = MATRIX(0.0);
        [[unroll]] for (uint m = 0; m < kMats; m++) {
            MATRIX_A key;
            coopMatLoad(key, stage, mine + m * 2, kKvStride, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint h = 0; h < kHeadMats; h++) score[h] = coopMatMulAdd(key, query[h * kMats + m], score[h]);
        }
        MATRIX_B weight[kHeadMats];
        [[unroll]] for (uint h = 0; h < kHeadMats; h++) {
            if (p.softcap != 0.0) coopMatPerElementNV(score[h], score[h], capped);
            if (token0 < begin || token0 + kBlockTokens > end) coopMatPerElementNV(score[h], score[h], seen, token0 + gl_SubgroupID * kOwnTokens, begin, end);
            MATRIX new_top;
            coopMatReduceNV(new_top, score[h], gl_CooperativeMatrixReduceColumnNV, larger);
            coopMatPerElementNV(new_top, new_top, top_of, top[h]);
            MATRIX fade = top[h] - new_top;
            coopMatPerElementNV(fade, fade, power_of_two);
            top[h] = new_top;
            coopMatPerElementNV(score[h], score[h], weight_of, new_top);
            total[h] = total[h] * fade + score[h];
            weight[h] = MATRIX_B(score[h]);
            [[unroll]] for (uint m = 0; m < kMats; m++) acc[h * kMats + m] = acc[h * kMats + m] * fade;
        }
        own_barrier();  // done with these keys, and the values are there
        if (more) put(0, own_end - int(token0 + kBlockTokens));
        [[unroll]] for (uint m = 0; m < kMats; m++) {
            MATRIX_A value;
            coopMatLoad(value, stage, mine + kValuesAt + m * 2, kKvStride, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint h = 0; h < kHeadMats; h++) acc[h * kMats + m] = coopMatMulAdd(value, weight[h], acc[h * kMats + m]);
        }
        own_barrier();  // done with the values, and the next keys are there
        if (more) put(1, own_end - int(token0 + kBlockTokens));
    }

    [[unroll]] for (uint h = 0; h < kHeadMats; h++) {
        MATRIX weights;
        coopMatReduceNV(weights, total[h], gl_CooperativeMatrixReduceColumnNV, added);
        coopMatStore(top[h], marks[0], (gl_SubgroupID * kHeads + h * 8) * 4, 4, gl_CooperativeMatrixLayoutColumnMajor);
        coopMatStore(weights, marks[1], (gl_SubgroupID * kHeads + h * 8) * 4, 4, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint m = 0; m < kMats; m++)
            coopMatStore(acc[h * kMats + m], stage, mine + h * 8 * kOutStride + m * 4, kOutStride, gl_CooperativeMatrixLayoutColumnMajor);
    }
    barrier();
    if (!is_row) return;
    const uint kLanes = kHeadDim / 4;
    for (uint i = gl_LocalInvocationIndex; i < kGroup * kLanes; i += kThreads) {
        const uint g = i / kLanes, lane = i % kLanes;
        float row_top = kLeast, row_sum = 0.0;
        [[unroll]] for (uint s = 0; s < kSubgroups; s++) row_top = max(row_top, uintBitsToFloat(marks[0][(s * kHeads + g) * 4].x));
        vec4 result = vec4(0.0);
        [[unroll]] for (uint s = 0; s < kSubgroups; s++) {
            const float share = exp2(uintBitsToFloat(marks[0][(s * kHeads + g) * 4].x) - row_top);
            row_sum = fma(uintBitsToFloat(marks[1][(s * kHeads + g) * 4].x), share, row_sum);
            result = fma(uintBitsToFloat(stage[s * kOwnWords + g * kOutStride + lane]), vec4(share), result);
        }
        const uint head = first_head + g;
        if (kSplit == 0) {
            store_result(t, head * kLanes + lane, result / row_sum);
        } else {
            const uint64_t at = p.partials + ((uint64_t(t) * (kKvHeads * kGroup) + head) * gl_NumWorkGroups.z + gl_WorkGroupID.z) * ((kHeadDim + 4) * 4);
            Vec4Ref(at + 16 + lane * 16).v = result;
            if (lane == 0) Vec4Ref(at).v = vec4(row_top / kLog2E, row_sum, 0.0, 0.0);
        }
    }
    if (kSplit == 0 && kv_head == 0) {
        for (uint i = kKvHeads * kGroup * kLanes + gl_LocalInvocationIndex; i < p.y_stride / 4; i += kThreads) store_result(t, i, vec4(0.0));
    }
}
