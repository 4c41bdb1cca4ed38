// train_product for software devices, where a load costs as much as dozens of sums: c[i][j] (+)= alpha * sum over l of
// a[i][l] * b[l][j]
//   a  [m][k], b [k][n] by strides, of A_TYPE and B_TYPE;  c [m][n] by strides, f32
// A workgroup is one subgroup. An invocation has COLUMNS columns of c and ROW_LOADS rows for each lane of the subgroup:
// lanes load different rows of a and tell them to the others. Sums run in order of l.
// grid (ceil(n / (workgroup * COLUMNS)), ceil(m / (workgroup * ROW_LOADS)), items)
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_ballot : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_product.params.h"

layout(constant_id = 1) const uint kAType = 0;
layout(constant_id = 2) const uint kBType = 0;
layout(constant_id = 3) const uint kAdds = 0;  // 1: c is added to
layout(constant_id = 4) const uint kLanes = 8;  // of a subgroup, and invocations of a workgroup
layout(constant_id = 5) const uint kRowLoads = 2;
layout(constant_id = 6) const uint kColumns = 4;
layout(push_constant, scalar) uniform Push { TrainProductParams p; };
#include "gpu/kernels/train/train_product.glsl"

const uint kABytes = kAType == 0 ? 4 : 2, kBBytes = kBType == 0 ? 4 : 2;

float load_address(uint64_t address, const uint type) {
    if (type == 0) return FloatRef(address).v;
    vec2 pair = unpack_pair(UintRef(address & ~uint64_t(3)).v, type);
    return (uint(address) & 2u) == 0 ? pair.x : pair.y;
}

void main() {
    TrainProductItem item = workgroup_product();
    uint lane = gl_SubgroupInvocationID;
    uint i0 = gl_WorkGroupID.y * (kLanes * kRowLoads), j0 = gl_WorkGroupID.x * (kLanes * kColumns);
    if (i0 >= item.m || j0 >= item.n) return;
    // Beyond the last row and column lanes go along with it, since others wait for what they load.
    uint64_t a_at[kRowLoads], b_at[kColumns];
    [[unroll]] for (uint q = 0; q < kRowLoads; q++) a_at[q] = p.a + (item.a + uint64_t(min(i0 + q * kLanes + lane, item.m - 1)) * p.a_i) * kABytes;
    [[unroll]] for (uint c = 0; c < kColumns; c++) b_at[c] = p.b + (item.b + uint64_t(min(j0 + c * kLanes + lane, item.n - 1)) * p.b_j) * kBBytes;
    uint64_t a_step = uint64_t(p.a_l) * kABytes, b_step = uint64_t(p.b_l) * kBBytes;
    float acc[kRowLoads * kLanes * kColumns];
    [[unroll]] for (uint i = 0; i < kRowLoads * kLanes * kColumns; i++) acc[i] = 0.0;
    for (uint l = 0; l < item.k; l++) {
        float b[kColumns];
        [[unroll]] for (uint c = 0; c < kColumns; c++) {
            b[c] = load_address(b_at[c], kBType);
            b_at[c] += b_step;
        }
        [[unroll]] for (uint q = 0; q < kRowLoads; q++) {
            float own = load_address(a_at[q], kAType);
            a_at[q] += a_step;
            [[unroll]] for (uint s = 0; s < kLanes; s++) {
                float a = subgroupBroadcast(own, s);
                [[unroll]] for (uint c = 0; c < kColumns; c++) {
                    uint at = (q * kLanes + s) * kColumns + c;
                    acc[at] = fma(a, b[c], acc[at]);
                }
            }
        }
    }
    [[unroll]] for (uint r = 0; r < kRowLoads * kLanes; r++) {
        [[unroll]] for (uint c = 0; c < kColumns; c++) {
            uint i = i0 + r, j = j0 + c * kLanes + lane;
            if (i < item.m && j < item.n) store_product(item.c + uint64_t(i) * p.c_i + uint64_t(j) * p.c_j, acc[r * kColumns + c], kAdds);
        }
    }
}
