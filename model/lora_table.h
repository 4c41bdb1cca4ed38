// The device's table of adapters: for every slot, layer and linear module the addresses, rank and scale that the LoRA
// kernels read. It knows nothing of files or names; adapters/ fills it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gpu/device.h"
#include "gpu/kernels/step_state.h"
#include "model/config.h"
#include "proto/base/result.h"

namespace lorad::model {

inline constexpr uint32_t kLoraRankMax = gpu::kMaxRank;  // 512

// One module of one layer. The matrices belong to the caller and must outlive the slot's use.
//   A [rank][k_stride]              k_stride = inputs rounded up to 64 elements, padding zero
//   B [n][round_up(rank, 8)]        padding zero
struct LoraModuleView {
    gpu::DeviceAddress a = 0;
    gpu::DeviceAddress b = 0;
    uint32_t rank = 0;         // 0: this module is not adapted
    float scale = 0.0f;        // alpha / rank, or alpha / sqrt(rank)
    uint32_t weight_type = 0;  // of both matrices: 0 f32, 1 f16, 2 bf16
};

// set() from one thread at a time (adapters/registry), for slots that no pending step names; the rest from any thread.
class LoraTable {
  public:
    static Result<std::unique_ptr<LoraTable>> create(gpu::Device& device, const ModelConfig& config, uint32_t n_slots);

    uint32_t n_slots() const { return n_slots_; }
    uint32_t n_layers() const { return n_layers_; }

    // `modules` is [n_layers][kLinearModules]. Goes through the uploader after whatever was handed to it before, so the
    // matrices may still be on their way: steps submitted after set() returned wait for both on the device.
    Status set(uint32_t slot, std::span<const LoraModuleView> modules);

    // Largest rank of a slot's modules over all layers, for the groups q k v, o, gate up, down. For slots in use.
    std::array<uint32_t, 4> ranks(uint32_t slot) const { return ranks_[slot]; }
    gpu::DeviceAddress address() const { return table_.address(); }
    // The uploader's timeline value that the next step has to wait for.
    uint64_t upload_value() const { return upload_value_.load(std::memory_order_acquire); }

  private:
    LoraTable(gpu::Device& device, gpu::Buffer table, uint32_t n_slots, uint32_t n_layers);
    gpu::Device& device_;
    gpu::Buffer table_;
    uint32_t n_slots_;
    uint32_t n_layers_;
    std::vector<std::array<uint32_t, 4>> ranks_;  // [slot]; whoever leases a slot has met its setter at a lock
    std::atomic<uint64_t> upload_value_{0};
};

}  // namespace lorad::model
