// Every kernel of the forward pass, in families. Each records dispatches; all but sampling have a planner as well,
// which is pure and needs no device.
//
// Letters: T rows of the step, H hidden, Q/K query and KV heads, D head dim, F ffn, V vocabulary, S splits of a matmul.
// Rows of all buffers are the step's rows unless said otherwise. Kernels read the true row count from device memory and
// leave rows beyond it alone; `rows` below is the capacity that the recording is made for (the row bucket). A recording
// for one row need not read the count: row 0 always exists.
// Weights have the type that the loader gives them, LoRA A and B that of the adapter's file; norm weights and biases
// are f32. Matrices are [n_padded][k_stride], n_padded = n rounded up to 64, k_stride = k rounded up to 64, padding
// zero. A row of activations is as long as k_stride of the matrix that reads it, its padding zero; activation buffers
// have kSlackRows rows behind the bucket, whose content never matters but must be readable.
// Sums run in a fixed order with explicit fma and without atomics: within one variant a row's bits do not depend on the
// other rows or on their number.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/buffer.h"
#include "gpu/command.h"
#include "gpu/device.h"
#include "gpu/kernels/attention/attention_kernels.h"
#include "gpu/kernels/experts/expert_kernels.h"
#include "gpu/kernels/kernel_cache.h"
#include "gpu/kernels/kernel_facts.h"
#include "gpu/kernels/kernel_ladder.h"
#include "gpu/kernels/kernel_options.h"
#include "gpu/kernels/lora/lora_kernels.h"
#include "gpu/kernels/mixers/mixer_kernels.h"
#include "gpu/kernels/persistent/persistent_kernels.h"
#include "gpu/kernels/products/products.h"
#include "gpu/kernels/rows/row_kernels.h"
#include "gpu/kernels/sampling/sampling_kernels.h"
#include "gpu/kernels/step_state.h"
#include "proto/base/result.h"

namespace lorad::gpu {

// The planners of the families whose plans a step's shape depends on, for a device that need not be there. `facts`
// outlive it.
struct KernelPlanner : Planner {
    explicit KernelPlanner(const KernelFacts& facts)
        : Planner(facts), products(facts), attention(facts), lora(facts), rows(facts), persistent(facts) {}

    ProductPlanner products;
    AttentionPlanner attention;
    LoraPlanner lora;
    RowPlanner rows;
    PersistentPlanner persistent;
};

// Several threads may record at once, each into its own Recorder.
class KernelSet {
    KernelFacts facts_;
    KernelCache cache_;

  public:
    // Runs each fast kernel on small data and compares it with the portable one, about a second without a pipeline
    // cache; those that differ are left out with a warning. kInvalidConfig if the device lacks the path that was asked
    // for.
    static Result<std::unique_ptr<KernelSet>> create(Device& device, const KernelSetOptions& options);
    // Finds the fastest forms of products like these by measuring, or takes what an earlier start has measured: plans
    // follow it from then on. Only while nobody plans, and nothing else runs. See ProductTiming::run().
    Status tune(Device& device, const TuningOptions& options);
    KernelSet(const KernelSet&) = delete;
    KernelSet& operator=(const KernelSet&) = delete;

    ProductKernels products;
    AttentionKernels attention;
    LoraKernels lora;
    RowKernels rows;
    SamplingKernels sampling;
    PersistentKernels persistent;
    MixerKernels mixers;
    ExpertKernels experts;

    const KernelPlanner& planner() const { return planner_; }
    const KernelLadder& ladder() const { return facts_.ladder; }
    const MeasuredProducts& measured() const { return facts_.measured; }
    ScalarType act_type(ScalarType weight_type) const { return planner_.act_type(weight_type); }
    const KernelSetOptions& options() const { return facts_.options; }  // path is never kAuto here

    // The first kernel that could not be made in this thread since the last call; the recording is incomplete then.
    // Check after each recording. KernelCache::status().
    Status status() { return cache_.status(); }
    // Modules that could not be made after the tests at the start, for this reason, and without which there is another
    // way: loading again with them in KernelSetOptions::left_out helps.
    std::vector<std::string> replaceable_failures(ErrorCode code) const;
    // every requested kernel, while nobody records
    std::vector<KernelReport> reports() const { return cache_.reports(); }
    // true if any kernel failed for this reason, while nobody records. Both: any thread
    bool has_failures(ErrorCode code) const { return !cache_.failures(code).empty(); }

  private:
    KernelSet(Device& device, const KernelSetOptions& options);
    Status build_ladder(Device& device);  // sets the ladder and the path

    KernelPlanner planner_;
    KernelPath wanted_path_ = KernelPath::kAuto;
};

}  // namespace lorad::gpu
