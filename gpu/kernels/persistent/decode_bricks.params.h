// What the program of decode_bricks_text.h is told, and what it is made for. No shader includes this.
#pragma once

#include <array>
#include <cstdint>

#include "gpu/kernels/formats/weight_format.h"
#include "gpu/kernels/persistent/decode_rows.params.h"
#include "gpu/kernels/scalar_type.h"

namespace lorad::gpu {

constexpr uint32_t kDecodeBricksParts = 3;  // of q, k and v, at most

// Neighbouring rows of q, k and v in one format, the first behind those of the part before. n = 0: there is no such
// part.
struct DecodeBricksPart {
    WeightFormat format = WeightFormat::kF32;
    uint32_t row_begin = 0, n = 0;
};

// Packed matrices of the first layer from o on, and q, k and v of the second. All but the latter have one format each.
struct DecodeBricksShape {
    ScalarType type = ScalarType::kF16;   // of activations
    uint32_t rows = 0;                    // capacity
    uint32_t hidden = 0, q = 0, ffn = 0;  // elements; q: of queries
    WeightFormat o = WeightFormat::kF32, gate_up = WeightFormat::kF32, down = WeightFormat::kF32;
    std::array<DecodeBricksPart, kDecodeBricksParts> qkv = {};  // none: behind the last layer

    constexpr uint32_t qkv_rows() const { return qkv[0].n + qkv[1].n + qkv[2].n; }
};

struct DecodeBricksParams {
    uint64_t n_rows;                   // address of the u32 row count
    uint64_t o, gate, up, down;        // the first bricks of each
    uint64_t qkv[kDecodeBricksParts];  // of each part
    uint64_t attention;                // [t][q] of the shape's type
    uint64_t stream;                   // [t][hidden] f32, the residual stream, updated in place
    // kBandFragments of the shape's type, [hidden] and [ffn] for each of kDecodeRowsMax rows; written, then read
    uint64_t xn, act;
    uint64_t y;      // [t][y_stride] f32: q, k and v without bias
    uint64_t norms;  // deferred_norm.h, of which the inverses alone
    // GridBarrierSync (grid_barrier.h) and more, decode_bricks_sync_bytes(), all zero before the first dispatch
    uint64_t sync;
    uint64_t given_up;  // u32, set to 1 if workgroups waited in vain; the result means nothing then
    uint64_t post_attention_norm, next_norm;  // [hidden] f32; the second 0 without q, k and v
    uint64_t o_bias, down_bias;               // [hidden] f32, or 0
    float eps;
    uint32_t max_polls;  // of one grid barrier
    uint32_t y_stride;   // elements
    uint32_t pad;
};
static_assert(sizeof(DecodeBricksParams) == 176);

}  // namespace lorad::gpu
