// What the engine tells the HTTP worker about one request: token ids, then exactly one ending.
// One producer (the engine thread), one consumer (the request's HTTP worker).
//
// Bounded by the request's own max_tokens, which admission has checked against the context: the
// engine never waits for a slow client, and the most that one can hold back is 4 bytes for each
// token it asked for.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/result.h"

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
    uint32_t n_cached_tokens = 0;  // of the prompt, found in the prefix cache
};

class TokenStream {
  public:
    // What one wait brought; tokens that arrived together come together.
    struct Batch {
        std::vector<TokenId> tokens;
        std::optional<StreamEnd> end;
    };

    explicit TokenStream(uint32_t n_tokens_max);

    // Engine thread. `token` is handed over before `end`, if both come at once.
    void push(TokenId token);
    void close(StreamEnd end);

    // HTTP worker. Returns an empty batch when `timeout` passes first.
    Batch pop(std::chrono::milliseconds timeout);

    // HTTP worker: the engine drops the request and frees its KV blocks before it plans its next
    // step. The first reason counts: kStop for a stop string, kCancelled for a client that went
    // away.
    void cancel(FinishReason reason = FinishReason::kCancelled);
    std::optional<FinishReason> cancelled() const;

  private:
    const uint32_t n_tokens_max_;
    static constexpr int kNotCancelled = -1;
    std::atomic<int> cancelled_{kNotCancelled};  // a FinishReason
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<TokenId> tokens_;   // guarded by mutex_; not yet popped
    uint32_t n_pushed_ = 0;         // guarded by mutex_
    std::optional<StreamEnd> end_;  // guarded by mutex_
    bool closed_ = false;           // guarded by mutex_
};

}  // namespace lorad::server
