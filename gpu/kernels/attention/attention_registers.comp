// attention_registers: what attention_tile computes, with scores, weights, maxima and sums in registers throughout:
// each lane works on its own elements of KHR matrices. Which elements those are is up to the implementation; this
// kernel assumes what NVIDIA's devices do (row_of, column_of), so it is only used where a test at start-up shows right
// results. An f16 cache only.
//   q         [T][q_stride]                      f32
//   kv        [block][K|V][K][kBlockTokens][D]   f16
//   y         [T][y_stride]                      ACT_TYPE, elements Q*D.. are zeroed
//   partials  as in attention.comp, instead of y if SPLIT
// grid (Q, tiles, splits), indirect; a workgroup takes one tile, one query head and one part of the context, a subgroup
// kRowMats * 16 rows, so that each matrix of keys or values is used for kRowMats matrices of rows once it has come from
// shared memory. 4 D flops per row, head and token. Subgroups of 32.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/attention/attention.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kHeadDim = 64;
layout(constant_id = 3) const uint kGroup = 1;  // query heads that share a KV head
layout(constant_id = 4) const uint kKvHeads = 1;
layout(constant_id = 5) const uint kSplit = 0;
layout(constant_id = 6) const uint kSubgroups = 4;
layout(constant_id = 7) const uint kRowMats = 1;  // 16-row matrices of a subgroup
// matrices of a row's query that stay in registers; the others are read again in each step
layout(constant_id = 8) const uint kHeld = 0;
layout(constant_id = 9) const uint kStepTokens = 32;  // at a time in shared memory, a divisor of kBlockTokens
layout(constant_id = 10) const uint kWindow = 0;   // whether p.window is not 0
layout(constant_id = 11) const uint kSoftcap = 0;  // whether p.softcap is not 0
layout(push_constant, scalar) uniform Push { AttentionParams p; };

#include "gpu/kernels/attention/attention_tile.glsl"

#define MATRIX coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
#define MATRIX_A coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define MATRIX_B coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words { uvec4 data[]; };

const uint kThreads = kSubgroups * 32;  // the workgroup's size
const uint kMats = kHeadDim / 16;
const uint kStepMats = kStepTokens / 16;
// Sizes in shared memory, in 16-byte words. A row has an odd number of them, so that eight rows are in different banks.
const uint kKvWords = kHeadDim / 8;
const uint kKvStride = kKvWords + 1;
const uint kQueryStride = (kMats - kHeld) * 2 + 1;
const uint kHeldStride = kHeld * 2 + 1;
const uint kHeldLast = kHeld > 0 ? kHeld - 1 : 0;
const uint kKeysAt = kHeld < kMats ? kSubgroups * kRowMats * 16 * kQueryStride : 0;
const uint kValuesAt = kKeysAt + kStepTokens * kKvStride;
const uint kHeldEnd = kKeysAt + (kHeld > 0 ? kSubgroups * kRowMats * 16 * kHeldStride : 0);
const uint kStageEnd = kValuesAt + kStepTokens * kKvStride;
const uint kLoads = (kStepTokens * kKvWords + kThreads - 1) / kThreads;
const bool kEven = kStepTokens * kKvWords % kThreads == 0;

// The score of what a row does not see, and the least maximum: so what is not seen weighs exp2(-1e28) = 0 also in a row
// that sees nothing.
const float kUnseen = -1e30, kLeast = -1e20;
const float kLog2E = 1.4426950408889634;
// A maximum may be too small by this much, in powers of two: weights stay far from the end of f16, and results seldom
// have to fade.
const float kSlack = 6.0;

// Queries that are read again; keys; values. Queries that are held pass through the place of keys and values.
shared uvec4 stage[kHeldEnd > kStageEnd ? kHeldEnd : kStageEnd];

uvec4 held[kLoads];

// A lane has row g or g + 8, columns 2t, 2t + 1, 2t + 8 or 2t + 9 of a matrix of accumulators or an A matrix, where g
// is lane / 4 and t lane % 4. For element i of its eight: 0 for row g or 1 for g + 8, and the distance from column 2t.
uint row_of(uint i) { return i / 4; }
uint column_of(uint i) { return i % 2 + i / 2 % 2 * 8; }

uint block_of(uint64_t table, uint step) { return UintRef(table + uint64_t(step / (kBlockTokens / kStepTokens)) * 4).v; }

// One step's tokens of a plane of a block.
void fetch(uint block, uint step, uint plane, uint kv_head) {
    Words from = Words(p.kv + ((uint64_t(block * 2 + plane) * kKvHeads + kv_head) * kBlockTokens + step % (kBlockTokens / kStepTokens) * kStepTokens) *
                                        (kHeadDim * 2));
    [[unroll]] for (uint i = 0; i < kLoads; i++) {
        const uint at = i * kThreads + gl_LocalInvocationIndex;
        if (kEven || at < kStepTokens * kKvWords) held[i] = from.data[at];
    }
}

// The place of word i of a thread: token and word of the token.
uvec2 place(uint i) {
    if (kThreads % kKvWords == 0) return uvec2(gl_LocalInvocationIndex / kKvWords + i * (kThreads / kKvWords), gl_LocalInvocationIndex % kKvWords);
    const uint at = i * kThreads + gl_LocalInvocationIndex;
    return uvec2(at / kKvWords, at % kKvWords);
}

// With `cut`, tokens from n_tokens on are zero: the cache may hold anything there, and 0 * NaN is no 0.
void put(uint to, const bool cut, uint n_tokens) {
    [[unroll]] for (uint i = 0; i < kLoads; i++) {
        const uvec2 at = place(i);
        if (kEven || at.x < kStepTokens) stage[to + at.x * kKvStride + at.y] = !cut || at.x < n_tokens ? held[i] : uvec4(0);
    }
}

// Rows of queries as f16, words first..first + n - 1 of each. Rows beyond the tile repeat its last one.
void put_queries(AttentionTile tile, uint head, uint first, uint n, uint to, uint stride) {
    for (uint i = gl_LocalInvocationIndex; i < kSubgroups * kRowMats * 16 * n; i += kThreads) {
        const uint row = i / n, word = first + i % n;
        const Eight e = load8(p.q + (uint64_t(tile.row_begin + min(row, tile.n_rows - 1)) * p.q_stride + head * kHeadDim) * 4, word, 0);
        stage[to + row * stride + i % n] = pack8(e, 1);
    }
}

void store_pair(uint64_t y, uint pair, vec2 value) {
    if (kActType == 0) Vec2Ref(y + uint64_t(pair) * 8).v = value;
    else UintRef(y + uint64_t(pair) * 4).v = pack_pair(value, kActType);
}

void main() {
    const AttentionTile tile = TileRef(p.tiles + uint64_t(gl_WorkGroupID.y) * 8).v;
    const uint head = gl_WorkGroupID.x;
    const uint kv_head = head / kGroup;
    const StepRow first = step_row(p.step, tile.row_begin).v;
    const uint64_t table = p.block_tables + uint64_t(first.block_table) * 4;
    const uint last = first.position + tile.n_rows - 1;
    const Span span = split_span(first.position, tile.n_rows);
    const uint row0 = gl_SubgroupID * (kRowMats * 16);
    const uint g = gl_SubgroupInvocationID / 4, t2 = gl_SubgroupInvocationID % 4 * 2;
    const float scale = p.scale * kLog2E;

    MATRIX_A query[kRowMats * (kHeldLast + 1)];
    MATRIX acc[kRowMats * kMats];
    if (kHeld > 0) {
        put_queries(tile, head, 0, kHeld * 2, kKeysAt, kHeldStride);
        barrier();
        [[unroll]] for (uint r = 0; r < kRowMats; r++) {
            [[unroll]] for (uint m = 0; m < kHeld; m++)
                coopMatLoad(query[r * kHeld + m], stage, kKeysAt + (row0 + r * 16) * kHeldStride + m * 2, kHeldStride, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
    }
    if (kHeld < kMats) put_queries(tile, head, kHeld * 2, (kMats - kHeld) * 2, 0, kQueryStride);
    [[unroll]] for (uint i = 0; i < kRowMats * kMats; i++) acc[i] = MATRIX(0.0);
    // For rows g and g + 8 of each matrix: maxima are of score * scale * log2(e), sums are this lane's part.
    float top[kRowMats * 2], total[kRowMats * 2];
    [[unroll]] for (uint i = 0; i < kRowMats * 2; i++) {
        top[i] = kLeast;
        total[i] = 0.0;
    }

    uint step = span.begin * (kBlockTokens / kStepTokens);
    const uint end = min(span.end * (kBlockTokens / kStepTokens), last / kStepTokens + 1);
    const uint last_step = end > 0 ? end - 1 : 0;
    // A block's number is loaded one step ahead of its keys.
    uint block = block_of(table, min(step, last_step)), next_block = block_of(table, min(step + 1, last_step));
    if (step < end) {
        fetch(block, step, 0, kv_head);
        put(kKeysAt, false, 0);
    }
    barrier();
    // First what every row of the tile sees, then what only some of them do.
    const uint all_see = kWindow != 0 ? step : min((first.position + 1) / kStepTokens, end);
    [[unroll]] for (uint part = 0; part < 2; part++) {
        const bool masked = part == 1;
        const uint part_end = masked ? end : all_see;
        for (; step < part_end; step++) {
            const uint token0 = step * kStepTokens;
            // Loads stand between the barriers where only they are held: compilers move them up to the barrier before.
            fetch(block, step, 1, kv_head);
            MATRIX score[kRowMats * kStepMats];
            [[unroll]] for (uint i = 0; i < kRowMats * kStepMats; i++) score[i] = MATRIX(0.0);
            [[unroll]] for (uint m = 0; m < kMats; m++) {
                MATRIX_A again[kRowMats];
                [[unroll]] for (uint r = 0; r < kRowMats; r++) {
                    if (m >= kHeld)
                        coopMatLoad(again[r], stage, (row0 + r * 16) * kQueryStride + (m - kHeld) * 2, kQueryStride, gl_CooperativeMatrixLayoutRowMajor);
                }
                [[unroll]] for (uint n = 0; n < kStepMats; n++) {
                    MATRIX_B key;
                    coopMatLoad(key, stage, kKeysAt + n * 16 * kKvStride + m * 2, kKvStride, gl_CooperativeMatrixLayoutColumnMajor);
                    [[unroll]] for (uint r = 0; r < kRowMats; r++) {
                        if (m < kHeld) score[r * kStepMats + n] = coopMatMulAdd(query[r * kHeld + min(m, kHeldLast)], key, score[r * kStepMats + n]);
                        else score[r * kStepMats + n] = coopMatMulAdd(again[r], key, score[r * kStepMats + n]);
                    }
                }
            }
            put(kValuesAt, masked, last + 1 - token0);
            barrier();  // everybody is done with these keys, and the values are there
            fetch(next_block, min(step + 1, last_step), 0, kv_head);
            block = next_block;
            next_block = block_of(table, min(step + 2, last_step));

            if (kSoftcap != 0) {
                [[unroll]] for (uint i = 0; i < kRowMats * kStepMats; i++) {
                    [[unroll]] for (uint e = 0; e < 8; e++) score[i][e] = p.softcap / p.scale * tanh(clamp(score[i][e] * p.scale / p.softcap, -15.0, 15.0));
                }
            }
            if (masked) {
                [[unroll]] for (uint i = 0; i < kRowMats * kStepMats; i++) {
                    [[unroll]] for (uint e = 0; e < 8; e++) {
                        const uint position = min(first.position + row0 + i / kStepMats * 16 + g + row_of(e) * 8, last);
                        const uint token = token0 + i % kStepMats * 16 + t2 + column_of(e);
                        const bool seen = token <= position && (kWindow == 0 || token + p.window > position);
                        score[i][e] = seen ? score[i][e] : kUnseen;
                    }
                }
            }
            float most[kRowMats * 2];
            bool grows = false;
            [[unroll]] for (uint r = 0; r < kRowMats * 2; r++) {
                most[r] = kUnseen;
                [[unroll]] for (uint n = 0; n < kStepMats; n++) {
                    [[unroll]] for (uint e = 0; e < 8; e++) {
                        if (row_of(e) == r % 2) most[r] = max(most[r], score[r / 2 * kStepMats + n][e]);
                    }
                }
                most[r] = max(most[r], subgroupShuffleXor(most[r], 1));
                most[r] = max(most[r], subgroupShuffleXor(most[r], 2)) * scale;
                grows = grows || most[r] > top[r] + kSlack;
            }
            if (subgroupAny(grows)) {
                [[unroll]] for (uint r = 0; r < kRowMats; r++) {
                    float fade[2];
                    [[unroll]] for (uint i = 0; i < 2; i++) {
                        const float higher = max(most[r * 2 + i], top[r * 2 + i]);
                        fade[i] = exp2(top[r * 2 + i] - higher);
                        top[r * 2 + i] = higher;
                        total[r * 2 + i] *= fade[i];
                    }
                    MATRIX fades;
                    [[unroll]] for (uint e = 0; e < 8; e++) fades[e] = fade[row_of(e)];
                    [[unroll]] for (uint m = 0; m < kMats; m++) acc[r * kMats + m] = acc[r * kMats + m] * fades;
                }
            }
            [[unroll]] for (uint n = 0; n < kStepMats; n++) {
                MATRIX_A weight[kRowMats];
                [[unroll]] for (uint r = 0; r < kRowMats; r++) {
                    [[unroll]] for (uint e = 0; e < 8; e++) {
                        const float w = exp2(fma(score[r * kStepMats + n][e], scale, -top[r * 2 + row_of(e)]));
                        total[r * 2 + row_of(e)] += w;
                        weight[r][e] = float16_t(w);
                    }
                }
                [[unroll]] for (uint m = 0; m < kMats; m++) {
                    MATRIX_B value;
                    coopMatLoad(value, stage, kValuesAt + n * 16 * kKvStride + m * 2, kKvStride, gl_CooperativeMatrixLayoutRowMajor);
                    [[unroll]] for (uint r = 0; r < kRowMats; r++) acc[r * kMats + m] = coopMatMulAdd(weight[r], value, acc[r * kMats + m]);
                }
            }
            put(kKeysAt, false, 0);
            barrier();  // done with the values, and the next keys are there
        }
    }

    [[unroll]] for (uint r = 0; r < kRowMats * 2; r++) {
        total[r] += subgroupShuffleXor(total[r], 1);
        total[r] += subgroupShuffleXor(total[r], 2);
        const uint row = row0 + r / 2 * 16 + r % 2 * 8 + g;
        if (kSplit != 0 && t2 == 0 && row < tile.n_rows)
            Vec4Ref(partial_of(tile.row_begin + row, head, gl_NumWorkGroups.x)).v = vec4(top[r] / kLog2E, total[r], 0.0, 0.0);
        total[r] = kSplit != 0 ? 1.0 : 1.0 / total[r];
    }
    // Elements of copies: those of an array that lives through the loop would keep all of it in memory.
    [[unroll]] for (uint i = 0; i < kRowMats * kMats; i++) {
        const uint r = i / kMats, m = i % kMats;
        MATRIX result = acc[i];
        [[unroll]] for (uint e = 0; e < 8; e += 2) {
            const uint row = row0 + r * 16 + row_of(e) * 8 + g, column = m * 16 + t2 + column_of(e);
            const vec2 value = vec2(result[e], result[e + 1]) * total[r * 2 + row_of(e)];
            if (row < tile.n_rows) {
                if (kSplit != 0) {
                    Vec2Ref(partial_of(tile.row_begin + row, head, gl_NumWorkGroups.x) + 16 + column * 4).v = value;
                } else {
                    const uint64_t y = p.y + (uint64_t(tile.row_begin + row) * p.y_stride + head * kHeadDim) * bytes_of(kActType);
                    store_pair(y, column / 2, value);
                }
            }
        }
    }
    clear_padding(tile, head, gl_NumWorkGroups.x);
}
