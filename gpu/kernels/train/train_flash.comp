// train_flash: causal attention of a tile of rows of one sequence, kFlashRows of them, and one query head, with scores
// in registers (FlashAttention, Dao et al. 2022):
//   forward  o = softmax(scale q K^T) V;  lse of each row, to the base of 2
//   queries  dq = scale (P (dout V^T - dots)) K, with P = 2^(log2(e) scale q K^T - lse) again
//   keys     dv = P^T dout;  dk = scale (P (dout V^T - dots))^T q
// grid (heads, tiles); 4, 6 and 8 D flops for each row, head and key that it sees, or query that sees it.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#ifdef BF16
#extension GL_EXT_bfloat16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#define ELEMENT bfloat16_t
// Rounds to the nearest: conversions cut bits off on NVIDIA's devices.
#define ROUNDED(value) uintBitsToBFloat16EXT(uint16_t((floatBitsToUint(value) + 0x7fffu + (floatBitsToUint(value) >> 16 & 1u)) >> 16))
#else
#define ELEMENT float16_t
#define ROUNDED(value) float16_t(value)
#endif
#include "gpu/kernels/train/train_flash.glsl"

// A tile of queries stages its own rows, then as many keys and values of a step. A tile of keys stages these and
// values, and a step's queries and gradients.
shared uvec4 stage[kBackward == 2 ? (2 * kRows + 2 * 16) * kLine : kRows * kLine];

#include "gpu/kernels/train/train_flash_keys.glsl"
#include "gpu/kernels/train/train_flash_rows.glsl"

void main() {
    if (kBackward == 2) keys();
    else rows();
}
