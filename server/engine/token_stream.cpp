#include "server/engine/token_stream.h"

#include "proto/base/mutex.h"

namespace lorad::server {

const char* to_string(FinishReason reason) {
    switch (reason) {
        case FinishReason::kStop: return "stop";
        case FinishReason::kLength: return "length";
        case FinishReason::kCancelled: return "abort";
        case FinishReason::kError: return "error";
        case FinishReason::kAdapterRemoved: return "adapter_removed";
        case FinishReason::kTimeout: return "timeout";
    }
    return "error";
}

TokenStream::TokenStream(uint32_t n_tokens_max, std::shared_ptr<StreamSignal> signal)
    : n_tokens_max_(n_tokens_max), signal_(std::move(signal)) {}

void TokenStream::push(TokenId token) { push(token, std::nullopt); }

void TokenStream::push(TokenId token, std::optional<proto::TokenLogprobs> logprobs) {
    {
        MutexLock lock(signal_->mutex);
        CHECK(!closed_ && n_pushed_ < n_tokens_max_);
        waiting_.tokens.push_back(token);
        if (logprobs) waiting_.logprobs.push_back(std::move(*logprobs));
        ++n_pushed_;
    }
    signal_->changed.notify_one();
}

void TokenStream::set_prompt_logprobs(std::vector<proto::TokenLogprobs> logprobs) {
    MutexLock lock(signal_->mutex);
    CHECK(!closed_ && n_pushed_ == 0);
    waiting_.prompt_logprobs = std::move(logprobs);
}

void TokenStream::set_embedding(std::vector<float> embedding) {
    MutexLock lock(signal_->mutex);
    CHECK(!closed_ && n_pushed_ == 0);
    waiting_.embedding = std::move(embedding);
}

void TokenStream::close(StreamEnd end) {
    {
        MutexLock lock(signal_->mutex);
        CHECK(!closed_);
        CHECK((end.reason == FinishReason::kError) == end.error.has_value());
        closed_ = true;
        waiting_.end = std::move(end);
    }
    signal_->changed.notify_one();
}

void TokenStream::cancel(FinishReason reason) {
    int expected = kNotCancelled;
    cancelled_.compare_exchange_strong(expected, static_cast<int>(reason), std::memory_order_relaxed);
}

std::optional<FinishReason> TokenStream::cancelled() const {
    int reason = cancelled_.load(std::memory_order_relaxed);
    if (reason == kNotCancelled) return std::nullopt;
    return FinishReason(reason);
}

TokenStream::Batch TokenStream::pop(std::chrono::milliseconds timeout) {
    {
        MutexLock lock(signal_->mutex);
        signal_->changed.wait_for(lock, timeout, [this]() REQUIRES(signal_->mutex) { return !waiting_.empty(); });
    }
    return take();
}

TokenStream::Batch TokenStream::take() {
    MutexLock lock(signal_->mutex);
    Batch batch;
    std::swap(batch, waiting_);
    waiting_.end = batch.end;  // later calls get the ending again
    return batch;
}

bool TokenStream::wait_any(StreamSignal& signal, std::span<const std::shared_ptr<TokenStream>> streams,
                           std::chrono::milliseconds timeout) {
    MutexLock lock(signal.mutex);
    return signal.changed.wait_for(lock, timeout, [&]() REQUIRES(signal.mutex) {
        for (const auto& stream : streams) {
            CHECK(stream->signal_.get() == &signal);
            if (stream->has_waiting()) return true;
        }
        return false;
    });
}

}  // namespace lorad::server
