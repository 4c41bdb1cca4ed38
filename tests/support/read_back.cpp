#include "tests/support/read_back.h"

#include <gtest/gtest.h>

#include "gpu/command.h"
#include "gpu/queue.h"

namespace lorad::testing {

std::vector<std::byte> read_back(gpu::Device& device, const gpu::Buffer& from) {
    auto host = device.create_buffer(from.size(), gpu::MemoryKind::kHostReadback, "read back");
    auto recorder = gpu::Recorder::begin(device);
    if (!host.ok() || !recorder.ok()) {
        ADD_FAILURE() << "no memory to read back";
        return {};
    }
    recorder->copy(from, 0, *host, 0, from.size());
    const auto recording = std::move(*recorder).end();
    EXPECT_TRUE(recording.ok());
    const gpu::CommandBuffer* recordings[] = {&*recording};
    const auto value = device.compute_queue().submit(recordings);
    EXPECT_TRUE(value.ok() && device.compute_queue().wait(*value).ok());
    const auto bytes = host->mapped();
    return {bytes.begin(), bytes.end()};
}

uint64_t checksum(gpu::Device& device, const model::ModelWeights& weights) {
    uint64_t hash = 0xcbf29ce484222325u;
    const auto add = [&](const gpu::Buffer& buffer) {
        if (!buffer) return;
        for (const std::byte byte : read_back(device, buffer))
            hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3u;
    };
    for (const model::Matrix* matrix : {&weights.embedding, &weights.lm_head}) add(matrix->buffer);
    add(weights.final_norm.buffer);
    for (const model::LayerWeights& w : weights.layers) {
        for (const model::Matrix* matrix : {&w.qkv, &w.o, &w.gate_up, &w.down}) add(matrix->buffer);
        for (const model::Vector* vector : {&w.input_norm, &w.qkv_bias, &w.q_norm, &w.k_norm, &w.o_bias, &w.ffn_norm,
                                            &w.gate_up_bias, &w.down_bias}) {
            add(vector->buffer);
        }
    }
    return hash;
}

}  // namespace lorad::testing
