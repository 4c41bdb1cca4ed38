#include "model/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Index of the first maximum; -1 if a value is not a number or +infinity, or all are -infinity.
TokenId argmax(std::span<const float> logits) {
    size_t best = 0;
    bool is_sound = true;
    for (size_t i = 0; i < logits.size(); ++i) {
        is_sound = is_sound && logits[i] < kInfinity;
        if (logits[i] > logits[best]) best = i;
    }
    return is_sound && logits[best] > -kInfinity ? static_cast<TokenId>(best) : -1;
}

// More probable first; of equals the lower id.
struct ByLogit {
    std::span<const float> logits;
    bool operator()(uint32_t a, uint32_t b) const {
        return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    }
};

// All ids whose weight is at least `least`, in order of id.
void keep_heavy(std::span<const float> weights, float least, std::vector<uint32_t>& ids) {
    ids.clear();
    for (uint32_t id = 0; id < weights.size(); ++id) {
        if (weights[id] >= least) ids.push_back(id);
    }
}

// Those whose information -ln p is nearest to the entropy, until their probabilities reach `mass`, and what is as near as the
// last of them.
void keep_typical(std::span<const float> weights, float mass, std::vector<uint32_t>& ids) {
    std::erase_if(ids, [&](uint32_t id) { return weights[id] <= 0.0f; });
    double sum = 0.0, entropy = 0.0;
    for (const uint32_t id : ids) sum += weights[id];
    const auto information = [&](uint32_t id) { return -std::log(static_cast<double>(weights[id]) / sum); };
    for (const uint32_t id : ids) entropy += weights[id] / sum * information(id);
    struct Distance {
        double distance;
        uint32_t id;
    };
    std::vector<Distance> order;
    order.reserve(ids.size());
    for (const uint32_t id : ids) order.push_back({std::abs(information(id) - entropy), id});
    std::ranges::sort(order, [](const Distance& a, const Distance& b) {
        return a.distance != b.distance ? a.distance < b.distance : a.id < b.id;
    });
    ids.clear();
    double kept = 0.0;
    for (const Distance& next : order) {
        if (kept >= mass * sum && next.distance > order[ids.size() - 1].distance) break;
        kept += weights[next.id];
        ids.push_back(next.id);
    }
}

}  // namespace

// A heap of k: with few of many, most tokens cost one comparison.
void top_ids(std::span<const float> logits, uint32_t k, std::vector<uint32_t>& ids) {
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
        top_ids(logits, params.top_k, ids);
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

    if (params.typical_p < 1.0f) keep_typical(weights, params.typical_p, ids);

    double sum = 0.0;
    for (const uint32_t id : ids) sum += weights[id];
    double left = uniform_at(params.seed, position) * sum;
    TokenId last = best;  // where rounding uses up the sum
    for (const uint32_t id : ids) {
        left -= weights[id];
        if (left < 0.0) return static_cast<TokenId>(id);
        if (weights[id] > 0.0f) last = static_cast<TokenId>(id);
    }
    return last;
}

}  // namespace lorad::model
