// The paged KV cache: which blocks are free (host) and where their bytes are (device).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gpu/device.h"
#include "gpu/kernels/attention/kv_format.h"
#include "gpu/kernels/step_state.h"
#include "model/config/config.h"
#include "proto/base/ids.h"
#include "proto/base/result.h"
#include "proto/base/rounding.h"

namespace lorad::model {

using gpu::kBlockTokens;  // tokens of one block: 64

inline constexpr uint32_t blocks_for_tokens(uint32_t n_tokens) { return ceil_div(n_tokens, kBlockTokens); }

// Keeps the free blocks. Pure bookkeeping, no device; engine thread only. Every block is either in the free list or
// handed out once; giving back a block that is not out is a programmer error (CHECK).
class BlockPool {
  public:
    explicit BlockPool(uint32_t n_blocks);

    std::optional<BlockId> allocate();                    // nullopt: none free
    bool allocate(uint32_t n, std::vector<BlockId>& to);  // appends n blocks, or none and false
    void release(BlockId block);
    void release(std::span<const BlockId> blocks);

    uint32_t n_blocks() const { return static_cast<uint32_t>(used_.size()); }
    uint32_t n_free() const { return static_cast<uint32_t>(free_.size()); }
    uint32_t n_used() const { return n_blocks() - n_free(); }

  private:
    std::vector<BlockId> free_;  // a stack: the block given back last is handed out next
    std::vector<bool> used_;
};

// The format of each layer's keys and values in the cache.
struct KvFormat {
    KvFormat(gpu::KvType of_all = gpu::KvType::kF16) : type(of_all) {}
    gpu::KvType of(uint32_t layer) const {
        return !keys_f16.empty() && keys_f16[layer] ? gpu::KvType::kInt8Values : type;
    }

    gpu::KvType type;            // of the layers but those that follow
    std::vector<bool> keys_f16;  // by layer, empty where none: kInt8Values (model/exec/kv_precision.h)
};

// Device bytes of one block, K and V: of one layer (0 where it makes none of its own), and of all.
uint64_t kv_layer_block_bytes(const ModelConfig& config, uint32_t layer, gpu::KvType type = gpu::KvType::kF16);
uint64_t kv_block_bytes(const ModelConfig& config, const KvFormat& kv = {});

// One buffer per layer that makes keys and values, [block][K|V][kv_head] planes of 64 tokens: f16 [64][head_dim], or as
// gpu/kernels/attention/kv8.glsl says.
struct KvCache {
    std::vector<gpu::Buffer> layers;  // empty ones of layers that make none
    KvFormat format;
    std::vector<bool> windowed;  // [n_layers]: blocks are those of the window group (model/exec/kv_groups.h)

    // n_blocks of layers that are not windowed, n_window_blocks of the others.
    static Result<KvCache> create(gpu::Device& device, const ModelConfig& config, uint32_t n_blocks, KvFormat format,
                                  std::vector<bool> windowed, uint32_t n_window_blocks);
};

}  // namespace lorad::model
