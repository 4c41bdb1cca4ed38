#include "model/train/train_parameters.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gpu/kernels/kernel_options.h"
#include "gpu/queue.h"
#include "gpu/upload.h"

namespace lorad::model {
namespace {

constexpr uint64_t kReadBytes = uint64_t{64} << 20;  // at once

enum class TensorKind : uint8_t { kTable, kB };

TrainedPlace place_of(const TrainedTensor& tensor, TensorKind kind, uint64_t& n_elements) {
    TrainedPlace place;
    place.begin = n_elements;
    place.rows = tensor.shape.size() == 1 ? 1 : static_cast<uint32_t>(tensor.shape.at(0));
    place.columns = static_cast<uint32_t>(tensor.shape.back());
    place.stride = kind == TensorKind::kB ? round_up(place.columns, 8) : gpu::padded(place.columns);
    n_elements += round_up(place.n_elements(), uint64_t{gpu::kWeightAlign});
    return place;
}

}  // namespace

TrainLayout::TrainLayout(const TrainableAdapter& adapter) {
    const auto add = [&](const TrainedTensor& tensor, TensorKind kind) {
        tensors.push_back(place_of(tensor, kind, n_elements));
        return tensors.back();
    };
    const auto add_pair = [&](const TrainedPair& pair) {
        TrainedPairPlaces places{.rank = pair.rank(), .scale = pair.scale};
        places.a = add(pair.a, TensorKind::kTable);
        places.b = add(pair.b, TensorKind::kB);
        if (pair.magnitude) places.magnitude = add(*pair.magnitude, TensorKind::kTable);
        if (pair.b_bias) places.b_bias = add(*pair.b_bias, TensorKind::kTable);
        return places;
    };
    for (const TrainedLinear& linear : adapter.linears) linears.push_back(add_pair(linear.pair));
    for (const TrainedWhole& whole : adapter.wholes) wholes.push_back(add(whole.weight, TensorKind::kTable));
    if (adapter.embedding) embedding = add_pair(*adapter.embedding);
    if (adapter.head) head = add_pair(*adapter.head);
    for (const TrainedBias& bias : adapter.biases) biases.push_back(add(bias.bias, TensorKind::kTable));
}

Result<std::unique_ptr<TrainParameters>> TrainParameters::create(gpu::Device& device, const TrainableAdapter& adapter) {
    std::unique_ptr<TrainParameters> made(new TrainParameters(device, TrainLayout(adapter)));
    const uint64_t n_bytes = made->n_elements() * sizeof(float);
    for (gpu::Buffer& range : made->ranges_) {
        TRY_ASSIGN(range, device.create_buffer(n_bytes, gpu::MemoryKind::kDeviceLocal, "trained numbers"));
        TRY(device.uploader().fill_zero(range, 0, n_bytes));
    }
    const std::vector<const TrainedTensor*> tensors = adapter.tensors();
    for (size_t i = 0; i < tensors.size(); ++i) {
        const TrainedPlace& place = made->layout_.tensors[i];
        TRY(device.uploader().upload_rows(
            made->ranges_[0], place.begin * sizeof(float), uint64_t{place.stride} * sizeof(float),
            std::as_bytes(std::span(tensors[i]->values)), uint64_t{place.columns} * sizeof(float), place.rows));
    }
    TRY(device.uploader().finish());
    return made;
}

Result<std::vector<float>> TrainParameters::read(Range range) const {
    const gpu::Buffer& from = ranges_[static_cast<uint32_t>(range)];
    std::vector<float> elements(n_elements());
    const uint64_t n_bytes = elements.size() * sizeof(float);
    TRY_ASSIGN(const gpu::Buffer host,
               device_.create_buffer(std::min(n_bytes, kReadBytes), gpu::MemoryKind::kHostReadback, "trained numbers"));
    for (uint64_t at = 0; at < n_bytes; at += kReadBytes) {
        const uint64_t part = std::min(kReadBytes, n_bytes - at);
        TRY_ASSIGN(gpu::Recorder recorder, gpu::Recorder::begin(device_));
        recorder.copy(from, at, host, 0, part);
        TRY_ASSIGN(const gpu::CommandBuffer recording, std::move(recorder).end());
        const gpu::CommandBuffer* recordings[] = {&recording};
        TRY_ASSIGN(const uint64_t value, device_.compute_queue().submit(recordings));
        TRY(device_.compute_queue().wait(value));
        std::memcpy(reinterpret_cast<std::byte*>(elements.data()) + at, host.mapped().data(), part);
    }
    return elements;
}

Status TrainParameters::write(Range range, std::span<const float> elements) {
    CHECK(elements.size() == n_elements());
    TRY(device_.uploader().upload(ranges_[static_cast<uint32_t>(range)], 0, std::as_bytes(elements)));
    return device_.uploader().finish();
}

Status TrainParameters::clear(Range range) {
    TRY(device_.uploader().fill_zero(ranges_[static_cast<uint32_t>(range)], 0, n_elements() * sizeof(float)));
    return device_.uploader().finish();
}

std::vector<float> TrainParameters::dense(const TrainedPlace& place, std::span<const float> elements) {
    std::vector<float> values(size_t{place.rows} * place.columns);
    for (size_t row = 0; row < place.rows; ++row) {
        std::memcpy(values.data() + row * place.columns, elements.data() + place.begin + row * place.stride,
                    place.columns * sizeof(float));
    }
    return values;
}

}  // namespace lorad::model
