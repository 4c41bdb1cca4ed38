#include "adapters/store/blob_holds.h"

#include <algorithm>
#include <utility>

#include "proto/base/digest.h"
#include "proto/base/format.h"

namespace lorad::adapters {

std::string holder_key(std::string_view tenant) {
    return sha256_hex(std::as_bytes(std::span(tenant.data(), tenant.size())));
}

int64_t BlobHolds::Hold::newest_s() const {
    return std::ranges::max_element(promises, {}, [](const auto& promise) { return promise.second; })->second;
}

BlobHolds::Hold* BlobHolds::find(std::string_view sha256, std::string_view holder) {
    return const_cast<Hold*>(std::as_const(*this).find(sha256, holder));
}

const BlobHolds::Hold* BlobHolds::find(std::string_view sha256, std::string_view holder) const {
    const auto blob = blobs_.find(sha256);
    if (blob == blobs_.end()) return nullptr;
    const auto hold = blob->second.find(holder);
    return hold == blob->second.end() ? nullptr : &hold->second;
}

bool BlobHolds::is_held_by(std::string_view sha256, std::string_view holder) const {
    return find(sha256, holder) != nullptr;
}

BlobHolds::Promise BlobHolds::next(std::string_view sha256, std::string_view holder) const {
    Promise promise{std::string(sha256), std::string(holder), 0};
    const Hold* hold = find(sha256, holder);
    if (hold == nullptr) return promise;
    while (hold->promises.contains(promise.number)) ++promise.number;
    if (promise.number < kPromisesMax) return promise;
    promise.number = std::ranges::min_element(hold->promises, {}, [](const auto& made) { return made.second; })->first;
    return promise;
}

void BlobHolds::add(const Promise& promise, uint64_t bytes, int64_t since_s) {
    const auto [hold, is_new] = blobs_[promise.sha256].try_emplace(promise.holder);
    Use& use = uses_[promise.holder];
    use.n += is_new;
    use.bytes += bytes - hold->second.bytes;
    hold->second.bytes = bytes;
    hold->second.promises[promise.number] = since_s;
    hold->second.tried = false;
}

std::optional<int64_t> BlobHolds::time_of(const Promise& promise) const {
    const Hold* hold = find(promise.sha256, promise.holder);
    if (hold == nullptr) return std::nullopt;
    const auto made = hold->promises.find(promise.number);
    return made == hold->promises.end() ? std::nullopt : std::optional(made->second);
}

void BlobHolds::restore(const Promise& promise, int64_t since_s) {
    Hold* hold = find(promise.sha256, promise.holder);
    if (hold == nullptr) return;
    if (const auto made = hold->promises.find(promise.number); made != hold->promises.end()) made->second = since_s;
}

std::optional<BlobHolds::Promise> BlobHolds::take(std::string_view sha256, std::string_view holder) {
    Hold* hold = find(sha256, holder);
    if (hold == nullptr) return std::nullopt;
    const auto oldest =
        std::ranges::min_element(hold->promises, {}, [](const auto& promise) { return promise.second; });
    const Promise taken{std::string(sha256), std::string(holder), oldest->first};
    remove(taken);
    return taken;
}

bool BlobHolds::remove(const Promise& promise) {
    Hold* hold = find(promise.sha256, promise.holder);
    if (hold == nullptr || hold->promises.erase(promise.number) == 0) return false;
    if (hold->promises.empty()) forget(promise.sha256, promise.holder);
    return true;
}

void BlobHolds::mark_tried(std::string_view sha256, std::string_view holder) {
    if (Hold* hold = find(sha256, holder)) hold->tried = true;
}

void BlobHolds::forget(std::string_view sha256, std::string_view holder) {
    const auto blob = blobs_.find(sha256);
    const auto hold = blob->second.find(holder);
    Use& use = uses_.find(holder)->second;
    --use.n;
    use.bytes -= hold->second.bytes;
    blob->second.erase(hold);
    if (blob->second.empty()) blobs_.erase(blob);
    drop_unused(holder);
}

void BlobHolds::drop_unused(std::string_view holder) {
    const auto use = uses_.find(holder);
    if (use->second.n == 0 && use->second.n_incoming == 0) uses_.erase(use);
}

void BlobHolds::end_upload(std::string_view holder, uint64_t bytes) {
    Use& use = uses_.find(holder)->second;
    --use.n_incoming;
    use.incoming_bytes -= bytes;
    drop_unused(holder);
}

Status BlobHolds::make_room(const Holder& holder, uint64_t bytes, int64_t now_s, std::vector<Promise>& dropped) {
    const auto is_full = [&](const Use& use) {
        return (holder.bytes_max != 0 && use.bytes + use.incoming_bytes + bytes > holder.bytes_max) ||
               (holder.n_max != 0 && use.n + use.n_incoming > holder.n_max);
    };
    for (;;) {
        const auto use = uses_.find(holder.key);
        const Use now = use == uses_.end() ? Use() : use->second;
        if (!is_full(now)) return ok_status();
        // The oldest of those that were tried in vain.
        const std::string* oldest = nullptr;
        int64_t oldest_s = now_s - kTriedHoldSeconds;
        for (const auto& [sha256, holds] : blobs_) {
            const auto hold = holds.find(holder.key);
            if (hold == holds.end() || !hold->second.tried || hold->second.newest_s() >= oldest_s) continue;
            oldest = &sha256;
            oldest_s = hold->second.newest_s();
        }
        if (oldest == nullptr) {
            return make_error(
                ErrorCode::kStorageFull,
                format("no room for {} bytes more: this key's tenant has uploaded {} of {} bytes and {} of {} files of "
                       "which no adapter "
                       "was made yet; register them, or wait until they go, {} hours after they came",
                       bytes, now.bytes + now.incoming_bytes, holder.bytes_max,
                       now.n + std::max<uint64_t>(now.n_incoming, 1) - 1, holder.n_max, kHoldSeconds / 3600));
        }
        const std::string sha256 = *oldest;
        for (const auto& [number, since_s] : find(sha256, holder.key)->promises)
            dropped.push_back({sha256, holder.key, number});
        forget(sha256, holder.key);
    }
}

std::vector<BlobHolds::Promise> BlobHolds::expire(int64_t now_s) {
    std::vector<Promise> ended;
    for (auto& [sha256, holds] : blobs_) {
        for (auto& [holder, hold] : holds) {
            for (const auto& [number, since_s] : hold.promises) {
                if (now_s - since_s > kHoldSeconds) ended.push_back({sha256, holder, number});
            }
        }
    }
    for (const Promise& promise : ended) remove(promise);
    return ended;
}

}  // namespace lorad::adapters
