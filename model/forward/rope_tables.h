// Where the model's tables of cos and sin lie on the device.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/buffer.h"
#include "model/config/layer_facts.h"

namespace lorad::model {

struct RopeTables {
    gpu::DeviceAddress tables = 0;
    std::span<const uint64_t> offsets;  // bytes, of ModelConfig::rope_of()

    // 0: the layer turns nothing.
    gpu::DeviceAddress of(const AttentionFacts& attention) const {
        return attention.rope == kNoRope ? 0 : tables + offsets[attention.rope];
    }
};

}  // namespace lorad::model
