// attention for a software device whose subgroups have 8 lanes; formula and layouts as attention.comp's, without splits
//   q   [T][q_stride]                       f32
//   kv  [block][K|V][K][kBlockTokens][D]    f16
//   y   [T][y_stride]                       ACT_TYPE, elements Q*D.. are zeroed
// A workgroup is one subgroup and takes a row and GROUP query heads of one KV head: no barriers, no shared memory. Lane
// l has elements 4 l to 4 l + 3 of every 32 of a head.
// Tokens come eight at a time; their scores, of which each lane has a part, are exchanged so that lane l ends with
// token l's. D is a multiple of 32.
// No sum depends on how many heads share a workgroup. grid (T, Q / GROUP)
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_ballot : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/lane_sums.glsl"
#include "gpu/kernels/attention/attention.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kHeadDim = 64;
layout(constant_id = 3) const uint kGroup = 1;        // query heads of this workgroup
layout(constant_id = 4) const uint kKvHeads = 1;
layout(constant_id = 5) const uint kGroupsPerKv = 1;  // workgroups that share a KV head
layout(push_constant, scalar) uniform Push { AttentionParams p; };

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer HalvesRef { uint64_t v; };

const uint kTokens = 8, kLanes = 8;
const uint kChunks = kHeadDim / 32;
const uint64_t kChunkBytes = 64;
const float kMinusInf = -1.0 / 0.0;

uint lane = gl_SubgroupInvocationID;

// Four elements in one load: such a driver makes a branch for each lane of one.
vec4 load_halves(uint64_t at) {
    uvec2 words = unpack32(HalvesRef(at).v);
    return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
}

float greatest(float value) {
    [[unroll]] for (uint bit = 0; bit < 3; bit++) value = max(value, subgroupShuffleXor(value, 1u << bit));
    return value;
}

void main() {
    const uint t = gl_WorkGroupID.x;
    if (gl_NumWorkGroups.x > 1 && t >= step_n_rows(p.step)) return;
    const uint first_head = gl_WorkGroupID.y * kGroup, kv_head = gl_WorkGroupID.y / kGroupsPerKv;
    const StepRow row = step_row(p.step, t).v;
    const uint64_t table = p.block_tables + uint64_t(row.block_table) * 4;
    const uint end = row.position + 1, begin = p.window != 0 && end > p.window ? end - p.window : 0;

    vec4 q[kGroup][kChunks], acc[kGroup][kChunks];
    float top[kGroup], total[kGroup];  // total: of the weights of this lane's tokens
    [[unroll]] for (uint g = 0; g < kGroup; g++) {
        top[g] = kMinusInf;
        total[g] = 0.0;
        [[unroll]] for (uint c = 0; c < kChunks; c++) {
            q[g][c] = load4(p.q + (uint64_t(t) * p.q_stride + (first_head + g) * kHeadDim + c * 32) * 4, lane, 0) * p.scale;
            acc[g][c] = vec4(0.0);
        }
    }

    for (uint tile = begin / kTokens * kTokens; tile < end; tile += kTokens) {
        const uint block = UintRef(table + uint64_t(tile / kBlockTokens) * 4).v;
        const uint64_t keys = p.kv + uint64_t((block * 2 * kKvHeads + kv_head) * kBlockTokens) * (kHeadDim * 2) + lane * 8;
        const uint64_t values = keys + uint64_t(kKvHeads * kBlockTokens) * (kHeadDim * 2);
        float parts[kGroup][kTokens];
        uint64_t at[kTokens];
        [[unroll]] for (uint u = 0; u < kTokens; u++) {
            // Memory outside of the context may hold anything.
            at[u] = uint64_t(clamp(tile + u, begin, end - 1) % kBlockTokens) * (kHeadDim * 2);
            [[unroll]] for (uint g = 0; g < kGroup; g++) parts[g][u] = 0.0;
            [[unroll]] for (uint c = 0; c < kChunks; c++) {
                const vec4 key = load_halves(keys + at[u] + c * kChunkBytes);
                [[unroll]] for (uint g = 0; g < kGroup; g++) {
                    float part = parts[g][u];
                    part = fma(key.x, q[g][c].x, part);
                    part = fma(key.y, q[g][c].y, part);
                    part = fma(key.z, q[g][c].z, part);
                    parts[g][u] = fma(key.w, q[g][c].w, part);
                }
            }
        }
        const bool is_seen = tile + lane >= begin && tile + lane < end;
        float weight[kGroup];
        [[unroll]] for (uint g = 0; g < kGroup; g++) {
            float score = lane_sums(parts[g]);
            if (p.softcap != 0.0) score = p.softcap * tanh(clamp(score / p.softcap, -15.0, 15.0));
            if (!is_seen) score = kMinusInf;
            const float new_top = max(top[g], greatest(score));
            const float fade = exp(top[g] - new_top);
            top[g] = new_top;
            weight[g] = exp(score - new_top);
            total[g] = fma(total[g], fade, weight[g]);
            [[unroll]] for (uint c = 0; c < kChunks; c++) acc[g][c] *= fade;
        }
        [[unroll]] for (uint u = 0; u < kTokens; u++) {
            [[unroll]] for (uint c = 0; c < kChunks; c++) {
                const vec4 value = load_halves(values + at[u] + c * kChunkBytes);
                [[unroll]] for (uint g = 0; g < kGroup; g++) acc[g][c] = fma(value, vec4(subgroupBroadcast(weight[g], u)), acc[g][c]);
            }
        }
    }

    const uint64_t y = p.y + uint64_t(t) * p.y_stride * bytes_of(kActType);
    [[unroll]] for (uint g = 0; g < kGroup; g++) {
        float sum = total[g];
        [[unroll]] for (uint bit = 0; bit < 3; bit++) sum += subgroupShuffleXor(sum, 1u << bit);
        [[unroll]] for (uint c = 0; c < kChunks; c++) store4(y, ((first_head + g) * kHeadDim + c * 32) / 4 + lane, acc[g][c] / sum, kActType);
    }
    if (gl_WorkGroupID.y == 0) {
        for (uint i = gl_NumWorkGroups.y * kGroup * kHeadDim / 4 + lane; i < p.y_stride / 4; i += kLanes) store4(y, i, vec4(0.0), kActType);
    }
}
