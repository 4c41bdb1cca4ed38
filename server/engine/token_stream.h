// Carries one request's answer from the engine to the HTTP worker: token ids, then exactly one ending. One producer
// (the engine thread), one consumer (the request's HTTP worker).
//
// Bounded by the request's own max_tokens, which admission has checked against the context: the engine never waits for
// a slow client. A client holds at most 4 bytes for each token it asked for, and the log-probabilities that it asked
// for.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/mutex.h"
#include "proto/base/result.h"
#include "proto/generate/logprobs.h"

namespace lorad::server {

enum class FinishReason : uint8_t {
    kStop,       // an end-of-sequence token, or (found by the HTTP worker) a stop string
    kLength,     // max_tokens
    kCancelled,  // the client went away or the HTTP worker has seen enough
    kError,
    kAdapterRemoved,  // an adapter of the request was deleted with mode=now
    kTimeout,         // the server's limit on the time of a request
};
const char* to_string(FinishReason reason);

struct StreamEnd {
    FinishReason reason = FinishReason::kStop;
    std::optional<Error> error;  // set exactly when reason is kError
};

// The streams of one HTTP request share it, so that their worker can wait for all of them at once.
struct StreamSignal {
    Mutex mutex;
    Condition changed;
};

class TokenStream {
  public:
    // The result of one wait; tokens that arrived together come together.
    struct Batch {
        std::vector<TokenId> tokens;
        std::vector<proto::TokenLogprobs> logprobs;         // by token, if requested
        std::vector<proto::TokenLogprobs> prompt_logprobs;  // of the prompt's tokens but the first,
                                                            // once, not after the first token
        std::vector<float> embedding;                       // of the prompt, once, if requested
        std::optional<StreamEnd> end;
        bool empty() const { return tokens.empty() && prompt_logprobs.empty() && embedding.empty() && !end; }
    };

    explicit TokenStream(uint32_t n_tokens_max,
                         std::shared_ptr<StreamSignal> signal = std::make_shared<StreamSignal>());

    // Engine thread. `token` is handed over before `end`, if both come at once.
    void push(TokenId token);
    void push(TokenId token, std::optional<proto::TokenLogprobs> logprobs);
    void set_prompt_logprobs(std::vector<proto::TokenLogprobs> logprobs);
    void set_embedding(std::vector<float> embedding);
    void close(StreamEnd end);
    // The number of prompt tokens found in the prefix cache; called before the first token.
    void set_cached_tokens(uint32_t n_tokens) { n_cached_ = n_tokens; }

    // HTTP worker. Returns an empty batch when `timeout` passes first.
    Batch pop(std::chrono::milliseconds timeout);
    // Without waiting.
    Batch take();
    // Waits until take() of one of them gives something; false when `timeout` passes first. All of
    // them have this signal.
    static bool wait_any(StreamSignal& signal, std::span<const std::shared_ptr<TokenStream>> streams,
                         std::chrono::milliseconds timeout);

    uint32_t n_cached_tokens() const { return n_cached_; }

    // HTTP worker: the engine drops the request and frees its KV blocks before it plans its next
    // step. The first reason counts: kStop for a stop string, kCancelled for a client that went
    // away.
    void cancel(FinishReason reason = FinishReason::kCancelled);
    std::optional<FinishReason> cancelled() const;

  private:
    // Called under the signal's mutex, which the analysis knows by another name.
    bool has_waiting() const NO_THREAD_SAFETY_ANALYSIS { return !waiting_.empty(); }

    const uint32_t n_tokens_max_;
    static constexpr int kNotCancelled = -1;
    std::atomic<int> cancelled_{kNotCancelled};  // a FinishReason
    std::atomic<uint32_t> n_cached_{0};
    const std::shared_ptr<StreamSignal> signal_;
    Batch waiting_ GUARDED_BY(signal_->mutex);  // not yet popped
    uint32_t n_pushed_ GUARDED_BY(signal_->mutex) = 0;
    bool closed_ GUARDED_BY(signal_->mutex) = false;
};

}  // namespace lorad::server
