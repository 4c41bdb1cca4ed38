// A pool of places, or of bytes, that many share: uploads, readers of events, large bodies, text being read, threads.
// One rule for all of them:
//
//   a holder of nothing may have what is free; a holder of something may have more only while it leaves free at
//       least as much as it then holds.
//
// So a single holder has at most half of a pool, two have a third each, three a quarter, and the next one always finds
// a place. A `Holder` is a key's tenant and a client's address: each is counted separately, and both must have room. An
// address may have three times what it leaves free, so that one tenant does not use up the share of a proxy's address.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "proto/base/mutex.h"

namespace lorad::server::access {

// Empty members have no share of their own: the tenant without keys, the address of a proxy or of this machine.
struct Holder {
    std::string tenant;
    std::string address;
};

// Any thread. Outlives its places.
class SharedPlaces {
  public:
    // A tenant may have `share` times what it leaves free: 1, a half; n_max - 1, all but one. An address kOfAddress
    // times as much.
    static constexpr uint64_t kOfAddress = 3;
    explicit SharedPlaces(uint64_t n_max, uint64_t share = 1) : n_max_(n_max), share_(share) {}
    SharedPlaces(const SharedPlaces&) = delete;
    SharedPlaces& operator=(const SharedPlaces&) = delete;

    // Given back when it goes.
    class Place {
      public:
        Place() = default;
        Place(Place&& other) noexcept { *this = std::move(other); }
        Place& operator=(Place&& other) noexcept {
            give_back();
            pool_ = std::exchange(other.pool_, nullptr);
            holder_ = std::move(other.holder_);
            n_ = other.n_;
            return *this;
        }
        ~Place() { give_back(); }
        bool taken() const { return pool_ != nullptr; }
        void give_back() {
            if (pool_ != nullptr) std::exchange(pool_, nullptr)->give_back(holder_, n_);
        }

      private:
        friend class SharedPlaces;
        SharedPlaces* pool_ = nullptr;
        Holder holder_;
        uint64_t n_ = 0;
    };

    // Returns a place that is not taken() if there is no room for it, or its holder has its share.
    Place take(const Holder& holder, uint64_t n = 1);
    // Waits for a place, in no order except for shares, until the time is over or `gives_up` returns true; it is called
    // now and then.
    Place wait(const Holder& holder, uint64_t n, std::chrono::milliseconds at_most,
               const std::function<bool()>& gives_up = {});

    uint64_t n_taken() const;
    uint64_t n_max() const;
    void set_max(uint64_t n_max);

  private:
    using Counts = std::map<std::string, uint64_t, std::less<>>;
    bool fits(const Holder& holder, uint64_t n) const REQUIRES(mutex_);
    Place place(const Holder& holder, uint64_t n) REQUIRES(mutex_);
    void give_back(const Holder& holder, uint64_t n);

    mutable Mutex mutex_;
    Condition given_back_;
    uint64_t n_max_ GUARDED_BY(mutex_);
    const uint64_t share_;
    uint64_t n_taken_ GUARDED_BY(mutex_) = 0;
    Counts of_tenant_ GUARDED_BY(mutex_), of_address_ GUARDED_BY(mutex_);  // only those who hold something
};

}  // namespace lorad::server::access
