#include "model/exec/kv_cache.h"

#include <utility>

#include "proto/base/check.h"
#include "proto/base/format.h"

namespace lorad::model {

BlockPool::BlockPool(uint32_t n_blocks) : used_(n_blocks, false) {
    free_.reserve(n_blocks);
    for (uint32_t i = n_blocks; i > 0; --i) free_.push_back(i - 1);
}

std::optional<BlockId> BlockPool::allocate() {
    if (free_.empty()) return std::nullopt;
    const BlockId block = free_.back();
    free_.pop_back();
    CHECK(!used_[block]);
    used_[block] = true;
    return block;
}

bool BlockPool::allocate(uint32_t n, std::vector<BlockId>& to) {
    if (n > n_free()) return false;
    for (uint32_t i = 0; i < n; ++i) to.push_back(*allocate());
    return true;
}

void BlockPool::release(BlockId block) {
    CHECK(block < used_.size() && used_[block]);
    used_[block] = false;
    free_.push_back(block);
}

void BlockPool::release(std::span<const BlockId> blocks) {
    for (const BlockId block : blocks) release(block);
}

uint64_t kv_layer_block_bytes(const ModelConfig& config, uint32_t layer, gpu::KvType type) {
    const LayerFacts facts = config.layer(layer);
    if (facts.mixer != Mixer::kAttention || facts.attention.kv_from) return 0;
    return uint64_t{facts.attention.n_kv_heads} * kBlockTokens * gpu::kv_token_bytes(type, facts.attention.head_dim);
}

uint64_t kv_block_bytes(const ModelConfig& config, const KvFormat& kv) {
    uint64_t sum = 0;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) sum += kv_layer_block_bytes(config, layer, kv.of(layer));
    return sum;
}

Result<KvCache> KvCache::create(gpu::Device& device, const ModelConfig& config, uint32_t n_blocks, KvFormat format,
                                std::vector<bool> windowed, uint32_t n_window_blocks) {
    KvCache cache;
    cache.format = std::move(format);
    cache.windowed = std::move(windowed);
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        const uint64_t n_bytes = (cache.windowed[layer] ? n_window_blocks : n_blocks) *
                                 kv_layer_block_bytes(config, layer, cache.format.of(layer));
        gpu::Buffer& buffer = cache.layers.emplace_back();
        if (n_bytes == 0) continue;
        TRY_ASSIGN(buffer, device.create_buffer(n_bytes, gpu::MemoryKind::kDeviceLocal, "kv cache"));
    }
    return cache;
}

}  // namespace lorad::model
