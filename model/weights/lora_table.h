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
#include "model/config/config.h"
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
    // f32 [n] each, or 0. The module adds (gain - 1) * base + gain * scale * B A x + bias to what the base gives.
    gpu::DeviceAddress gain = 0;  // DoRA: magnitude / || W + scale B A || of each output row
    gpu::DeviceAddress bias = 0;  // bias of B times scale; a trained bias minus the base's
};

// An adapter's changes outside of the seven linear modules of a layer. Address 0: the base's.
struct AdapterExtrasView {
    // Embedding: a table of its own, low-rank matrices, or rows of some tokens.
    gpu::DeviceAddress embed_table = 0;  // [vocab][padded(hidden)]
    uint32_t embed_type = 0;
    gpu::DeviceAddress embed_a = 0;  // [vocab][round_up(rank, 8)]: A transposed
    gpu::DeviceAddress embed_b = 0;  // [hidden][round_up(rank, 8)]
    uint32_t embed_rank = 0;
    float embed_scale = 0.0f;
    uint32_t embed_lora_type = 0;
    gpu::DeviceAddress token_ids = 0;   // u32[n_tokens], ascending
    gpu::DeviceAddress token_rows = 0;  // f32 [n_tokens][padded(hidden)]
    uint32_t n_tokens = 0;
    bool tokens_in_head = false;  // tied: those rows of the output layer too

    // Output layer: the same three.
    gpu::DeviceAddress head_table = 0;  // [padded(vocab)][padded(hidden)]
    uint32_t head_type = 0;
    gpu::DeviceAddress head_a = 0;  // [rank][padded(hidden)]
    gpu::DeviceAddress head_b = 0;  // [vocab][round_up(rank, 8)]
    uint32_t head_rank = 0;
    float head_scale = 0.0f;
    uint32_t head_lora_type = 0;
    gpu::DeviceAddress head_bias = 0;  // f32[vocab], added to the logits

    // f32 [n] instead of the base's.
    struct LayerNorms {
        gpu::DeviceAddress input = 0, mixer_after = 0, ffn = 0, ffn_after = 0, q = 0, k = 0;  // as in LayerWeights
        gpu::DeviceAddress mixer = 0;  // LayerWeights::delta_norm
    };
    std::vector<LayerNorms> norms;  // [n_layers], or empty
    gpu::DeviceAddress final_norm = 0;
};

// All that a slot holds.
struct AdapterView {
    std::vector<LoraModuleView> modules;  // [n_layers][ModelConfig::lora_stride()]
    AdapterExtrasView extras;
    bool has_extras = false;
};

// The traits of a slot that a step's recording and state depend on.
struct SlotTraits {
    std::array<uint32_t, kModuleGroups> ranks{};  // largest over all layers, by LoraGroup
    bool is_plain = true;                         // no module has a gain or a bias
    uint32_t types = 0;                           // of the modules' matrices: 1 << LoraModuleView::weight_type
    bool has_extras = false;
};

// set() from one thread at a time (adapters/pool/registry.h), for slots that no pending step names; the rest from any
// thread.
class LoraTable {
  public:
    static Result<std::unique_ptr<LoraTable>> create(gpu::Device& device, const ModelConfig& config, uint32_t n_slots);

    uint32_t n_slots() const { return n_slots_; }
    uint32_t n_layers() const { return n_layers_; }

    // Goes through the uploader after all earlier uploads, so the matrices may still be in flight: steps submitted
    // after set() returned wait for both on the device.
    Status set(uint32_t slot, const AdapterView& adapter);

    // The slot must be leased: taking the lease synchronizes with set() through a lock.
    const SlotTraits& traits(uint32_t slot) const { return traits_[slot]; }
    const AdapterView& adapter(uint32_t slot) const { return adapters_[slot]; }
    gpu::DeviceAddress address() const { return table_.address(); }
    // gpu::SlotExtras[slot]; zeros for slots without.
    gpu::DeviceAddress extras_address() const { return extras_.address(); }
    // Addresses [slot] of the norm weights that adapters have instead of the base's. Those of the residual stream lie
    // in the order in which they are applied, the final one last: the norm of a part's output lies in front of the norm
    // of the next part's input.
    enum class Norm : uint32_t { kInput, kMixerAfter, kFfn, kFfnAfter, kQ, kK, kMixer };
    gpu::DeviceAddress norms_address(uint32_t layer, Norm norm) const {
        return norms_.address() + norm_row(layer, norm) * norm_row_bytes();
    }
    gpu::DeviceAddress final_norm_address() const {
        return norms_.address() + uint64_t{n_layers_} * kStreamNorms * norm_row_bytes();
    }
    // The uploader's timeline value that the next step has to wait for.
    uint64_t upload_value() const { return upload_value_.load(std::memory_order_acquire); }

  private:
    static constexpr uint32_t kStreamNorms = 4, kMixerNorms = 3;  // of a layer

    LoraTable(gpu::Device& device, uint32_t n_slots, uint32_t n_layers, uint32_t stride);
    uint64_t n_norm_rows() const { return uint64_t{n_layers_} * (kStreamNorms + kMixerNorms) + 1; }
    uint64_t norm_row(uint32_t layer, Norm norm) const {
        const auto number = static_cast<uint32_t>(norm);
        if (number < kStreamNorms) return uint64_t{layer} * kStreamNorms + number;
        return uint64_t{n_layers_} * kStreamNorms + 1 + uint64_t{layer} * kMixerNorms + (number - kStreamNorms);
    }
    uint64_t norm_row_bytes() const { return uint64_t{n_slots_} * sizeof(gpu::DeviceAddress); }
    Status upload_extras(uint32_t slot, const AdapterExtrasView& extras);

    gpu::Device& device_;
    gpu::Buffer table_;
    gpu::Buffer extras_;
    gpu::Buffer norms_;  // addresses [n_norm_rows()][n_slots]
    uint32_t n_slots_;
    uint32_t n_layers_;
    uint32_t stride_;                    // modules of a layer
    std::vector<SlotTraits> traits_;     // [slot]
    std::vector<AdapterView> adapters_;  // [slot]
    std::atomic<uint64_t> upload_value_{0};
};

}  // namespace lorad::model
