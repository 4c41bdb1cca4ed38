// Packed weights for the tests at the start: any codes, and scales that are numbers.
#pragma once

#include <cstddef>
#include <random>
#include <span>

#include "gpu/kernels/formats/weight_format.h"

namespace lorad::gpu::self_test {

// part: kPartAlign bytes, a table among them, and whole bricks.
void fill_part(WeightFormat format, std::span<std::byte> part, std::mt19937& random);

}  // namespace lorad::gpu::self_test
