// Products of the rows by a matrix of weights: how each is to be computed, and its recording. product_ways.h has the
// ways; docs/EXTENDING.md says how to add one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gpu/command.h"
#include "gpu/kernels/kernel_cache.h"
#include "gpu/kernels/kernel_facts.h"
#include "gpu/kernels/products/arrange_blocks.params.h"
#include "gpu/kernels/products/gated_lora.params.h"
#include "gpu/kernels/products/matmul_plan.h"
#include "gpu/kernels/products/product.h"
#include "gpu/kernels/products/product_arguments.h"
#include "gpu/kernels/products/unpack_weights.params.h"
#include "gpu/kernels/sampling/sample_argmax.params.h"
#include "gpu/kernels/step_state.h"

namespace lorad::gpu {

class ProductPlanner : public Planner {
  public:
    explicit ProductPlanner(const KernelFacts& facts) : Planner(facts) {}

    // Plans by the first way of the table that takes the product. nullopt if none does: sums of plain or packed
    // matrices always have one, if the product adds no adapters and applies no deferred norm.
    std::optional<MatmulPlan> plan(const Product& product) const;
    // By this way, which has the product's forms, whether or not the device's ladder has it and it is the best: for
    // tests, and for those who have tested it themselves. None: it has no tile that fits.
    std::optional<MatmulPlan> plan_by(MatmulVariant variant, const Product& product) const;
    // Plans of all ways that have the product's forms and candidates, for benchmarks.
    std::vector<MatmulPlan> candidates(const Product& product) const;
    // For people: the ways that have the product's forms, a line each up to the one that takes it, and why not.
    std::string explain(const Product& product) const;

    // Sizes for StackedAdapters: low for so many rows, and b for a product with so many padded columns.
    static uint64_t joined_low_bytes(uint32_t rows, uint32_t n_modules) {
        return uint64_t{round_up(rows, kJoinedTileRows)} * n_modules * kJoinedModuleColumns * 2;
    }
    static uint64_t joined_b_bytes(uint32_t n_padded, uint32_t n_modules) {
        return uint64_t{n_padded} * n_modules * kJoinedModuleColumns * 2;
    }
};

// Each method records one dispatch. Several threads may record at once, each into its own Recorder.
class ProductKernels : public ProductPlanner, private KernelRecorder {
  public:
    ProductKernels(const KernelFacts& facts, KernelCache& cache) : ProductPlanner(facts), KernelRecorder(cache) {}

    // Records the plan's product. Moves the matrix once (matvec: once per 8 rows). For a packed matrix w is a part in
    // the plan's format, or with MatmulPlan::unpacks the plain copy.
    void record(Recorder& recorder, const MatmulPlan& plan, const ProductArguments& arguments);
    // A packed part as a plain matrix, rounded to weights.type. Moves the part in and the matrix out.
    void unpack_weights(Recorder& recorder, const UnpackWeightsParams& params, WeightKind weights);
    // blocks = rows, for a product whose input was written in rows; not kBlocksOfARow. Moves the rows in and out.
    void arrange_blocks(Recorder& recorder, const ArrangeBlocksParams& params, uint32_t rows, uint32_t block_order);
};

}  // namespace lorad::gpu
