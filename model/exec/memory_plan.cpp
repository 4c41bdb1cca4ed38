#include "model/exec/memory_plan.h"

#include <algorithm>

#include "model/exec/state_cache.h"
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
    return bytes >= kShownInGib ? format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30))
                                : format("{} bytes", bytes);
}
std::string part(const char* what, uint64_t bytes) { return bytes == 0 ? std::string() : what + gib(bytes); }

// A number that the user gave is kept to or refused, never changed.
Status check_wanted_blocks(const MemoryPlanOptions& options, uint64_t blocks_per_sequence, uint64_t n_blocks_max) {
    if (options.n_kv_blocks < blocks_per_sequence) {
        return make_error(ErrorCode::kInvalidConfig,
                          format("{} KV cache blocks are too few: one sequence of {} tokens needs {}; ask for more, or "
                                 "for a shorter context",
                                 options.n_kv_blocks, options.n_positions_max, blocks_per_sequence));
    }
    if (options.n_kv_blocks > n_blocks_max) {
        return make_error(ErrorCode::kInvalidConfig,
                          format("{} KV cache blocks are too many: with this model the device takes {} at most",
                                 options.n_kv_blocks, n_blocks_max));
    }
    return ok_status();
}

std::string kv_name(const KvFormat& kv) {
    if (kv.type == gpu::KvType::kF16) return "f16";
    if (kv.type == gpu::KvType::kF32) return "f32";
    const auto n_layers = std::ranges::count(kv.keys_f16, true);
    return n_layers == 0 ? "int8" : format("int8, keys of {} layers f16", n_layers);
}

// States of prefixes, one at a block's end at most. Without a wish of the user: an eighth of what keys and values would
// have, and where a quarter of all room allows it one for each sequence. `kv_bytes` and `n_blocks`: of the KV cache
// without them; `room_bytes`: what they may take.
uint32_t n_snapshots_for(const gpu::DeviceCapabilities& capabilities, const ModelConfig& config,
                         const MemoryPlanOptions& options, uint64_t kv_bytes, uint64_t n_blocks, uint64_t room_bytes) {
    const uint64_t slot_bytes = state_slot_bytes(config);
    if (slot_bytes == 0) return 0;
    uint64_t buffer_bytes = 1;  // the largest of one slot
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        const StateSizes sizes = state_sizes(config, layer);
        buffer_bytes =
            std::max(buffer_bytes, uint64_t{std::max(sizes.conv_floats, sizes.delta_floats)} * sizeof(float));
    }
    const uint64_t n_slots_max = capabilities.max_allocation_bytes / buffer_bytes;
    n_blocks = std::min(n_blocks, n_slots_max - std::min<uint64_t>(n_slots_max, options.n_sequences_max));
    if (options.snapshot_bytes_max)
        return static_cast<uint32_t>(std::min(*options.snapshot_bytes_max / slot_bytes, n_blocks));
    const uint64_t n_wanted =
        std::max(kv_bytes / 8 / slot_bytes, std::min<uint64_t>(options.n_sequences_max, room_bytes / 4 / slot_bytes));
    return static_cast<uint32_t>(std::min({n_wanted, room_bytes / slot_bytes, n_blocks}));
}

// Blocks that the buffers of a group's layers can have.
uint64_t blocks_max(const gpu::DeviceCapabilities& capabilities, const ModelConfig& config,
                    const MemoryPlanOptions& options, const KvGroups& groups, bool of_windows) {
    const uint64_t layer_bytes_max = std::min(kLayerElementsMax * 2, capabilities.max_allocation_bytes);
    uint64_t largest_block = 1;  // of a layer
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        if (groups.windowed[layer] != of_windows) continue;
        largest_block =
            std::max(largest_block,
                     kv_layer_block_bytes(config, layer,
                                          options.kv.keys_f16.empty() ? options.kv.type : gpu::KvType::kInt8Values));
    }
    return layer_bytes_max / largest_block;
}

// Windows apart, where more tokens fit then, or the same in less memory. `n_blocks`: of one group in `kv_bytes`; of
// each group at most n_blocks_max are of use.
void group_kv(const gpu::DeviceCapabilities& capabilities, const ModelConfig& config, const MemoryPlanOptions& options,
              uint64_t kv_bytes, uint64_t n_blocks, uint64_t n_blocks_max, MemoryPlan& plan) {
    const KvGroups groups = KvGroups::of(config);
    if (!options.may_group_kv || !groups.has_windows()) return;
    // A quarter more: what the prefix cache finds again begins with the window before it.
    const uint64_t n_running = groups.window_blocks_max(options.n_sequences_max, options.n_rows_max),
                   n_windows = n_running + n_running / 4;
    const uint64_t window_bytes = n_windows * groups.block_bytes(config, options.kv, true),
                   full_bytes = groups.block_bytes(config, options.kv, false);
    if (n_windows >= n_blocks_max || n_windows > blocks_max(capabilities, config, options, groups, true)) return;
    uint64_t n_full = n_blocks;
    if (options.n_kv_blocks == 0) {
        if (window_bytes > kv_bytes) return;
        n_full = full_bytes == 0 ? n_blocks_max : std::min((kv_bytes - window_bytes) / full_bytes, n_blocks_max);
    }
    if (n_full < n_blocks || (n_full == n_blocks && n_windows >= n_blocks)) return;
    plan.n_ungrouped_blocks = static_cast<uint32_t>(n_blocks);
    plan.groups = groups;
    plan.n_kv_blocks = static_cast<uint32_t>(n_full);
    plan.n_window_blocks = static_cast<uint32_t>(n_windows);
    plan.window_bytes = window_bytes;
}

}  // namespace

std::string MemoryPlan::table() const {
    const uint64_t sum = weight_bytes + scratch_bytes + adapter_bytes + merged_bytes + training_bytes + state_bytes +
                         snapshot_bytes + kv_bytes;
    std::string text = line("weights", weight_bytes, weight_formats);
    text += line("KV cache", kv_bytes - window_bytes,
                 format("{} blocks of {} tokens, {}", n_kv_blocks, uint32_t{kBlockTokens}, kv_name(kv)));
    if (n_window_blocks != 0) {
        text += line(
            "KV windows", window_bytes,
            format("{} blocks, the last {} tokens of each text: {} tokens fit, without windows {}", n_window_blocks,
                   groups.window, uint64_t{n_kv_blocks} * kBlockTokens, uint64_t{n_ungrouped_blocks} * kBlockTokens));
    }
    if (state_bytes != 0) text += line("states", state_bytes, "of sequences, f32");
    if (snapshot_bytes != 0) text += line("snapshots", snapshot_bytes, format("{} states of prefixes", n_snapshots));
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
    MemoryPlan plan{.free_bytes = free_bytes,
                    .weight_bytes = weight_bytes,
                    .scratch_bytes = scratch_bytes,
                    .adapter_bytes = options.adapter_bytes,
                    .merged_bytes = options.merged_bytes,
                    .training_bytes = options.training_bytes,
                    .state_bytes = options.state_bytes,
                    .groups = KvGroups::none(config),
                    .kv = options.kv,
                    .weight_formats = options.weight_formats};
    const uint64_t blocks_per_sequence = blocks_for_tokens(options.n_positions_max),
                   useful_blocks = blocks_per_sequence * options.n_sequences_max;
    const uint64_t block_bytes = kv_block_bytes(config, options.kv);
    // If no layer attends, a block is only a name.
    const auto blocks_in = [&](uint64_t bytes) { return block_bytes == 0 ? useful_blocks : bytes / block_bytes; };
    uint64_t fixed_bytes = weight_bytes + scratch_bytes + options.adapter_bytes + options.merged_bytes +
                           options.training_bytes + options.state_bytes;
    const auto usable_bytes = static_cast<uint64_t>(static_cast<double>(free_bytes) * options.memory_utilization);
    const auto room = [&](uint64_t taken_bytes) { return usable_bytes > taken_bytes ? usable_bytes - taken_bytes : 0; };

    uint64_t kv_bytes = options.n_kv_blocks * block_bytes, n_blocks = options.n_kv_blocks;
    if (n_blocks == 0) {
        kv_bytes = room(fixed_bytes);
        if (options.kv_bytes_max != 0) {
            kv_bytes = std::min(kv_bytes, options.kv_bytes_max);
        } else if (capabilities.is_cpu) {
            kv_bytes = std::min(kv_bytes, std::max(kCpuKvBytesMax, blocks_per_sequence * block_bytes));
        }
        n_blocks = std::min(blocks_in(kv_bytes), useful_blocks);
    }
    const uint64_t snapshot_room =
        room(fixed_bytes + (options.n_kv_blocks != 0 ? kv_bytes : blocks_per_sequence * block_bytes));
    plan.n_snapshots = n_snapshots_for(capabilities, config, options, kv_bytes, n_blocks, snapshot_room);
    plan.snapshot_bytes = plan.n_snapshots * state_slot_bytes(config);
    fixed_bytes += plan.snapshot_bytes;
    if (options.n_kv_blocks == 0) {
        kv_bytes = std::min(kv_bytes, room(fixed_bytes));
        n_blocks = std::min(n_blocks, blocks_in(kv_bytes));
    }
    plan.n_kv_blocks = static_cast<uint32_t>(n_blocks);
    group_kv(capabilities, config, options, kv_bytes, n_blocks,
             options.n_kv_blocks != 0 ? options.n_kv_blocks : useful_blocks, plan);

    const uint64_t n_blocks_max = blocks_max(capabilities, config, options, plan.groups, false);
    // of a block of those that are not of windows
    const uint64_t own_bytes = plan.groups.block_bytes(config, options.kv, false);
    if (options.n_kv_blocks != 0) {
        TRY(check_wanted_blocks(options, blocks_per_sequence, n_blocks_max));
        const uint64_t wanted_bytes = plan.window_bytes + n_blocks * own_bytes;
        if (fixed_bytes + wanted_bytes > free_bytes) {
            return make_error(
                ErrorCode::kOutOfMemory,
                format("{} KV cache blocks need {} bytes, beside weights {}, scratch {}, states {}, adapters, merged "
                       "weights and training {}; {} has "
                       "{} free: ask for fewer blocks",
                       n_blocks, wanted_bytes, weight_bytes, scratch_bytes, options.state_bytes + plan.snapshot_bytes,
                       options.adapter_bytes + options.merged_bytes + options.training_bytes, capabilities.name,
                       free_bytes));
        }
    }
    n_blocks = std::min<uint64_t>(plan.n_kv_blocks, n_blocks_max);

    const uint64_t one_bytes = plan.window_bytes + blocks_per_sequence * own_bytes, needed = fixed_bytes + one_bytes;
    if (n_blocks < blocks_per_sequence || needed > free_bytes) {
        return make_error(
            ErrorCode::kOutOfMemory,
            format("{} does not have enough memory: {} needs {} of {} usable ({:.0f}% of {} free): weights {}{}, KV "
                   "cache of one sequence of {} tokens {}, scratch {}, "
                   "adapters {}{}{}{}",
                   capabilities.name, config.architecture, gib(needed), gib(usable_bytes),
                   options.memory_utilization * 100, gib(free_bytes), gib(weight_bytes),
                   options.weight_formats.empty() ? "" : format(" ({})", options.weight_formats),
                   options.n_positions_max, gib(one_bytes), gib(scratch_bytes), gib(options.adapter_bytes),
                   part(", merged weights ", options.merged_bytes), part(", training ", options.training_bytes),
                   part(", states of sequences and prefixes ", options.state_bytes + plan.snapshot_bytes)));
    }
    plan.n_kv_blocks = static_cast<uint32_t>(n_blocks);
    plan.kv_bytes = plan.window_bytes + n_blocks * own_bytes;
    return plan;
}

}  // namespace lorad::model
