// Keeps the promises of blobs to uploaders. An acknowledged upload stays for its uploader until an adapter is made of
// it or the time is over: no removal, replacement or refused registration by others deletes it. Pure bookkeeping; the
// stores own it and call it under their lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"

namespace lorad::adapters {

// Who uploads, and how much of it may wait for an adapter at a time.
struct Holder {
    std::string key;         // 64 hex digits: holder_key()
    uint64_t bytes_max = 0;  // 0: no limit
    uint32_t n_max = 0;      // files; 0: no limit
};
// A one-way digest of a tenant's name.
std::string holder_key(std::string_view tenant);

// The life of a hold, from its upload.
inline constexpr int64_t kHoldSeconds = 24 * 60 * 60;
// After this time, a file of a refused registration makes room for its uploader's next.
inline constexpr int64_t kTriedHoldSeconds = 10 * 60;

class BlobHolds {
  public:
    // One acknowledged upload. Two of the same file are two promises: the adapter of one uploader may come and go
    // before the other registers.
    struct Promise {
        std::string sha256, holder;
        uint32_t number = 0;
        bool operator==(const Promise&) const = default;
    };
    static constexpr uint32_t kPromisesMax = 8;  // per file and holder; further uploads renew the oldest

    // The promise that an upload by this holder makes or renews.
    Promise next(std::string_view sha256, std::string_view holder) const;
    void add(const Promise& promise, uint64_t bytes, int64_t since_s);
    // Since when there is this promise; nothing where there is none.
    std::optional<int64_t> time_of(const Promise& promise) const;
    // A renewed promise has its earlier time again, where it is there still.
    void restore(const Promise& promise, int64_t since_s);
    // The holder's oldest promise of this file is kept: an adapter was made of it.
    std::optional<Promise> take(std::string_view sha256, std::string_view holder);
    // False where there is no such promise.
    bool remove(const Promise& promise);
    void mark_tried(std::string_view sha256, std::string_view holder);

    bool is_held(std::string_view sha256) const { return blobs_.contains(sha256); }
    bool is_held_by(std::string_view sha256, std::string_view holder) const;

    // Uploads under way count too. kStorageFull where `bytes` more do not fit; `dropped` gets what a tried hold has
    // left for them.
    Status make_room(const Holder& holder, uint64_t bytes, int64_t now_s, std::vector<Promise>& dropped);
    void begin_upload(std::string_view holder) { ++uses_[std::string(holder)].n_incoming; }
    void add_incoming(std::string_view holder, uint64_t bytes) { uses_[std::string(holder)].incoming_bytes += bytes; }
    void end_upload(std::string_view holder, uint64_t bytes);

    // Ends those whose time is over.
    std::vector<Promise> expire(int64_t now_s);

  private:
    struct Hold {
        std::map<uint32_t, int64_t> promises;  // by number: since when
        uint64_t bytes = 0;
        bool tried = false;
        int64_t newest_s() const;
    };
    struct Use {
        uint64_t n = 0, bytes = 0, n_incoming = 0, incoming_bytes = 0;
    };
    using Holds = std::map<std::string, Hold, std::less<>>;  // by holder

    Hold* find(std::string_view sha256, std::string_view holder);
    const Hold* find(std::string_view sha256, std::string_view holder) const;
    void forget(std::string_view sha256, std::string_view holder);
    void drop_unused(std::string_view holder);

    std::map<std::string, Holds, std::less<>> blobs_;
    std::map<std::string, Use, std::less<>> uses_;  // by holder
};

}  // namespace lorad::adapters
