// Changes a row of logits before a token is drawn from it (sampler.h), and reads it: bans, bias, penalties,
// log-probabilities. Pure, on the host.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "gpu/kernels/sampling/choice_rule.h"
#include "proto/base/ids.h"
#include "proto/base/rounding.h"
#include "proto/generate/logprobs.h"
#include "proto/generate/sampling_params.h"

namespace lorad::model {

// Words of a mask, which has a bit for each token: bit id % 32 of word id / 32.
constexpr uint32_t mask_words(uint32_t vocab_size) { return ceil_div(vocab_size, 32u); }

// The tokens whose logits a request changes: its bias, its ends if it has to go on for some tokens, and its present
// tokens if it has penalties. One thread at a time.
class TokenChanges {
  public:
    // ends: tokens that may have to be kept from coming (gpu::kRuleBansEnds).
    TokenChanges(const proto::SamplingParams& params, std::span<const TokenId> prompt, std::span<const TokenId> ends);
    void add_generated(TokenId token);
    // Each token once.
    std::span<const gpu::TokenChange> entries() const { return entries_; }

  private:
    gpu::TokenChange& entry_of(TokenId token);

    bool has_penalties_;
    std::vector<gpu::TokenChange> entries_;
    std::unordered_map<TokenId, uint32_t> index_of_;
};

// The parameters of the rule that changes need; sets kRuleAdjusts.
void add_changes(const proto::SamplingParams& params, gpu::ChoiceRule& rule);

// Applies bias and penalties as vLLM does: logit += bias; for tokens of prompt or answer logit * penalty if it is
// negative, else times 1 / penalty; then minus frequency * count, minus presence. Ends are forbidden with
// kRuleBansEnds. last_token, if not negative, is held once more than the entries say. Tokens beyond the row are left
// out. sample_changes does the same, bit for bit.
void change_logits(std::span<float> logits, const gpu::ChoiceRule& rule, std::span<const gpu::TokenChange> entries,
                   TokenId last_token = -1);

// -infinity for all but these; for these.
void allow_only(std::span<float> logits, std::span<const TokenId> sorted_tokens);
void forbid(std::span<float> logits, std::span<const TokenId> tokens);
// -infinity where bit id % 32 of words[id / 32] is not set.
void apply_mask(std::span<float> logits, std::span<const uint32_t> words);

// Log-probabilities of `token` and of the n_top most probable ones. The row is finite; sums are in double.
proto::TokenLogprobs logprobs_of(std::span<const float> logits, TokenId token, uint32_t n_top);

}  // namespace lorad::model
