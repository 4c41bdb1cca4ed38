#include "server/access/account.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "proto/base/format.h"
#include "proto/base/mutex.h"

namespace lorad::server::access {
namespace {

// The weight of the newest answer in the moving average.
constexpr double kAnswerWeight = 0.1;

QuotaExceeded exceeded(std::string_view what, uint64_t n_max, double wait_s) {
    return {make_error(ErrorCode::kRateLimited, format("this key's quota of {} {} is used up", n_max, what)),
            static_cast<uint32_t>(std::clamp(std::ceil(wait_s), 1.0, 60.0))};
}

}  // namespace

void TokenBucket::set_rate(double per_minute, Time now) {
    if (per_minute == per_minute_) return;
    fill(now);
    double share = per_minute_ == 0 ? 1.0 : level_ / per_minute_;
    per_minute_ = per_minute;
    level_ = share * per_minute;
    filled_ = now;
}

void TokenBucket::fill(Time now) {
    if (now <= filled_) return;
    double minutes = std::chrono::duration<double>(now - filled_).count() / 60.0;
    level_ = std::min(per_minute_, level_ + minutes * per_minute_);
    filled_ = now;
}

std::optional<double> TokenBucket::take(double n, Time now) {
    if (is_unlimited()) return std::nullopt;
    fill(now);
    // More than it can hold is taken from a full one, and then owed.
    double wanted = std::min(n, per_minute_);
    constexpr double kRounding = 1e-9;
    if (level_ + kRounding < wanted) return (wanted - level_) / per_minute_ * 60.0;
    level_ -= n;
    return std::nullopt;
}

void TokenBucket::take_anyway(double n, Time now) {
    if (is_unlimited()) return;
    fill(now);
    level_ = std::min(per_minute_, level_ - n);
}

double TokenBucket::level(Time now) {
    fill(now);
    return level_;
}

void Account::set_quotas(const Quotas& quotas) {
    MutexLock lock(mutex_);
    quotas_ = quotas;
    requests_.set_rate(quotas.requests_per_minute, now());
    tokens_.set_rate(static_cast<double>(quotas.tokens_per_minute), now());
}

Quotas Account::quotas() const {
    MutexLock lock(mutex_);
    return quotas_;
}

std::optional<QuotaExceeded> Account::begin_request() {
    MutexLock lock(mutex_);
    std::optional<double> wait_s = requests_.take(1, now());
    if (!wait_s) return std::nullopt;
    return exceeded("requests a minute", quotas_.requests_per_minute, *wait_s);
}

std::optional<QuotaExceeded> Account::charge(const TokenCount& count, std::shared_ptr<Charge>& out) {
    MutexLock lock(mutex_);
    double estimate = static_cast<double>(count.n_prompt) +
                      std::min(static_cast<double>(count.n_generated_max), answer_tokens_) * count.n_answers;
    if (std::optional<double> wait_s = tokens_.take(estimate, now()))
        return exceeded("tokens a minute", quotas_.tokens_per_minute, *wait_s);
    out = std::make_shared<Charge>();
    out->account_ = shared_from_this();
    out->estimate_ = estimate;
    out->n_answers_ = count.n_answers;
    out->n_prompt_ = count.n_prompt;
    return std::nullopt;
}

void Account::Charge::settle(uint64_t n_prompt, uint64_t n_generated) {
    n_prompt_ = n_prompt;
    n_generated_ = n_generated;
    is_settled_ = true;
}

void Account::Charge::take_back() {
    n_prompt_ = n_generated_ = 0;
    is_settled_ = false;
}

Account::Charge::~Charge() {
    if (account_ == nullptr) return;
    MutexLock lock(account_->mutex_);
    account_->tokens_.take_anyway(static_cast<double>(n_prompt_) + static_cast<double>(n_generated_) - estimate_,
                                  account_->now());
    if (is_settled_ && n_answers_ > 0) {
        double mean = static_cast<double>(n_generated_) / n_answers_;
        account_->answer_tokens_ += kAnswerWeight * (mean - account_->answer_tokens_);
    }
}

std::optional<QuotaExceeded> Account::enter_queue(std::span<const uint64_t> prompt_tokens,
                                                  std::vector<std::shared_ptr<const void>>& places) {
    const uint64_t n_tokens = std::accumulate(prompt_tokens.begin(), prompt_tokens.end(), uint64_t{0});
    MutexLock lock(mutex_);
    // When there is room again depends on everybody's requests: a second is as good as any guess.
    constexpr double kSoon = 1.0;
    if (quotas_.queued_requests_max > 0 && n_queued_requests_ + prompt_tokens.size() > quotas_.queued_requests_max)
        return exceeded("waiting requests", quotas_.queued_requests_max, kSoon);
    // A prompt that is longer alone may wait when no other does.
    if (quotas_.queued_tokens_max > 0 && n_queued_requests_ > 0 &&
        n_queued_tokens_ + n_tokens > quotas_.queued_tokens_max)
        return exceeded("waiting prompt tokens", quotas_.queued_tokens_max, kSoon);
    for (uint64_t tokens : prompt_tokens) {
        ++n_queued_requests_;
        n_queued_tokens_ += tokens;
        places.emplace_back(static_cast<const void*>(this), [account = shared_from_this(), tokens](const void*) {
            MutexLock its_lock(account->mutex_);
            --account->n_queued_requests_;
            account->n_queued_tokens_ -= tokens;
        });
    }
    return std::nullopt;
}

Account::Use Account::use() {
    MutexLock lock(mutex_);
    return {n_queued_requests_, n_queued_tokens_, tokens_.level(now())};
}

}  // namespace lorad::server::access
