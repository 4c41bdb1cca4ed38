#include <algorithm>
#include <bit>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void AttentionKernels::qkv_post(Recorder& recorder, const QkvPostParams& params, const QkvShape& shape) {
    CHECK(shape.head_dim % 4 == 0 && shape.rotary_dim % 2 == 0 && shape.rotary_dim <= shape.head_dim);
    CHECK((params.q_gamma != 0) == (params.k_gamma != 0) || shape.n_kv_heads == 0);
    const uint32_t pair_stride = shape.pair_stride != 0 ? shape.pair_stride : shape.rotary_dim / 2;
    CHECK(shape.rotary_dim / 2 <= pair_stride && pair_stride + shape.rotary_dim / 2 <= shape.head_dim);
    CHECK(!shape.output_gate || (shape.base.lora == LoraLevel::kNone && params.bias == 0 && !shape.k_is_v));
    uint32_t lanes = shape.head_dim / 4;
    uint32_t size = std::max(threads(64, 32), std::bit_ceil(lanes));
    uint32_t n_heads = shape.n_q_heads + 2 * shape.n_kv_heads;
    struct Constants {
        uint32_t threads, q_heads, kv_heads, head_dim, rotary_dim, splits, lora, has_bias, has_norm, slot_norms,
            whole_rows, keys_f16, pair_stride, v_norm, k_is_v, position_beta, position_original, gated;
    };
    const Kernel* k = kernel(has_int8(options().kv_type)         ? "qkv_post_kv8"
                             : options().kv_type == KvType::kF32 ? "qkv_post_kv32"
                                                                 : "qkv_post",
                             Constants{.threads = size,
                                       .q_heads = shape.n_q_heads,
                                       .kv_heads = shape.n_kv_heads,
                                       .head_dim = shape.head_dim,
                                       .rotary_dim = shape.rotary_dim,
                                       .splits = shape.base.n_splits,
                                       .lora = static_cast<uint32_t>(shape.base.lora),
                                       .has_bias = params.bias != 0,
                                       .has_norm = params.q_gamma != 0,
                                       .slot_norms = params.q_slot_norms != 0,
                                       .whole_rows = shape.base.whole_rows,
                                       .keys_f16 = shape.keys_f16,
                                       .pair_stride = pair_stride,
                                       .v_norm = shape.v_norm,
                                       .k_is_v = shape.k_is_v,
                                       .position_beta = std::bit_cast<uint32_t>(shape.position_beta),
                                       .position_original = std::max(shape.position_original, 1u),
                                       .gated = shape.output_gate});
    if (k == nullptr) return;
    uint64_t row_bytes = uint64_t{n_heads} * shape.head_dim * 4 * shape.base.n_splits +
                         uint64_t{shape.n_q_heads + shape.n_kv_heads} * shape.head_dim * 4;
    recorder.dispatch(*k, params, ceil_div(n_heads, size / lanes), shape.base.rows, 1,
                      {"qkv_post", shape.base.rows * row_bytes, 0});
}

}  // namespace lorad::gpu
