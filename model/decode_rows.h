// What the dispatch that runs what lies between the attentions of two layers, for a few rows, needs beside the weights: see gpu/kernels/decode_rows_text.h.
#pragma once

#include <memory>

#include "gpu/device.h"
#include "gpu/kernels/kernels.h"
#include "model/config.h"
#include "model/given_up.h"
#include "model/weight_transform.h"
#include "model/weights.h"
#include "proto/base/result.h"

namespace lorad::model {

// The model's layers in the kernel's terms.
gpu::DecodeRowsShape decode_rows_shape(const ModelConfig& config, const ModelWeights& weights);
bool has_gate_up_bias(const ModelWeights& weights, const MergedWeights* merged);
// Whether this device's kernels can run them: also asks that all matrices have the same type, and gate and up no bias. A merged adapter may bring one.
bool can_decode_rows(const gpu::KernelSet& kernels, const ModelConfig& config, const ModelWeights& weights);

// Engine thread only.
class DecodeRows {
  public:
    static Result<std::unique_ptr<DecodeRows>> create(gpu::Device& device, const gpu::KernelSet& kernels, const ModelConfig& config, const ModelWeights& weights);

    gpu::DeviceAddress sync() const { return sync_.address(); }
    gpu::DeviceAddress given_up_address() const { return given_up_.address(); }
    // Whether some step's workgroups waited in vain; it stays so.
    bool given_up() const { return given_up_.is_set(); }

  private:
    gpu::Buffer sync_;
    GivenUp given_up_;
};

}  // namespace lorad::model
