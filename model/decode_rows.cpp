#include "model/decode_rows.h"

#include <cstring>
#include <vector>

#include "gpu/upload.h"

namespace lorad::model {

gpu::DecodeRowsShape decode_rows_shape(const ModelConfig& config, const ModelWeights& weights) {
    return {.type = weights.layers.front().qkv.type,
            .hidden = config.hidden_size,
            .q = config.q_size(),
            .ffn = config.intermediate_size,
            .qkv = config.q_size() + 2 * config.kv_size()};
}

bool can_decode_rows(const gpu::KernelSet& kernels, const ModelConfig& config, const ModelWeights& weights) {
    const gpu::DecodeRowsShape shape = decode_rows_shape(config, weights);
    for (const LayerWeights& w : weights.layers) {
        if (w.gate_up_bias.address() != 0) return false;
        for (const Matrix* matrix : {&w.qkv, &w.o, &w.gate_up, &w.down}) {
            if (matrix->type != shape.type) return false;
        }
    }
    return kernels.can_decode_rows(shape);
}

Result<std::unique_ptr<DecodeRows>> DecodeRows::create(gpu::Device& device, const gpu::KernelSet& kernels, const ModelConfig& config, const ModelWeights& weights) {
    auto made = std::make_unique<DecodeRows>();
    const std::vector<std::byte> silence(kernels.decode_rows_sync_bytes(decode_rows_shape(config, weights)));
    TRY_ASSIGN(made->sync_, device.create_buffer(silence.size(), gpu::MemoryKind::kDeviceLocal, "decode rows"));
    TRY_ASSIGN(made->given_up_, device.create_buffer(sizeof(uint32_t), gpu::MemoryKind::kHostReadback, "decode rows given up"));
    TRY(device.uploader().upload(made->sync_, 0, silence));
    std::memset(made->given_up_.mapped().data(), 0, sizeof(uint32_t));
    return made;
}

bool DecodeRows::given_up() const {
    uint32_t word = 0;
    std::memcpy(&word, given_up_.mapped().data(), sizeof(word));
    return word != 0;
}

}  // namespace lorad::model
