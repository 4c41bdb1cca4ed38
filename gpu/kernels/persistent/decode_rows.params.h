// What the program of decode_rows_text.h is told. No shader includes this.
#pragma once

#include <cstdint>

#include "gpu/kernels/products/matmul_plan.h"

namespace lorad::gpu {

constexpr uint32_t kDecodeRowsMax = 8;

struct DecodeRowsShape {
    ScalarType type = ScalarType::kF16;            // of all matrices
    uint32_t hidden = 0, q = 0, ffn = 0, qkv = 0;  // elements; q: of queries; qkv: of queries, keys and values
};

struct DecodeRowsParams {
    uint64_t n_rows;            // address of the u32 row count
    uint64_t o, gate_up, down;  // matrices [n_padded][k_stride] of one 16-bit type
    uint64_t qkv;               // of the layer behind, or 0
    uint64_t attention;         // [t][Q] of the same type; kDecodeRowsMax rows may be read, of xn, act and norms, too
    uint64_t stream;            // [t][H] f32, the residual stream, updated in place
    uint64_t xn;                // [t][H] of the same type
    uint64_t act;               // [t][F] of the same type
    uint64_t y;                 // [t][padded q, k and v] f32, without bias; not without qkv
    uint64_t norms;             // deferred_norm.h, of which the inverses alone
    // GridBarrierSync (grid_barrier.h) and the squares of a norm, decode_rows_sync_bytes(), all zero before the first
    // dispatch
    uint64_t sync;
    uint64_t given_up;  // u32, set to 1 if workgroups waited in vain; the result means nothing then
    uint64_t post_attention_norm, next_norm;  // [H] f32; the second 0 without qkv
    uint64_t o_bias, down_bias;               // [H] f32, or 0
    float eps;
    uint32_t max_polls;  // of one grid barrier
};
static_assert(sizeof(DecodeRowsParams) == 144);

}  // namespace lorad::gpu
