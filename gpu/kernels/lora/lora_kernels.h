// The kernels of adapters: shrink, expand, their columns beside those of a product, embedding and output layer, merged
// weights.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/command.h"
#include "gpu/kernels/consumer_shape.h"
#include "gpu/kernels/formats/weight_format.h"
#include "gpu/kernels/kernel_cache.h"
#include "gpu/kernels/kernel_facts.h"
#include "gpu/kernels/lora/extras.params.h"
#include "gpu/kernels/lora/lora_expand.params.h"
#include "gpu/kernels/lora/lora_shrink.params.h"
#include "gpu/kernels/lora/lora_stack.params.h"
#include "gpu/kernels/lora/lora_vector.params.h"
#include "gpu/kernels/lora/merge_weights.params.h"
#include "gpu/kernels/products/matmul_plan.h"
#include "gpu/kernels/step_state.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {

// The place of a shrink in the recording. First: with a barrier behind it, or before a product of many more workgroups
// than run at once, behind which it would begin late. Behind any other product: its workgroups find room beside the
// running ones, which would end later if they had to find room beside a shrink's.
enum class ShrinkPlace : uint32_t { kFirst, kBehindProduct };
constexpr ShrinkPlace shrink_place(const MatmulPlan& product) {
    return product.variant == MatmulVariant::kGemv || product.variant == MatmulVariant::kMatvec
               ? ShrinkPlace::kFirst
               : ShrinkPlace::kBehindProduct;
}

// Decides who computes A x in lora_vector: the workgroups together, each one all of it, or what is faster.
enum class LowSharing : uint32_t { kAuto, kAlways, kNever };

// For comparisons; 0: what is best for the size.
struct LoraVectorOptions {
    LowSharing sharing = LowSharing::kAuto;  // kAlways: where the device has 64-bit atomics
    // of a workgroup, a power of two; as many as the device takes, and no fewer than a subgroup has
    uint32_t threads = 0;
    uint32_t group_rows = 0;  // of a workgroup, a power of two from 2 on and no more than threads
    uint32_t slices = 0;      // of k, a power of two and no more than subgroups, joined through shared memory
    // units (one chunk of 8 weights for each lane) that a subgroup loads before it uses them
    uint32_t at_once = 0;
};

// max_rank: over the group's modules and the adapters of this step's segments. Up to kShrinkWorkgroupsMin pieces have a
// workgroup each; of more, one takes about two until there are kShrinkWorkgroupsMax: more workgroups have to wait for
// room, fewer leave the device idle (measured on an H200: docs/PERFORMANCE.md, "Steps with adapters").
// An odd number, so that with adapters of different ranks all workgroups get a share of the largest one's pieces.
inline constexpr uint32_t kShrinkWorkgroupsMin = 129, kShrinkWorkgroupsMax = 513;
constexpr ShrinkDispatch shrink_dispatch(uint32_t max_rank, uint32_t n_segments, uint32_t n_modules) {
    if (max_rank == 0 || n_segments == 0) return {{0, 0, 0}, {0, 1, 1}};
    const uint32_t n_ranks = round_up(max_rank, 8), n_pieces = n_ranks / kShrinkPieceRanks * n_segments * n_modules;
    return {{n_ranks / kShrinkRanks, n_segments, n_modules},
            {std::min(n_pieces, std::clamp(n_pieces / 2 | 1, kShrinkWorkgroupsMin, kShrinkWorkgroupsMax)), 1, 1}};
}

class LoraPlanner : public Planner {
  public:
    explicit LoraPlanner(const KernelFacts& facts) : Planner(facts) {}

    // Returns true if lora_shrink runs on cooperative matrices, which add sums in another order.
    bool shrinks_by_matrix(ScalarType act_type, uint32_t rows) const;
    // Returns true if lora_expand pays in recordings of so many rows, with adapters of at most rank_max ranks: it is
    // one dispatch more.
    bool expands_apart(uint32_t rank_max, uint32_t rows) const;
    static uint64_t head_low_bytes(uint32_t logit_rows) {
        return uint64_t{logit_rows} * kStepUsesMax * kMaxRank * sizeof(float);
    }
    // LoraShrinkParams::parts; zeroed before the first dispatch.
    static constexpr uint64_t kShrinkPartBytes = uint64_t{kShrinkAllPartsMax} * (16 * 16 + 1) * sizeof(float);
    static uint64_t lora_low_bytes(uint32_t low_rows, uint32_t n_modules = 3) {
        return uint64_t{low_rows} * n_modules * kMaxRank * sizeof(float);
    }
};

// Each method records one dispatch unless it says otherwise. Several threads may record at once, each into its own
// Recorder.
class LoraKernels : public LoraPlanner, private KernelRecorder {
  public:
    LoraKernels(const KernelFacts& facts, KernelCache& cache) : LoraPlanner(facts), KernelRecorder(cache) {}

    // low[i][m][r] = A_m(slot)[r] . x[t] for the modules of one group and the segments' rows, i the row that the
    // segment gives for t; r up to the rank rounded up to 8 is written. May run beside the group's matmul, before or
    // behind which it is recorded: see ShrinkPlace.
    // step_state[dispatch_offset]: the group's ShrinkDispatch.
    void lora_shrink(Recorder& recorder, LoraShrinkParams params, ScalarType act_type, uint32_t rows, ShrinkPlace place,
                     const Buffer& step_state, uint64_t dispatch_offset);
    // y[t][n] += scale * B_m(slot)[n] . low[t][m] for the modules of one group and the segments' rows, at
    // LoraLevel::kPlain, in place: y is the first split of the group's product, which is complete, as is its shrink.
    // Its consumers then have LoraLevel::kNone.
    void lora_expand(Recorder& recorder, const LoraExpandParams& params);
    void lora_stack(Recorder& recorder, const LoraStackParams& params, ScalarType weight_type);
    // The same as embed, for steps with adapters that change the embedding.
    void embed_extras(Recorder& recorder, const EmbedExtrasParams& params, WeightKind table, uint32_t rows);
    // After the base's output layer: what adapters put in the place of its logits, and what they add to them. Several
    // dispatches with a barrier between them. Moves an adapter's own output layer once per 4 neighbouring rows.
    void head_extras(Recorder& recorder, const HeadExtrasParams& params, ScalarType act_type, uint32_t logit_rows);
    // to = W with up to kMergeParts adapters in it; W is only read. Moves W once in, once out. For loading threads.
    void merge_weights(Recorder& recorder, const MergeWeightsParams& params, WeightKind from);
    // The same for a range of a bias vector.
    void merge_bias(Recorder& recorder, const MergeWeightsParams& params);
    // DoRA: magnitudes -> gains, in place. Moves W once.
    void weight_norm(Recorder& recorder, const WeightNormParams& params, WeightKind from);
    // y = W x + scale * B (A x) for one row of one adapter, in one dispatch. Moves W, A and B once.
    void lora_vector(Recorder& recorder, const LoraVectorParams& params, ScalarType weight_type, ScalarType act_type,
                     const LoraVectorOptions& options = {});
};

}  // namespace lorad::gpu
