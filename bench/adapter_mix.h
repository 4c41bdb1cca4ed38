// Which adapter each row of a step has.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "proto/base/result.h"

namespace lorad::bench {

enum class Mix { kIdentical, kDistinct, kUniform, kZipf };

Result<Mix> mix_named(const std::string& name);

// Index of the adapter of each of n_rows rows, in rising order, as the engine orders a step's rows: all 0; 0, 1, 2, ...
// round robin;
// drawn evenly; or drawn with probability 1 / rank^1.1. n_adapters > 0. The same seed draws the same.
std::vector<uint32_t> row_adapters(Mix mix, uint32_t n_rows, uint32_t n_adapters, uint32_t seed);

}  // namespace lorad::bench
