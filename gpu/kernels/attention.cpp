#include <algorithm>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {
namespace {

// Query heads that one workgroup takes: a divisor of the group, small enough for the registers.
uint32_t heads_per_workgroup(uint32_t group) {
    for (uint32_t heads = std::min(group, 8u); heads > 1; heads--) {
        if (group % heads == 0) return heads;
    }
    return 1;
}

// A split costs a second dispatch, so each one should have a good stretch of tokens.
constexpr uint32_t kTokensPerSplit = 256;
constexpr uint32_t kMaxAttentionSplits = 16;
// Shared memory for the last sums, in 16 bytes, beside 8 KiB of weights and 2 of slots. More would save barriers, but fewer
// workgroups would fit a multiprocessor.
constexpr uint32_t kPoolVectorsWanted = 384;

}  // namespace

uint32_t KernelSet::plan_attention_splits(uint32_t rows, uint32_t n_kv_heads, uint32_t max_context) const {
    const DeviceCapabilities& caps = device_.capabilities();
    if (options_.batch_invariant || caps.is_cpu || rows == 0) return 1;
    uint32_t units = caps.n_compute_units_hint != 0 ? caps.n_compute_units_hint : 32;
    uint32_t to_fill = ceil_div(units * 2, rows * n_kv_heads);
    return std::clamp(std::min(to_fill, max_context / kTokensPerSplit), 1u, kMaxAttentionSplits);
}

uint64_t KernelSet::attention_partial_bytes(const AttentionShape& shape) {
    if (shape.n_splits <= 1) return 0;
    return uint64_t{shape.rows} * shape.n_q_heads * shape.n_splits * (shape.head_dim + 4) * sizeof(float);
}

void KernelSet::attention(Recorder& recorder, const AttentionParams& params, const AttentionShape& shape,
                          ScalarType act_type) {
    CHECK(shape.head_dim % 8 == 0 && shape.head_dim <= 256 && shape.n_q_heads % shape.n_kv_heads == 0);
    uint32_t group = shape.n_q_heads / shape.n_kv_heads;
    const DeviceCapabilities& caps = device_.capabilities();
    // With few rows one head per workgroup fills the device better, although K and V come from the cache then. (Another
    // pipeline, so not with batch_invariant: compilers may contract products and sums differently.)
    uint32_t units = caps.is_cpu ? 1 : std::max(caps.n_compute_units_hint, 1u);
    bool few = !options_.batch_invariant && shape.rows * shape.n_kv_heads * shape.n_splits * 2 <= units;
    uint32_t heads = few ? 1 : heads_per_workgroup(group);
    uint32_t lanes = shape.head_dim / 4;
    uint32_t size = std::max(threads(256, 32), std::bit_ceil(lanes));
    uint32_t per_quad = shape.head_dim > 128 ? 2 : 4;
    uint32_t slots = ceil_div(size, std::max(caps.subgroup_size_min, 1u));
    uint32_t one_head = size / lanes * lanes;
    uint32_t pool = std::max({heads * lanes, one_head, std::min(heads * one_head, kPoolVectorsWanted)});

    uint32_t act = static_cast<uint32_t>(act_type);
    bool split = shape.n_splits > 1;
    const bool listed = params.single_rows != 0;
    CHECK(!listed || !split);
    const Kernel* k = kernel(options_.kv_type == KvType::kInt8 ? "attention_kv8" : "attention", {size, act, shape.head_dim, heads, shape.n_kv_heads, group / heads, per_quad, split, pool, slots,
                                           caps.is_cpu ? 2u : heads == 1 ? 16u : 8u, listed});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, shape.rows, shape.n_q_heads / heads, shape.n_splits, {"attention", 0, 0});
    if (!split) return;
    uint32_t combine_size = threads(128, 32);
    const Kernel* combine = kernel("attention_combine", {combine_size, act, shape.head_dim, shape.n_q_heads, shape.n_splits});
    if (combine == nullptr) return;
    recorder.barrier();
    recorder.dispatch(*combine, params, shape.rows, ceil_div(params.y_stride / 4, combine_size), 1,
                      {"attention_combine", attention_partial_bytes(shape), 0});
}

bool KernelSet::attends_by_tile(uint32_t head_dim) const {
    // K or V of a block, and a tile's scores, in 16-byte words; rows are padded: see attention_tile.comp.
    const uint32_t shared_words = kBlockTokens * (head_dim / 8 + 1) + kAttentionTileRows * std::max(kBlockTokens / 4 + 2, head_dim / 8 + 1);
    return ladder_.attention_tile && !options_.batch_invariant && head_dim % 16 == 0 && shared_words * 16 <= device_.capabilities().shared_memory_bytes;
}

void KernelSet::attention_tiles(Recorder& recorder, const AttentionParams& params, const AttentionShape& shape, ScalarType act_type,
                                const Buffer& step_state, uint64_t grid_offset) {
    constexpr uint32_t kSubgroup = 32;
    const char* module = options_.kv_type == KvType::kInt8 ? "attention_tile_kv8" : "attention_tile";
    const Kernel* k = kernel(module, {kAttentionTileRows / 16 * kSubgroup, static_cast<uint32_t>(act_type), shape.head_dim,
                                                shape.n_q_heads / shape.n_kv_heads, shape.n_kv_heads}, kSubgroup);
    if (k == nullptr) return;
    recorder.dispatch_indirect(*k, params, step_state, grid_offset, {"attention_tile", 0, 0});
}

}  // namespace lorad::gpu
