// What lies in device memory, for tests.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "gpu/buffer.h"
#include "gpu/device.h"
#include "model/weights/weights.h"

namespace lorad::testing {

std::vector<std::byte> read_back(gpu::Device& device, const gpu::Buffer& from);

// FNV-1a over all matrices and vectors of a model, padding included.
uint64_t checksum(gpu::Device& device, const model::ModelWeights& weights);

}  // namespace lorad::testing
