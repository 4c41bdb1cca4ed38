#include "server/engine/bad_words.h"

#include <algorithm>

#include "model/output/logits.h"

namespace lorad::server {

BadWords::BadWords(std::shared_ptr<const Sequences> sequences, uint32_t vocab_size,
                   std::shared_ptr<TokenConstraint> inner)
    : sequences_(std::move(sequences)), vocab_size_(vocab_size), inner_(std::move(inner)) {
    for (const std::vector<TokenId>& sequence : *sequences_) n_said_max_ = std::max(n_said_max_, sequence.size() - 1);
}

Status BadWords::next_mask(std::vector<uint32_t>& words) {
    if (inner_ != nullptr) {
        TRY(inner_->next_mask(words));
    } else {
        words.assign(model::mask_words(vocab_size_), ~uint32_t{0});
        if (const uint32_t n_last = vocab_size_ % 32; n_last != 0) words.back() = (uint32_t{1} << n_last) - 1;
    }
    for (const std::vector<TokenId>& sequence : *sequences_) {
        const size_t n_before = sequence.size() - 1;
        if (n_before > said_.size() ||
            !std::equal(sequence.begin(), sequence.end() - 1, said_.end() - static_cast<int64_t>(n_before)))
            continue;
        const auto last = static_cast<uint32_t>(sequence.back());
        words[last / 32] &= ~(uint32_t{1} << last % 32);
    }
    if (std::ranges::any_of(words, [](uint32_t word) { return word != 0; })) return ok_status();
    return make_error(ErrorCode::kInvalidRequest, "bad_words: nothing that the answer's form allows is left here",
                      "bad_words");
}

Status BadWords::accept(TokenId token) {
    said_.push_back(token);
    if (said_.size() > 2 * n_said_max_ + 64)
        said_.erase(said_.begin(), said_.end() - static_cast<int64_t>(n_said_max_));
    return inner_ != nullptr ? inner_->accept(token) : ok_status();
}

Result<std::unique_ptr<TokenConstraint>> BadWords::duplicate() const {
    std::unique_ptr<TokenConstraint> inner;
    if (inner_ != nullptr) {
        TRY_ASSIGN(inner, inner_->duplicate());
    }
    auto copy = std::make_unique<BadWords>(sequences_, vocab_size_, std::move(inner));
    copy->said_ = said_;
    return std::unique_ptr<TokenConstraint>(std::move(copy));
}

}  // namespace lorad::server
