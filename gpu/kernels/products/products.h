// Products of the rows by a matrix of weights: how each is to be computed, and its recording. docs/EXTENDING.md says
// how to add a way of multiplying.
#pragma once

#include <optional>
#include <vector>

#include "gpu/command.h"
#include "gpu/kernels/consumer_shape.h"
#include "gpu/kernels/kernel_cache.h"
#include "gpu/kernels/kernel_facts.h"
#include "gpu/kernels/lora/lora_join.params.h"
#include "gpu/kernels/products/arrange_blocks.params.h"
#include "gpu/kernels/products/gated_lora.params.h"
#include "gpu/kernels/products/matmul.params.h"
#include "gpu/kernels/products/matmul_plan.h"
#include "gpu/kernels/products/matmul_residual.params.h"
#include "gpu/kernels/products/pages_ahead.h"
#include "gpu/kernels/products/unpack_weights.params.h"
#include "gpu/kernels/products/warpgroup_tiles.h"
#include "gpu/kernels/sampling/sample_argmax.params.h"

namespace lorad::gpu {

// A matrix in few bits, as plans see it.
struct PackedShape {
    uint32_t n = 0, k = 0;
    ScalarType type = ScalarType::kF16;  // of the model's matrices
    uint32_t formats = 0;                // of its parts: 1 << number_of(format)
    uint32_t align = 1;                  // of rows: divides where each part begins and ends
};
// What plan_matmul() is to know beside the matrix: see there.
struct ProductWish {
    uint32_t rows = 0, max_splits = 1;
    bool may_be_in_blocks = false, adds_adapters = false, leaves_room = false;
    bool may_unpack = true;  // there is room for a plain copy
};

class ProductPlanner : public Planner {
  public:
    explicit ProductPlanner(const KernelFacts& facts) : Planner(facts) {}

    // How to compute y = x w^T, w an n x k matrix, for up to `rows` rows of x. may_be_in_blocks: the kernel that writes
    // x can write it in blocks (activation_blocks.h); it then has to heed the plan's x_in_blocks and x_order.
    // adds_adapters: a variant that adds LoRA by itself, where there is one.
    // leaves_room: a shrink is to run beside it, so workgroups leave it registers and shared memory.
    MatmulPlan plan_matmul(uint32_t n, uint32_t k, ScalarType weight_type, uint32_t rows, uint32_t max_splits,
                           bool may_be_in_blocks = false, bool adds_adapters = false, bool leaves_room = false) const;
    // The same of a packed matrix: a plan that reads each part as it is (MatmulPlan::packed is of any part, to be set
    // to each one's format), or that unpacks it.
    MatmulPlan plan_packed(const PackedShape& w, const ProductWish& wish) const;
    // By matmul_packed, whether or not that is on the ladder; for tests.
    MatmulPlan plan_on_matrices(const PackedShape& w, const ProductWish& wish) const;
    // All plans that could serve, for benchmarks.
    std::vector<MatmulPlan> matmul_candidates(uint32_t n, uint32_t k, ScalarType type, uint32_t rows,
                                              uint32_t max_splits) const;
    // Whether matmul_with_adapters() runs this plan.
    bool adds_adapters(const MatmulPlan& plan) const;
    // The product of gate and up with the activation in it (matmul_gated). None where the device cannot, or where
    // matmul and gated_act are faster.
    std::optional<MatmulPlan> plan_gated(uint32_t ffn, uint32_t k, ScalarType weight_type, uint32_t rows,
                                         uint32_t max_splits, bool may_be_in_blocks = false,
                                         bool adds_adapters = false) const;
    // Whether matmul_gated_with_adapters() runs this plan; whether matmul_gated_lora() does.
    bool adds_adapters_gated(const MatmulPlan& plan) const;
    bool gates_lora(const MatmulPlan& plan, uint32_t ffn, uint32_t k) const;
    // A product with bias and the addition to the residual stream in it (matmul_residual), for 2 to kDeferredRows rows
    // without adapters. None where the device cannot, or no tile of columns divides n.
    std::optional<ResidualPlan> plan_residual(uint32_t n, uint32_t k, ScalarType weight_type, uint32_t rows) const;
    // all that could serve, for benchmarks
    std::vector<ResidualPlan> residual_candidates(uint32_t n, uint32_t k, ScalarType weight_type, uint32_t rows) const;
    // Whether matmul_deferred() and matmul_gated_deferred() run this plan.
    bool may_follow_residual(const MatmulPlan& plan) const;
    // Whether consumers are to add the adapters of long runs of rows that cannot be joined: products by warpgroups add
    // none themselves, and up to rank 16 they are faster all the same than products by matrices that do.
    bool consumers_add_long_runs(uint32_t rank_max, uint32_t rows, ScalarType weight_type) const;
    // Whether matmul_joined() and matmul_gated_joined() run this plan.
    bool joins_adapters(const MatmulPlan& plan) const;
    // The output layer's product with the search for each row's greatest logit in it (matmul_argmax). None where the
    // device cannot, or it does not pay.
    std::optional<MatmulPlan> plan_argmax(uint32_t n, uint32_t k, ScalarType weight_type, uint32_t rows) const;
    static uint32_t argmax_parts(const MatmulPlan& plan, uint32_t n) { return ceil_div(n, plan.column_tile); }
    // By a variant above the portable ones; for tests.
    MatmulPlan plan_fast(MatmulVariant variant, uint32_t n, uint32_t k, ScalarType type, uint32_t rows,
                         uint32_t max_splits, bool may_be_in_blocks) const;
    // By warpgroups whether or not these are on the ladder, for those who have tested them themselves;
    // wish.multiprocessors is filled in.
    std::optional<MatmulPlan> plan_many_rows(const WarpgroupWish& wish, ScalarType type) const;
    // With this of kWarpgroupTiles; for tests.
    static MatmulPlan plan_of_warpgroup(uint32_t tile, uint32_t rows, uint32_t n_splits, uint32_t k_per_split,
                                        ScalarType type);
    // With so many blocks of 16 rows of w for each workgroup; for tests.
    static MatmulPlan plan_of_direct(uint32_t column_blocks, uint32_t rows, uint32_t n_splits, uint32_t k_per_split,
                                     ScalarType type);
    // Of MatmulJoinedParams: low for so many rows, and b for a product with so many padded columns.
    static uint64_t joined_low_bytes(uint32_t rows, uint32_t n_modules) {
        return uint64_t{round_up(rows, kJoinedTileRows)} * n_modules * kJoinedModuleColumns * 2;
    }
    static uint64_t joined_b_bytes(uint32_t n_padded, uint32_t n_modules) {
        return uint64_t{n_padded} * n_modules * kJoinedModuleColumns * 2;
    }

  protected:
    bool multiplies_packed(const PackedShape& w) const;
    MatmulPlan plan_portable(uint32_t n, uint32_t k, ScalarType weight_type, uint32_t rows, uint32_t max_splits,
                             bool is_packed = false) const;
    // By blocks in registers, with at most so many splits; none where no tile fits the device.
    std::optional<MatmulPlan> plan_registers(const MatmulPlan& of, uint32_t n, uint32_t k, uint32_t max_splits) const;
    std::vector<MatmulPlan> portable_candidates(uint32_t n, uint32_t k, ScalarType type, uint32_t rows,
                                                uint32_t max_splits) const;
    MatmulVariant fast_variant(uint32_t n, uint32_t rows, ScalarType type) const;
    bool can_be_in_blocks(ScalarType type, uint32_t rows) const;
    std::optional<MatmulPlan> plan_direct(uint32_t n, uint32_t k, ScalarType type, uint32_t rows, uint32_t max_splits,
                                          bool leaves_room) const;
    bool multiplies_by_warpgroup(ScalarType type, uint32_t rows) const;
    std::optional<MatmulPlan> plan_warpgroup(uint32_t n, uint32_t k, ScalarType type, uint32_t rows,
                                             uint32_t max_splits, bool gated = false) const;
};

// Each method records one dispatch unless it says otherwise. Several threads may record at once, each into its own
// Recorder.
class ProductKernels : public ProductPlanner, private KernelRecorder {
  public:
    ProductKernels(const KernelFacts& facts, KernelCache& cache) : ProductPlanner(facts), KernelRecorder(cache) {}

    // y[s][t][n] = sum over split s of x[t][k] * w[n][k]. Moves the matrix once (matvec: once per 8 rows).
    // params.k_per_split is filled in from the plan. `ahead` is asked for by kWarpgroupDirect alone.
    void matmul(Recorder& recorder, MatmulParams params, const MatmulPlan& plan, const PagesAhead& ahead = {});
    // y[s][t][n] = sum over split s of x[t][k] * w[k][n]: params.w_stride is that of rows of k, at least y_stride. Only
    // with plans of plan_many_rows() for such a w.
    void matmul_transposed(Recorder& recorder, const MatmulParams& params, const MatmulPlan& plan);
    // Either with more k: x w^T + low b^T or x w + low b, b like w, low [t][columns] in the product's blocks, windows
    // as MatmulJoinedParams has them.
    void matmul_with_more_k(Recorder& recorder, const MatmulJoinedParams& params, const MatmulPlan& plan,
                            uint32_t columns, bool transposed);
    // matmul with what the rows' adapters add, at LoraLevel::kPlain; the group's shrink is complete. For long runs of
    // rows with one adapter. Only where adds_adapters(plan).
    void matmul_with_adapters(Recorder& recorder, MatmulLoraParams params, const MatmulPlan& plan);
    // act[t][f] = activation(gate) * up from the product itself: w has rows gate 0..n-1 and up n..2n-1 without bias,
    // params.n is n, params.y is act, or y_blocks, and params.y_stride its stride; MatmulLoraParams::module_end is not
    // read. Moves 2 n bytes out per row where matmul and gated_act move 8 n out and in. Only with a plan of
    // plan_gated(). By warpgroups it writes y_blocks alone, in y_order, and the activation is SiLU.
    void matmul_gated(Recorder& recorder, MatmulParams params, const MatmulPlan& plan, Activation activation,
                      uint32_t y_order = kBlocksByColumns);
    void matmul_gated_with_adapters(Recorder& recorder, MatmulLoraParams params, const MatmulPlan& plan,
                                    Activation activation, uint32_t y_order = kBlocksByColumns);
    // matmul_gated with shrink and expand in it, for rows of any adapters of rank up to kGatedLoraRanks in the weights'
    // type; y is written as well as y_blocks if it is not 0.
    // Workgroups wait at a barrier of the whole grid. Only where gates_lora(plan).
    void matmul_gated_lora(Recorder& recorder, GatedLoraParams params, const MatmulPlan& plan, uint32_t y_order);
    // stream[t] += bias + x[t] . w^T, and xn as deferred_norm.h has it for the norm that follows, in one dispatch
    // instead of a product and add_norm. Moves the matrix once.
    void matmul_residual(Recorder& recorder, const MatmulResidualParams& params, const ResidualPlan& plan);
    // matmul and matmul_gated of what that has written, n_tiles as in its plan. Only with plans for which
    // may_follow_residual().
    void matmul_deferred(Recorder& recorder, MatmulDeferredParams params, const MatmulPlan& plan, uint32_t n_tiles);
    void matmul_gated_deferred(Recorder& recorder, MatmulDeferredParams params, const MatmulPlan& plan,
                               uint32_t n_tiles, Activation activation);
    // The adapters of a step as more k of its products (JoinedGroup), at LoraLevel::kPlain: x w^T + low b^T, of what
    // lora_join and a lora_shrink with params.joined wrote before the last barrier. For rows of few adapters in each
    // kJoinedTileRows. Only where joins_adapters(plan).
    void matmul_joined(Recorder& recorder, const MatmulJoinedParams& params, const MatmulPlan& plan,
                       uint32_t n_modules);
    void matmul_gated_joined(Recorder& recorder, const MatmulJoinedParams& params, const MatmulPlan& plan,
                             uint32_t n_modules, uint32_t y_order);
    // A packed part as a plain matrix, rounded to weights.type. Moves the part in and the matrix out.
    void unpack_weights(Recorder& recorder, const UnpackWeightsParams& params, WeightKind weights);
    // blocks = rows, for a product whose input was written in rows; not kBlocksOfARow. Moves the rows in and out.
    void arrange_blocks(Recorder& recorder, const ArrangeBlocksParams& params, uint32_t rows, uint32_t block_order);
    // params.y is not written, params.n is the vocabulary; no row\'s logits are copied. Behind it and a barrier comes
    // SamplingKernels::sample_join, which reads the partials.
    void matmul_argmax(Recorder& recorder, MatmulArgmaxParams params, const MatmulPlan& plan);

  private:
    void matmul_registers(Recorder& recorder, const MatmulParams& params, const MatmulPlan& plan);
    void matmul_packed(Recorder& recorder, MatmulParams params, const MatmulPlan& plan);
    void matmul_direct(Recorder& recorder, MatmulParams params, const MatmulPlan& plan, const PagesAhead& ahead);
    template <typename Params>
    void matmul_warpgroup(Recorder& recorder, Params params, const MatmulPlan& plan, bool gated,
                          uint32_t y_order = kBlocksByColumns, uint32_t joined_columns = 0, bool transposed = false);
    void matmul_fast(Recorder& recorder, const MatmulParams& params, const MatmulPlan& plan);
    const Kernel* coopmat_kernel(const char* name, const MatmulPlan& plan, uint32_t stride, Activation activation,
                                 bool in_turns, uint32_t units, uint32_t norm_tiles, uint32_t y_order);
    template <typename Params>
    void record_coopmat(Recorder& recorder, const char* name, const Params& params, const MatmulParams& product,
                        const MatmulPlan& plan, uint32_t columns, Activation activation, uint32_t norm_tiles = 0,
                        uint32_t y_order = kBlocksByColumns);
};

}  // namespace lorad::gpu
