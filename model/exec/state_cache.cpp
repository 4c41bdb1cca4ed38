#include "model/exec/state_cache.h"

#include "proto/base/format.h"

namespace lorad::model {

StateSizes state_sizes(const ModelConfig& config, uint32_t layer) {
    const LayerFacts facts = config.layer(layer);
    switch (facts.mixer) {
        case Mixer::kAttention: return {};
        case Mixer::kDeltaNet: {
            const gpu::DeltaShape shape = delta_shape(facts.delta);
            return {shape.conv_floats(), shape.state_floats()};
        }
        case Mixer::kMamba: {
            const gpu::MambaShape shape = mamba_shape(facts.mamba);
            return {shape.conv_floats(), shape.state_floats()};
        }
        case Mixer::kShortConv: return {(facts.conv.taps - 1) * config.hidden_size, 0};
    }
    return {};
}

uint64_t state_slot_bytes(const ModelConfig& config) {
    uint64_t sum = 0;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) sum += state_sizes(config, layer).n_bytes();
    return sum;
}

Result<StateCache> StateCache::create(gpu::Device& device, const ModelConfig& config, uint32_t n_slots) {
    StateCache cache;
    for (uint32_t index = 0; index < config.n_layers; ++index) {
        Layer& layer = cache.layers.emplace_back();
        layer.sizes = state_sizes(config, index);
        const auto make = [&](gpu::Buffer& buffer, uint32_t n_floats) -> Status {
            if (n_floats == 0) return ok_status();
            const uint64_t n_bytes = uint64_t{n_slots} * n_floats * sizeof(float);
            if (n_bytes > device.capabilities().max_allocation_bytes) {
                return make_error(
                    ErrorCode::kOutOfMemory,
                    format("{} states of layer {} are {} bytes, {} allocates {} at once: serve fewer sequences",
                           n_slots, index, n_bytes, device.capabilities().name,
                           device.capabilities().max_allocation_bytes));
            }
            TRY_ASSIGN(buffer, device.create_buffer(n_bytes, gpu::MemoryKind::kDeviceLocal, "states"));
            return ok_status();
        };
        TRY(make(layer.conv, layer.sizes.conv_floats));
        TRY(make(layer.delta, layer.sizes.delta_floats));
    }
    return cache;
}

}  // namespace lorad::model
