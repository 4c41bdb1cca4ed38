// The format of keys and values in a KV cache.
#ifdef __cplusplus
#pragma once
#include "proto/base/rounding.h"
#endif
#ifndef LORAD_GPU_KERNELS_KV_FORMAT_H
#define LORAD_GPU_KERNELS_KV_FORMAT_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

INTEROP_CONST kKvGroupSize = 32;  // neighbouring values of a token and head that share a scale

#ifdef __cplusplus
enum class KvType : uint32_t {
    kF16 = 0,
    kInt8 = 1,        // kv8.glsl
    kInt8Values = 2,  // keys as with kF16, values as with kInt8
    kF32 = 3,         // of the portable kernels alone
};

// Bytes that the values of one token and KV head take, and its keys.
constexpr uint32_t kv_value_bytes(KvType type, uint32_t head_dim) {
    if (type == KvType::kF16) return head_dim * 2;
    if (type == KvType::kF32) return head_dim * 4;
    const uint32_t n_groups = ceil_div(head_dim, kKvGroupSize);
    return head_dim + (n_groups + 1) / 2 * 4;
}
constexpr uint32_t kv_key_bytes(KvType type, uint32_t head_dim) {
    return kv_value_bytes(type == KvType::kInt8Values ? KvType::kF16 : type, head_dim);
}
constexpr uint32_t kv_token_bytes(KvType type, uint32_t head_dim) {
    return kv_key_bytes(type, head_dim) + kv_value_bytes(type, head_dim);
}
constexpr bool has_int8(KvType type) { return type == KvType::kInt8 || type == KvType::kInt8Values; }
#endif

INTEROP_END

#endif
