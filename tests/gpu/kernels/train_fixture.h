// What tests of training's kernels have in common.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "gpu/kernels/train/train_kernels.h"
#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing {

class TrainKernelTest : public GpuTest {
  protected:
    void execute(const std::function<void(Recorder&)>& record) {
        auto recorder = must(Recorder::begin(device()));
        record(recorder);
        const Status recorded = kernels_.status();
        ASSERT_TRUE(recorded.ok()) << recorded.error().message;
        run(must(std::move(recorder).end()));
    }
    std::vector<float> random(size_t n, float bound = 1.0f, Type type = Type::kF32) {
        return reference::random_values(n, type, random_, bound);
    }
    // Rows of `columns` that lie `stride` apart, with numbers between that nobody may read.
    static Buffer rows(const std::vector<float>& values, size_t columns, size_t stride, Type type = Type::kF32) {
        std::vector<float> wide(values.size() / columns * stride, NAN);
        for (size_t i = 0; i < values.size(); i++) wide[i / columns * stride + i % columns] = values[i];
        return input(reference::encode(wide, stride, stride, type));
    }
    static std::vector<float> dense(const Buffer& buffer, size_t n_rows, size_t columns, size_t stride) {
        const auto wide = content<float>(buffer, n_rows * stride);
        std::vector<float> values;
        for (size_t i = 0; i < n_rows * columns; i++) values.push_back(wide[i / columns * stride + i % columns]);
        return values;
    }
    // Where kernels write or add to, on the host's side.
    static Buffer result(const std::vector<float>& values) {
        Buffer buffer = make_buffer(values.size() * sizeof(float), MemoryKind::kHostReadback);
        std::memcpy(buffer.mapped().data(), values.data(), values.size() * sizeof(float));
        return buffer;
    }

    std::unique_ptr<TrainKernels> made_ = must(TrainKernels::create(device(), {}));
    TrainKernels& kernels_ = *made_;
    std::mt19937 random_{20261129};
};

}  // namespace lorad::gpu::testing
