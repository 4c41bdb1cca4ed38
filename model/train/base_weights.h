// A base model's weights on a device without anything to serve it: for training apart from a server.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "model/weights/weights.h"
#include "proto/base/result.h"

namespace lorad::model {

// `model` and `config` as for Executor::load(); weight_type as WeightLoader::create() has it.
Result<std::unique_ptr<const ModelWeights>> load_base_weights(gpu::Device& device, const std::filesystem::path& model,
                                                              const ModelConfig& config,
                                                              std::optional<gpu::ScalarType> weight_type = std::nullopt,
                                                              const LoadProgress& progress = {});

}  // namespace lorad::model
