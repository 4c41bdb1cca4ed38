// Adapters worked into the base weights on the device: DoRA's gains, and copies of the matrices with adapters merged
// in. The pristine weights are only ever read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "gpu/device.h"
#include "gpu/kernels/kernels.h"
#include "model/config/config.h"
#include "model/weights/lora_table.h"
#include "model/weights/weights.h"
#include "proto/base/result.h"

namespace lorad::model {

struct MergeTerm {
    const AdapterView* adapter = nullptr;
    float scale = 1.0f;  // the mix's, on top of each module's own
};

// Copies of those matrices and biases that the adapters of one merge change. Immutable; read by steps of weight set 1,
// and freed when no step in flight names it: see Executor::use_merged.
class MergedWeights {
  public:
    // The address of a matrix or bias: its copy, or the pristine one if nothing changes it. A bias that only an adapter
    // has is found by the base's empty vector; 0 if there is none.
    gpu::DeviceAddress address_of(const Matrix& pristine) const;
    bool has_copy_of(const Matrix& pristine) const { return copies_.contains(&pristine); }
    gpu::DeviceAddress address_of(const Vector& pristine) const;

    // decode_layer_table() with these; null where the model is not made for it.
    const gpu::Buffer* decode_table() const { return decode_table_ ? &*decode_table_ : nullptr; }
    void set_decode_table(gpu::Buffer table) { decode_table_ = std::move(table); }  // before anybody else knows them

    uint64_t device_bytes() const { return device_bytes_; }
    double gpu_ms() const { return gpu_ms_; }  // that the merge took on the device

  private:
    friend class WeightTransform;
    std::map<const void*, gpu::Buffer> copies_;  // by address of the pristine Matrix or Vector
    std::optional<gpu::Buffer> decode_table_;
    uint64_t device_bytes_ = 0;
    double gpu_ms_ = 0.0;
};

// The address of a matrix, or a bias (0 if there is none): of the merged weights, or of the model's own without them.
inline gpu::DeviceAddress address_of(const Matrix& matrix, const MergedWeights* merged) {
    return merged != nullptr ? merged->address_of(matrix) : matrix.buffer.address();
}
inline gpu::DeviceAddress address_of(const Vector& bias, const MergedWeights* merged) {
    return merged != nullptr ? merged->address_of(bias) : bias.address();
}

// Returns true if a step with these weights (null: the model's own) finds the matrix packed: copies are plain.
inline bool is_packed(const Matrix& matrix, const MergedWeights* merged) {
    return matrix.is_packed() && (merged == nullptr || !merged->has_copy_of(matrix));
}

// Any thread; calls take turns. The work runs on the compute queue between the steps, in pieces of a layer, at most two
// of them submitted at a time: a step waits for a fraction of a millisecond, whatever the size of the model.
class WeightTransform {
  public:
    // All must outlive this. bytes_max: that merged weights may take; 0: what the device has free.
    WeightTransform(gpu::Device& device, gpu::KernelSet& kernels, const ModelConfig& config,
                    const ModelWeights& weights, uint64_t bytes_max);

    // Turns the magnitudes that lie at each module's `gain` into gains, in place, once: gain = magnitude / || W + scale
    // B A || per output row. The adapter's uploads have been handed to the uploader. Returns when it is done.
    Status finish_gains(const AdapterView& adapter);

    // At most kLoraUsesMax terms. Returns when the copies are complete. kOutOfMemory with the bytes: nothing has
    // changed then.
    Result<std::unique_ptr<MergedWeights>> merge(std::span<const MergeTerm> terms);
    // Device memory that merge() would take.
    uint64_t merged_bytes(std::span<const MergeTerm> terms) const;

  private:
    struct Group;
    class Parts;
    struct Copy {
        const void* pristine;  // Matrix or Vector
        uint64_t n_bytes;
    };
    std::vector<Group> groups(uint32_t layer) const;
    uint32_t n_outputs(const Group& group, uint32_t m) const;  // of the group's m-th module
    std::vector<Copy> copies(const Parts& parts) const;
    void record_merge(gpu::Recorder& recorder, const Group& group, const MergedWeights& merged,
                      const Parts& parts) const;
    // Records and submits piece after piece; returns their GPU time in ms.
    Result<double> run_pieces(uint32_t n_pieces, uint64_t upload_value,
                              const std::function<void(gpu::Recorder&, uint32_t piece)>& record);

    gpu::Device& device_;
    bool changes_experts(const AdapterView& adapter) const;

    gpu::KernelSet& kernels_;
    const ModelConfig& config_;
    const ModelWeights& weights_;
    const Vector no_bias_;  // of matrices that have none in any model
    const uint64_t bytes_max_;
    std::mutex mutex_;  // one transform at a time
};

}  // namespace lorad::model
