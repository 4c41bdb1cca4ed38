// The model in the terms of the dispatch that runs what lies between the attentions of two layers, for a few rows: see
// gpu/kernels/persistent/decode_rows_text.h, and for packed matrices decode_bricks_text.h.
#pragma once

#include <optional>

#include "gpu/kernels/kernels.h"
#include "model/config/config.h"
#include "model/weights/weight_transform.h"
#include "model/weights/weights.h"

namespace lorad::model {

// The model's layers in the kernel's terms.
gpu::DecodeRowsShape decode_rows_shape(const ModelConfig& config, const ModelWeights& weights);
// The same of packed layers: of `layer` from o on, and of the next one's q, k and v. rows: capacity. nullopt: a matrix
// is not packed, or has parts of several formats, which only q, k and v may.
std::optional<gpu::DecodeBricksShape> decode_bricks_shape(const ModelConfig& config, const ModelWeights& weights,
                                                          uint32_t layer, uint32_t rows);
// The addresses of its matrices in the parameters.
void point_at_bricks(const ModelWeights& weights, uint32_t layer, gpu::DecodeBricksParams& params);
bool has_gate_up_bias(const ModelWeights& weights, const MergedWeights* merged);
// Returns true if this device's kernels can run them. All matrices must have the same type, and gate and up no bias,
// which a merged adapter may bring.
bool can_decode_rows(const gpu::KernelSet& kernels, const ModelConfig& config, const ModelWeights& weights);
// The same where all layers are packed.
bool can_decode_bricks(const gpu::KernelSet& kernels, const ModelConfig& config, const ModelWeights& weights);

}  // namespace lorad::model
