#include "server/engine/merge_control.h"

#include <algorithm>

#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/mutex.h"

namespace lorad::server {

using namespace std::chrono_literals;

MergeControl::MergeControl(Engine& engine, Merge merge, MergeControlOptions options)
    : engine_(engine), merge_(std::move(merge)), options_(std::move(options)), policy_(options_.policy) {
    if (options_.batch_invariant) return;
    engine_.watch_steps([this](std::span<const LoraUse> uses, uint32_t n_rows) { observe(uses, n_rows); });
    thread_ = std::thread([this] { run_automatic(); });
}

MergeControl::~MergeControl() {
    if (thread_.joinable()) {
        engine_.watch_steps(nullptr);
        {
            const MutexLock lock(mutex_);
            stop_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }
    // The engine's thread may have ended, so nothing is waited for.
    if (current_) engine_.set_merged(std::nullopt);
}

Status MergeControl::check_allowed() const {
    if (!options_.batch_invariant) return ok_status();
    return make_error(
        ErrorCode::kInvalidLoadPolicy,
        "merged weights are off with --batch-invariant: a row's bits would depend on what else is in its step", "mode");
}

Result<MergeState> MergeControl::merge(MergeMix mix) {
    TRY(check_allowed());
    const MutexLock work(work_mutex_);
    {
        const MutexLock lock(mutex_);
        automatic_.erase(mix.name);
        policy_.forget(mix.name);
        wanted_ = policy_.wanted();
    }
    return merge_now(mix, false);
}

Status MergeControl::set_auto(MergeMix mix) {
    TRY(check_allowed());
    clear(mix.name);
    const MutexLock lock(mutex_);
    const std::string name = mix.name;
    automatic_.insert_or_assign(name, std::move(mix));
    return ok_status();
}

void MergeControl::clear(const std::string& name) {
    const MutexLock work(work_mutex_);
    bool is_merged = false;
    {
        const MutexLock lock(mutex_);
        automatic_.erase(name);
        policy_.forget(name);
        wanted_ = policy_.wanted();
        is_merged = current_ && current_->state.name == name;
    }
    if (is_merged) unmerge_now();
    changed_.notify_all();
}

std::optional<MergeState> MergeControl::merged() const {
    const MutexLock lock(mutex_);
    if (!current_) return std::nullopt;
    return current_->state;
}

uint64_t MergeControl::n_merges() const {
    const MutexLock lock(mutex_);
    return n_merges_;
}

void MergeControl::observe(std::span<const LoraUse> uses, uint32_t n_rows) {
    const MutexLock lock(mutex_);
    if (automatic_.empty() || !options_.may_by_itself) return;
    std::string_view name;
    for (const auto& [known, mix] : automatic_) {
        if (!uses.empty() && std::ranges::equal(mix.uses, uses)) name = known;
    }
    policy_.observe(name, n_rows);
    if (policy_.wanted() == wanted_) return;
    wanted_ = policy_.wanted();
    changed_.notify_all();
}

// The mix to merge, or that there is one to unmerge; neither if all is as the policy wants it.
std::optional<MergeMix> MergeControl::next_automatic(bool& unmerge) {
    if (current_ && !current_->state.is_automatic) return std::nullopt;
    unmerge = current_ && wanted_ != current_->state.name;
    if (!wanted_ || (current_ && wanted_ == current_->state.name)) return std::nullopt;
    const auto mix = automatic_.find(*wanted_);
    if (mix == automatic_.end()) return std::nullopt;
    return mix->second;
}

void MergeControl::run_automatic() {
    MutexLock lock(mutex_);
    while (!stop_) {
        bool unmerge = false;
        std::optional<MergeMix> mix = next_automatic(unmerge);
        if (!mix && !unmerge) {
            changed_.wait(lock);
            continue;
        }
        lock.unlock();
        {
            const MutexLock work(work_mutex_);
            // While this thread waited for its turn, a request may have decided otherwise.
            lock.lock();
            mix = next_automatic(unmerge);
            lock.unlock();
            if (mix) {
                const Result<MergeState> merged = merge_now(*mix, true);
                if (!merged.ok()) {
                    log_warn("{} is not merged any more by itself: {}", mix->name, merged.error().message);
                    lock.lock();
                    automatic_.erase(mix->name);
                    policy_.forget(mix->name);
                    wanted_ = policy_.wanted();
                    lock.unlock();
                }
            } else if (unmerge) {
                unmerge_now();
            }
        }
        lock.lock();
    }
}

Result<MergeState> MergeControl::merge_now(const MergeMix& mix, bool is_automatic) {
    unmerge_now();
    TRY_ASSIGN(std::shared_ptr<const model::MergedWeights> weights, merge_(mix.uses));
    engine_.set_merged(MergedMix{mix.uses, weights, mix.lease});
    const MergeState state{mix.name, is_automatic, weights->device_bytes(), weights->gpu_ms()};
    log_info("{} is merged: {} MiB of copies, {:.2f} ms on the device", state.name, state.device_bytes >> 20,
             state.gpu_ms);
    if (options_.on_change) options_.on_change(state);
    const MutexLock lock(mutex_);
    ++n_merges_;
    current_ = Current{state, std::move(weights)};
    return state;
}

// Freeing gigabytes takes its time, so it is not left to the engine's thread: waits, within bounds, until only this one
// holds the copy.
void MergeControl::unmerge_now() {
    std::optional<Current> old;
    {
        const MutexLock lock(mutex_);
        old = std::move(current_);
        current_.reset();
    }
    if (!old) return;
    engine_.set_merged(std::nullopt);
    for (int i = 0; i < 2000 && old->weights.use_count() > 1; ++i) std::this_thread::sleep_for(1ms);
    if (options_.on_change) options_.on_change(std::nullopt);
    log_info("{} is not merged any more", old->state.name);
}

}  // namespace lorad::server
