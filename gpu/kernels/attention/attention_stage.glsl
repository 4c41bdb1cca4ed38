// Part of attention_group.comp: blocks of keys and values on their way to shared memory, and functions of matrix
// elements.
const uint kMats = kHeadDim / 16;
// Sizes in shared memory, in 16-byte words. Rows are padded, so that eight of them fall into different banks.
const uint kKvWords = kHeadDim / 8;
const uint kKvStride = kKvWords + 1;
// A subgroup has a place of its own, so it waits for nobody: keys and values of its tokens; at last its results, which
// are fewer words.
const uint kOwnTokens = kBlockTokens / kSubgroups;
const uint kValuesAt = kOwnTokens * kKvStride;
const uint kOwnWords = 2 * kOwnTokens * kKvStride;
const uint kLoads = kOwnTokens * kKvWords / kSubgroup;
// The score of what a row does not see, and the least maximum: so what is not seen weighs exp2(-1e28) = 0 also in a row
// that sees nothing.
const float kUnseen = -1e30, kLeast = -1e20;
const float kLog2E = 1.4426950408889634;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words { uvec4 data[]; };
shared uvec4 stage[kSubgroups * kOwnWords];
shared uvec4 queries[kHeads * kKvStride];

#define MATRIX coopmat<float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>
#define MATRIX_A coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define MATRIX_B coopmat<float16_t, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB>

#ifdef KV8
layout(constant_id = 12) const uint kKeysF16 = 0;
#include "gpu/kernels/attention/kv8.glsl"
// Sixteen values to a load.
const uint kWords8 = kOwnTokens * kKvWords / 2;
const uint kLoads8 = (kWords8 + kSubgroup - 1) / kSubgroup;
uvec4 held[2][kKeysF16 != 0 ? kLoads : kLoads8];
float held_scale[2][kLoads8];
#else
uvec4 held[2][kLoads];  // of keys and of values
#endif

uint block_at(uint64_t table, uint block_idx) { return UintRef(table + uint64_t(block_idx) * 4).v; }

void fetch_f16(uint64_t plane_address, uint plane) {
    Words from = Words(plane_address);
    [[unroll]] for (uint i = 0; i < kLoads; i++) held[plane][i] = from.data[gl_SubgroupID * (kOwnTokens * kKvWords) + i * kSubgroup + gl_SubgroupInvocationID];
}

// A plane of one block: 64 tokens of one KV head, one after the other, of which a subgroup takes its own.
void fetch(uint block, uint plane, uint kv_head) {
#ifdef KV8
    uint64_t from = kv_plane(p.kv, block, plane, kv_head);
    if (has_f16(plane)) {
        fetch_f16(from, plane);
        return;
    }
    [[unroll]] for (uint i = 0; i < kLoads8; i++) {
        uint at = i * kSubgroup + gl_SubgroupInvocationID;
        if (kWords8 % kSubgroup != 0 && at >= kWords8) continue;
        at += gl_SubgroupID * kWords8;
        held[plane][i] = Uvec4Ref(from + at * 16).v;
        held_scale[plane][i] = kv_scale(kv_tops(from, at / (kKvWords / 2)), at % (kKvWords / 2) / (kKvGroupSize / 16));
    }
#else
    fetch_f16(p.kv + (uint64_t(block * 2 + plane) * kKvHeads + kv_head) * (kBlockTokens * kHeadDim * 2), plane);
#endif
}

#ifdef FROM_QKV
uvec4 own_word(uint plane, uint word);  // of the last token, which the cache need not hold yet
#endif

void put_f16(uint plane, uint to, int n_tokens) {
    [[unroll]] for (uint i = 0; i < kLoads; i++) {
        uint at = i * kSubgroup + gl_SubgroupInvocationID;
        uint token = at / kKvWords;
        uvec4 words = int(token) < n_tokens ? held[plane][i] : uvec4(0);
#ifdef FROM_QKV
        if (int(token) + 1 == n_tokens) words = own_word(plane, at % kKvWords);
#endif
        stage[to + token * kKvStride + at % kKvWords] = words;
    }
}

// Puts this subgroup's tokens, with zeros from n_tokens on: the cache may hold anything there, and 0 * NaN is no 0.
void put(uint plane, int n_tokens) {
    const uint to = gl_SubgroupID * kOwnWords + plane * kValuesAt;
#ifdef KV8
    if (has_f16(plane)) {
        put_f16(plane, to, n_tokens);
        return;
    }
    [[unroll]] for (uint i = 0; i < kLoads8; i++) {
        uint at = i * kSubgroup + gl_SubgroupInvocationID;
        if (kWords8 % kSubgroup != 0 && at >= kWords8) continue;
        uint token = at / (kKvWords / 2);
        uint word = to + token * kKvStride + at % (kKvWords / 2) * 2;
        [[unroll]] for (uint half_idx = 0; half_idx < 2; half_idx++) {
            vec4 a = unpack_i8(held[plane][i][half_idx * 2]) * held_scale[plane][i], b = unpack_i8(held[plane][i][half_idx * 2 + 1]) * held_scale[plane][i];
            uvec4 words = uvec4(packHalf2x16(a.xy), packHalf2x16(a.zw), packHalf2x16(b.xy), packHalf2x16(b.zw));
            stage[word + half_idx] = int(token) < n_tokens ? words : uvec4(0);
        }
    }
#else
    put_f16(plane, to, n_tokens);
#endif
}

// ---- Functions of matrix elements ----

float larger(const in float a, const in float b) { return max(a, b); }
float added(const in float a, const in float b) { return a + b; }
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
