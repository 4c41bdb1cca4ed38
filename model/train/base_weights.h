// A base model's weights on a device without anything to serve it: for training apart from a server.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "model/quant/quantize.h"
#include "model/weights/weights.h"
#include "proto/base/result.h"

namespace lorad::model {

struct BaseWeightOptions {
    WeightOptions weights;                                // as WeightLoader::create() has them
    std::optional<QuantizeType> quantize = std::nullopt;  // what plain matrices become while they are read
};

// `model` and `config` as for Executor::load().
Result<std::unique_ptr<const ModelWeights>> load_base_weights(gpu::Device& device, const std::filesystem::path& model,
                                                              const ModelConfig& config,
                                                              const BaseWeightOptions& options = {},
                                                              const LoadProgress& progress = {});

}  // namespace lorad::model
