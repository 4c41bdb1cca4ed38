#include "tests/support/synthetic_lora.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "gpu/kernels/kernels.h"
#include "gpu/upload.h"

namespace lorad::testing {
namespace {

// [n_rows][stride] with random values in the first n_columns.
gpu::Buffer upload_random(gpu::Device& device, uint32_t n_rows, uint32_t n_columns, uint32_t stride, float deviation,
                          std::mt19937& random, float mean = 0.0f, reference::Type type = reference::Type::kF32) {
    std::normal_distribution<float> normal(mean, deviation);
    std::vector<float> values(size_t{n_rows} * n_columns);
    for (float& value : values) value = normal(random);
    const std::vector<std::byte> bytes = reference::encode(values, n_columns, stride, type);
    auto buffer = device.create_buffer(bytes.size(), gpu::MemoryKind::kDeviceLocal, "synthetic lora");
    EXPECT_TRUE(buffer.ok()) << (buffer.ok() ? "" : buffer.error().message);
    EXPECT_TRUE(device.uploader().upload(*buffer, 0, bytes).ok());
    return std::move(buffer).value();
}

}  // namespace

std::vector<gpu::Buffer> put_synthetic_lora(gpu::Device& device, model::LoraTable& table,
                                            const model::ModelConfig& config, uint32_t slot, uint32_t rank,
                                            uint32_t modules, float scale, uint32_t seed, bool with_gains,
                                            const std::vector<reference::Type>& types) {
    std::mt19937 random(seed);
    std::vector<gpu::Buffer> buffers;
    model::AdapterView adapter;
    std::vector<model::LoraModuleView>& views = adapter.modules;
    views.resize(size_t{config.n_layers} * model::kLinearModules);
    for (uint32_t i = 0; i < views.size(); ++i) {
        const uint32_t module = i % model::kLinearModules;
        if ((modules >> module & 1) == 0) continue;
        const model::LinearShape shape = config.shape(static_cast<model::LinearModule>(module));
        const reference::Type type = types[i % types.size()];
        const float deviation_a = 1.0f / std::sqrt(static_cast<float>(shape.k));
        buffers.push_back(upload_random(device, rank, shape.k, gpu::padded(shape.k), deviation_a, random, 0.0f, type));
        views[i].a = buffers.back().address();
        buffers.push_back(upload_random(device, shape.n, rank, round_up(rank, 8), 0.1f, random, 0.0f, type));
        views[i].b = buffers.back().address();
        views[i].rank = rank;
        views[i].weight_type = static_cast<uint32_t>(type);
        views[i].scale = scale;
        if (!with_gains) continue;
        buffers.push_back(upload_random(device, 1, shape.n, shape.n, 0.1f, random, 1.0f));
        views[i].gain = buffers.back().address();
        buffers.push_back(upload_random(device, 1, shape.n, shape.n, 0.05f, random));
        views[i].bias = buffers.back().address();
    }
    EXPECT_TRUE(table.set(slot, adapter).ok());
    return buffers;
}

}  // namespace lorad::testing
