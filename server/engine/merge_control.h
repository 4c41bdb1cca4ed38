// Keeps at most one adapter or mix merged into the base weights: on request, or by itself where one dominates the
// traffic.
//
//   merge(), clear()       HTTP workers; the merge itself runs on the device beside the steps
//   observe()              engine thread, after each step: feeds the policy, wakes the thread below when it changes its
//       mind
//   own thread             merges and unmerges for mixes that set_auto() named
//   Engine::set_merged     hands the copy to the engine, which changes over between two steps
//
// A copy is given up before the next is made, so that there is never room for two needed; meanwhile its requests run
// unmerged.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "model/weights/weight_transform.h"
#include "proto/base/mutex.h"
#include "server/engine/engine.h"
#include "server/engine/merge_policy.h"

namespace lorad::server {

struct MergeMix {
    std::string name;                   // the adapter's or alias's, for clear() and merged()
    std::vector<LoraUse> uses;          // as in its requests
    std::shared_ptr<const void> lease;  // keeps the slots; held while it is merged or automatic
};

struct MergeState {
    std::string name;
    bool is_automatic = false;
    uint64_t device_bytes = 0;
    double gpu_ms = 0.0;
};

struct MergeControlOptions {
    MergePolicyOptions policy;
    // then nothing may be merged: a row's bits would depend on the other rows of its step
    bool batch_invariant = false;
    // false: automatic mixes stay as they are, as merged copies of packed weights would take three times as long to
    // read
    bool may_by_itself = true;
    // after each change, one call at a time; for metrics
    std::function<void(const std::optional<MergeState>&)> on_change;
};

// Any thread. Outlived by the engine.
class MergeControl {
  public:
    // Executor::merge in the daemon.
    using Merge = std::function<Result<std::shared_ptr<const model::MergedWeights>>(std::span<const LoraUse>)>;

    MergeControl(Engine& engine, Merge merge, MergeControlOptions options);
    ~MergeControl();  // unmerges

    // Returns when it is done; from the next step on it is used. Takes the place of what was merged, and is not
    // replaced by automatic ones. On kOutOfMemory nothing is merged. kInvalidLoadPolicy with batch_invariant.
    Result<MergeState> merge(MergeMix mix);
    // From now on the mix is merged while it dominates the traffic; it begins unmerged.
    Status set_auto(MergeMix mix);
    // Neither merged nor automatic any more. Steps that run go on; the lease is given up a step later.
    void clear(const std::string& name);

    std::optional<MergeState> merged() const;
    uint64_t n_merges() const;  // since the start

  private:
    struct Current {
        MergeState state;
        std::shared_ptr<const model::MergedWeights> weights;
    };

    void observe(std::span<const LoraUse> uses, uint32_t n_rows);
    void run_automatic();
    std::optional<MergeMix> next_automatic(bool& unmerge) REQUIRES(mutex_);
    Result<MergeState> merge_now(const MergeMix& mix, bool is_automatic);
    void unmerge_now();
    Status check_allowed() const;

    Engine& engine_;
    const Merge merge_;
    const MergeControlOptions options_;

    Mutex work_mutex_;  // one merge or unmerge at a time; taken before mutex_
    mutable Mutex mutex_;
    Condition changed_;
    MergePolicy policy_ GUARDED_BY(mutex_);
    std::map<std::string, MergeMix> automatic_ GUARDED_BY(mutex_);  // by name
    std::optional<std::string> wanted_ GUARDED_BY(mutex_);          // the policy's last word
    std::optional<Current> current_ GUARDED_BY(mutex_);
    uint64_t n_merges_ GUARDED_BY(mutex_) = 0;
    bool stop_ GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

}  // namespace lorad::server
