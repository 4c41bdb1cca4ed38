// The tensors that a model's files have to hold, and where each goes in the weights on the device. What a family adds
// is a line in the inventory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "model/files/safetensors.h"
#include "model/weights/weights.h"

namespace lorad::model {

// One tensor of the files and the rows it fills of a device matrix or vector.
struct WeightPart {
    std::string name;
    uint32_t n = 0;
    uint32_t k = 0;  // 0: a vector of n
    Matrix* matrix = nullptr;
    Vector* vector = nullptr;
    float* number = nullptr;          // one that stays on the host; then neither of the above
    float times = 1.0f, plus = 0.0f;  // every number of a vector becomes times number + plus
    uint32_t begin = 0;               // first row of the matrix, first element of the vector
    uint32_t from = 0;                // first row of the tensor, where a part is some rows of it
    const Tensor* tensor = nullptr;

    // of the tensor where they are others than {n} or {n, k}, in the same order of numbers
    std::vector<uint64_t> dims = {};
    const Matrix* like = nullptr;  // a matrix that reads the same input, and so has the same type
    bool is_of_experts = false;    // whose products read all experts' matrices as one part

    std::vector<uint64_t> shape() const {
        return !dims.empty() ? dims : k == 0 ? std::vector<uint64_t>{n} : std::vector<uint64_t>{n, k};
    }
};

// Every tensor of the model, in the order of the forward pass. The parts of one matrix follow each other. Fills in the
// sizes of `weights`, into which parts point, and reads `files` where a matrix may be stored in more than one way.
std::vector<WeightPart> weight_inventory(const TensorFiles& files, const ModelConfig& config, ModelWeights& weights);

}  // namespace lorad::model
