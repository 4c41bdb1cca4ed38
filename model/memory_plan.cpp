#include "model/memory_plan.h"

#include <algorithm>

#include "proto/base/format.h"

namespace lorad::model {
namespace {

// A CPU device's memory is the host's, so "what is free" is not ours to fill.
constexpr uint64_t kCpuKvBytesMax = uint64_t{1} << 30;
// Kernels index within one layer's cache in 32 bits of elements; half of that keeps sums of two indices safe as well.
constexpr uint64_t kLayerElementsMax = uint64_t{1} << 31;

std::string line(std::string_view what, uint64_t bytes, std::string_view note = {}) {
    return format("  {:<12} {:>16} bytes  {:>9.2f} GiB{}{}\n", what, bytes, static_cast<double>(bytes) / (1 << 30),
                  note.empty() ? "" : "  ", note);
}

std::string gib(uint64_t bytes) {
    constexpr uint64_t kShownInGib = uint64_t{100} << 20;
    return bytes >= kShownInGib ? format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30)) : format("{} bytes", bytes);
}
std::string part(const char* what, uint64_t bytes) { return bytes == 0 ? std::string() : what + gib(bytes); }

// A number that the user gave is kept to or refused, never changed.
Status check_wanted_blocks(const MemoryPlanOptions& options, uint64_t blocks_per_sequence, uint64_t n_blocks_max) {
    if (options.n_kv_blocks < blocks_per_sequence) {
        return make_error(ErrorCode::kInvalidConfig,
                          format("{} KV cache blocks are too few: one sequence of {} tokens needs {}; ask for more, or for a shorter context",
                                 options.n_kv_blocks, options.n_positions_max, blocks_per_sequence));
    }
    if (options.n_kv_blocks > n_blocks_max) {
        return make_error(ErrorCode::kInvalidConfig,
                          format("{} KV cache blocks are too many: with this model the device takes {} at most", options.n_kv_blocks,
                                 n_blocks_max));
    }
    return ok_status();
}

std::string kv_name(const KvFormat& kv) {
    if (kv.type == gpu::KvType::kF16) return "f16";
    if (kv.type == gpu::KvType::kF32) return "f32";
    const auto n_layers = std::ranges::count(kv.keys_f16, true);
    return n_layers == 0 ? "int8" : format("int8, keys of {} layers f16", n_layers);
}

}  // namespace

std::string MemoryPlan::table() const {
    const uint64_t sum = weight_bytes + scratch_bytes + adapter_bytes + merged_bytes + training_bytes + state_bytes + kv_bytes;
    std::string text = line("weights", weight_bytes, weight_formats);
    text += line("KV cache", kv_bytes, format("{} blocks of {} tokens, {}", n_kv_blocks, uint32_t{kBlockTokens},
                                                    kv_name(kv)));
    if (state_bytes != 0) text += line("states", state_bytes, "of sequences, f32");
    text += line("scratch", scratch_bytes);
    text += line("adapters", adapter_bytes, "kept free");
    if (merged_bytes != 0) text += line("merged", merged_bytes, "kept free");
    if (training_bytes != 0) text += line("training", training_bytes, "kept free");
    text += line("sum", sum);
    text += line("free", free_bytes, "before loading");
    return text;
}

Result<MemoryPlan> plan_memory(const gpu::DeviceCapabilities& capabilities, uint64_t free_bytes,
                               const ModelConfig& config, uint64_t weight_bytes, uint64_t scratch_bytes,
                               const MemoryPlanOptions& options) {
    MemoryPlan plan{.free_bytes = free_bytes, .weight_bytes = weight_bytes, .scratch_bytes = scratch_bytes,
                    .adapter_bytes = options.adapter_bytes, .merged_bytes = options.merged_bytes,
                    .training_bytes = options.training_bytes, .state_bytes = options.state_bytes, .kv = options.kv, .weight_formats = options.weight_formats};
    const uint64_t block_bytes = kv_block_bytes(config, options.kv);
    const uint64_t blocks_per_sequence = blocks_for_tokens(options.n_positions_max);
    const uint64_t fixed_bytes = weight_bytes + scratch_bytes + options.adapter_bytes + options.merged_bytes + options.training_bytes + options.state_bytes;
    const auto usable_bytes = static_cast<uint64_t>(static_cast<double>(free_bytes) * options.memory_utilization);

    uint64_t n_blocks = options.n_kv_blocks;
    if (n_blocks == 0) {
        uint64_t kv_bytes = usable_bytes > fixed_bytes ? usable_bytes - fixed_bytes : 0;
        if (options.kv_bytes_max != 0) {
            kv_bytes = std::min(kv_bytes, options.kv_bytes_max);
        } else if (capabilities.is_cpu) {
            kv_bytes = std::min(kv_bytes, std::max(kCpuKvBytesMax, blocks_per_sequence * block_bytes));
        }
        n_blocks = std::min(kv_bytes / block_bytes, blocks_per_sequence * options.n_sequences_max);
    }
    const uint64_t layer_bytes_max = std::min(kLayerElementsMax * 2, capabilities.max_allocation_bytes);
    uint64_t largest_block = 1;  // of a layer
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        largest_block = std::max(largest_block, kv_layer_block_bytes(config, layer, options.kv.keys_f16.empty() ? options.kv.type : gpu::KvType::kInt8Values));
    }
    const uint64_t n_blocks_max = layer_bytes_max / largest_block;
    if (options.n_kv_blocks != 0) {
        TRY(check_wanted_blocks(options, blocks_per_sequence, n_blocks_max));
        if (fixed_bytes + n_blocks * block_bytes > free_bytes) {
            return make_error(ErrorCode::kOutOfMemory,
                              format("{} KV cache blocks need {} bytes, beside weights {}, scratch {}, states {}, adapters, merged weights and training {}; {} has "
                                     "{} free: ask for fewer blocks",
                                     n_blocks, n_blocks * block_bytes, weight_bytes, scratch_bytes, options.state_bytes,
                                     options.adapter_bytes + options.merged_bytes + options.training_bytes,
                                     capabilities.name, free_bytes));
        }
    }
    n_blocks = std::min(n_blocks, n_blocks_max);

    const uint64_t needed = fixed_bytes + blocks_per_sequence * block_bytes;
    if (n_blocks < blocks_per_sequence || needed > free_bytes) {
        return make_error(ErrorCode::kOutOfMemory, format("{} does not have enough memory: {} needs {} of {} usable ({:.0f}% of {} free): weights {}{}, KV cache of one sequence of {} tokens {}, scratch {}, "
                                                          "adapters {}{}{}{}",
                                                          capabilities.name, config.architecture, gib(needed), gib(usable_bytes), options.memory_utilization * 100, gib(free_bytes), gib(weight_bytes),
                                                          options.weight_formats.empty() ? "" : format(" ({})", options.weight_formats), options.n_positions_max, gib(blocks_per_sequence * block_bytes),
                                                          gib(scratch_bytes), gib(options.adapter_bytes), part(", merged weights ", options.merged_bytes), part(", training ", options.training_bytes),
                                                          part(", states of sequences ", options.state_bytes)));
    }
    plan.n_kv_blocks = static_cast<uint32_t>(n_blocks);
    plan.kv_bytes = n_blocks * block_bytes;
    return plan;
}

}  // namespace lorad::model
