#include "model/forward/decode_rows.h"

#include <algorithm>

#include "model/config/topology.h"
#include "model/forward/decode_layers.h"

namespace lorad::model {
namespace {

// Supported beside Llama's layers (topology.h); attention, the embedding and the output have their own dispatches.
constexpr uint32_t kDecodeRowsSupport = kFeatureRopeByLayer | kFeatureOddPairs | kFeaturePositionScale |
                                        kFeatureSoftcap | kFeatureEmbedScale | kFeatureScoreScale | kFeatureLogits;

}  // namespace

gpu::DecodeRowsShape decode_rows_shape(const ModelConfig& config, const ModelWeights& weights) {
    return {.type = weights.layers.front().qkv.type,
            .hidden = config.hidden_size,
            .q = config.q_size(),
            .ffn = config.intermediate_size,
            .qkv = config.q_size() + 2 * config.kv_size()};
}

bool has_gate_up_bias(const ModelWeights& weights, const MergedWeights* merged) {
    return std::ranges::any_of(weights.layers,
                               [&](const LayerWeights& w) { return address_of(w.gate_up_bias, merged) != 0; });
}

bool can_decode_rows(const gpu::KernelSet& kernels, const ModelConfig& config, const ModelWeights& weights) {
    return topology_of(config).has_only(kDecodeRowsSupport) && has_one_type(weights) && !has_packed(weights) &&
           !has_gate_up_bias(weights, nullptr) &&
           kernels.persistent.can_decode_rows(decode_rows_shape(config, weights));
}

}  // namespace lorad::model
