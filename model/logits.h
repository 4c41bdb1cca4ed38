// What happens to a row of logits before a token is drawn from it (sampler.h), and what is read off
// it: bans, bias, penalties, log-probabilities. Pure, on the host.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "proto/base/ids.h"
#include "proto/logprobs.h"
#include "proto/sampling_params.h"

namespace lorad::model {

// Which tokens a request holds already: penalties look at them. One thread at a time.
class TokenHistory {
  public:
    struct Entry {
        TokenId token = -1;
        uint32_t n_generated = 0;  // how often the answer holds it; 0: only the prompt does
    };

    explicit TokenHistory(std::span<const TokenId> prompt);
    void add_generated(TokenId token);
    std::span<const Entry> entries() const { return entries_; }

  private:
    Entry& entry_of(TokenId token);

    std::vector<Entry> entries_;
    std::unordered_map<TokenId, uint32_t> index_of_;
};

// Bias and penalties, as vLLM applies them: logit += bias; for tokens of prompt or answer logit *
// penalty if it is negative, else logit / penalty; then minus frequency * count, minus presence.
// Tokens beyond the row are left out.
void adjust_logits(std::span<float> logits, const proto::SamplingParams& params,
                   const TokenHistory& history);

// -infinity for all but these; for these.
void allow_only(std::span<float> logits, std::span<const TokenId> sorted_tokens);
void forbid(std::span<float> logits, std::span<const TokenId> tokens);
// -infinity where bit id % 32 of words[id / 32] is not set.
void apply_mask(std::span<float> logits, std::span<const uint32_t> words);

// Of `token`, and of the n_top most probable ones. The row is finite; sums are in double.
proto::TokenLogprobs logprobs_of(std::span<const float> logits, TokenId token, uint32_t n_top);

}  // namespace lorad::model
