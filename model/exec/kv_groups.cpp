#include "model/exec/kv_groups.h"

#include <algorithm>

namespace lorad::model {

KvGroups KvGroups::none(const ModelConfig& config) { return {0, true, std::vector<bool>(config.n_layers, false)}; }

KvGroups KvGroups::of(const ModelConfig& config) {
    KvGroups groups{0, false, std::vector<bool>(config.n_layers, false)};
    const auto source = [&](uint32_t layer) { return config.layer(layer).attention.kv_from.value_or(layer); };
    const auto is_attention = [&](uint32_t layer) { return config.layer(layer).mixer == Mixer::kAttention; };
    for (uint32_t layer = 0; layer < config.n_layers; ++layer)
        groups.windowed[layer] = is_attention(layer) && config.layer(layer).attention.window != 0;
    // A layer that reads all of another's keys and values needs all of them kept.
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        if (is_attention(layer) && !groups.windowed[layer]) groups.windowed[source(layer)] = false;
    }
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        if (!is_attention(layer)) continue;
        groups.windowed[layer] = groups.windowed[source(layer)];
        if (groups.windowed[layer])
            groups.window = std::max(groups.window, config.layer(layer).attention.window);
        else
            groups.has_full = true;
    }
    return groups.has_windows() ? groups : none(config);
}

uint64_t KvGroups::block_bytes(const ModelConfig& config, const KvFormat& kv, bool of_windows) const {
    uint64_t sum = 0;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        if (windowed[layer] == of_windows) sum += kv_layer_block_bytes(config, layer, kv.of(layer));
    }
    return sum;
}

}  // namespace lorad::model
