// The content of an adapter's slot as a number, for the fake device.
#pragma once

#include <bit>

#include "model/weights/lora_table.h"
#include "tests/adapters/adapter_folder.h"
#include "tests/server/fake_runner.h"

namespace lorad::server {

// Of all bytes that kernels would read of an adapter.
inline uint64_t digest_of(const model::AdapterView& view) {
    uint64_t hash = 17;
    model::ModelConfig config = testing::small_config();
    for (size_t i = 0; i < view.modules.size(); ++i) {
        const model::LoraModuleView& module = view.modules[i];
        hash = fake_mix(fake_mix(hash, module.rank), std::bit_cast<uint32_t>(module.scale));
        if (module.rank == 0) continue;
        auto shape = config.shape(static_cast<model::LinearModule>(i % model::kLinearModules));
        auto add = [&](gpu::DeviceAddress at, uint64_t n_words) {
            auto words = reinterpret_cast<const uint64_t*>(at);
            for (uint64_t word = 0; word < n_words; ++word) hash = fake_mix(hash, words[word]);
        };
        add(module.a, uint64_t{module.rank} * gpu::padded(shape.k) / 2);
        add(module.b, uint64_t{shape.n} * round_up(module.rank, 8) / 2);
    }
    return hash;
}

}  // namespace lorad::server
