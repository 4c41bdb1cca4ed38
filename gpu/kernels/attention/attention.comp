// attention: y[t][h] = softmax over positions of (scale * q[t][h] . K) times V, for the query heads h of one KV head
//   q   [T][q_stride]                       f32
//   kv  [block][K|V][K][kBlockTokens][D]    f16; with KV32 f32, with KV8 planes as in kv8.glsl
//   y   [T][y_stride]                       ACT_TYPE, elements Q*D.. are zeroed
//   partials [T][Q][splits][4 + D]          f32: max, sum, 0, 0, unscaled result; instead of y if SPLIT
// The row at position p sees 0..p (the last `window` of them) of its own sequence. Online softmax over tiles of
// TOKENS_PER_QUAD * workgroup / 4 tokens. Scores: four lanes per token. Values: D / 4 lanes per token, several tokens
// at once.
// No sum depends on how many heads share a workgroup.
// With FROM_SUMS the rows are of different sequences, and q, k and v come from the sums of their product, as qkv_post
// has it: a workgroup finishes its query heads, the row's own key and value, with which the online softmax begins, and
// one of those that share a KV head writes these to the cache.
//   sums  [S][T][sums_stride]               f32: Q query heads, K key heads, K value heads; and rope as in qkv_post
// grid (T, K * Q / K / GROUP, splits); one workgroup per row and GROUP query heads; moves 4 D bytes per token.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "gpu/kernels/common.glsl"
#ifdef FROM_SUMS
#include "gpu/kernels/attention/attention_from_qkv.params.h"
#else
#include "gpu/kernels/attention/attention.params.h"
#endif

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kHeadDim = 64;
layout(constant_id = 3) const uint kGroup = 1;          // query heads of this workgroup
layout(constant_id = 4) const uint kKvHeads = 1;
layout(constant_id = 5) const uint kGroupsPerKv = 1;    // workgroups that share a KV head
layout(constant_id = 6) const uint kPerQuad = 4;        // tokens per four lanes and tile
layout(constant_id = 7) const uint kSplit = 0;
layout(constant_id = 8) const uint kPoolVectors = 1024;  // 16 bytes each of shared memory; see attention.cpp
layout(constant_id = 9) const uint kSlots = 64;          // at least the subgroups of a workgroup
layout(constant_id = 10) const uint kAhead = 4;          // loads of V in flight per thread, at most kMaxAhead
layout(constant_id = 11) const uint kListed = 0;  // 1: the rows of p.single_rows
// whether heads have one more score, p.sinks, which takes its share of the weights and gives no value
layout(constant_id = 13) const uint kSinks = 0;
#ifdef FROM_SUMS
layout(constant_id = 14) const uint kSumSplits = 1;
layout(constant_id = 15) const uint kHasBias = 0;
layout(constant_id = 16) const uint kHasNorm = 0;
layout(constant_id = 17) const uint kRotaryDim = 64;
layout(push_constant, scalar) uniform Push { AttentionFromQkvParams p; };
#else
layout(push_constant, scalar) uniform Push { AttentionParams p; };
#endif

#ifdef KV8
layout(constant_id = 12) const uint kKeysF16 = 0;
#include "gpu/kernels/attention/kv8.glsl"
#endif

const uint kThreads = gl_WorkGroupSize.x;
const uint kQuads = kThreads / 4;
const uint kTile = kQuads * kPerQuad;
const uint kChunks = kHeadDim / 8;
const uint kChunksPerLane = (kChunks + 3) / 4;
const uint kLanes = kHeadDim / 4;
const uint kTeams = kThreads / kLanes;     // tokens whose values are added at once
const uint kHeadVectors = (kGroup + 3) / 4;
const uint kMaxAhead = 16;
const float kMinusInf = -1.0 / 0.0;

// The queries while the context is read; then the teams' results of a few heads at a time.
shared vec4 pool[kPoolVectors];
shared vec4 weights[kTile][kHeadVectors];  // exp(score - top) by token and head
shared float slots[kGroup][kSlots];
const uint kHeadsThatFit = kPoolVectors / (kTeams * kLanes);
const uint kHeadsPerPass = kHeadsThatFit < kGroup ? kHeadsThatFit : kGroup;

#ifdef KV8
#define VALUE_WORDS uvec2
// Returns the address of a token's plane, where its values and scales are found.
uint64_t token_plane(uint64_t table, uint token, uint plane, uint kv_head) {
    uint block = UintRef(table + uint64_t(token / kBlockTokens) * 4).v;
    return kv_plane(p.kv, block, plane, kv_head);
}

// Values and scale of this thread's four elements: .x the values, .y the scale as bits. Otherwise as below.
void load_values(out uvec2 words[kMaxAhead], uint64_t table, uint tile, uint first, uint n_tokens, uint kv_head, uint lane) {
    [[unroll]] for (uint u = 0; u < kAhead; u++) {
        uint token = tile + min(first + u * kTeams, n_tokens - 1);
        uint64_t plane = token_plane(table, token, 1, kv_head);
        words[u].x = UintRef(kv_values(plane, token % kBlockTokens) + lane * 4).v;
        words[u].y = floatBitsToUint(kv_scale(kv_tops(plane, token % kBlockTokens), lane / (kKvGroupSize / 4)));
    }
}

vec4 value_of(uvec2 words) { return unpack_i8(words.x) * uintBitsToFloat(words.y); }
#else
#ifdef KV32
const uint kElementType = 0, kElementBytes = 4;
#define VALUE_WORDS uvec4
vec4 value_of(VALUE_WORDS words) { return uintBitsToFloat(words); }
VALUE_WORDS value_words(uint64_t line, uint lane) { return Uvec4Ref(line + lane * 16).v; }
#else
const uint kElementType = 1, kElementBytes = 2;
#define VALUE_WORDS uvec2
vec4 value_of(VALUE_WORDS words) { return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y)); }
VALUE_WORDS value_words(uint64_t line, uint lane) { return Uvec2Ref(line + lane * 8).v; }
#endif

uint64_t token_address(uint64_t table, uint token, uint plane, uint kv_head) {
    uint block = UintRef(table + uint64_t(token / kBlockTokens) * 4).v;
    uint64_t line = uint64_t((block * 2 + plane) * kKvHeads + kv_head) * kBlockTokens + token % kBlockTokens;
    return p.kv + line * (kHeadDim * kElementBytes);
}

// V of the tokens first, first + kTeams, ... of the tile, for this thread's four elements; the last token again beyond
// the end.
void load_values(out VALUE_WORDS words[kMaxAhead], uint64_t table, uint tile, uint first, uint n_tokens, uint kv_head, uint lane) {
    [[unroll]] for (uint u = 0; u < kAhead; u++) {
        uint token = min(first + u * kTeams, n_tokens - 1);
        words[u] = value_words(token_address(table, tile + token, 1, kv_head), lane);
    }
}
#endif

#ifdef FROM_SUMS
shared vec4 heads[(kGroup + 2) * kLanes];  // the query heads, key and value as the product has them
shared vec4 own[2 * kLanes];               // the row's key and value, as the cache holds them

float head_value(uint head, uint d) { return heads[head * kLanes + d / 4][d % 4]; }

// Fills `heads`; a barrier is to follow.
void load_heads(uint t, uint first_head, uint kv_head) {
    const uint n_q_heads = kKvHeads * kGroupsPerKv * kGroup;
    for (uint i = gl_LocalInvocationIndex; i < (kGroup + 2) * kLanes; i += kThreads) {
        const uint head = i / kLanes;
        const uint from = head < kGroup ? first_head + head : n_q_heads + (head - kGroup) * kKvHeads + kv_head;
        const uint chunk = from * kLanes + i % kLanes;
        const uint64_t sums = p.sums + uint64_t(t) * p.sums_stride * 4;
        vec4 part[kSumSplits];  // all loads before the first use
        [[unroll]] for (uint s = 0; s < kSumSplits; s++) part[s] = load4(sums + uint64_t(s) * p.split_stride * 4, chunk, 0);
        vec4 sum = part[0];
        [[unroll]] for (uint s = 1; s < kSumSplits; s++) sum += part[s];
        if (kHasBias != 0) sum += load4(p.bias, chunk, 0);
        heads[i] = sum;
    }
}

// Four elements of a head, normed and turned.
vec4 finished(uint head, uint lane, uint turn) {
    vec4 value = heads[head * kLanes + lane];
    if (head > kGroup) return value;
    const uint64_t gamma = head < kGroup ? p.q_gamma : p.k_gamma;
    float inverse = 1.0;
    if (kHasNorm != 0) {
        float squares = 0.0;
        for (uint i = 0; i < kLanes; i++) squares = sum_squares4(heads[head * kLanes + i], squares);
        inverse = inversesqrt(squares / float(kHeadDim) + p.eps);
        value = value * inverse * load4(gamma, lane, 0);
    }
    const uint half_dim = kRotaryDim / 2;
    [[unroll]] for (uint c = 0; c < 4; c++) {
        const uint d = lane * 4 + c, first = d < half_dim ? d : d - half_dim;
        if (d >= kRotaryDim) continue;
        const uint partner = d < half_dim ? d + half_dim : first;
        const vec2 rotation = Vec2Ref(p.rope + (uint64_t(turn) * half_dim + first) * 8).v;
        float other = head_value(head, partner);
        if (kHasNorm != 0) other = other * inverse * FloatRef(gamma + partner * 4).v;
        value[c] = d < half_dim ? fma(value[c], rotation.x, -(other * rotation.y)) : fma(value[c], rotation.x, other * rotation.y);
    }
    return value;
}

// Fills the pool's queries and `own`, and writes the row's key and value to the cache; a barrier is to follow.
void finish_heads(StepRow row, uint kv_head) {
    const bool writes = gl_WorkGroupID.y % kGroupsPerKv == 0 && gl_WorkGroupID.z == 0;
    for (uint i = gl_LocalInvocationIndex; i < (kGroup + 2) * kLanes; i += kThreads) {
        const uint head = i / kLanes, lane = i % kLanes;
        const vec4 value = finished(head, lane, row.rope_begin + row.position);
        if (head < kGroup) {
            pool[i] = value * p.scale;
            continue;
        }
        const uint plane = head - kGroup;
        const uvec2 words = uvec2(packHalf2x16(value.xy), packHalf2x16(value.zw));
        // Compilers may take a conversion there and back for none. With p.never added they cannot: they do not know that it is 0.
        own[plane * kLanes + lane] = vec4(unpackHalf2x16(words.x + p.never), unpackHalf2x16(words.y + p.never));
        if (!writes) continue;
        const uint64_t line = uint64_t((row.kv_slot / kBlockTokens * 2 + plane) * kKvHeads + kv_head) * kBlockTokens + row.kv_slot % kBlockTokens;
        Uvec2Ref(p.kv + line * (kHeadDim * 2) + lane * 8).v = words;
    }
}
#endif

float capped(float score) { return p.softcap != 0.0 ? p.softcap * tanh(clamp(score / p.softcap, -15.0, 15.0)) : score; }

void main() {
    uint t = gl_WorkGroupID.x;
#ifndef FROM_SUMS
    if (kListed != 0) {
        if (t >= UintRef(p.step + 12).v) return;  // StepHeader.n_single_rows
        t = UintRef(p.single_rows + uint64_t(t) * 4).v;
    } else
#endif
    if (gl_NumWorkGroups.x > 1 && t >= step_n_rows(p.step)) return;
    uint thread = gl_LocalInvocationIndex;
    uint kv_head = gl_WorkGroupID.y / kGroupsPerKv;
    uint first_head = gl_WorkGroupID.y * kGroup;
    StepRow row = step_row(p.step, t).v;
    uint64_t table = p.block_tables + uint64_t(row.block_table) * 4;

    uint end = row.position + 1;
    uint begin = p.window != 0 && end > p.window ? end - p.window : 0;
#ifdef FROM_SUMS
    end--;  // without the row's own token
#endif
    if (kSplit != 0) {
        uint n_splits = gl_NumWorkGroups.z;
        uint share = (end - begin + n_splits - 1) / n_splits;
        share = (share + kQuads - 1) / kQuads * kQuads;
        begin = min(begin + gl_WorkGroupID.z * share, end);
        end = min(begin + share, end);
    }

#ifdef FROM_SUMS
    load_heads(t, first_head, kv_head);
    barrier();
    finish_heads(row, kv_head);
#else
    uint64_t q = p.q + (uint64_t(t) * p.q_stride + first_head * kHeadDim) * 4;
    for (uint i = thread; i < kGroup * kLanes; i += kThreads) pool[i] = load4(q, i, 0) * p.scale;
#endif
    barrier();

    uint quad = thread / 4;
    uint quad_lane = thread % 4;
    uint team = thread / kLanes;
    uint team_lane = thread % kLanes;
    float top[kGroup];
    float total[kGroup];  // of the weights that this thread has made
    vec4 acc[kGroup];
    [[unroll]] for (uint g = 0; g < kGroup; g++) {
#ifdef FROM_SUMS
        top[g] = kMinusInf;
        total[g] = 0.0;
#else
        // It is the first score of the first split, and one thread's.
        const bool has_sink = kSinks != 0 && (kSplit == 0 || gl_WorkGroupID.z == 0);
        top[g] = has_sink ? FloatRef(p.sinks + uint64_t(first_head + g) * 4).v : kMinusInf;
        total[g] = has_sink && thread == 0 ? 1.0 : 0.0;
#endif
        acc[g] = vec4(0.0);
    }
#ifdef FROM_SUMS
    if (kSplit == 0 || gl_WorkGroupID.z == 0) {
        // The row's own token is the first one: every four lanes have its score, and the first team its value.
        [[unroll]] for (uint g = 0; g < kGroup; g++) {
            float s = 0.0;
            [[unroll]] for (uint c = 0; c < kChunksPerLane; c++) {
                const uint chunk = c * 4 + quad_lane, at = g * kLanes + chunk * 2;
                if (kChunks % 4 == 0 || chunk < kChunks) s = dot8(Eight(own[chunk * 2], own[chunk * 2 + 1]), Eight(pool[at], pool[at + 1]), s);
            }
            s += subgroupShuffleXor(s, 1);
            s += subgroupShuffleXor(s, 2);
            top[g] = capped(s);
            total[g] = thread == 0 ? 1.0 : 0.0;
            acc[g] = team == 0 ? own[kLanes + team_lane] : vec4(0.0);
        }
    }
#endif

    for (uint tile = begin; tile < end; tile += kTile) {
        uint n_tokens = min(kTile, end - tile);
        uint64_t keys[kPerQuad];
#ifdef KV8
        uint64_t tops[kPerQuad];
#endif
        float score[kGroup][kPerQuad];
        [[unroll]] for (uint i = 0; i < kPerQuad; i++) {
            uint token = tile + min(i * kQuads + quad, n_tokens - 1);
#ifdef KV8
            uint64_t plane = token_plane(table, token, 0, kv_head);
            keys[i] = kKeysF16 != 0 ? plane + token % kBlockTokens * (kHeadDim * 2) : kv_values(plane, token % kBlockTokens);
            tops[i] = kv_tops(plane, token % kBlockTokens);
#else
            keys[i] = token_address(table, token, 0, kv_head);
#endif
            [[unroll]] for (uint g = 0; g < kGroup; g++) score[g][i] = 0.0;
        }
        [[unroll]] for (uint c = 0; c < kChunksPerLane; c++) {
            uint chunk = c * 4 + quad_lane;
            if (kChunks % 4 != 0 && chunk >= kChunks) continue;
            Eight key[kPerQuad];
            [[unroll]] for (uint i = 0; i < kPerQuad; i++) {
#ifdef KV8
                if (kKeysF16 != 0) {
                    key[i] = load8(keys[i], chunk, 1);
                    continue;
                }
                // Four chunks are a group.
                uvec2 words = Uvec2Ref(keys[i] + chunk * 8).v;
                float scale = kv_scale(tops[i], chunk / (kKvGroupSize / 8));
                key[i] = Eight(unpack_i8(words.x) * scale, unpack_i8(words.y) * scale);
#else
                key[i] = load8(keys[i], chunk, kElementType);
#endif
            }
            [[unroll]] for (uint g = 0; g < kGroup; g++) {
                uint at = g * kLanes + chunk * 2;
                Eight query = Eight(pool[at], pool[at + 1]);
                [[unroll]] for (uint i = 0; i < kPerQuad; i++) score[g][i] = dot8(key[i], query, score[g][i]);
            }
        }
        VALUE_WORDS words[kMaxAhead];
        load_values(words, table, tile, team, n_tokens, kv_head, team_lane);
        [[unroll]] for (uint g = 0; g < kGroup; g++) {
            float tile_top = kMinusInf;
            [[unroll]] for (uint i = 0; i < kPerQuad; i++) {
                float s = score[g][i];
                s += subgroupShuffleXor(s, 1);
                s += subgroupShuffleXor(s, 2);
                score[g][i] = i * kQuads + quad < n_tokens ? capped(s) : kMinusInf;
                tile_top = max(tile_top, score[g][i]);
            }
            tile_top = subgroupMax(tile_top);
            if (subgroupElect()) slots[g][gl_SubgroupID] = tile_top;
        }
        barrier();
        [[unroll]] for (uint g = 0; g < kGroup; g++) {
            float new_top = top[g];
            for (uint i = 0; i < gl_NumSubgroups; i++) new_top = max(new_top, slots[g][i]);
            float fade = exp(top[g] - new_top);
            top[g] = new_top;
            acc[g] *= fade;
            total[g] *= fade;
            [[unroll]] for (uint i = 0; i < kPerQuad; i++) {
                if (i % 4 != quad_lane) continue;
                float weight = exp(score[g][i] - new_top);
                weights[i * kQuads + quad][g / 4][g % 4] = weight;
                total[g] += weight;
            }
        }
        barrier();
        for (uint first = team; team < kTeams && first < n_tokens; first += kAhead * kTeams) {
            VALUE_WORDS now[kMaxAhead];
            [[unroll]] for (uint u = 0; u < kAhead; u++) now[u] = words[u];
            uint next = first + kAhead * kTeams;
            if (next < n_tokens) load_values(words, table, tile, next, n_tokens, kv_head, team_lane);
            [[unroll]] for (uint u = 0; u < kAhead; u++) {
                uint token = first + u * kTeams;  // beyond n_tokens the weight is 0
                bool in_tile = kTile % (kAhead * kTeams) == 0 || token < kTile;
                vec4 value = value_of(now[u]);
                vec4 weight[kHeadVectors];
                [[unroll]] for (uint v = 0; v < kHeadVectors; v++) {
                    weight[v] = in_tile ? weights[token][v] : vec4(0.0);
                }
                [[unroll]] for (uint g = 0; g < kGroup; g++) acc[g] = fma(value, vec4(weight[g / 4][g % 4]), acc[g]);
            }
        }
    }

    barrier();
    [[unroll]] for (uint g = 0; g < kGroup; g++) {
        float sum = subgroupAdd(total[g]);
        if (subgroupElect()) slots[g][gl_SubgroupID] = sum;
    }
    uint64_t y = p.y + uint64_t(t) * p.y_stride * bytes_of(kActType);
    for (uint pass = 0; pass < kGroup; pass += kHeadsPerPass) {
        uint n_heads = min(kHeadsPerPass, kGroup - pass);
        barrier();
        [[unroll]] for (uint g = 0; g < kGroup; g++) {
            if (team < kTeams && g >= pass && g < pass + n_heads) {
                pool[((g - pass) * kTeams + team) * kLanes + team_lane] = acc[g];
            }
        }
        barrier();
        for (uint i = thread; i < n_heads * kLanes; i += kThreads) {
            uint g = i / kLanes;
            uint lane = i % kLanes;
            vec4 sum = vec4(0.0);
            float sum_weights = 0.0;
            for (uint m = 0; m < kTeams; m++) sum += pool[(g * kTeams + m) * kLanes + lane];
            for (uint m = 0; m < gl_NumSubgroups; m++) sum_weights += slots[pass + g][m];
            uint head = first_head + pass + g;
            if (kSplit == 0) {
                store4(y, head * kLanes + lane, sum / sum_weights, kActType);
                continue;
            }
            float head_top = kMinusInf;
            for (uint h = 0; h < kGroup; h++) head_top = h == pass + g ? top[h] : head_top;
            uint64_t line = uint64_t(t) * gl_NumWorkGroups.y * kGroup + head;
            uint64_t at = p.partials + (line * gl_NumWorkGroups.z + gl_WorkGroupID.z) * (kHeadDim + 4) * 4;
            Vec4Ref(at + 16 + lane * 16).v = sum;
            if (lane == 0) Vec4Ref(at).v = vec4(head_top, sum_weights, 0.0, 0.0);
        }
    }
    if (kSplit == 0 && gl_WorkGroupID.y == 0) {
        uint width = gl_NumWorkGroups.y * kGroup * kLanes;
        for (uint i = width + thread; i < p.y_stride / 4; i += kThreads) store4(y, i, vec4(0.0), kActType);
    }
}
