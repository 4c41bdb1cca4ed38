#include "model/weights/expert_places.h"

#include <algorithm>

#include "gpu/kernels/kernel_options.h"

namespace lorad::model {

ExpertPlaces::ExpertPlaces(const ModelConfig& config, uint32_t rows) {
    uint32_t size_max = 0;
    for (const LayerFacts& layer : config.layers) {
        const ExpertFacts& experts = layer.ffn.experts;
        experts_max = std::max(experts_max, experts.n);
        top_max = std::max(top_max, experts.top_k);
        size_max = std::max(size_max, experts.size);
    }
    if (experts_max == 0) return;
    constexpr uint64_t kAlign = 256;
    const uint64_t pairs = uint64_t{rows} * top_max;
    const auto take = [&](uint64_t n_bytes) {
        const uint64_t begin = end;
        end += (n_bytes + kAlign - 1) / kAlign * kAlign;
        return begin;
    };
    counts = take(uint64_t{config.n_layers} * experts_max * sizeof(uint32_t));
    n_tiles = take(sizeof(uint32_t));
    logits = take(uint64_t{rows} * experts_max * sizeof(float));
    gate = take(uint64_t{rows} * sizeof(float));
    chosen = take(pairs * sizeof(uint32_t));
    weights = take(pairs * sizeof(float));
    sorted = take(pairs * sizeof(uint32_t));
    tiles = take(pairs * sizeof(gpu::ExpertTile));
    shared = take(uint64_t{rows} * config.hidden_size * sizeof(float));
    y = take(pairs * std::max(2 * size_max, config.hidden_size) * sizeof(float));
    act = take(pairs * gpu::padded(size_max) * sizeof(float));
}

}  // namespace lorad::model
