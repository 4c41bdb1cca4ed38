#include "model/sampler.h"

#include <algorithm>
#include <cmath>

#include "proto/base/check.h"

namespace lorad::model {
namespace {

// A bijective mixing of 64 bits: each input bit changes each output bit with probability about one half.
uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    return x;
}

// Index of the first maximum, or -1 if any value is not finite.
TokenId argmax(std::span<const float> logits) {
    size_t best = 0;
    bool is_finite = true;
    for (size_t i = 0; i < logits.size(); ++i) {
        is_finite = is_finite && std::isfinite(logits[i]);
        if (logits[i] > logits[best]) best = i;
    }
    return is_finite ? static_cast<TokenId>(best) : -1;
}

// More probable first; of equals the lower id.
struct ByLogit {
    std::span<const float> logits;
    bool operator()(uint32_t a, uint32_t b) const {
        return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    }
};

// Leaves in `ids` the k most probable tokens, sorted. A heap of k: with few of many, most tokens cost one comparison.
void keep_top_k(std::span<const float> logits, uint32_t k, std::vector<uint32_t>& ids) {
    const ByLogit before{logits};
    ids.clear();
    for (uint32_t id = 0; id < logits.size(); ++id) {
        if (ids.size() < k) {
            ids.push_back(id);
            std::ranges::push_heap(ids, before);
        } else if (before(id, ids.front())) {
            std::ranges::pop_heap(ids, before);
            ids.back() = id;
            std::ranges::push_heap(ids, before);
        }
    }
    std::ranges::sort_heap(ids, before);
}

// All ids whose weight is at least `least`, in order of id.
void keep_heavy(std::span<const float> weights, float least, std::vector<uint32_t>& ids) {
    ids.clear();
    for (uint32_t id = 0; id < weights.size(); ++id) {
        if (weights[id] >= least) ids.push_back(id);
    }
}

}  // namespace

double uniform_at(uint64_t seed, uint64_t position) {
    constexpr uint64_t kStep = 0x9e3779b97f4a7c15ull;
    const uint64_t bits = mix(mix(seed + kStep) + kStep * (position + 1));
    return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

TokenId sample(std::span<const float> logits, const proto::SamplingParams& params, uint32_t position,
               SamplerScratch& scratch) {
    CHECK(!logits.empty());
    const TokenId best = argmax(logits);
    if (best < 0 || params.greedy()) return best;

    // Weights are probabilities up to a common factor; the largest is 1.
    const float max_logit = logits[static_cast<size_t>(best)];
    std::vector<float>& weights = scratch.weights;
    std::vector<uint32_t>& ids = scratch.ids;
    weights.resize(logits.size());
    const auto weigh = [&](size_t id) { weights[id] = std::exp((logits[id] - max_logit) / params.temperature); };

    const bool has_top_k = params.top_k > 0 && params.top_k < logits.size();
    const bool has_top_p = params.top_p < 1.0f;
    if (has_top_k) {
        keep_top_k(logits, params.top_k, ids);
        for (const uint32_t id : ids) weigh(id);  // nobody looks at the others' weights
    } else {
        for (size_t id = 0; id < logits.size(); ++id) weigh(id);
    }
    if (has_top_p) {
        double sum = 0.0;
        if (has_top_k) {
            for (const uint32_t id : ids) sum += weights[id];
        } else {
            for (const float weight : weights) sum += weight;
            // Tokens lighter than this weigh less than 1 - top_p even together: none of them is needed, nor sorted.
            const double least = (1.0 - params.top_p) * sum / static_cast<double>(logits.size());
            keep_heavy(weights, static_cast<float>(least), ids);
            std::ranges::sort(ids, ByLogit{logits});
        }
        double kept = 0.0;
        size_t n_kept = 0;
        while (n_kept < ids.size() && (n_kept == 0 || kept < params.top_p * sum)) kept += weights[ids[n_kept++]];
        ids.resize(n_kept);
    }
    if (has_top_k || has_top_p) {
        std::erase_if(ids, [&](uint32_t id) { return weights[id] < params.min_p; });
    } else {
        keep_heavy(weights, params.min_p, ids);
    }

    double sum = 0.0;
    for (const uint32_t id : ids) sum += weights[id];
    double left = uniform_at(params.seed, position) * sum;
    for (const uint32_t id : ids) {
        left -= weights[id];
        if (left < 0.0) return static_cast<TokenId>(id);
    }
    return best;  // rounding used up the sum
}

}  // namespace lorad::model
