#include "model/forward/decode_rows.h"

#include <algorithm>
#include <vector>

#include "model/config/topology.h"
#include "model/forward/decode_layers.h"

namespace lorad::model {
namespace {

// Supported beside Llama's layers (topology.h); attention, the embedding and the output have their own dispatches.
constexpr uint32_t kDecodeRowsSupport = kFeatureRopeByLayer | kFeatureOddPairs | kFeaturePositionScale |
                                        kFeatureSoftcap | kFeatureEmbedScale | kFeatureScoreScale | kFeatureLogits;

// What decode_rows and decode_bricks ask for.
bool has_layers_for_both(const ModelConfig& config, const ModelWeights& weights) {
    return topology_of(config).has_only(kDecodeRowsSupport) && has_one_type(weights) &&
           !has_gate_up_bias(weights, nullptr);
}

// nullopt: the matrix is plain, or has several.
std::optional<gpu::WeightFormat> one_format(const Matrix& w) {
    if (!w.is_packed() || std::ranges::any_of(w.parts, [&](const MatrixPart& part) {
            return part.format != w.parts.front().format || part.row_begin % gpu::kBrickRows != 0;
        }))
        return std::nullopt;
    return w.parts.front().format;
}

}  // namespace

gpu::DecodeRowsShape decode_rows_shape(const ModelConfig& config, const ModelWeights& weights) {
    return {.type = weights.layers.front().qkv.type,
            .hidden = config.hidden_size,
            .q = config.q_size(),
            .ffn = config.intermediate_size,
            .qkv = config.q_size() + 2 * config.kv_size()};
}

std::optional<gpu::DecodeBricksShape> decode_bricks_shape(const ModelConfig& config, const ModelWeights& weights,
                                                          uint32_t layer, uint32_t rows) {
    const LayerWeights& w = weights.layers[layer];
    const std::optional<gpu::WeightFormat> o = one_format(w.o), gate_up = one_format(w.gate_up),
                                           down = one_format(w.down);
    if (!o || !gate_up || !down) return std::nullopt;
    gpu::DecodeBricksShape shape{.type = w.o.type,
                                 .rows = rows,
                                 .hidden = config.hidden_size,
                                 .q = config.q_size(),
                                 .ffn = config.intermediate_size,
                                 .o = *o,
                                 .gate_up = *gate_up,
                                 .down = *down};
    if (layer + 1 == config.n_layers) return shape;
    const std::vector<MatrixPart>& parts = weights.layers[layer + 1].qkv.parts;
    if (parts.empty() || parts.size() > gpu::kDecodeBricksParts) return std::nullopt;
    for (size_t i = 0; i < parts.size(); ++i) shape.qkv[i] = {parts[i].format, parts[i].row_begin, parts[i].n};
    return shape;
}

void point_at_bricks(const ModelWeights& weights, uint32_t layer, gpu::DecodeBricksParams& params) {
    const LayerWeights& w = weights.layers[layer];
    const uint32_t ffn = w.gate_up.n / 2;
    const MatrixPart& up = w.gate_up.part_of(ffn);
    params.o = w.o.address_of(w.o.parts.front());
    params.gate = w.gate_up.address_of(w.gate_up.parts.front());
    params.up = w.gate_up.address_of(up) + gpu::bytes_of(up.format, ffn - up.row_begin, w.gate_up.k);
    params.down = w.down.address_of(w.down.parts.front());
    if (layer + 1 == weights.layers.size()) return;
    const Matrix& qkv = weights.layers[layer + 1].qkv;
    for (size_t i = 0; i < qkv.parts.size(); ++i) params.qkv[i] = qkv.address_of(qkv.parts[i]);
}

bool has_gate_up_bias(const ModelWeights& weights, const MergedWeights* merged) {
    return std::ranges::any_of(weights.layers,
                               [&](const LayerWeights& w) { return address_of(w.gate_up_bias, merged) != 0; });
}

bool can_decode_rows(const gpu::KernelSet& kernels, const ModelConfig& config, const ModelWeights& weights) {
    return has_layers_for_both(config, weights) && !has_packed(weights) &&
           kernels.persistent.can_decode_rows(decode_rows_shape(config, weights));
}

bool can_decode_bricks(const gpu::KernelSet& kernels, const ModelConfig& config, const ModelWeights& weights) {
    if (!has_layers_for_both(config, weights)) return false;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        const std::optional<gpu::DecodeBricksShape> shape =
            decode_bricks_shape(config, weights, layer, gpu::kDecodeRowsMax);
        if (!shape || !weights.layers[layer].qkv.is_packed() || !kernels.persistent.can_decode_bricks(*shape))
            return false;
    }
    return true;
}

}  // namespace lorad::model
