// The trained numbers on the device: values, gradients and AdamW's two moments, each in one range with the same places,
// so that one dispatch goes over all of them.
//
// A matrix has its rows at multiples of a stride, with zeros between that stay zero: A and whole tables
// padded(columns), B its rank rounded up to 8, which are the layouts of LoraModuleView; vectors are a row.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "gpu/kernels/train/train_kernels.h"
#include "model/train/trainable.h"
#include "proto/base/result.h"

namespace lorad::model {

struct TrainedPlace {
    uint64_t begin = 0;  // element of the ranges
    uint32_t rows = 0, columns = 0, stride = 0;
    uint64_t n_elements() const { return uint64_t{rows} * stride; }
};

struct TrainedPairPlaces {
    TrainedPlace a, b, magnitude, b_bias;  // of the last two rows == 0: none
    uint32_t rank = 0;
    float scale = 1.0f;
};

// The place of each tensor of an adapter, in the order of the adapter's lists.
struct TrainLayout {
    explicit TrainLayout(const TrainableAdapter& adapter);

    std::vector<TrainedPairPlaces> linears;
    std::vector<TrainedPlace> wholes;
    TrainedPairPlaces embedding, head;  // rank 0: none
    std::vector<TrainedPlace> biases;
    std::vector<TrainedPlace> tensors;  // in the order of TrainableAdapter::tensors()
    uint64_t n_elements = 0;
};

// One thread at a time.
class TrainParameters {
  public:
    // Uploads the values; gradients and moments are zero.
    static Result<std::unique_ptr<TrainParameters>> create(gpu::Device& device, const TrainableAdapter& adapter);

    const TrainLayout& layout() const { return layout_; }
    uint64_t n_elements() const { return layout_.n_elements; }
    gpu::DeviceAddress value(const TrainedPlace& place) const {
        return ranges_[0].address() + place.begin * sizeof(float);
    }
    gpu::DeviceAddress gradient(const TrainedPlace& place) const {
        return ranges_[1].address() + place.begin * sizeof(float);
    }
    gpu::TrainMatrix matrix(const TrainedPlace& place) const { return {value(place), place.stride}; }
    gpu::TrainMatrix gradient_matrix(const TrainedPlace& place) const { return {gradient(place), place.stride}; }

    enum class Range : uint32_t { kValues, kGradients, kFirst, kSecond };
    const gpu::Buffer& range(Range range) const { return ranges_[static_cast<uint32_t>(range)]; }
    static constexpr uint32_t kRanges = 4;

    // A whole range to the host and back; padding is part of it.
    Result<std::vector<float>> read(Range range) const;
    Status write(Range range, std::span<const float> elements);
    Status clear(Range range);
    // The tensor's own numbers of what read() gave.
    static std::vector<float> dense(const TrainedPlace& place, std::span<const float> elements);

  private:
    TrainParameters(gpu::Device& device, TrainLayout layout) : device_(device), layout_(std::move(layout)) {}

    gpu::Device& device_;
    TrainLayout layout_;
    gpu::Buffer ranges_[kRanges];
};

}  // namespace lorad::model
