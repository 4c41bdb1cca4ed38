// An 8-bit KV cache on the host, as gpu/kernels/attention/kv8.glsl describes it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "gpu/kernels/attention/kv_format.h"
#include "gpu/kernels/step_state.h"
#include "tests/reference/numbers.h"

namespace lorad::gpu::testing {

// All planes of a cache; what is not stored is 0xff: the values -1, the scales NaN.
struct Kv8Planes {
    Kv8Planes(size_t n_planes, uint32_t common_head_dim)
        : head_dim(common_head_dim),
          plane_bytes(size_t{kBlockTokens} * kv_value_bytes(KvType::kInt8, head_dim)),
          top_bytes(kv_value_bytes(KvType::kInt8, head_dim) - head_dim),
          bytes(n_planes * plane_bytes, 0xff) {}

    // Quantizes one token; `values` become what a reader sees.
    void store(size_t plane, uint32_t token, std::span<float> values) {
        for (uint32_t begin = 0, group = 0; begin < head_dim; begin += kKvGroupSize, ++group) {
            const uint32_t end = std::min(begin + kKvGroupSize, head_dim);
            float top = 0;
            for (uint32_t d = begin; d < end; ++d) top = std::max(top, std::fabs(values[d]));
            const uint16_t half = reference::to_f16(top);
            std::memcpy(&bytes[top_at(plane, token, group)], &half, 2);
            top = reference::from_f16(half);
            for (uint32_t d = begin; d < end; ++d) {
                const auto quantized =
                    static_cast<int8_t>(std::clamp(std::nearbyint(values[d] * 127.0f / top), -127.0f, 127.0f));
                bytes[plane * plane_bytes + token * head_dim + d] = static_cast<uint8_t>(quantized);
                values[d] = quantized * top / 127.0f;
            }
        }
    }

    float top(size_t plane, uint32_t token, uint32_t d) const {
        uint16_t half = 0;
        std::memcpy(&half, &bytes[top_at(plane, token, d / kKvGroupSize)], 2);
        return reference::from_f16(half);
    }
    float load(size_t plane, uint32_t token, uint32_t d) const {
        return static_cast<int8_t>(bytes[plane * plane_bytes + token * head_dim + d]) * top(plane, token, d) / 127.0f;
    }

    uint32_t head_dim;
    size_t plane_bytes, top_bytes;  // the latter of one token
    std::vector<uint8_t> bytes;

  private:
    size_t top_at(size_t plane, uint32_t token, uint32_t group) const {
        return plane * plane_bytes + size_t{kBlockTokens} * head_dim + token * top_bytes + group * 2;
    }
};

// A cache with 16-bit keys and 8-bit values: by block the planes of its keys, then those of its values. `halves` and
// `eights` are whole caches of one type, of which one half each is used.
inline void exchange_mixed(std::vector<uint8_t>& mixed, std::vector<uint16_t>& halves, Kv8Planes& eights,
                           uint32_t n_kv_heads, bool gather) {
    const size_t keys = size_t{n_kv_heads} * kBlockTokens * eights.head_dim * 2,
                 values = n_kv_heads * eights.plane_bytes;
    const size_t n_blocks = eights.bytes.size() / (2 * values);
    mixed.resize(n_blocks * (keys + values));
    for (size_t block = 0; block < n_blocks; ++block) {
        uint8_t* at = &mixed[block * (keys + values)];
        uint8_t* key = reinterpret_cast<uint8_t*>(halves.data()) + block * 2 * keys;
        uint8_t* value = &eights.bytes[(block * 2 + 1) * values];
        std::memcpy(gather ? at : key, gather ? key : at, keys);
        std::memcpy(gather ? at + keys : value, gather ? value : at + keys, values);
    }
}
inline std::vector<uint8_t> mixed_planes(std::vector<uint16_t>& halves, Kv8Planes& eights, uint32_t n_kv_heads) {
    std::vector<uint8_t> mixed;
    exchange_mixed(mixed, halves, eights, n_kv_heads, true);
    return mixed;
}

}  // namespace lorad::gpu::testing
