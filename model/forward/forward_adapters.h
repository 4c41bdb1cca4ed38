// Records the adapters' work beside the products: shrinks, and how their results come to the sums. Internal to
// forward.cpp.
#pragma once

#include <cstdint>

#include "gpu/command.h"
#include "gpu/kernels/kernels.h"
#include "model/forward/forward.h"
#include "model/step/step_shape.h"
#include "model/step/step_state.h"

namespace lorad::model {

class AdapterPass {
  public:
    AdapterPass(gpu::Recorder& recorder, const ForwardContext& context, const StepShape& shape);

    // From now on the rows are those at StepLayout::kept, whose adapters are added as in any step of few rows.
    void keep_rows();

    // low = A x for so many rows of x, with a plan of `base`; nothing in steps without adapters. May run beside the
    // product: it writes nothing that that touches.
    void shrink(uint32_t layer, LoraGroup group, gpu::DeviceAddress x, const Matrix& base, uint32_t rows,
                gpu::ShrinkPlace place) const;
    // The same of stacked adapters, whose x is in fragments, with B of all of them side by side; ends with a barrier.
    // Then what the product is told of them.
    void stack(uint32_t layer, LoraGroup group, gpu::DeviceAddress x, const Matrix& base, uint32_t rows) const;
    gpu::StackedAdapters stacked(LoraGroup group) const;
    // The arguments of a product that adds the adapters itself, from what the shrink has written.
    gpu::RunAdapters runs(uint32_t layer, LoraGroup group) const;
    // Adds the adapters' part to the product's sums.
    void expand(uint32_t layer, LoraGroup group, const Matrix& base) const;  // of a group of up to three modules

  private:
    void set_module_ends(uint32_t layer, LoraGroup group, uint32_t (&module_end)[3]) const;

    gpu::Recorder& recorder_;
    gpu::KernelSet& kernels_;
    const ForwardContext& context_;
    const Scratch& scratch_;
    const bool has_adapters_;
    bool stacked_;
    const StepLayout layout_;
    const gpu::DeviceAddress step_;
    uint64_t header_ = 0;  // where the step state has the rows' StepHeader,
    uint64_t segments_;    // and their segments
};

}  // namespace lorad::model
