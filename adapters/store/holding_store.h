// The part of every store that keeps the holds of its blobs (blob_holds.h).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "adapters/store/store.h"
#include "proto/base/clock.h"
#include "proto/base/mutex.h"

namespace lorad::adapters {

class HoldingStore : public Store {
  public:
    bool is_held(std::string_view sha256) const override {
        const MutexLock lock(mutex_);
        return holds_.is_held(sha256);
    }
    bool is_held_by(std::string_view sha256, std::string_view holder) const override {
        const MutexLock lock(mutex_);
        return holds_.is_held_by(sha256, holder);
    }
    void keep_promise(std::string_view sha256, std::string_view holder) override {
        const MutexLock lock(mutex_);
        if (const auto kept = holds_.take(sha256, holder)) end_hold(*kept);
    }
    void mark_tried(std::string_view sha256, std::string_view holder) override {
        const MutexLock lock(mutex_);
        holds_.mark_tried(sha256, holder);
    }
    std::vector<std::string> expire(int64_t now_s) override {
        const MutexLock lock(mutex_);
        return end_holds(now_s);
    }

  protected:
    virtual void remove_record(const BlobHolds::Promise&) REQUIRES(mutex_) {}  // of an expired hold
    void end_hold(const BlobHolds::Promise& promise) REQUIRES(mutex_) {
        remove_record(promise);
        if (!holds_.is_held(promise.sha256)) no_longer_held_.push_back(promise.sha256);
    }
    // Ends the expired holds. Returns the blobs that have lost their last holder since the last call.
    std::vector<std::string> end_holds(int64_t now_s) REQUIRES(mutex_) {
        for (const BlobHolds::Promise& promise : holds_.expire(now_s)) end_hold(promise);
        return std::exchange(no_longer_held_, {});
    }
    Status make_room_of(const Holder& holder, uint64_t bytes) REQUIRES(mutex_) {
        std::vector<BlobHolds::Promise> dropped;
        Status room = holds_.make_room(holder, bytes, unix_time_s(), dropped);
        for (const BlobHolds::Promise& promise : dropped) end_hold(promise);
        return room;
    }

    mutable Mutex mutex_;  // also of what the store itself keeps
    BlobHolds holds_ GUARDED_BY(mutex_);

  private:
    std::vector<std::string> no_longer_held_ GUARDED_BY(mutex_);  // since the last end_holds()
};

}  // namespace lorad::adapters
