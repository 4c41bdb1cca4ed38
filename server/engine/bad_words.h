// Words that an answer must not have: sequences of tokens whose last one may not follow the others. A constraint of its
// own, or around a grammar's. As TokenConstraint.
#pragma once

#include <memory>
#include <vector>

#include "server/engine/token_constraint.h"

namespace lorad::server {

class BadWords final : public TokenConstraint {
  public:
    using Sequences = std::vector<std::vector<TokenId>>;

    // No sequence is empty, and all tokens are within the vocabulary. `inner`: used by this object alone from then on;
    // null if the answer is not constrained otherwise.
    BadWords(std::shared_ptr<const Sequences> sequences, uint32_t vocab_size,
             std::shared_ptr<TokenConstraint> inner = nullptr);

    // kInvalidRequest where the grammar allows nothing else.
    Status next_mask(std::vector<uint32_t>& words) override;
    Status accept(TokenId token) override;
    // The inner one's: what words add to it is nothing beside a grammar.
    double mask_seconds() const override { return inner_ != nullptr ? inner_->mask_seconds() : 0; }
    Result<std::unique_ptr<TokenConstraint>> duplicate() const override;

  private:
    const std::shared_ptr<const Sequences> sequences_;
    const uint32_t vocab_size_;
    const std::shared_ptr<TokenConstraint> inner_;
    std::vector<TokenId> said_;  // the last tokens of the answer, as many as a sequence may look at
    size_t n_said_max_ = 0;
};

}  // namespace lorad::server
