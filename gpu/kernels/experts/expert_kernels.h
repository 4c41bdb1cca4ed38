// Mixtures of experts: routing, grouping of rows by expert, products by the experts' matrices, what adapters add to
// them, and the weighted sum. Nothing of it goes to the host: grids are for the most tiles that a step may have, and
// what there are is counted on the device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpu/command.h"
#include "gpu/kernels/consumer_shape.h"
#include "gpu/kernels/experts/expert_act.params.h"
#include "gpu/kernels/experts/expert_lora.params.h"
#include "gpu/kernels/experts/expert_product.params.h"
#include "gpu/kernels/experts/expert_route.params.h"
#include "gpu/kernels/experts/expert_sum.params.h"
#include "gpu/kernels/formats/weight_format.h"
#include "gpu/kernels/kernel_cache.h"
#include "gpu/kernels/kernel_facts.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {

struct RouterShape {
    uint32_t experts = 0, top = 0;
    uint32_t rule = kSoftmaxThenTop;
    bool normalises = false;  // weights are divided by their sum
};

// The products of a layer's experts.
struct ExpertMatrices {
    uint32_t gate_up = 0, down = 0;                // rows of one expert's
    uint32_t gate_up_stride = 0, down_stride = 0;  // elements of a row
    WeightKind gate_up_kind = ScalarType::kF32, down_kind = ScalarType::kF32;
};

// The plan of both products of the experts.
struct ExpertPlan {
    uint32_t tile_rows = 1;    // pairs of a tile at most
    bool on_matrices = false;  // expert_matrix, else expert_product
    bool can_gate = true;      // gate_up can end in the activation
};

// The activation of gate and up, for a product that ends in it.
struct ExpertGate {
    Activation activation = Activation::kSilu;
    bool clamped = false, interleaved = false;
};

class ExpertPlanner : public Planner {
  public:
    explicit ExpertPlanner(const KernelFacts& facts) : Planner(facts) {}

    // Plans a recording of so many rows: with few rows few share an expert. With batch_invariant the kernel is always
    // the same.
    ExpertPlan plan(const RouterShape& shape, const ExpertMatrices& matrices, uint32_t rows) const;
    // Returns true if products of such weights may be on KHR cooperative matrices.
    bool has_matrices(WeightKind weights) const;
    static const char* matrix_module(WeightKind weights);
    // Tiles on matrices that the device and such products take, by their pairs; for the test at the start.
    std::vector<uint32_t> matrix_tiles(const ExpertMatrices& matrices) const;
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

    // params.logits has n_splits parts. In a recording of one row its pairs are grouped as well.
    void route(Recorder& recorder, const ExpertRouteParams& params, const RouterShape& shape, uint32_t n_splits,
               uint32_t rows);
    // params.tile_rows and top are filled in. Behind route() and a barrier.
    void group(Recorder& recorder, ExpertGroupParams params, const RouterShape& shape, const ExpertPlan& plan,
               uint32_t rows);
    void product(Recorder& recorder, const ExpertProductParams& params, const RouterShape& shape,
                 const ExpertPlan& plan, WeightKind weights, uint32_t rows,
                 const std::optional<ExpertGate>& gate = std::nullopt);
    void act(Recorder& recorder, const ExpertActParams& params, Activation activation, bool clamped, bool interleaved,
             ScalarType act_type, uint32_t rows);
    // Level kPlain or kFull. Behind product() and a barrier.
    void lora(Recorder& recorder, const ExpertLoraParams& params, LoraLevel level, ScalarType act_type, uint32_t rows);
    void sum(Recorder& recorder, const ExpertSumParams& params, uint32_t top, uint32_t rows);

  private:
    void on_matrices(Recorder& recorder, const ExpertProductParams& params, const RouterShape& shape,
                     const ExpertPlan& plan, WeightKind weights, uint32_t rows, const std::optional<ExpertGate>& gate,
                     const DispatchInfo& info);
};

}  // namespace lorad::gpu
