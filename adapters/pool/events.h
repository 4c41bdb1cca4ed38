// Events about adapters, for watchers: a ring of the last events, each with a number.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/mutex.h"

namespace lorad::adapters {

enum class EventKind : uint8_t {
    kUploading,    // bytes of a file have come: at each tenth of a large one, and when it is stored
    kRegistered,   // a name stands for new content
    kReplaced,     // a name stands for other content than before, also by rollback
    kRemoved,      // a name is gone
    kLoading,      // on its way to the device
    kResident,     // in a slot
    kLoadFailed,   // `detail` says why
    kEvicted,      // left its slot
    kActivated,    // `detail` is the mode
    kDeactivated,  //
    kDamaged,      // its files are not what they were
    kFreed,        // nothing of the generation is left
};
std::string_view name_of(EventKind kind);  // "registered", ...

struct AdapterEvent {
    uint64_t number = 0;  // from 1, without gaps
    int64_t at_ms = 0;    // Unix time
    EventKind kind = EventKind::kRegistered;
    std::string name;        // empty where a generation without a name is meant
    std::string generation;  // 64 hex digits
    std::string detail;
    std::string blob = {};                     // an upload's SHA-256
    uint64_t bytes = 0;                        // received so far
    std::optional<uint64_t> bytes_total = {};  // if the client has declared it
};

// Any thread. A reader that is more than kKept events behind misses some and sees it from the numbers.
class EventLog {
  public:
    static constexpr size_t kKept = 1024;

    void add(EventKind kind, std::string name, std::string generation, std::string detail = {});
    void add_upload(std::string blob, uint64_t bytes, std::optional<uint64_t> bytes_total);
    // Events after number `after`, the oldest first; waits up to `timeout` while there are none.
    std::vector<AdapterEvent> next(uint64_t after, std::chrono::milliseconds timeout) const;
    uint64_t last_number() const;

  private:
    void add(AdapterEvent event);

    mutable Mutex mutex_;
    mutable Condition added_;
    std::deque<AdapterEvent> events_ GUARDED_BY(mutex_);
    uint64_t last_ GUARDED_BY(mutex_) = 0;
};

}  // namespace lorad::adapters
