// Logs access: one line for each administrative call and for each refused call, refused ones at a limited rate. Lines
// have ids of keys and names of routes, never a key, a header, a body or a target as it was sent. Any thread.
#pragma once

#include <chrono>
#include <string_view>

#include "proto/base/mutex.h"
#include "server/access/account.h"
#include "server/access/principal.h"

namespace lorad::server::access {

struct AuditedCall {
    std::string_view method;
    std::string_view route;  // from the table: "/v1/adapters/{}"; empty: none was found
    std::string_view name;   // the adapter in the path, if any
    std::string_view peer;
    const Principal* principal = nullptr;
    std::string_view request_id = {};
};

class Audit {
  public:
    // After the call, with its status.
    void administered(const AuditedCall& call, int status);
    // `reason`: one of a few words of ours.
    void refused(const AuditedCall& call, std::string_view reason, int status);

  private:
    Mutex mutex_;
    TokenBucket lines_ GUARDED_BY(mutex_);
    uint64_t n_left_out_ GUARDED_BY(mutex_) = 0;
    bool is_set_up_ GUARDED_BY(mutex_) = false;
};

}  // namespace lorad::server::access
