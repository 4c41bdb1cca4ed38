// A grammar made of arithmetic: what may come next is a hash of what has come. It refuses every token that it did not
// allow, so a mask in the wrong place, or of the wrong moment, is an error of the request.
#pragma once

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "model/output/logits.h"
#include "server/engine/token_constraint.h"

namespace lorad::server {

class HashConstraint final : public TokenConstraint {
  public:
    HashConstraint(uint32_t vocab, uint64_t seed, std::vector<TokenId> ends = {}, uint32_t n_tokens = 0xffffffffu)
        : vocab_(vocab), state_(seed), ends_(std::move(ends)), n_left_(n_tokens) {}

    Status next_mask(std::vector<uint32_t>& words) override {
        if (delay.count() > 0) std::this_thread::sleep_for(delay);
        if (before_mask) before_mask();
        words.assign(model::mask_words(vocab_), 0);
        ++n_masks;
        if (n_masks == fails_at_mask) return make_error(ErrorCode::kInternal, "the grammar is broken");
        for (uint32_t id = 0; id < vocab_; ++id) {
            if (allows(TokenId(id))) words[id / 32] |= 1u << (id % 32);
        }
        return ok_status();
    }
    Status accept(TokenId token) override {
        if (before_accept) before_accept();
        if (!allows(token) || n_accepted + 1 == refuses_token)
            return make_error(ErrorCode::kInternal, "the grammar did not allow it");
        ++n_accepted;
        if (n_left_ > 0) --n_left_;
        state_ = mix(state_, uint64_t(token));
        return ok_status();
    }
    Result<std::unique_ptr<TokenConstraint>> duplicate() const override {
        return std::unique_ptr<TokenConstraint>(std::make_unique<HashConstraint>(*this));
    }

    double mask_seconds() const override { return first_seconds; }

    std::chrono::microseconds delay{0};  // for each mask
    std::function<void()> before_mask, before_accept;
    double first_seconds = 0;                       // what it says that one takes
    uint32_t fails_at_mask = 0, refuses_token = 0;  // counted from 1
    uint32_t n_masks = 0, n_accepted = 0;

  private:
    static uint64_t mix(uint64_t hash, uint64_t value) {
        hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
        return hash ^ hash >> 29;
    }
    // The ends alone after so many tokens; before that a token in four, now and then one in sixty-four.
    bool allows(TokenId token) const {
        bool is_end = false;
        for (TokenId end : ends_) is_end = is_end || end == token;
        if (n_left_ == 0) return is_end;
        uint64_t hash = mix(state_, 1 + uint64_t(token));
        return (hash >> 40) % (state_ % 7 == 0 ? 64 : 4) == 0 || uint64_t(token) == state_ % vocab_;
    }

    uint32_t vocab_;
    uint64_t state_;
    std::vector<TokenId> ends_;
    uint32_t n_left_;
};

}  // namespace lorad::server
