#include "model/output/sampler.h"

#include <algorithm>
#include <limits>
#include <numbers>

#include "gpu/kernels/sampling/sample_math.h"
#include "proto/base/check.h"

namespace lorad::model {
namespace {

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
    bool operator()(uint32_t a, uint32_t b) const { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; }
};

// More probable first; of equals the lower id.
struct ByKey {
    std::span<const uint32_t> keys;
    bool operator()(uint32_t a, uint32_t b) const { return keys[a] != keys[b] ? keys[a] < keys[b] : a < b; }
};

uint64_t weight_of(std::span<const uint32_t> keys, std::span<const uint32_t> ids) {
    uint64_t sum = 0;
    for (const uint32_t id : ids) sum += gpu::draw_weight(keys[id]);
    return sum;
}

// The first k by key.
void keep_top_k(std::span<const uint32_t> keys, uint32_t k, std::vector<uint32_t>& ids) {
    if (ids.size() <= k) return;
    std::ranges::nth_element(ids, ids.begin() + k, ByKey{keys});
    ids.resize(k);
}

// The first by key whose weights reach the share.
void keep_top_p(std::span<const uint32_t> keys, uint32_t share, std::vector<uint32_t>& ids) {
    const uint64_t total = weight_of(keys, ids), target = gpu::share_of(total, share);
    // Tokens lighter than this weigh less than what is not needed even together: none of them has to be sorted.
    const uint64_t least = (total - target) / ids.size();
    std::erase_if(ids, [&](uint32_t id) { return gpu::draw_weight(keys[id]) < least; });
    std::ranges::sort(ids, ByKey{keys});
    uint64_t kept = 0;
    size_t n_kept = 0;
    while (kept < target) kept += gpu::draw_weight(keys[ids[n_kept++]]);
    ids.resize(n_kept);
}

// The nearest to the entropy until their weights reach the share, and what is as near as the last of them.
void keep_typical(std::span<const uint32_t> keys, uint32_t share, std::vector<uint32_t>& ids) {
    uint64_t shares = 0, weights = 0;
    for (const uint32_t id : ids) {
        shares += gpu::draw_entropy_share(keys[id]);
        weights += gpu::draw_weight(keys[id]) >> 16;
    }
    const uint64_t entropy = shares / weights, target = gpu::share_of(weight_of(keys, ids), share);
    const auto distance = [&](uint32_t id) { return gpu::typical_key(keys[id], entropy); };
    std::ranges::sort(ids, {}, distance);
    uint64_t kept = 0;
    size_t n_kept = 0;
    while (n_kept < ids.size() && (kept < target || distance(ids[n_kept]) == distance(ids[n_kept - 1])))
        kept += gpu::draw_weight(keys[ids[n_kept++]]);
    ids.resize(n_kept);
}

uint32_t share_bits(float share) {
    if (share >= 1.0f) return 0;
    return static_cast<uint32_t>(std::clamp(static_cast<double>(share) * 0x1.0p32, 1.0, 0x1.0p32 - 1.0));
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

gpu::ChoiceRule choice_rule(const proto::SamplingParams& params, uint32_t position) {
    gpu::ChoiceRule rule{};
    rule.last_token = -1;
    rule.position = position;
    if (params.greedy()) return rule;
    constexpr double kScaleMax = 1e30;  // hotter than that, only the most probable tokens have weight anyway
    rule.what = gpu::kRuleDraws;
    rule.seed = params.seed;
    rule.scale = static_cast<float>(std::min(std::numbers::log2e / static_cast<double>(params.temperature), kScaleMax));
    rule.top_k = params.top_k;
    rule.top_p = share_bits(params.top_p);
    rule.typical_p = share_bits(params.typical_p);
    if (params.min_p > 0.0f)
        rule.min_weight =
            static_cast<uint64_t>(static_cast<double>(params.min_p) * static_cast<double>(gpu::draw_weight(0)));
    return rule;
}

TokenId sample(std::span<const float> logits, const proto::SamplingParams& params, uint32_t position,
               SamplerScratch& scratch) {
    return sample(logits, choice_rule(params, position), scratch);
}

TokenId sample(std::span<const float> logits, const gpu::ChoiceRule& rule, SamplerScratch& scratch) {
    CHECK(!logits.empty());
    const TokenId best = argmax(logits);
    if (best < 0 || (rule.what & gpu::kRuleDraws) == 0) return best;
    const float max_logit = logits[static_cast<size_t>(best)];
    std::vector<uint32_t>& keys = scratch.keys;
    std::vector<uint32_t>& ids = scratch.ids;
    keys.resize(logits.size());
    ids.clear();
    for (uint32_t id = 0; id < logits.size(); ++id) {
        keys[id] = gpu::draw_key(max_logit, logits[id], rule.scale);
        if (keys[id] < gpu::kDrawKeyEnd) ids.push_back(id);
    }
    if (rule.top_k != 0) keep_top_k(keys, rule.top_k, ids);
    if (rule.top_p != 0) keep_top_p(keys, rule.top_p, ids);
    if (rule.min_weight != 0)
        std::erase_if(ids, [&](uint32_t id) { return gpu::draw_weight(keys[id]) < rule.min_weight; });
    if (rule.typical_p != 0) keep_typical(keys, rule.typical_p, ids);

    std::ranges::sort(ids);
    const uint64_t rank = gpu::mul_high_64(gpu::draw_bits(rule.seed, rule.position), weight_of(keys, ids));
    uint64_t passed = 0;
    for (const uint32_t id : ids) {
        passed += gpu::draw_weight(keys[id]);
        if (rank < passed) return static_cast<TokenId>(id);
    }
    CHECK(false);
    return best;
}

}  // namespace lorad::model
