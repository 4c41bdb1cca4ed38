// Mixtures of experts: routing, grouping of rows by expert, products by the experts' matrices, what adapters add to
// them, and the weighted sum. Nothing of it goes to the host: grids are for the most tiles that a step may have, and
// what there are is counted on the device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/command.h"
#include "gpu/kernels/consumer_shape.h"
#include "gpu/kernels/experts/expert_act.params.h"
#include "gpu/kernels/experts/expert_lora.params.h"
#include "gpu/kernels/experts/expert_product.params.h"
#include "gpu/kernels/experts/expert_route.params.h"
#include "gpu/kernels/experts/expert_sum.params.h"
#include "gpu/kernels/kernel_cache.h"
#include "gpu/kernels/kernel_facts.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {

struct RouterShape {
    uint32_t experts = 0, top = 0;
    uint32_t rule = kSoftmaxThenTop;
    bool normalises = false;  // weights are divided by their sum
};

class ExpertPlanner : public Planner {
  public:
    explicit ExpertPlanner(const KernelFacts& facts) : Planner(facts) {}

    // Rows of a tile in a recording for so many rows: few share an expert where there are few. With batch_invariant
    // always the same.
    uint32_t tile_rows(uint32_t rows) const {
        return options().batch_invariant || rows > 8 ? kExpertTileRows : rows > 1 ? 2 : 1;
    }
    // The most tiles of so many pairs: one for each expert that is not full, and full ones.
    static uint32_t tiles_max(uint32_t pairs, uint32_t experts, uint32_t tile_rows) {
        return std::min(pairs, experts + pairs / tile_rows);
    }
};

// Each method records one dispatch. Several threads may record at once, each into its own Recorder. `rows` is the
// recording's capacity.
class ExpertKernels : public ExpertPlanner, private KernelRecorder {
  public:
    ExpertKernels(const KernelFacts& facts, KernelCache& cache) : ExpertPlanner(facts), KernelRecorder(cache) {}

    void route(Recorder& recorder, const ExpertRouteParams& params, const RouterShape& shape, uint32_t rows);
    // params.tile_rows and top are filled in. Behind route() and a barrier.
    void group(Recorder& recorder, ExpertGroupParams params, const RouterShape& shape, uint32_t rows);
    void product(Recorder& recorder, const ExpertProductParams& params, const RouterShape& shape,
                 ScalarType weight_type, uint32_t rows);
    void act(Recorder& recorder, const ExpertActParams& params, Activation activation, bool clamped, bool in_turns,
             ScalarType act_type, uint32_t rows);
    // Level kPlain or kFull. Behind product() and a barrier.
    void lora(Recorder& recorder, const ExpertLoraParams& params, LoraLevel level, ScalarType act_type, uint32_t rows);
    void sum(Recorder& recorder, const ExpertSumParams& params, uint32_t top, uint32_t rows);
};

}  // namespace lorad::gpu
