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
#include "gpu/kernels/mixers/mixer_shapes.h"
#include "gpu/kernels/mixers/short_conv.params.h"

namespace lorad::gpu {

// How delta_step takes a step's rows: rows of a block and of a stage, lanes that have a column's elements, threads.
struct DeltaPlan {
    uint32_t block, stage, lanes, threads;
    bool operator==(const DeltaPlan&) const = default;
};

class MixerPlanner : public Planner {
  public:
    explicit MixerPlanner(const KernelFacts& facts) : Planner(facts) {}

    // Rows in blocks where there are more rows than runs and the device has RungId::kDeltaBlocks, but never with
    // batch_invariant: else one after the other, by the same plan for all numbers of rows.
    DeltaPlan delta_plan(const DeltaShape& shape, uint32_t runs, uint32_t rows) const;
};

// Each method records one dispatch. Several threads may record at once, each into its own Recorder. `rows` and `runs`
// are the recording's capacity.
class MixerKernels : public MixerPlanner, private KernelRecorder {
  public:
    MixerKernels(const KernelFacts& facts, KernelCache& cache) : MixerPlanner(facts), KernelRecorder(cache) {}

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
    // Either: with `corrects` delta_step.
    void recur(Recorder& recorder, const DeltaStepParams& params, const DeltaShape& shape, bool corrects, uint32_t runs,
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
};

}  // namespace lorad::gpu
