// matmul for a software device whose subgroups have 8 lanes: y[s][t][n] = sum over the k range of split s of x[t][k] *
// w[n][k]
//   w  [n_padded][w_stride]  WEIGHT_TYPE
//   x  [T][x_stride]         f32, readable up to the next multiple of COLS rows
//   y  [S][T][y_stride]      f32
// A subgroup takes ROWS rows of w and COLS rows of x; its lanes stride over k, and their sums meet at the end, always in
// the same order: no sum depends on how many rows there are. The subgroups of a workgroup share what the driver does
// for each workgroup (it allocates memory) and nothing else. grid (ceil(T / COLS), n_padded / ROWS / subgroups, S).
//
// How the loads are written decides the speed. llvmpipe makes a branch or a gather for each lane of a load, unless its
// address is the same for all lanes by what it can tell without analysis (constants, push constants, and what is
// computed from these), outside of all loops and conditions. So there are no loops: k is unrolled. Lanes load all eight
// elements of a step and take their own, of which LLVM makes one load of a vector, as long as each is used more than
// once: COLS is at least 2.
// And the numbers of workgroup and subgroup are read, digit by digit in base 16, from push constants that hold the
// digits themselves.
// LLVM puts the instructions of a block in order without regard to registers. The sums over the lanes have a block of
// their own, behind a loop that is never entered; in one block with them, all loads of k come first and go to the stack.
#version 460
#extension GL_GOOGLE_include_directive : require
#ifdef HALVES
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#endif
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/lane_sums.glsl"
#include "gpu/kernels/products/matmul_unrolled.params.h"

layout(constant_id = 1) const uint kWeightType = 0;
layout(constant_id = 2) const uint kCols = 2;   // 2 or 4
layout(constant_id = 3) const uint kRows = 8;   // kCols * kRows is a multiple of 8
layout(constant_id = 4) const uint kSteps = 8;  // of 8 elements: those of a split
layout(constant_id = 5) const uint kDigitsX = 1;  // 0: the number is always 0
layout(constant_id = 6) const uint kDigitsY = 1;
layout(constant_id = 7) const uint kDigitsZ = 1;
layout(push_constant, scalar) uniform Push { MatmulUnrolledParams p; };

const uint kLanes = 8;
const uint kSums = kRows * kCols;

// `value`, which has n_digits in base 16.
uint seen_as_uniform(uint value, const uint n_digits) {
    uint all = 0;
    [[unroll]] for (uint i = 0; i < n_digits; i++) all += p.digits[(value >> (4 * i)) & 15] << (4 * i);
    return all;
}

uint lane = gl_SubgroupInvocationID;

float of_lane(vec4 low, vec4 high) {
    vec4 half_ = lane_bit(2) ? high : low;
    vec2 pair = lane_bit(1) ? half_.zw : half_.xy;
    return lane_bit(0) ? pair.y : pair.x;
}

#ifdef HALVES
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer HalvesRef { u16vec4 v; };

float load_weight(uint64_t at) {
    u16vec4 low = HalvesRef(at).v, high = HalvesRef(at + 8).v;
    u16vec4 half_ = lane_bit(2) ? high : low;
    u16vec2 pair = lane_bit(1) ? half_.zw : half_.xy;
    uint bits = uint(lane_bit(0) ? pair.y : pair.x);
    return kWeightType == 1 ? unpackHalf2x16(bits).x : uintBitsToFloat(bits << 16);
}
#else
float load_weight(uint64_t at) { return of_lane(Vec4Ref(at).v, Vec4Ref(at + 16).v); }
#endif

void main() {
    const uint weight_bytes = bytes_of(kWeightType);
    const uint t0 = seen_as_uniform(gl_WorkGroupID.x, kDigitsX) * kCols;
    const uint n_group = gl_WorkGroupID.y * (gl_WorkGroupSize.x / kLanes) + gl_SubgroupID;
    const uint n0 = seen_as_uniform(n_group, kDigitsY) * kRows;
    const uint split = seen_as_uniform(gl_WorkGroupID.z, kDigitsZ);
    const uint k_begin = split * (kSteps * kLanes);
    const uint n_rows = UintRef(p.n_rows).v;
    const uint64_t w = p.w + (uint64_t(n0) * p.w_stride + k_begin) * weight_bytes;
    const uint64_t x = p.x + (uint64_t(t0) * p.x_stride + k_begin) * 4;

    float acc[kSums];  // [row of w][row of x]
    [[unroll]] for (uint i = 0; i < kSums; i++) acc[i] = 0.0;
    [[unroll]] for (uint s = 0; s < kSteps; s++) {
        float xs[kCols];
        [[unroll]] for (uint j = 0; j < kCols; j++) {
            const uint64_t at = x + (uint64_t(j) * p.x_stride + s * kLanes) * 4;
            xs[j] = of_lane(Vec4Ref(at).v, Vec4Ref(at + 16).v);
        }
        [[unroll]] for (uint i = 0; i < kRows; i++) {
            const float weight = load_weight(w + (uint64_t(i) * p.w_stride + s * kLanes) * weight_bytes);
            [[unroll]] for (uint j = 0; j < kCols; j++) acc[i * kCols + j] = fma(weight, xs[j], acc[i * kCols + j]);
        }
    }
    for (uint i = 0; i < p.never; i++) acc[0] = -acc[0];
    [[unroll]] for (uint first = 0; first < kSums; first += kLanes) {
        float sums[kLanes];
        [[unroll]] for (uint i = 0; i < kLanes; i++) sums[i] = acc[first + i];
        const float mine = lane_sums(sums);
        const uint sum = first + lane, t = t0 + sum % kCols, n = n0 + sum / kCols;
        if (t < n_rows) FloatRef(p.y + 4 * (uint64_t(split) * p.split_stride + uint64_t(t) * p.y_stride + n)).v = mine;
    }
}
