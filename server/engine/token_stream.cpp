#include "server/engine/token_stream.h"

namespace lorad::server {

const char* to_string(FinishReason reason) {
    switch (reason) {
        case FinishReason::kStop:
            return "stop";
        case FinishReason::kLength:
            return "length";
        case FinishReason::kCancelled:
            return "abort";
        case FinishReason::kError:
            return "error";
        case FinishReason::kAdapterRemoved:
            return "adapter_removed";
        case FinishReason::kTimeout:
            return "timeout";
    }
    return "error";
}

TokenStream::TokenStream(uint32_t n_tokens_max) : n_tokens_max_(n_tokens_max) {}

void TokenStream::push(TokenId token) {
    {
        std::lock_guard lock(mutex_);
        CHECK(!closed_ && n_pushed_ < n_tokens_max_);
        tokens_.push_back(token);
        ++n_pushed_;
    }
    changed_.notify_one();
}

void TokenStream::close(StreamEnd end) {
    {
        std::lock_guard lock(mutex_);
        CHECK(!closed_);
        CHECK((end.reason == FinishReason::kError) == end.error.has_value());
        closed_ = true;
        end_ = std::move(end);
    }
    changed_.notify_one();
}

void TokenStream::cancel(FinishReason reason) {
    int expected = kNotCancelled;
    cancelled_.compare_exchange_strong(expected, int(reason), std::memory_order_relaxed);
}

std::optional<FinishReason> TokenStream::cancelled() const {
    int reason = cancelled_.load(std::memory_order_relaxed);
    if (reason == kNotCancelled) return std::nullopt;
    return FinishReason(reason);
}

TokenStream::Batch TokenStream::pop(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [this] { return !tokens_.empty() || closed_; });
    Batch batch;
    batch.tokens.swap(tokens_);
    batch.end = end_;
    return batch;
}

}  // namespace lorad::server
