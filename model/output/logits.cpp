#include "model/output/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/kernels/sampling/sample_math.h"
#include "model/output/sampler.h"
#include "proto/base/check.h"

namespace lorad::model {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

bool is_in(std::span<const float> logits, TokenId token) {
    return token >= 0 && static_cast<size_t>(token) < logits.size();
}

}  // namespace

TokenChanges::TokenChanges(const proto::SamplingParams& params, std::span<const TokenId> prompt,
                           std::span<const TokenId> ends)
    : has_penalties_(params.has_penalties()) {
    for (const proto::TokenBias& bias : params.logit_bias) entry_of(bias.token).bias = bias.bias;
    for (const TokenId token : ends) entry_of(token).state |= gpu::kChangeIsEnd;
    // The other penalties count only the answer's tokens.
    if (params.repetition_penalty == 1.0f) return;
    for (const TokenId token : prompt) entry_of(token).state |= gpu::kChangeIsHeld;
}

gpu::TokenChange& TokenChanges::entry_of(TokenId token) {
    const auto [place, is_new] = index_of_.emplace(token, static_cast<uint32_t>(entries_.size()));
    if (is_new) entries_.push_back({static_cast<uint32_t>(token), 0, 0.0f, 0.0f});
    return entries_[place->second];
}

void TokenChanges::add_generated(TokenId token) {
    if (!has_penalties_) return;
    gpu::TokenChange& entry = entry_of(token);
    entry.state = (entry.state | gpu::kChangeIsHeld) + 1;
}

void add_changes(const proto::SamplingParams& params, gpu::ChoiceRule& rule) {
    rule.what |= gpu::kRuleAdjusts;
    rule.repetition = params.repetition_penalty;
    rule.inverse_repetition = 1.0f / params.repetition_penalty;
    rule.frequency = params.frequency_penalty;
    rule.presence = params.presence_penalty;
}

void change_logits(std::span<float> logits, const gpu::ChoiceRule& rule, std::span<const gpu::TokenChange> entries,
                   TokenId last_token) {
    if ((rule.what & gpu::kRuleAdjusts) == 0) return;
    const auto change = [&](const gpu::TokenChange& entry) {
        const auto token = static_cast<TokenId>(entry.token);
        if (!is_in(logits, token)) return;
        uint32_t state = entry.state;
        if (token == last_token) state = (state | gpu::kChangeIsHeld) + 1;
        if ((rule.what & gpu::kRuleBansEnds) == 0) state &= ~gpu::kChangeIsEnd;
        float& logit = logits[entry.token];
        logit = gpu::changed_logit(logit, entry.bias, state, rule.repetition, rule.inverse_repetition, rule.frequency,
                                   rule.presence);
    };
    for (const gpu::TokenChange& entry : entries) change(entry);
    const auto is_last = [&](const gpu::TokenChange& entry) { return static_cast<TokenId>(entry.token) == last_token; };
    if (last_token >= 0 && std::ranges::none_of(entries, is_last))
        change({static_cast<uint32_t>(last_token), 0, 0.0f, 0.0f});
}

void allow_only(std::span<float> logits, std::span<const TokenId> sorted_tokens) {
    auto next = sorted_tokens.begin();
    for (size_t id = 0; id < logits.size(); ++id) {
        while (next != sorted_tokens.end() && static_cast<size_t>(*next) < id) ++next;
        if (next == sorted_tokens.end() || static_cast<size_t>(*next) != id) logits[id] = kForbidden;
    }
}

void forbid(std::span<float> logits, std::span<const TokenId> tokens) {
    for (const TokenId token : tokens) {
        if (is_in(logits, token)) logits[static_cast<size_t>(token)] = kForbidden;
    }
}

void apply_mask(std::span<float> logits, std::span<const uint32_t> words) {
    CHECK(words.size() == mask_words(static_cast<uint32_t>(logits.size())));
    for (size_t i = 0; i < words.size(); ++i) {
        const uint32_t word = words[i];
        if (word == 0xffffffffu) continue;
        const size_t end = std::min(logits.size(), (i + 1) * 32);
        for (size_t id = i * 32; id < end; ++id) {
            if ((word >> (id % 32) & 1u) == 0) logits[id] = kForbidden;
        }
    }
}

proto::TokenLogprobs logprobs_of(std::span<const float> logits, TokenId token, uint32_t n_top) {
    CHECK(is_in(logits, token));
    const float highest = *std::max_element(logits.begin(), logits.end());
    const float own = logits[static_cast<size_t>(token)];
    double sum = 0.0;
    uint32_t n_higher = 0;
    for (const float logit : logits) {
        sum += std::exp(logit - highest);
        n_higher += logit > own ? 1 : 0;
    }
    const double log_sum = static_cast<double>(highest) + std::log(sum);
    const auto logprob = [&](float logit) { return static_cast<float>(logit - log_sum); };
    proto::TokenLogprobs result{{token, logprob(own), n_higher + 1}, {}};
    std::vector<uint32_t> ids;
    if (n_top > 0) top_ids(logits, n_top, ids);
    result.top.reserve(ids.size());
    for (uint32_t i = 0; i < ids.size(); ++i)
        result.top.push_back({static_cast<TokenId>(ids[i]), logprob(logits[ids[i]]), i + 1});
    return result;
}

}  // namespace lorad::model
