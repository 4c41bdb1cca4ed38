#include "model/logits.h"
#include "proto/base/format.h"
#include "proto/base/rounding.h"
#include "server/sandbox/grammar_compiler.h"

namespace lorad::server::sandbox {

// Begun MiB by begun MiB, so that most steps have nothing to count.
Status GrammarConstraint::count() {
    if (!memory_) return ok_status();
    const uint64_t n_bytes = grammar_->n_bytes();
    if (n_bytes > GrammarMemory::kOneBytesMax) {
        return make_error(ErrorCode::kInputTooComplex, format("following this grammar takes {} MiB, one may take {}", n_bytes >> 20,
                                                              GrammarMemory::kOneBytesMax >> 20));
    }
    const uint64_t n_mib = ceil_div(n_bytes, uint64_t(1) << 20);
    if (n_mib <= counted_mib_) return ok_status();
    access::SharedPlaces::Place more = memory_->all_mib.take(holder_, n_mib - counted_mib_);
    if (!more.taken()) return make_error(ErrorCode::kOverloaded, "the grammars that answers follow take as much memory as they may; try again in a moment");
    counted_.push_back(std::move(more));
    counted_mib_ = n_mib;
    return ok_status();
}

Status GrammarConstraint::next_mask(std::vector<uint32_t>& words) {
    if (first_mask_) {
        words = *first_mask_;
        return ok_status();
    }
    words.assign(model::mask_words(vocab_size_), 0);
    TRY(grammar_->mask(words));
    return count();
}

Status GrammarConstraint::accept(TokenId token) {
    first_mask_.reset();
    TRY(grammar_->commit(token));
    return count();
}

Result<std::unique_ptr<TokenConstraint>> GrammarConstraint::duplicate() const {
    TRY_ASSIGN(std::unique_ptr<model::Grammar> copy, grammar_->duplicate());
    auto constraint = std::make_unique<GrammarConstraint>(std::move(copy), vocab_size_, first_mask_, memory_, holder_);
    TRY(constraint->count());
    return std::unique_ptr<TokenConstraint>(std::move(constraint));
}

}  // namespace lorad::server::sandbox
