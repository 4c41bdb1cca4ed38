// Mixers other than attention: the gated delta net, Mamba 2, the short convolution, and the gate behind attention. All
// of a model with recurrent state read StateRun[] (gpu/kernels/step_state.h).
#pragma once

#include <cstdint>

#include "gpu/command.h"
#include "gpu/kernels/kernel_cache.h"
#include "gpu/kernels/kernel_facts.h"
#include "gpu/kernels/mixers/conv_state.params.h"
#include "gpu/kernels/mixers/delta_conv.params.h"
#include "gpu/kernels/mixers/delta_step.params.h"
#include "gpu/kernels/mixers/gate_rows.params.h"
#include "gpu/kernels/mixers/gated_norm.params.h"
#include "gpu/kernels/mixers/short_conv.params.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {

// Sizes of a gated delta net. value_heads is a multiple of key_heads; value_size a multiple of 4.
struct DeltaShape {
    uint32_t key_heads = 0, value_heads = 0, key_size = 0, value_size = 0, taps = 0;

    uint32_t keys() const { return key_heads * key_size; }
    uint32_t values() const { return value_heads * value_size; }
    uint32_t channels() const { return 2 * keys() + values(); }                  // of the convolution
    uint32_t inputs() const { return channels() + values() + 2 * value_heads; }  // of DeltaConvParams::m
    uint32_t outputs() const { return channels() + 2 * value_heads; }            // of DeltaConvParams::to
    // f32 of one sequence and layer: the convolution's and the recurrence's.
    uint32_t conv_floats() const { return (taps - 1) * channels(); }
    uint32_t state_floats() const { return values() * round_up(key_size, 16); }
    bool operator==(const DeltaShape&) const = default;
};

// Whether the kernels take such sizes: threads and shared memory that every device has.
constexpr uint32_t kDeltaHeadMax = 256, kConvTapsMax = 8;
constexpr bool can_mix(const DeltaShape& shape) {
    return shape.key_heads > 0 && shape.value_heads % shape.key_heads == 0 && shape.value_heads > 0 &&
           shape.key_size > 0 && shape.key_size <= kDeltaHeadMax && shape.value_size > 0 &&
           shape.value_size <= kDeltaHeadMax && shape.value_size % 4 == 0 && shape.taps >= 2 &&
           shape.taps <= kConvTapsMax;
}

// Sizes of a Mamba 2 mixer. heads is a multiple of groups; the heads of a group have one B and C.
struct MambaShape {
    uint32_t heads = 0, head_size = 0, groups = 0, state_size = 0, taps = 0;

    uint32_t inner() const { return heads * head_size; }
    uint32_t keys() const { return groups * state_size; }
    uint32_t channels() const { return inner() + 2 * keys(); }        // of the convolution
    uint32_t inputs() const { return inner() + channels() + heads; }  // of DeltaConvParams::m
    uint32_t outputs() const { return channels() + 2 * heads; }       // of DeltaConvParams::to
    uint32_t conv_floats() const { return (taps - 1) * channels(); }
    uint32_t state_floats() const { return recurrence().state_floats(); }
    // Its recurrence as that of a delta net, which corrects nothing.
    DeltaShape recurrence() const {
        return {
            .key_heads = groups, .value_heads = heads, .key_size = state_size, .value_size = head_size, .taps = taps};
    }
    bool operator==(const MambaShape&) const = default;
};
constexpr bool can_mix(const MambaShape& shape) {
    return shape.groups > 0 && shape.heads > 0 && shape.heads % shape.groups == 0 && shape.state_size > 0 &&
           shape.state_size <= kDeltaHeadMax && shape.head_size > 0 && shape.head_size <= kDeltaHeadMax &&
           shape.heads / shape.groups * shape.head_size % 4 == 0 && shape.taps >= 2 && shape.taps <= kConvTapsMax;
}

// Each method records one dispatch. Several threads may record at once, each into its own Recorder. `rows` and `runs`
// are the recording's capacity.
class MixerKernels : public Planner, private KernelRecorder {
  public:
    MixerKernels(const KernelFacts& facts, KernelCache& cache) : Planner(facts), KernelRecorder(cache) {}

    void delta_conv(Recorder& recorder, const DeltaConvParams& params, const DeltaShape& shape, uint32_t rows);
    // Behind what reads the state of the convolution, with a barrier between.
    void conv_state(Recorder& recorder, const ConvStateParams& params, uint32_t taps, uint32_t runs);
    // With as many rows as runs for decodes: one row of each.
    void delta_step(Recorder& recorder, const DeltaStepParams& params, const DeltaShape& shape, uint32_t runs,
                    uint32_t rows);
    // The same kernels in Mamba 2's form.
    void mamba_conv(Recorder& recorder, const DeltaConvParams& params, const MambaShape& shape, uint32_t rows);
    void mamba_step(Recorder& recorder, const DeltaStepParams& params, const MambaShape& shape, uint32_t runs,
                    uint32_t rows);
    void mamba_norm(Recorder& recorder, const GatedNormParams& params, const MambaShape& shape, ScalarType act_type,
                    uint32_t rows);
    void gated_norm(Recorder& recorder, const GatedNormParams& params, uint32_t heads, uint32_t size,
                    ScalarType act_type, uint32_t rows);
    void short_conv(Recorder& recorder, const ShortConvParams& params, uint32_t taps, ScalarType act_type,
                    uint32_t rows);
    void gate_rows(Recorder& recorder, const GateRowsParams& params, uint32_t size, ScalarType act_type, uint32_t rows);

  private:
    void convolve(Recorder& recorder, const DeltaConvParams& params, const DeltaShape& shape, bool is_mamba,
                  uint32_t rows);
    void recur(Recorder& recorder, const DeltaStepParams& params, const DeltaShape& shape, bool corrects, uint32_t runs,
               uint32_t rows);
};

}  // namespace lorad::gpu
