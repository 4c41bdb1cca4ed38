// The files that each tenant with some adapters only has uploaded. Files are kept by content, so others' files must not
// exist for it: else a digest would give access to them, or prove that they exist. Kept in memory: after a restart an
// unregistered upload is known by its hold (adapters/store/blob_holds.h); a registered one counts as missing, and the
// tenant uploads it again.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>

#include "proto/base/mutex.h"

namespace lorad::server::access {

// Any thread.
class BlobOwners {
  public:
    static constexpr size_t kPerTenant = 4096;  // the oldest are forgotten

    void add(const std::string& tenant, const std::string& sha256);
    bool has(const std::string& tenant, std::string_view sha256) const;

  private:
    mutable Mutex mutex_;
    std::map<std::string, std::deque<std::string>, std::less<>> by_tenant_ GUARDED_BY(mutex_);
};

}  // namespace lorad::server::access
