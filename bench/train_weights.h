// A model's weights as random numbers, plain or in few bits, on a device: what `lorad-bench train` trains beside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/device.h"
#include "model/config/config.h"
#include "model/quant/quantize.h"
#include "model/weights/weights.h"

namespace lorad::bench {

struct RandomWeightOptions {
    gpu::ScalarType type = gpu::ScalarType::kBf16;
    std::optional<model::QuantizeType> quantize;  // as --quantize makes of a model; none: plain
    bool is_decoded = false;                      // the quantized numbers, in plain matrices
};

// Matrices share blocks of random numbers, norms are ones. One thread.
class RandomWeights {
  public:
    RandomWeights(gpu::Device& device, const RandomWeightOptions& options);

    void fill(model::ModelWeights& weights, const model::ModelConfig& config);
    uint64_t n_bytes() const { return n_bytes_; }

  private:
    // Some rows of a matrix as the device reads them.
    struct Rows {
        gpu::WeightFormat format = gpu::WeightFormat::kF32;  // kF32: plain, of the type
        std::vector<std::byte> bytes;
        std::vector<float> table;
    };
    void fill(model::Matrix& matrix, std::string_view name, uint32_t n, uint32_t k);
    void fill(model::Vector& vector, uint32_t n, float value);
    const Rows& quantized_rows(std::string_view name, uint32_t k);
    void repeat(const gpu::Buffer& to, uint64_t begin, uint64_t n_bytes, std::span<const std::byte> block);

    gpu::Device& device_;
    const RandomWeightOptions options_;
    std::vector<std::byte> block_;
    std::map<std::pair<bool, uint32_t>, Rows> rows_;  // by whether a table, and columns
    uint64_t n_bytes_ = 0;
};

}  // namespace lorad::bench
