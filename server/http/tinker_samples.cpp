#include "server/http/tinker_samples.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "proto/base/format.h"
#include "proto/tinker/tinker_data.h"
#include "server/training/file_store.h"

namespace lorad::server {

struct TinkerSamples::Sample {
    std::string tenant, key;
    size_t n_unscored = 0;
    // Under its own mutex: one worker at a time takes what comes.
    Mutex mutex;
    std::unique_ptr<Generation> generation GUARDED_BY(mutex);
    std::vector<proto::TinkerSample> samples GUARDED_BY(mutex);
    std::optional<Error> error GUARDED_BY(mutex);
    std::optional<std::string> output GUARDED_BY(mutex);
    std::atomic<Clock::time_point> last_look;
    std::atomic<bool> is_fetched = false;

    void take() REQUIRES(mutex) {
        for (Generation::Piece& piece : generation->next()) {
            proto::TinkerSample& sample = samples[piece.choice];
            sample.tokens.insert(sample.tokens.end(), piece.ids.begin(), piece.ids.end());
            for (const proto::TokenLogprobs& one : piece.logprobs)
                sample.log_probabilities.push_back(one.token.logprob);
            if (piece.error) error = piece.error;
            if (piece.finish_reason.empty()) continue;
            sample.is_stopped = piece.finish_reason == "stop";
            if (!sample.is_stopped && piece.finish_reason != "length")
                error = make_error(ErrorCode::kClientClosed, format("the sample ended early: {}", piece.finish_reason));
        }
        if (generation->ended() && !error) finish();
        if (error || output) generation.reset();
    }

    void finish() REQUIRES(mutex) {
        std::vector<float> prompt;
        if (generation->request.n_prompt_logprobs) {
            for (const proto::TokenLogprobs& one : generation->prompt_logprobs_of(0))
                prompt.push_back(one.token.logprob);
        }
        output = proto::tinker_sample_output(samples, prompt, n_unscored, generation->usage().n_cached_tokens);
    }
};

void TinkerSamples::forget_old() {
    const Clock::time_point now = Clock::now();
    std::erase_if(samples_, [&](const auto& one) { return now - one.second->last_look.load() > kAgeMax; });
}

Status TinkerSamples::check_room(std::string_view tenant) {
    MutexLock lock(mutex_);
    forget_old();
    const auto is_own = [&](const auto& one) { return one.second->tenant == tenant; };
    auto n = static_cast<uint64_t>(std::ranges::count_if(samples_, is_own));
    // Those that were fetched make room, the one whose last look is the longest ago first.
    while (n >= kTenantMax) {
        auto oldest = samples_.end();
        for (auto one = samples_.begin(); one != samples_.end(); ++one) {
            if (!is_own(*one) || !one->second->is_fetched) continue;
            if (oldest == samples_.end() || one->second->last_look.load() < oldest->second->last_look.load())
                oldest = one;
        }
        if (oldest == samples_.end()) break;
        samples_.erase(oldest);
        --n;
    }
    if (n < kTenantMax) return ok_status();
    return make_error(ErrorCode::kOverloaded,
                      format("{} samples of this key are under way or not fetched, as many as may be", n));
}

Result<std::string> TinkerSamples::add(const std::string& tenant, const std::string& key,
                                       std::unique_ptr<Generation> generation, size_t n_unscored) {
    TRY(check_room(tenant));
    auto sample = std::make_shared<Sample>();
    sample->tenant = tenant;
    sample->key = key;
    sample->n_unscored = n_unscored;
    sample->last_look = Clock::now();
    {
        MutexLock own(sample->mutex);
        sample->samples.resize(generation->n_choices());
        sample->generation = std::move(generation);
    }
    std::string id = training::new_id("sample-");
    MutexLock lock(mutex_);
    samples_.emplace(id, std::move(sample));
    return id;
}

std::optional<std::string> TinkerSamples::find(std::string_view tenant, std::string_view key) const {
    if (key.empty()) return std::nullopt;
    MutexLock lock(mutex_);
    for (const auto& [id, sample] : samples_) {
        if (sample->tenant == tenant && sample->key == key) return id;
    }
    return std::nullopt;
}

bool TinkerSamples::remove(std::string_view tenant, std::string_view id) {
    SamplePtr gone;  // let go without the lock
    MutexLock lock(mutex_);
    const auto found = samples_.find(id);
    if (found == samples_.end() || found->second->tenant != tenant) return false;
    gone = std::move(found->second);
    samples_.erase(found);
    return true;
}

TinkerSamples::Outcome TinkerSamples::wait(std::string_view tenant, std::string_view id, Clock::time_point deadline,
                                           const std::function<bool()>& gone) {
    SamplePtr sample;
    {
        MutexLock lock(mutex_);
        const auto found = samples_.find(id);
        if (found == samples_.end() || found->second->tenant != tenant) return {};
        sample = found->second;
    }
    while (true) {
        sample->last_look = Clock::now();
        {
            MutexLock own(sample->mutex);
            if (sample->generation) sample->take();
            if (sample->error || sample->output) {
                sample->is_fetched = true;
                return {.is_known = true, .error = sample->error, .output = sample->output};
            }
        }
        if (Clock::now() >= deadline || gone()) return {.is_known = true};
    }
}

}  // namespace lorad::server
