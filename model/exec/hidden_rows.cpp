#include "model/exec/hidden_rows.h"

#include "model/files/safetensors.h"
#include "proto/base/check.h"

namespace lorad::model {

Result<HiddenRows> HiddenRows::create(gpu::Device& device, const gpu::Buffer& rows, gpu::ScalarType type, uint32_t size,
                                      uint32_t stride) {
    HiddenRows made;
    made.device_ = &device;
    made.rows_ = &rows;
    made.type_ = type;
    made.size_ = size;
    made.stride_ = stride;
    TRY_ASSIGN(made.host_, device.create_buffer(rows.size(), gpu::MemoryKind::kHostReadback, "host hidden states"));
    return made;
}

Result<const gpu::CommandBuffer*> HiddenRows::copy() {
    if (!copy_) {
        TRY_ASSIGN(gpu::Recorder recorder, gpu::Recorder::begin(*device_));
        recorder.copy(*rows_, 0, host_, 0, rows_->size());
        TRY_ASSIGN(copy_, std::move(recorder).end());
    }
    return &*copy_;
}

std::span<const float> HiddenRows::read(std::span<const uint32_t> outputs, uint32_t n_outputs) {
    const auto dtype = static_cast<DType>(type_);  // both number the weight types alike
    const size_t element = bytes_of(dtype);
    widened_.resize(size_t{n_outputs} * size_);
    for (const uint32_t output : outputs) {
        CHECK(output < n_outputs);
        const std::byte* row = host_.mapped().data() + size_t{output} * stride_ * element;
        for (uint32_t i = 0; i < size_; ++i) widened_[size_t{output} * size_ + i] = widen(dtype, row + i * element);
    }
    return widened_;
}

}  // namespace lorad::model
