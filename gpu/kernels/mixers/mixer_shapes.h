// Sizes of mixers with a recurrence.
#pragma once

#include <cstdint>

#include "proto/base/rounding.h"

namespace lorad::gpu {

// Sizes of a gated delta net. value_heads is a multiple of key_heads; value_size a multiple of 4.
struct DeltaShape {
    uint32_t key_heads = 0, value_heads = 0, key_size = 0, value_size = 0, taps = 0;

    uint32_t keys() const { return key_heads * key_size; }
    uint32_t values() const { return value_heads * value_size; }
    uint32_t channels() const { return 2 * keys() + values(); }                  // of the convolution
    uint32_t inputs() const { return channels() + values() + 2 * value_heads; }  // of DeltaConvParams::m
    uint32_t outputs() const { return channels() + 2 * value_heads; }            // of DeltaConvParams::to
    // f32 of one sequence and layer: the convolution's and the recurrence's.
    uint32_t conv_floats() const { return (taps - 1) * channels(); }
    uint32_t state_floats() const { return values() * round_up(key_size, 16); }
    bool operator==(const DeltaShape&) const = default;
};

// Whether the kernels take such sizes: threads and shared memory that every device has.
constexpr uint32_t kDeltaHeadMax = 256, kConvTapsMax = 8;
constexpr bool can_mix(const DeltaShape& shape) {
    return shape.key_heads > 0 && shape.value_heads % shape.key_heads == 0 && shape.value_heads > 0 &&
           shape.key_size > 0 && shape.key_size <= kDeltaHeadMax && shape.value_size > 0 &&
           shape.value_size <= kDeltaHeadMax && shape.value_size % 4 == 0 && shape.taps >= 2 &&
           shape.taps <= kConvTapsMax;
}

// Sizes of a Mamba 2 mixer. heads is a multiple of groups; the heads of a group have one B and C.
struct MambaShape {
    uint32_t heads = 0, head_size = 0, groups = 0, state_size = 0, taps = 0;

    uint32_t inner() const { return heads * head_size; }
    uint32_t keys() const { return groups * state_size; }
    uint32_t channels() const { return inner() + 2 * keys(); }        // of the convolution
    uint32_t inputs() const { return inner() + channels() + heads; }  // of DeltaConvParams::m
    uint32_t outputs() const { return channels() + 2 * heads; }       // of DeltaConvParams::to
    uint32_t conv_floats() const { return (taps - 1) * channels(); }
    uint32_t state_floats() const { return recurrence().state_floats(); }
    // Its recurrence as that of a delta net, which corrects nothing.
    DeltaShape recurrence() const {
        return {
            .key_heads = groups, .value_heads = heads, .key_size = state_size, .value_size = head_size, .taps = taps};
    }
    bool operator==(const MambaShape&) const = default;
};
constexpr bool can_mix(const MambaShape& shape) {
    return shape.groups > 0 && shape.heads > 0 && shape.heads % shape.groups == 0 && shape.state_size > 0 &&
           shape.state_size <= kDeltaHeadMax && shape.head_size > 0 && shape.head_size <= kDeltaHeadMax &&
           shape.heads / shape.groups * shape.head_size % 4 == 0 && shape.taps >= 2 && shape.taps <= kConvTapsMax;
}

}  // namespace lorad::gpu
