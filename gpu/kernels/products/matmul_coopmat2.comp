// y[t][n] = sum over k of x[t][k] * w[n][k] on NV cooperative matrices 2, workgroup scope, 16-bit w and x
// of one type (macro ELEMENT), f32 sums, for many rows. Tiles come straight from memory; the compiler stages them. It
// must see that loads may be 16 bytes wide, or they are five times slower: k starts at a literal and y_stride is
// masked, which changes no value. Nothing is clamped: rows up to a whole tile are read and written. y_stride is a
// multiple of N_TILE.
// Grid: (row tiles, tiles of w rows): workgroups that share a tile of w run beside each other. No splits.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_NV_cooperative_matrix2 : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#ifdef BF16
#extension GL_EXT_bfloat16 : require
#define ELEMENT bfloat16_t
#else
#define ELEMENT float16_t
#endif
#include "gpu/kernels/products/matmul.params.h"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint ROWS = 128;     // row tile
layout(constant_id = 2) const uint N_TILE = 128;
layout(constant_id = 3) const uint K_TILE = 64;
// w_stride and x_stride: literal, so that the compiler knows every slice
layout(constant_id = 4) const uint STRIDE = 64;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Count { uint value; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Elements { ELEMENT data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Floats { float data[]; };
layout(push_constant, scalar) uniform Push { MatmulParams params; };

void main() {
    const uint row0 = gl_WorkGroupID.x * ROWS;
    if (row0 >= Count(params.n_rows).value) return;
    const uint n0 = gl_WorkGroupID.y * N_TILE;
    const uint y_stride = params.y_stride & ~(N_TILE - 1);
    Elements w = Elements(params.w);
    Elements x = Elements(params.x);
    Floats y = Floats(params.y);

    tensorLayoutNV<2> x_layout = createTensorLayoutNV(2);
    tensorLayoutNV<2> w_layout = createTensorLayoutNV(2);
    tensorLayoutNV<2> y_layout = createTensorLayoutNV(2);
    x_layout = setTensorLayoutDimensionNV(x_layout, row0 + ROWS, STRIDE);
    w_layout = setTensorLayoutDimensionNV(w_layout, y_stride, STRIDE);
    y_layout = setTensorLayoutDimensionNV(y_layout, row0 + ROWS, y_stride);
    tensorViewNV<2, false, 1, 0> transposed = createTensorViewNV(2, false, 1, 0);

    coopmat<float, gl_ScopeWorkgroup, ROWS, N_TILE, gl_MatrixUseAccumulator> acc =
        coopmat<float, gl_ScopeWorkgroup, ROWS, N_TILE, gl_MatrixUseAccumulator>(0.0);
    for (uint k = 0; k < STRIDE; k += K_TILE) {
        coopmat<ELEMENT, gl_ScopeWorkgroup, ROWS, K_TILE, gl_MatrixUseA> a;
        coopmat<ELEMENT, gl_ScopeWorkgroup, K_TILE, N_TILE, gl_MatrixUseB> b;
        coopMatLoadTensorNV(a, x.data, 0, sliceTensorLayoutNV(x_layout, row0, ROWS, k, K_TILE));
        coopMatLoadTensorNV(b, w.data, 0, sliceTensorLayoutNV(w_layout, n0, N_TILE, k, K_TILE), transposed);
        acc = coopMatMulAdd(a, b, acc);
    }
    coopMatStoreTensorNV(acc, y.data, 0, sliceTensorLayoutNV(y_layout, row0, ROWS, n0, N_TILE));
}
