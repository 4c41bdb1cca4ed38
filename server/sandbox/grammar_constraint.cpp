#include <utility>

#include "model/output/logits.h"
#include "proto/base/format.h"
#include "proto/base/mutex.h"
#include "proto/base/rounding.h"
#include "proto/base/thread.h"
#include "server/sandbox/grammar_compiler.h"

namespace lorad::server::sandbox {
GrammarMemory::~GrammarMemory() {
    {
        MutexLock lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void GrammarMemory::let_go(std::unique_ptr<model::Grammar> grammar, Places counted) {
    if (grammar == nullptr || grammar->n_bytes() < kLargeBytes) return;
    MutexLock lock(mutex_);
    // Without the thread it is freed here after all.
    if (!thread_.joinable() && !start_thread(thread_, [this] { run(); })) return;
    left_.push_back({std::move(grammar), std::move(counted)});
    changed_.notify_all();
}

void GrammarMemory::run() {
    name_thread("lorad-freeing");
    give_way();
    MutexLock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this]() REQUIRES(mutex_) { return stop_ || !left_.empty(); });
        std::vector<Left> left = std::exchange(left_, {});
        if (left.empty()) return;
        lock.unlock();
        left.clear();
        lock.lock();
    }
}

GrammarConstraint::~GrammarConstraint() {
    if (memory_) memory_->let_go(std::move(grammar_), std::move(counted_));
}

// Begun MiB by begun MiB, so that most steps have nothing to count.
Status GrammarConstraint::count() {
    if (!memory_) return ok_status();
    const uint64_t n_bytes = grammar_->n_bytes();
    if (n_bytes > GrammarMemory::kOneBytesMax) {
        return make_error(ErrorCode::kInputTooComplex, format("following this grammar takes {} MiB, one may take {}",
                                                              n_bytes >> 20, GrammarMemory::kOneBytesMax >> 20));
    }
    const uint64_t n_mib = ceil_div(n_bytes, uint64_t{1} << 20);
    if (n_mib <= counted_mib_) return ok_status();
    access::SharedPlaces::Place more = memory_->all_mib.take(holder_, n_mib - counted_mib_);
    if (!more.taken())
        return make_error(ErrorCode::kOverloaded,
                          "the grammars that answers follow take as much memory as they may; try again in a moment");
    counted_.push_back(std::move(more));
    counted_mib_ = n_mib;
    return ok_status();
}

Status GrammarConstraint::next_mask(std::vector<uint32_t>& words) {
    if (first_mask_) {
        words = first_mask_->words;
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
