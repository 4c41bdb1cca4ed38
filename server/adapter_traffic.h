// Counts each adapter's requests and how long they take, for /metrics and the console. The engine thread adds, any
// thread reads.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "proto/base/mutex.h"

namespace lorad::server {

// A request that ended; times in seconds.
struct EndedRequest {
    std::string adapter;  // empty: the base
    uint64_t n_prompt = 0, n_generated = 0;
    double total_s = 0;
    double first_token_s = -1;  // negative: it came to none
};

class AdapterTraffic {
  public:
    // Names beyond n_names_max push out the one whose last request ended longest ago.
    explicit AdapterTraffic(size_t n_names_max) : n_names_max_(n_names_max) {}

    void add(const EndedRequest& ended);
    // Prometheus' text; the base has the name `base_name`.
    std::string text(const std::string& base_name) const;

  private:
    struct Sums {
        uint64_t n_requests = 0, n_prompt = 0, n_generated = 0, n_first_tokens = 0;
        double total_s = 0, first_token_s = 0;
        uint64_t last_use = 0;
    };

    const size_t n_names_max_;
    mutable Mutex mutex_;
    std::unordered_map<std::string, Sums> by_name_ GUARDED_BY(mutex_);
    uint64_t n_uses_ GUARDED_BY(mutex_) = 0;
};

}  // namespace lorad::server
