// The trained pairs of a layer's products in the weights' 16-bit type, side by side, as products read them: y = x W^T +
// low B^T with low = x A^T, and dx = dy W + dlow A with dlow = dy B. Made anew from the trained values in each step.
//
// In a group with pairs of ranks r1, r2, .. on some of its outputs A [S][k_stride] has theirs in rows, B [n_padded][S]
// theirs times their scales in columns, zero for outputs of others. S is the sum of the ranks, each rounded up to 8,
// padded.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gpu/device.h"
#include "gpu/kernels/train/train_kernels.h"
#include "model/train/train_model.h"
#include "model/train/train_parameters.h"
#include "proto/base/result.h"

namespace lorad::model {

inline constexpr uint32_t kShadowRankAlign = 8;

struct GroupShadow {
    uint32_t n_ranks = 0;   // columns of low; 0: no pair
    uint64_t a = 0, b = 0;  // bytes from the beginning of the shadows
};

// The places of all shadows. Pure.
struct ShadowPlaces {
    std::vector<GroupShadow> groups;    // [layer][kTrainGroups]
    std::vector<uint32_t> rank_begins;  // [linear]: column of its group's low
    uint64_t n_bytes = 0;

    // nullopt if a group has more ranks together than products take.
    static std::optional<ShadowPlaces> plan(const TrainModel& model, const TrainLayout& layout);
    const GroupShadow& at(uint32_t layer, uint32_t group) const { return groups[layer * kTrainGroups + group]; }
};

// All roundings that make the shadows of trained values, which lie where they lie for good: one dispatch of
// TrainKernels::round_items(). shadows: zeros where nothing has been written.
std::vector<gpu::TrainRoundItem> shadow_items(const TrainModel& model, const TrainParameters& parameters,
                                              const ShadowPlaces& places, const gpu::Buffer& shadows);

}  // namespace lorad::model
