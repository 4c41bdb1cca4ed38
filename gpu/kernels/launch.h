// Shared by the launchers of gpu/kernels; nobody else includes it.
#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include "gpu/device.h"
#include "gpu/kernels/matmul_plan.h"
#include "proto/base/result.h"

namespace lorad::gpu {

constexpr uint32_t ceil_div(uint32_t value, uint32_t divisor) { return (value + divisor - 1) / divisor; }

// Workgroup size for one row of `items` independent items: enough threads for all, a power of two.
constexpr uint32_t threads_for(uint32_t items, uint32_t at_least, uint32_t at_most) {
    uint32_t wanted = std::bit_ceil(items);
    return wanted < at_least ? at_least : wanted > at_most ? at_most : wanted;
}

// The name of the module that a plan runs.
const char* variant_name(const MatmulPlan& plan);
std::string describe(const MatmulPlan& plan);

}  // namespace lorad::gpu
