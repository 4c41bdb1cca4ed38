// One key's use of its quotas. Lives as long as the key is in the file, over reloads; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/base/result.h"

namespace lorad::server::access {

// 0: no limit.
struct Quotas {
    uint32_t requests_per_minute = 0;
    uint64_t tokens_per_minute = 0;  // of prompts and answers together
    uint32_t queued_requests_max = 0;
    uint64_t queued_tokens_max = 0;  // of prompts waiting
    bool operator==(const Quotas&) const = default;
};

using Time = std::chrono::steady_clock::time_point;

// Fills evenly up to one minute's amount. The level may be negative: tokens that turn out to be used are always taken.
class TokenBucket {
  public:
    // Full at first; 0: never empty. A new rate keeps the share that is filled.
    void set_rate(double per_minute, Time now);
    bool is_unlimited() const { return per_minute_ == 0; }
    // Takes n, at most a full bucket. On failure returns the seconds until it could.
    std::optional<double> take(double n, Time now);
    void take_anyway(double n, Time now);  // negative: gives back
    double level(Time now);

  private:
    void fill(Time now);
    double per_minute_ = 0, level_ = 0;
    Time filled_{};
};

// A refusal, and when to come back.
struct QuotaExceeded {
    Error error;  // kRateLimited
    uint32_t retry_after_s = 1;
};

class Account : public std::enable_shared_from_this<Account> {
  public:
    explicit Account(std::function<Time()> clock = [] { return std::chrono::steady_clock::now(); })
        : clock_(std::move(clock)) {}

    void set_quotas(const Quotas& quotas);
    Quotas quotas() const;

    // One request more.
    std::optional<QuotaExceeded> begin_request();

    // The tokens of one request: its prompts and the average length of this key's answers, or max_tokens where that is
    // less. settle() replaces the estimate by the real numbers.
    class Charge {
      public:
        ~Charge();  // charges the settled tokens; if never settled, the prompt alone
        void settle(uint64_t n_prompt, uint64_t n_generated);
        void take_back();  // nothing of it was computed

      private:
        friend class Account;
        std::shared_ptr<Account> account_;
        double estimate_ = 0;
        uint32_t n_answers_ = 0;
        uint64_t n_prompt_ = 0, n_generated_ = 0;
        bool is_settled_ = false;
    };
    struct TokenCount {
        uint64_t n_prompt = 0;         // computed once for all answers
        uint64_t n_generated_max = 0;  // limit of each answer
        uint32_t n_answers = 1;
    };
    std::optional<QuotaExceeded> charge(const TokenCount& count, std::shared_ptr<Charge>& out);

    // A place in the queue for each of these prompts: given back when it goes, which is when the request begins to run.
    std::optional<QuotaExceeded> enter_queue(std::span<const uint64_t> prompt_tokens,
                                             std::vector<std::shared_ptr<const void>>& places);

    struct Use {
        uint32_t n_queued_requests = 0;
        uint64_t n_queued_tokens = 0;
        double tokens_left = 0;
    };
    Use use();

  private:
    Time now() const { return clock_(); }

    const std::function<Time()> clock_;
    mutable Mutex mutex_;
    Quotas quotas_ GUARDED_BY(mutex_);
    TokenBucket requests_ GUARDED_BY(mutex_), tokens_ GUARDED_BY(mutex_);
    double answer_tokens_ GUARDED_BY(mutex_) = 64;  // moving average of this key's answers
    uint32_t n_queued_requests_ GUARDED_BY(mutex_) = 0;
    uint64_t n_queued_tokens_ GUARDED_BY(mutex_) = 0;
};

}  // namespace lorad::server::access
