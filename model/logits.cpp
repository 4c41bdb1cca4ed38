#include "model/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/sampler.h"
#include "proto/base/check.h"

namespace lorad::model {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

bool is_in(std::span<const float> logits, TokenId token) {
    return token >= 0 && static_cast<size_t>(token) < logits.size();
}

}  // namespace

TokenHistory::TokenHistory(std::span<const TokenId> prompt) {
    for (const TokenId token : prompt) entry_of(token);
}

TokenHistory::Entry& TokenHistory::entry_of(TokenId token) {
    const auto [place, is_new] = index_of_.emplace(token, static_cast<uint32_t>(entries_.size()));
    if (is_new) entries_.push_back({token, 0});
    return entries_[place->second];
}

void TokenHistory::add_generated(TokenId token) { ++entry_of(token).n_generated; }

void adjust_logits(std::span<float> logits, const proto::SamplingParams& params,
                   const TokenHistory& history) {
    for (const proto::TokenBias& bias : params.logit_bias) {
        if (is_in(logits, bias.token)) logits[static_cast<size_t>(bias.token)] += bias.bias;
    }
    if (!params.has_penalties()) return;
    for (const TokenHistory::Entry& entry : history.entries()) {
        if (!is_in(logits, entry.token)) continue;
        float& logit = logits[static_cast<size_t>(entry.token)];
        if (logit < 0.0f) {
            logit *= params.repetition_penalty;
        } else {
            logit /= params.repetition_penalty;
        }
        if (entry.n_generated == 0) continue;
        logit -= params.frequency_penalty * static_cast<float>(entry.n_generated);
        logit -= params.presence_penalty;
    }
}

void allow_only(std::span<float> logits, std::span<const TokenId> sorted_tokens) {
    auto next = sorted_tokens.begin();
    for (size_t id = 0; id < logits.size(); ++id) {
        while (next != sorted_tokens.end() && static_cast<size_t>(*next) < id) ++next;
        if (next == sorted_tokens.end() || static_cast<size_t>(*next) != id)
            logits[id] = kForbidden;
    }
}

void forbid(std::span<float> logits, std::span<const TokenId> tokens) {
    for (const TokenId token : tokens) {
        if (is_in(logits, token)) logits[static_cast<size_t>(token)] = kForbidden;
    }
}

void apply_mask(std::span<float> logits, std::span<const uint32_t> words) {
    CHECK(words.size() == (logits.size() + 31) / 32);
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
