// The kernels that tests of a device's best ask for.
#pragma once

#include <cstdlib>

#include "gpu/kernels/products/matmul_plan.h"

namespace lorad::testing {

// What the device takes by itself; with LORAD_TEST_MATRICES the kernels on matrices, which a software device takes only
// when they are asked for (tests/matrices.sh). Where it has none, what asks for them fails.
inline gpu::KernelPath best_path() {
    return std::getenv("LORAD_TEST_MATRICES") != nullptr ? gpu::KernelPath::kCoopmat : gpu::KernelPath::kAuto;
}

}  // namespace lorad::testing
