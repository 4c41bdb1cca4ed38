// attention_tile: attention for up to 64 neighbouring rows of one sequence at once, on KHR cooperative matrices:
//   y[t][h] = softmax(scale * q . K) V, one KV block after the other with running maxima and sums (FlashAttention, Dao
//       et al.
//   2022). Queries and weights are rounded to f16 for the products; scores, sums and results are f32.
//   q       [T][q_stride]                      f32
//   kv      [block][K|V][K][kBlockTokens][D]   f16; with KV8 planes as in kv8.glsl, which become f16 on their way to
//       shared memory
//   y       [T][y_stride]                      ACT_TYPE, elements Q*D.. are zeroed
//   partials  as in attention.comp, instead of y if SPLIT
// grid (Q, tiles, splits), indirect; a workgroup takes one tile, one query head and one part of the context, a subgroup
// 16 rows. Moves a KV head's context once per tile and head, from the caches for all but the first; 4 D flops per row,
// head and token. Subgroups of 32.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/attention/attention.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kHeadDim = 64;
layout(constant_id = 3) const uint kGroup = 1;      // query heads that share a KV head
layout(constant_id = 4) const uint kKvHeads = 1;
layout(constant_id = 5) const uint kSplit = 0;
layout(push_constant, scalar) uniform Push { AttentionParams p; };

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words { uvec4 data[]; };

#include "gpu/kernels/attention/attention_tile.glsl"

const uint kSubgroup = 32;  // two lanes for each of 16 rows
const uint kSubgroups = kAttentionTileRows / 16;
const uint kThreads = kSubgroups * kSubgroup;  // the workgroup's size
const uint kMats = kHeadDim / 16;
// Sizes in shared memory, in 16-byte words. Rows are padded, so that eight of them fall into different banks.
const uint kKvWords = kHeadDim / 8;
const uint kKvStride = kKvWords + 1;
const uint kScoreStride = kBlockTokens / 4 + 2;           // 64 f32
const uint kWeightStride = kBlockTokens / 8 + 1;          // 64 f16
const uint kQueryStride = kHeadDim / 8 + 1;               // D f16
const uint kFadeAt = 16 * kWeightStride;                  // 16 x 16 f32 behind the weights
// the weights and fades need fewer
const uint kOwnWords = 16 * (kScoreStride > kQueryStride ? kScoreStride : kQueryStride);
const uint kLoads = (kBlockTokens * kKvWords + kThreads - 1) / kThreads;
const float kMinusInf = -1.0 / 0.0;

shared uvec4 stage[kBlockTokens * kKvStride];  // K of a block, then its V
shared uvec4 own[kSubgroups * kOwnWords];      // by subgroup: queries, scores, weights, results

#ifdef KV8
layout(constant_id = 6) const uint kKeysF16 = 0;
#include "gpu/kernels/attention/kv8.glsl"
// Sixteen values to a load.
const uint kLoads8 = (kBlockTokens * kKvWords / 2 + kThreads - 1) / kThreads;
uvec4 held[kKeysF16 != 0 ? kLoads : kLoads8];
float held_scale[kLoads8];
#else
uvec4 held[kLoads];
#endif
coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> query[kMats];
coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> acc[kMats];

// A plane of one block: 64 tokens of one KV head, one after the other.
void fetch_f16(uint64_t plane_address) {
    Words from = Words(plane_address);
    [[unroll]] for (uint i = 0; i < kLoads; i++) {
        uint at = i * kThreads + gl_LocalInvocationIndex;
        if (kBlockTokens * kKvWords % kThreads == 0 || at < kBlockTokens * kKvWords) held[i] = from.data[at];
    }
}

void fetch(uint64_t table, uint block_idx, uint plane, uint kv_head) {
    uint block = UintRef(table + uint64_t(block_idx) * 4).v;
#ifdef KV8
    uint64_t from = kv_plane(p.kv, block, plane, kv_head);
    if (has_f16(plane)) {
        fetch_f16(from);
        return;
    }
    [[unroll]] for (uint i = 0; i < kLoads8; i++) {
        uint at = i * kThreads + gl_LocalInvocationIndex;
        if (kBlockTokens * kKvWords / 2 % kThreads != 0 && at >= kBlockTokens * kKvWords / 2) continue;
        held[i] = Uvec4Ref(from + at * 16).v;
        held_scale[i] = kv_scale(kv_tops(from, at / (kKvWords / 2)), at % (kKvWords / 2) / (kKvGroupSize / 16));
    }
#else
    fetch_f16(p.kv + (uint64_t(block * 2 + plane) * kKvHeads + kv_head) * (kBlockTokens * kHeadDim * 2));
#endif
}

// Tokens from n_tokens on are zero: the cache may hold anything there, and 0 * NaN is no 0.
void put_f16(uint n_tokens) {
    [[unroll]] for (uint i = 0; i < kLoads; i++) {
        uint at = i * kThreads + gl_LocalInvocationIndex;
        if (kBlockTokens * kKvWords % kThreads != 0 && at >= kBlockTokens * kKvWords) continue;
        uint token = at / kKvWords;
        stage[token * kKvStride + at % kKvWords] = token < n_tokens ? held[i] : uvec4(0);
    }
}

void put(uint plane, uint n_tokens) {
#ifdef KV8
    if (has_f16(plane)) {
        put_f16(n_tokens);
        return;
    }
    [[unroll]] for (uint i = 0; i < kLoads8; i++) {
        uint at = i * kThreads + gl_LocalInvocationIndex;
        if (kBlockTokens * kKvWords / 2 % kThreads != 0 && at >= kBlockTokens * kKvWords / 2) continue;
        uint token = at / (kKvWords / 2);
        uint to = token * kKvStride + at % (kKvWords / 2) * 2;
        [[unroll]] for (uint half_idx = 0; half_idx < 2; half_idx++) {
            vec4 a = unpack_i8(held[i][half_idx * 2]) * held_scale[i], b = unpack_i8(held[i][half_idx * 2 + 1]) * held_scale[i];
            uvec4 words = uvec4(packHalf2x16(a.xy), packHalf2x16(a.zw), packHalf2x16(b.xy), packHalf2x16(b.zw));
            stage[to + half_idx] = token < n_tokens ? words : uvec4(0);
        }
    }
#else
    put_f16(n_tokens);
#endif
}

void subgroup_sync() {
    subgroupMemoryBarrierShared();
    subgroupBarrier();
}

// Every element of row r of `to` is value(r); lanes 2r and 2r + 1 have it.
void spread(uint at, uint row, uint part, float value) {
    own[at + row * 4 + part * 2] = uvec4(floatBitsToUint(value));
    own[at + row * 4 + part * 2 + 1] = uvec4(floatBitsToUint(value));
}

void main() {
    const AttentionTile tile = TileRef(p.tiles + uint64_t(gl_WorkGroupID.y) * 8).v;
    const uint head = gl_WorkGroupID.x;
    const uint kv_head = head / kGroup;
    const StepRow first = step_row(p.step, tile.row_begin).v;
    const uint64_t table = p.block_tables + uint64_t(first.block_table) * 4;
    const uint lane = gl_SubgroupInvocationID;
    const uint mine = gl_SubgroupID * kOwnWords;

    // Queries. Rows beyond the tile repeat its last one.
    for (uint i = lane; i < 16 * kKvWords; i += kSubgroup) {
        uint t = tile.row_begin + min(gl_SubgroupID * 16 + i / kKvWords, tile.n_rows - 1);
        Eight e = load8(p.q + (uint64_t(t) * p.q_stride + head * kHeadDim) * 4, i % kKvWords, 0);
        own[mine + i / kKvWords * kQueryStride + i % kKvWords] =
            pack8(e, 1);
    }
    subgroup_sync();
    [[unroll]] for (uint m = 0; m < kMats; m++) {
        coopMatLoad(query[m], own, mine + m * 2, kQueryStride, gl_CooperativeMatrixLayoutRowMajor);
        acc[m] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
    }
    subgroup_sync();

    const uint row = lane / 2, part = lane % 2;
    const uint position = first.position + min(gl_SubgroupID * 16 + row, tile.n_rows - 1);
    const uint window_begin = p.window != 0 && position + 1 > p.window ? position + 1 - p.window : 0;
    const uint end = first.position + tile.n_rows;
    const Span span = split_span(first.position, tile.n_rows);
    float top = kMinusInf;
    float total = 0.0;

    if (span.begin < span.end) fetch(table, span.begin, 0, kv_head);
    for (uint block_idx = span.begin; block_idx < span.end; block_idx++) {
        const uint token0 = block_idx * kBlockTokens;
        barrier();
        put(0, kBlockTokens);
        fetch(table, block_idx, 1, kv_head);
        barrier();
        [[unroll]] for (uint n = 0; n < kBlockTokens / 16; n++) {
            coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> score =
                coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
            [[unroll]] for (uint m = 0; m < kMats; m++) {
                coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> key;
                coopMatLoad(key, stage, n * 16 * kKvStride + m * 2, kKvStride, gl_CooperativeMatrixLayoutColumnMajor);
                score = coopMatMulAdd(query[m], key, score);
            }
            coopMatStore(score, own, mine + n * 4, kScoreStride, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        put(1, min(end - token0, kBlockTokens));
        if (block_idx + 1 < span.end) fetch(table, block_idx + 1, 0, kv_head);

        // Scores to weights; this lane has the 16-byte words 2 c + part of its row.
        vec4 s[kBlockTokens / 8];
        float new_top = top;
        [[unroll]] for (uint c = 0; c < kBlockTokens / 8; c++) {
            const uint word = c * 2 + part;
            s[c] = uintBitsToFloat(own[mine + row * kScoreStride + word]) * p.scale;
            if (p.softcap != 0.0) s[c] = p.softcap * tanh(clamp(s[c] / p.softcap, -15.0, 15.0));
            const uvec4 token = token0 + word * 4 + uvec4(0, 1, 2, 3);
            s[c] = mix(vec4(kMinusInf), s[c], bvec4(uvec4(lessThanEqual(token, uvec4(position))) &
                                                    uvec4(greaterThanEqual(token, uvec4(window_begin)))));
            new_top = max(new_top, max(max(s[c].x, s[c].y), max(s[c].z, s[c].w)));
        }
        new_top = max(new_top, subgroupShuffleXor(new_top, 1));
        // Before the window begins a row sees nothing yet: its weights are exp(-inf - 0).
        const float finite_top = new_top == kMinusInf ? 0.0 : new_top;
        const float fade = exp(top - finite_top);
        top = new_top;
        total *= fade;
        subgroup_sync();
        [[unroll]] for (uint c = 0; c < kBlockTokens / 8; c++) {
            const vec4 weight = exp(s[c] - finite_top);
            total += (weight.x + weight.y) + (weight.z + weight.w);
            const uint word = c * 2 + part;
            const uvec2 packed = uvec2(packHalf2x16(weight.xy), packHalf2x16(weight.zw));
            const uint at = mine + row * kWeightStride + word / 2;
            if (part == 0) own[at].xy = packed;
            else own[at].zw = packed;
        }
        spread(mine + kFadeAt, row, part, fade);
        subgroup_sync();
        barrier();
        coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> fades;
        coopMatLoad(fades, own, mine + kFadeAt, 4, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (uint m = 0; m < kMats; m++) acc[m] = acc[m] * fades;
        [[unroll]] for (uint n = 0; n < kBlockTokens / 16; n++) {
            coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> weight;
            coopMatLoad(weight, own, mine + n * 2, kWeightStride, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint m = 0; m < kMats; m++) {
                coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> value;
                coopMatLoad(value, stage, n * 16 * kKvStride + m * 2, kKvStride, gl_CooperativeMatrixLayoutRowMajor);
                acc[m] = coopMatMulAdd(weight, value, acc[m]);
            }
        }
    }

    total += subgroupShuffleXor(total, 1);
    subgroup_sync();
    const float inverse = kSplit != 0 ? 1.0 : 1.0 / total;
    const uint64_t y = p.y + uint64_t(tile.row_begin) * p.y_stride * bytes_of(kActType);
    const uint t = gl_SubgroupID * 16 + row;
    const uint64_t partial = partial_of(tile.row_begin + t, head, gl_NumWorkGroups.x);
    if (kSplit != 0 && t < tile.n_rows && part == 0) Vec4Ref(partial).v = vec4(top, total, 0.0, 0.0);
    // 64 columns at a time.
    [[unroll]] for (uint m0 = 0; m0 < kMats; m0 += 4) {
        [[unroll]] for (uint m = m0; m < min(m0 + 4, kMats); m++)
            coopMatStore(acc[m], own, mine + (m - m0) * 4, kScoreStride, gl_CooperativeMatrixLayoutRowMajor);
        subgroup_sync();
        if (t < tile.n_rows) {
            for (uint word = part; word < min(16, (kMats - m0) * 4); word += 2) {
                vec4 value = uintBitsToFloat(own[mine + row * kScoreStride + word]) * inverse;
                if (kSplit != 0) Vec4Ref(partial + 16 + (m0 * 4 + word) * 16).v = value;
                else store4(y, (t * p.y_stride + head * kHeadDim) / 4 + m0 * 4 + word, value, kActType);
            }
        }
        subgroup_sync();
    }
    clear_padding(tile, head, gl_NumWorkGroups.x);
}
