// What lorad-bench kernels is asked for, and its two parts: the products of a shape, and the kernels of a model's step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/commands.h"
#include "bench/results.h"
#include "gpu/device.h"
#include "gpu/kernels/kernels.h"

namespace lorad::bench {

struct KernelsOptions {
    std::string shape = "7b", type = "f16", model;
    std::vector<uint32_t> rows = {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048};
    std::vector<uint32_t> context = {200};  // positions that each row sees, with a model
    bool prompt = false;
    uint32_t chunk = 0, adapters = 0;
    std::vector<std::string> adapter_folders;
    uint32_t repeats = 10;
    bool sweep = false;
};

// The matrix products of options.shape with weights of `type`, from a pool of `gib`; with options.sweep every plan.
void measure_products(gpu::Device& device, gpu::KernelSet& kernels, const KernelsOptions& options, gpu::ScalarType type,
                      double gib, Results& results);

// Every kernel of a step of options.model, by name and bytes, at each number of rows and context.
void profile_model(const CommonOptions& common, const KernelsOptions& options);

}  // namespace lorad::bench
