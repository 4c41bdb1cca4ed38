// The plan of the device's memory: computed before anything is allocated, logged at start.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "gpu/device.h"
#include "model/config/config.h"
#include "model/exec/kv_cache.h"
#include "model/exec/kv_groups.h"
#include "proto/base/result.h"

namespace lorad::model {

struct MemoryPlanOptions {
    uint32_t n_rows_max = 0;
    uint32_t n_sequences_max = 0;
    uint32_t n_positions_max = 0;     // context served, at most the model's
    double memory_utilization = 0.9;  // share of the free device memory that lorad may take
    uint64_t adapter_bytes = 0;       // left free for adapters
    uint64_t merged_bytes = 0;        // left free for merged weights
    uint64_t training_bytes = 0;      // left free for training
    uint64_t state_bytes = 0;         // of the sequences' recurrent states
    // For states that the prefix cache keeps; without a value model/exec/memory_plan.cpp chooses one. 0: none are kept.
    std::optional<uint64_t> snapshot_bytes_max = std::nullopt;
    uint64_t kv_bytes_max = 0;  // 0: no limit of its own; on CPU devices then 1 GiB
    uint32_t n_kv_blocks = 0;   // not 0: exactly these
    KvFormat kv;
    std::string weight_formats = {};  // for people: of models with weights in few bits
    // whoever makes the steps has blocks of windows apart (model/exec/kv_groups.h): done where more tokens fit then
    bool may_group_kv = false;
};

struct MemoryPlan {
    uint64_t free_bytes = 0;  // before loading
    uint64_t weight_bytes = 0;
    uint64_t scratch_bytes = 0;
    uint64_t adapter_bytes = 0;
    uint64_t merged_bytes = 0;
    uint64_t training_bytes = 0;
    uint64_t state_bytes = 0;
    uint64_t snapshot_bytes = 0;
    uint32_t n_snapshots = 0;  // states of the prefix cache
    uint64_t kv_bytes = 0;     // of all groups
    uint32_t n_kv_blocks = 0;
    KvGroups groups;                  // one where that is better
    uint32_t n_window_blocks = 0;     // enough for whoever runs; 0: one group
    uint64_t window_bytes = 0;        // of kv_bytes
    uint32_t n_ungrouped_blocks = 0;  // in one group there would be so many of all
    KvFormat kv;
    std::string weight_formats = {};

    // Blocks by any number below are there for all layers.
    uint32_t n_table_blocks() const {
        return !groups.has_windows() ? n_kv_blocks
               : groups.has_full     ? std::min(n_kv_blocks, n_window_blocks)
                                     : n_window_blocks;
    }
    std::string table() const;  // several lines, for the log
};

// kOutOfMemory if the weights, the scratch and the KV blocks of one sequence of full length do not fit: the message
// says how many bytes of how many.
Result<MemoryPlan> plan_memory(const gpu::DeviceCapabilities& capabilities, uint64_t free_bytes,
                               const ModelConfig& config, uint64_t weight_bytes, uint64_t scratch_bytes,
                               const MemoryPlanOptions& options);

}  // namespace lorad::model
