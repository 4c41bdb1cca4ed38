// Flags for all that a model has beyond Llama's layers, in one word. Each fast path asks it before it is used.
#pragma once

#include <cstdint>
#include <string>

#include "model/config/config.h"

namespace lorad::model {

// Bits of ModelTopology::features.
enum Feature : uint32_t {
    kFeatureLayersDiffer = 1u << 0,  // in mixer, sizes or biases
    kFeatureOtherMixers = 1u << 1,   // layers without attention, which have a state
    kFeatureExperts = 1u << 2,
    kFeatureNormsAfter = 1u << 3,  // norms of what a part gives
    kFeatureNoNormsBefore = 1u << 4,
    kFeatureWideQkNorm = 1u << 5,  // QkNorm::kFullWidth
    kFeatureGelu = 1u << 6,
    kFeatureClamps = 1u << 7,  // FfnFacts::clamp_limit
    kFeatureOutputGate = 1u << 8,
    kFeatureSinks = 1u << 9,
    kFeatureSoftcap = 1u << 10,  // of scores
    kFeatureSharedKv = 1u << 11,
    kFeatureKIsV = 1u << 12,
    kFeatureVNorm = 1u << 13,
    kFeatureRopeByLayer = 1u << 14,  // several tables, or layers that turn nothing
    kFeatureOddPairs = 1u << 15,     // RopeConfig::pair_stride
    kFeaturePositionScale = 1u << 16,
    kFeatureResidualMultiplier = 1u << 17,
    kFeatureStreamScale = 1u << 18,
    kFeaturePerLayerInput = 1u << 19,
    kFeatureEmbedScale = 1u << 20,
    kFeatureScoreScale = 1u << 21,  // other than 1 / sqrt(head size)
    kFeatureLogits = 1u << 22,      // scaled or capped
};

struct ModelTopology {
    uint32_t features = 0;  // 0: Llama and its like

    bool has(uint32_t any_of) const { return (features & any_of) != 0; }
    // Returns true if a path that supports these, beside Llama's layers, can run the model.
    bool has_only(uint32_t supported) const { return (features & ~supported) == 0; }
};

ModelTopology topology_of(const ModelConfig& config);

// "norms behind a part, GELU": what of the features is not among the supported ones. For people.
std::string features_beyond(const ModelTopology& topology, uint32_t supported);

}  // namespace lorad::model
