// Matrices of every format that the device keeps in few bits, for tests of the kernels that read them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "model/files/safetensors.h"
#include "proto/base/check.h"
#include "proto/base/result.h"

namespace lorad::testing {

// The value of a Result that the test takes for granted.
template <typename T>
T must(Result<T> result) {
    if (!result.ok()) ADD_FAILURE() << result.error().message;
    CHECK(result.ok());
    return std::move(result).value();
}

// Every GGUF type of the golden blocks, in so many rows of several blocks, without those whose numbers are not finite,
// and integers of 8 bits.
std::vector<model::Tensor> matrices_of_blocks(uint64_t n_rows = 37);

// The files of the golden models that are kept open, and a matrix of each format that they add.
struct FolderMatrices {
    std::vector<model::TensorFiles> files;
    std::vector<model::Tensor> matrices;
};
FolderMatrices matrices_of_folders();

}  // namespace lorad::testing
