// A fixture for kernels that read packed weights.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/command.h"
#include "gpu/kernels/kernels.h"
#include "gpu/queue.h"
#include "model/quant/brick_packer.h"
#include "model/quant/matrix_source.h"
#include "tests/support/packed_matrices.h"
#include "tests/support/test_device.h"

namespace lorad::testing {

// Packed matrices in device memory and the portable kernels.
class PackedFixture : public ::testing::Test {
  protected:
    void SetUp() override { kernels_ = must(gpu::KernelSet::create(device_, {.path = gpu::KernelPath::kPortable})); }

    gpu::Buffer memory(uint64_t n_bytes, gpu::MemoryKind kind = gpu::MemoryKind::kHostUpload) {
        gpu::Buffer buffer = must(device_.create_buffer(n_bytes, kind, "test"));
        std::memset(buffer.mapped().data(), 0xff, n_bytes);
        return buffer;
    }
    template <typename T>
    gpu::Buffer input(const std::vector<T>& values) {
        gpu::Buffer buffer = memory(values.size() * sizeof(T));
        std::memcpy(buffer.mapped().data(), values.data(), values.size() * sizeof(T));
        return buffer;
    }

    // One part, with its table in front.
    gpu::Buffer pack(const model::Tensor& tensor, gpu::ScalarType type) {
        const auto n = tensor.shape[0];
        std::vector<std::byte> bricks(
            gpu::bytes_of(*tensor.source->device_format(), n, static_cast<uint32_t>(tensor.shape[1])));
        const Status packed = model::pack_rows(tensor, 0, n, type, bricks);
        EXPECT_TRUE(packed.ok()) << tensor.name << ": " << packed.error().message;
        gpu::Buffer buffer = memory(gpu::kPartAlign + bricks.size());
        const auto table = std::as_bytes(tensor.source->table());
        std::ranges::copy(table, buffer.mapped().begin() + gpu::kPartAlign - gpu::kPartTableBytes);
        std::ranges::copy(bricks, buffer.mapped().begin() + gpu::kPartAlign);
        return buffer;
    }

    void execute(const std::function<void(gpu::Recorder&)>& record) {
        gpu::Recorder recorder = must(gpu::Recorder::begin(device_));
        record(recorder);
        ASSERT_TRUE(kernels_->status().ok());
        const gpu::CommandBuffer recording = must(std::move(recorder).end());
        const gpu::CommandBuffer* recordings[] = {&recording};
        ASSERT_TRUE(device_.compute_queue().wait(must(device_.compute_queue().submit(recordings))).ok());
    }

    gpu::Device& device_ = test_device();
    std::unique_ptr<gpu::KernelSet> kernels_;
};

}  // namespace lorad::testing
