// Values, moments and steps made, as bytes that training goes on from, in this build's own form for the same device;
// PEFT's is adapters/plan/trainable.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/train/train_parameters.h"
#include "model/train/trainable.h"
#include "proto/base/result.h"

namespace lorad::model {

Result<std::vector<std::byte>> write_train_checkpoint(const TrainableAdapter& shape, const TrainParameters& parameters,
                                                      uint64_t n_steps);
// The steps made. kInvalidRequest: cut, damaged, or of another adapter; nothing is written then.
Result<uint64_t> read_train_checkpoint(std::span<const std::byte> bytes, const TrainableAdapter& shape,
                                       TrainParameters& parameters);

}  // namespace lorad::model
