// Products of the rows by a matrix of weights: how each is to be computed, and its recording. product_impls.h has the
// implementations; docs/EXTENDING.md says how to add one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gpu/command.h"
#include "gpu/kernels/kernel_cache.h"
#include "gpu/kernels/kernel_facts.h"
#include "gpu/kernels/products/arrange_fragments.params.h"
#include "gpu/kernels/products/gated_lora.params.h"
#include "gpu/kernels/products/matmul_plan.h"
#include "gpu/kernels/products/packed/unpack_weights.params.h"
#include "gpu/kernels/products/product.h"
#include "gpu/kernels/products/product_arguments.h"
#include "gpu/kernels/sampling/sample_argmax.params.h"
#include "gpu/kernels/step_state.h"

namespace lorad::gpu {

class ProductPlanner : public Planner {
  public:
    explicit ProductPlanner(const KernelFacts& facts) : Planner(facts) {}

    // Plans by the first implementation of the table that takes the product. nullopt if none does: sums of plain or
    // packed matrices always have one, if the product adds no adapters and applies no deferred norm.
    std::optional<MatmulPlan> plan(const Product& product) const;
    // By this implementation, which has the product's forms, whether or not the device's ladder has it and it is the
    // best: for tests, and for those who have tested it themselves. None: it has no tile that fits.
    std::optional<MatmulPlan> plan_by(MatmulVariant variant, const Product& product) const;
    // The same by a measured form; nullopt: the device does not take it.
    std::optional<MatmulPlan> plan_by_form(const Product& product, const ProductForm& form) const;
    double expected_time(const Product& product, const MatmulPlan& plan) const;
    // Plans of all implementations that have the product's forms and candidates, for benchmarks.
    std::vector<MatmulPlan> candidates(const Product& product) const;
    // For people: the implementations that have the product's forms, a line each up to the one that takes it, and why
    // not.
    std::string explain(const Product& product) const;

    // Sizes for StackedAdapters: low for so many rows, and b for a product with so many padded columns.
    static uint64_t stacked_low_bytes(uint32_t rows, uint32_t n_modules) {
        return uint64_t{round_up(rows, kStackedTileRows)} * n_modules * kStackedModuleColumns * 2;
    }
    static uint64_t stacked_b_bytes(uint32_t n_padded, uint32_t n_modules) {
        return uint64_t{n_padded} * n_modules * kStackedModuleColumns * 2;
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
    // fragments = rows, for a product whose input was written in rows; not kRowFragments and kBandFragments. Moves the
    // rows in and out.
    void arrange_fragments(Recorder& recorder, const ArrangeFragmentsParams& params, uint32_t rows,
                           uint32_t fragment_order);
};

}  // namespace lorad::gpu
