// qkv_post: v = sum_s y[s][t] + bias + LoRA; q and k heads: optional RMS norm over the head, then rope
//   y     [S][T][y_stride]                       f32: Q query heads, K key heads, K value heads
//   rope  [position][rotary_dim / 2][2]              f32: cos, sin
//   q     [T][q_stride]                          f32
//   kv    [block][K|V][K][kBlockTokens][D]       f16, written at the row's kv_slot; with KV32 f32, with KV8 planes as
//       in kv8.glsl
// Rope rotates element i < rotary_dim / 2 with element i + stride. With constants for them: values are normed per head
// without weights, they are what the key heads give, and queries are multiplied by 1 + beta ln(1 + floor(position /
// original)).
// grid (ceil((Q + 2K) / heads per workgroup), T); D / 4 threads per head, four elements each.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/attention/qkv_post.params.h"
#include "gpu/kernels/lora/slot_norms.glsl"

layout(constant_id = 1) const uint kQHeads = 1;
layout(constant_id = 2) const uint kKvHeads = 1;
layout(constant_id = 3) const uint kHeadDim = 64;
layout(constant_id = 4) const uint kRotaryDim = 64;
layout(constant_id = 5) const uint kSplits = 1;
layout(constant_id = 6) const uint kLora = 0;  // LoraLevel
layout(constant_id = 7) const uint kHasBias = 0;
layout(constant_id = 8) const uint kHasNorm = 0;
layout(constant_id = 9) const uint kSlotNorms = 0;
layout(constant_id = 10) const uint kWholeRows = 0;  // the first rows' sums are all in split 0
layout(constant_id = 12) const uint kPairStride = 32;
layout(constant_id = 13) const uint kVNorm = 0;
layout(constant_id = 14) const uint kKIsV = 0;  // y has no value heads
layout(constant_id = 15) const float kPositionBeta = 0.0;
layout(constant_id = 16) const uint kPositionOriginal = 1;
// the rows of a query head are followed by as many of its gate, which stay where they are
layout(constant_id = 17) const uint kGated = 0;
layout(push_constant, scalar) uniform Push { QkvPostParams p; };

const uint kRankSteps = 2;
const uint kExchange = kHeadDim % 16 == 0 ? 1 : 0;
#include "gpu/kernels/lora/lora_expand.glsl"
#ifdef KV8
layout(constant_id = 11) const uint kKeysF16 = 0;
#include "gpu/kernels/attention/kv8.glsl"
#endif

const uint kLanes = kHeadDim / 4;
const uint kHeadsPerGroup = gl_WorkGroupSize.x / kLanes;
const uint kHalf = kRotaryDim / 2;
shared float values[kHeadsPerGroup * kHeadDim];
#ifdef KV8
shared float tops[kHeadsPerGroup * kLanes];  // of each thread's values
#endif

bool is_turned(uint d) { return d < kHalf || (d >= kPairStride && d < kPairStride + kHalf); }

float rotated(uint base, uint d, float own, vec2 turn, uint64_t gamma, float inverse) {
    uint partner = d < kHalf ? d + kPairStride : d - kPairStride;
    float other = values[base + partner];
    if (gamma != 0) other = other * inverse * FloatRef(gamma + partner * 4).v;
    return d < kHalf ? fma(own, turn.x, -(other * turn.y)) : fma(own, turn.x, other * turn.y);
}

#ifdef KV8
// The greatest magnitude of a group of a head's values, within what f16 holds; 0 beyond the head.
float group_top(uint local_head, uint group) {
    float top = 0.0;
    uint end = min((group + 1) * (kKvGroupSize / 4), kLanes);
    for (uint lane = group * (kKvGroupSize / 4); lane < end; lane++) top = max(top, tops[local_head * kLanes + lane]);
    return min(top, 65504.0);
}
#endif

void main() {
    uint t = gl_WorkGroupID.y;
    const uint n_rows = gl_NumWorkGroups.y > 1 ? step_n_rows(p.step) : 1;
    if (leaves_at_once(kLora != 0 || kSlotNorms != 0, gl_NumWorkGroups.y, t, n_rows)) return;
    StepRow row = step_row(p.step, t).v;
    const uint turn = t < n_rows ? row.rope_begin + row.position : 0;  // what lies behind the last row may be anything
    uint thread = gl_LocalInvocationIndex;
    uint local_head = thread / kLanes;
    uint head = gl_WorkGroupID.x * kHeadsPerGroup + local_head;
    bool active_thread = local_head < kHeadsPerGroup && head < kQHeads + 2 * kKvHeads;
    uint d0 = thread % kLanes * 4;
    uint column = (kKIsV != 0 && head >= kQHeads + kKvHeads ? head - kKvHeads : head) * kHeadDim + d0;
    // in the sums
    uint from = kGated == 0 ? column : head < kQHeads ? 2 * head * kHeadDim + d0 : column + kQHeads * kHeadDim;
    uint base = local_head * kHeadDim;
    bool is_q = head < kQHeads;
    bool is_v = head >= kQHeads + kKvHeads;

    vec2 rotations[4];  // cos, sin; loaded before they are needed
    vec4 acc;
    if (active_thread) {
        uint module_idx = is_q ? kLoraQ : is_v && kKIsV == 0 ? kLoraV : kLoraK;
        LoraModule module;
        if (kLora == 1) module = lora_module(p.lora_layer, row.adapter_slot, p.lora_slot_stride, module_idx);
        uint64_t y = p.y + uint64_t(t) * p.y_stride * 4;
        vec4 part[kSplits];  // all loads before the first use
        part[0] = load4(y, from / 4, 0);
        if (t < kWholeRows) {
            [[unroll]] for (uint s = 1; s < kSplits; s++) part[s] = vec4(0.0);
        } else {
            [[unroll]] for (uint s = 1; s < kSplits; s++) part[s] = load4(y + uint64_t(s) * p.split_stride * 4, from / 4, 0);
        }
        if (!is_v) {
            [[unroll]] for (uint c = 0; c < 4; c++) {
                uint d = d0 + c;
                if (is_turned(d)) rotations[c] = Vec2Ref(p.rope + (uint64_t(turn) * kHalf + (d < kHalf ? d : d - kPairStride)) * 8).v;
            }
        }
        acc = part[0];
        [[unroll]] for (uint s = 1; s < kSplits; s++) acc += part[s];
        vec4 base_value = acc;
        if (kHasBias != 0) acc += load4(p.bias, column / 4, 0);
        uint n = column - (is_q ? 0 : is_v && kKIsV == 0 ? kQHeads + kKvHeads : kQHeads) * kHeadDim;
        uint n_out = (is_q ? kQHeads : kKvHeads) * kHeadDim;
        if (kLora == 1) acc = add_lora(acc, module, low_row(p.low, t, module_idx, 3), n, n_out);
        if (kLora == 2) {
            LoraPlace place = LoraPlace(p.uses, p.lora_layer, p.low, p.lora_slot_stride, module_idx, module_idx, 3);
            acc = add_lora_uses(acc, base_value, place, row, t, n, n_out);
        }
        for (uint c = 0; c < 4; c++) values[base + d0 + c] = acc[c];
    }
    barrier();
#ifndef KV8
    if (!active_thread || t >= n_rows) return;
#endif

    uint64_t gamma = kHasNorm == 0 || is_v ? 0 : is_q ? p.q_gamma : p.k_gamma;
    if (kSlotNorms != 0 && gamma != 0) {
        gamma = slot_gamma(p.q_slot_norms + (is_q ? 0 : uint64_t(p.n_slots) * 8), row.extras_slot, gamma);
    }
    vec4 value = acc;
    float inverse = 1.0;
    if (active_thread && (gamma != 0 || (kVNorm != 0 && is_v))) {
        float squares = 0.0;
        for (uint d = 0; d < kHeadDim; d++) squares = fma(values[base + d], values[base + d], squares);
        inverse = inversesqrt(squares / float(kHeadDim) + p.eps);
        value = value * inverse;
        if (gamma != 0) value = value * load4(gamma, d0 / 4, 0);
    }
    if (active_thread && !is_v) {
        for (uint c = 0; c < 4; c++) {
            if (is_turned(d0 + c)) value[c] = rotated(base, d0 + c, value[c], rotations[c], gamma, inverse);
        }
    }
#ifdef KV8
    if (active_thread) tops[thread] = max(max(abs(value.x), abs(value.y)), max(abs(value.z), abs(value.w)));
    barrier();
    if (!active_thread || t >= n_rows) return;
#endif
    if (is_q) {
        if (kPositionBeta != 0.0) value *= 1.0 + kPositionBeta * log(1.0 + floor(float(row.position) / float(kPositionOriginal)));
        store4(p.q + uint64_t(t) * p.q_stride * 4, column / 4, value, 0);
    } else {
        uint kv_head = head - kQHeads - (is_v ? kKvHeads : 0);
        uint plane = is_v ? 1 : 0, block = row.kv_slot / kBlockTokens;
        uint token = row.kv_slot % kBlockTokens;
#ifdef KV8
        uint64_t to = kv_plane(p.kv, block, plane, kv_head);
        if (has_f16(plane)) {
            store4(to + token * (kHeadDim * 2), d0 / 4, value, 1);
            return;
        }
        uint group = d0 / kKvGroupSize;
        vec2 pair = vec2(group_top(local_head, group & ~1u), group_top(local_head, group | 1u));
        // The tops as the readers will see them.
        uint packed_tops = packHalf2x16(pair);
        pair = unpackHalf2x16(packed_tops);
        float top = (group & 1u) == 0 ? pair.x : pair.y;
        UintRef(kv_values(to, token) + d0).v = pack_i8(top > 0.0 ? value * (127.0 / top) : vec4(0.0));
        if (d0 % (2 * kKvGroupSize) == 0) UintRef(kv_tops(to, token) + group / 2 * 4).v = packed_tops;
#else
        uint64_t line = uint64_t((block * 2 + plane) * kKvHeads + kv_head) * kBlockTokens + token;
#ifdef KV32
        store4(p.kv + line * (kHeadDim * 4), d0 / 4, value, 0);
#else
        store4(p.kv + line * (kHeadDim * 2), d0 / 4, value, 1);
#endif
#endif
    }
}
