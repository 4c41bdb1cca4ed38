// Prepares the dispatch that runs all layers of a one-row step: its input beside the weights. See
// gpu/kernels/persistent/decode_layers.comp.
#pragma once

#include <memory>

#include "gpu/device.h"
#include "gpu/kernels/kernels.h"
#include "model/config/config.h"
#include "model/exec/kv_cache.h"
#include "model/forward/given_up.h"
#include "model/forward/rope_tables.h"
#include "model/weights/weight_transform.h"
#include "model/weights/weights.h"
#include "proto/base/result.h"

namespace lorad::model {

// The model's layers in the kernel's terms.
gpu::DecodeLayersShape decode_layers_shape(const ModelConfig& config, const ModelWeights& weights, uint32_t n_splits,
                                           bool lora = false, uint32_t lora_type = gpu::kAnyLoraType);
// Returns true if all matrices of all layers have the same type.
bool has_one_type(const ModelWeights& weights);
bool has_packed(const ModelWeights& weights);  // a matrix of a layer
// Returns true if this device's kernels can run them. Every layer's matrices must have the same type, and none may be
// packed.
bool can_decode_layers(const gpu::PersistentPlanner& kernels, const ModelConfig& config, const ModelWeights& weights);

constexpr uint32_t kDecodeSplitsMax = 16;  // of the context, in one dispatch

// DecodeLayer[n_layers] of the model's own weights, or with the merged ones where these change them. Handed to the
// uploader. The addresses must be known, the weights need not have arrived. Any thread.
Result<gpu::Buffer> decode_layer_table(gpu::Device& device, const ModelConfig& config, const ModelWeights& weights,
                                       const MergedWeights* merged, const KvCache& kv_cache,
                                       const RopeTables& rope_tables);

// Engine thread only.
class DecodeLayers {
  public:
    static Result<std::unique_ptr<DecodeLayers>> create(gpu::Device& device, const ModelConfig& config,
                                                        const ModelWeights& weights, const KvCache& kv_cache,
                                                        const RopeTables& rope_tables);

    gpu::DeviceAddress table() const { return table_.address(); }  // decode_layer_table() of the model's own weights
    gpu::DeviceAddress channels() const { return channels_.address(); }
    gpu::DeviceAddress sync() const { return sync_.address(); }
    // Set when a grid barrier of some step has timed out.
    const GivenUp& given_up() const { return given_up_; }

  private:
    gpu::Buffer table_;
    gpu::Buffer channels_;  // u64[decode_channel_words()]
    gpu::Buffer sync_;      // DecodeSync
    GivenUp given_up_;
};

}  // namespace lorad::model
