// lora_vector: y = W x + scale B (A x) for one row, in one dispatch
//   W [n][k], A [rank][k], B [n][rank8]  WEIGHT_TYPE;  x [k], y [n]  ACT_TYPE
// grid (ceil(n / kGroupRows), with kPolls > 0 rounded up to a power of two). Each workgroup computes kGroupRows elements of y. It needs all of A x:
//   kPolls == 0  every workgroup computes it, reading all of A
//   kPolls > 0   each subgroup of the grid computes some elements and publishes them; the workgroup goes on with its part of W x
//                and then looks, at most kPolls times, whether all have arrived. If not, it computes A x itself, to the same
//                bits: nothing ever depends on another workgroup's progress.
// Moves W, B and, with kPolls > 0 and when nobody is late, A once.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/lora_vector.params.h"

layout(constant_id = 1) const uint kWeightType = 0;
layout(constant_id = 2) const uint kActType = 0;
layout(constant_id = 3) const uint kK = 64;
layout(constant_id = 4) const uint kRank = 8;
layout(constant_id = 5) const uint kGroupRows = 4;
layout(constant_id = 6) const uint kParts = 1;  // threads that share one row of B; kGroupRows * kParts <= workgroup size
layout(constant_id = 7) const uint kWithBase = 0;
layout(constant_id = 8) const uint kPolls = 0;
layout(push_constant, scalar) uniform Push { LoraVectorParams p; };

layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer SharedFloatRef { float v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer SharedUintRef { uint v; };

const uint kChunks = kK / 8;
const uint kRankChunks = (kRank + 7) / 8;
const uint kPerPart = (kRankChunks + kParts - 1) / kParts;
const uint kUnroll = 4;
shared float low[kRankChunks * 8];
shared float base[kGroupRows];
shared float parts[kGroupRows * kParts];
shared uint all_arrived;

uint64_t row_of(uint64_t matrix, uint row, uint stride) { return matrix + uint64_t(row) * stride * bytes_of(kWeightType); }

// Two rows of k weights times x, by one subgroup; the same bits for a row whichever its neighbour is.
vec2 dot_rows(uint64_t first, uint64_t second) {
    vec2 acc = vec2(0.0);
    uint chunk = gl_SubgroupInvocationID;
    for (; chunk + (kUnroll - 1) * gl_SubgroupSize < kChunks; chunk += kUnroll * gl_SubgroupSize) {
        Eight a[kUnroll], b[kUnroll], v[kUnroll];
        [[unroll]] for (uint u = 0; u < kUnroll; u++) {
            a[u] = load8(first, chunk + u * gl_SubgroupSize, kWeightType);
            b[u] = load8(second, chunk + u * gl_SubgroupSize, kWeightType);
            v[u] = load8(p.x, chunk + u * gl_SubgroupSize, kActType);
        }
        [[unroll]] for (uint u = 0; u < kUnroll; u++) acc = vec2(dot8(a[u], v[u], acc.x), dot8(b[u], v[u], acc.y));
    }
    for (; chunk < kChunks; chunk += gl_SubgroupSize) {
        Eight v = load8(p.x, chunk, kActType);
        acc = vec2(dot8(load8(first, chunk, kWeightType), v, acc.x), dot8(load8(second, chunk, kWeightType), v, acc.y));
    }
    return subgroupAdd(acc);
}

// Elements r and r + 1 of A x; beyond the rank the last row again, which is not used.
vec2 low_pair(uint r) { return dot_rows(row_of(p.a, r, kK), row_of(p.a, min(r + 1, kRank - 1), kK)); }

void compute_low() {
    for (uint r = gl_SubgroupID * 2; r < kRank; r += gl_NumSubgroups * 2) {
        vec2 pair = low_pair(r);
        if (subgroupElect()) {
            low[r] = pair.x;
            if (r + 1 < kRank) low[r + 1] = pair.y;
        }
    }
}

// Workgroups that have come, in all dispatches of this grid, which is a power of two: each dispatch begins at a multiple of it,
// also when the count wraps.
SharedUintRef arrivals() { return SharedUintRef(p.low + (kMaxRank + findMSB(gl_NumWorkGroups.x)) * 4); }

// This workgroup's elements, and that it has come. Returns the count that says that all have.
uint publish_low() {
    uint n_subgroups = gl_NumWorkGroups.x * gl_NumSubgroups;
    for (uint r = (gl_SubgroupID * gl_NumWorkGroups.x + gl_WorkGroupID.x) * 2; r < kRank; r += n_subgroups * 2) {
        vec2 pair = low_pair(r);
        if (subgroupElect()) {
            SharedFloatRef(p.low + r * 4).v = pair.x;
            if (r + 1 < kRank) SharedFloatRef(p.low + (r + 1) * 4).v = pair.y;
        }
    }
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationIndex != 0) return 0;
    memoryBarrierBuffer();
    uint before = atomicAdd(arrivals().v, 1);
    return (before & ~(gl_NumWorkGroups.x - 1)) + gl_NumWorkGroups.x;
}

void take_low(uint wanted) {
    if (gl_LocalInvocationIndex == 0) {
        uint arrived = 0;
        for (uint i = 0; i < kPolls && arrived == 0; i++) {
            if (int(atomicAdd(arrivals().v, 0) - wanted) >= 0) arrived = 1;
        }
        all_arrived = arrived;
    }
    barrier();
    memoryBarrierBuffer();
    if (all_arrived == 0) {
        compute_low();
    } else {
        for (uint r = gl_LocalInvocationIndex; r < kRank; r += gl_WorkGroupSize.x) low[r] = SharedFloatRef(p.low + r * 4).v;
    }
}

void main() {
    uint thread = gl_LocalInvocationIndex;
    uint n0 = gl_WorkGroupID.x * kGroupRows;
    for (uint r = kRank + thread; r < kRankChunks * 8; r += gl_WorkGroupSize.x) low[r] = 0.0;
    uint wanted = 0;
    if (kPolls == 0) {
        compute_low();
    } else {
        wanted = publish_low();
    }
    if (kWithBase != 0) {
        // From the last subgroup on: the first ones have the elements of A x.
        for (uint i = (gl_NumSubgroups - 1 - gl_SubgroupID) * 2; i < kGroupRows; i += gl_NumSubgroups * 2) {
            vec2 pair = dot_rows(row_of(p.w, min(n0 + i, p.n - 1), kK), row_of(p.w, min(n0 + i + 1, p.n - 1), kK));
            if (subgroupElect()) {
                base[i] = pair.x;
                base[i + 1] = pair.y;
            }
        }
    }
    // B is on its way while others are waited for.
    uint row = thread / kParts, part = thread % kParts;
    Eight b[kPerPart];
    for (uint c = 0; c < kPerPart; c++) {
        uint chunk = part + c * kParts;
        b[c] = Eight(vec4(0.0), vec4(0.0));
        if (row < kGroupRows && chunk < kRankChunks) b[c] = load8(row_of(p.b, min(n0 + row, p.n - 1), kRankChunks * 8), chunk, kWeightType);
    }
    if (kPolls > 0) take_low(wanted);
    barrier();
    if (row < kGroupRows) {
        float sum = 0.0;
        for (uint c = 0; c < kPerPart; c++) {
            uint chunk = part + c * kParts;
            if (chunk >= kRankChunks) break;
            Eight v = Eight(vec4(low[chunk * 8], low[chunk * 8 + 1], low[chunk * 8 + 2], low[chunk * 8 + 3]),
                            vec4(low[chunk * 8 + 4], low[chunk * 8 + 5], low[chunk * 8 + 6], low[chunk * 8 + 7]));
            sum = dot8(b[c], v, sum);
        }
        parts[row * kParts + part] = sum;
    }
    barrier();
    // 16-bit elements are written in pairs.
    for (uint i = thread * 2; i < kGroupRows && n0 + i < p.n; i += gl_WorkGroupSize.x * 2) {
        vec2 sums = vec2(0.0);
        for (uint j = 0; j < kParts; j++) sums += vec2(parts[i * kParts + j], parts[(i + 1) * kParts + j]);
        sums *= p.scale;
        if (kWithBase != 0) sums += vec2(base[i], base[i + 1]);
        if (n0 + i + 1 >= p.n) sums.y = 0.0;
        if (kActType == 0) {
            Vec2Ref(p.y + uint64_t(n0 + i) * 4).v = sums;
        } else {
            UintRef(p.y + uint64_t(n0 + i) * 2).v = pack_pair(sums, kActType);
        }
    }
}
