// train_product for processors without wide memory: c[i][j] (+)= alpha * sum over l of a[i][l] * b[l][j]
//   a  [m][k], b [k][n] by strides, of A_TYPE and B_TYPE;  c [m][n] by strides, f32
// An invocation has one column of c and ROWS rows of it, so that a is the same for all lanes. Sums run in order of l.
// grid (ceil(n / workgroup), ceil(m / ROWS), items)
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_product.params.h"

layout(constant_id = 1) const uint kAType = 0;
layout(constant_id = 2) const uint kBType = 0;
layout(constant_id = 3) const uint kAdds = 0;    // 1: c is added to
layout(constant_id = 4) const uint kChunks = 0;  // 1: a and b have neighbouring l, in rows that begin at multiples of 16 bytes
layout(constant_id = 5) const uint kRows = 8;
layout(push_constant, scalar) uniform Push { TrainProductParams p; };
#include "gpu/kernels/train/train_product.glsl"

void main() {
    TrainProductItem item = product_of_workgroup();
    uint i0 = gl_WorkGroupID.y * kRows;
    uint j = gl_GlobalInvocationID.x;
    if (i0 >= item.m || j >= item.n) return;
    uint64_t a[kRows];
    float acc[kRows];
    [[unroll]] for (uint r = 0; r < kRows; r++) {
        a[r] = item.a + uint64_t(min(i0 + r, item.m - 1)) * p.a_i;
        acc[r] = 0.0;
    }
    uint64_t b = item.b + uint64_t(j) * p.b_j;
    uint l = 0;
    if (kChunks != 0) {
        for (; l + 8 <= item.k; l += 8) {
            Eight e = load8(p.b + (b + l) * bytes_of(kBType), 0, kBType);
            [[unroll]] for (uint r = 0; r < kRows; r++) acc[r] = dot8(e, load8(p.a + (a[r] + l) * bytes_of(kAType), 0, kAType), acc[r]);
        }
    }
    for (; l < item.k; l++) {
        float e = load_at(p.b, b + uint64_t(l) * p.b_l, kBType);
        [[unroll]] for (uint r = 0; r < kRows; r++) acc[r] = fma(load_at(p.a, a[r] + uint64_t(l) * p.a_l, kAType), e, acc[r]);
    }
    [[unroll]] for (uint r = 0; r < kRows; r++) {
        if (i0 + r < item.m) store_product(item.c + uint64_t(i0 + r) * p.c_i + uint64_t(j) * p.c_j, acc[r], kAdds);
    }
}
