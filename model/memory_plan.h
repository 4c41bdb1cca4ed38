// Where the device's memory goes: computed before anything is allocated, logged at start.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gpu/device.h"
#include "model/config.h"
#include "model/kv_cache.h"
#include "proto/base/result.h"

namespace lorad::model {

struct MemoryPlanOptions {
    uint32_t n_rows_max = 0;
    uint32_t n_sequences_max = 0;
    uint32_t n_positions_max = 0;        // context served, at most the model's
    double memory_utilization = 0.9;     // share of the free device memory that lorad may take
    uint64_t adapter_bytes = 0;          // left free for adapters
    uint64_t merged_bytes = 0;           // left free for merged weights
    uint64_t training_bytes = 0;         // left free for training
    uint64_t state_bytes = 0;            // of the sequences' recurrent states
    // For states that the prefix cache keeps; without one: what is worth it (model/memory_plan.cpp). 0: none are kept.
    std::optional<uint64_t> snapshot_bytes_max = std::nullopt;
    uint64_t kv_bytes_max = 0;           // 0: no limit of its own; on CPU devices then 1 GiB
    uint32_t n_kv_blocks = 0;            // not 0: exactly these
    KvFormat kv;
    std::string weight_formats = {};     // for people: of models with weights in few bits
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
    uint64_t kv_bytes = 0;
    uint32_t n_kv_blocks = 0;
    KvFormat kv;
    std::string weight_formats = {};

    std::string table() const;  // several lines, for the log
};

// kOutOfMemory if the weights, the scratch and the KV blocks of one sequence of full length do not fit: the message
// says how many bytes of how many.
Result<MemoryPlan> plan_memory(const gpu::DeviceCapabilities& capabilities, uint64_t free_bytes,
                               const ModelConfig& config, uint64_t weight_bytes, uint64_t scratch_bytes,
                               const MemoryPlanOptions& options);

}  // namespace lorad::model
