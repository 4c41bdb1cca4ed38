// Which files a tenant with some adapters only has uploaded: others' files, which are kept by content, do not exist for
// it, so that their digests are neither a way to them nor a question that is answered. Kept in memory: after a restart
// what such a tenant has uploaded and not registered is known by its hold (adapters/store/blob_holds.h); of what it has
// registered it is told that it is not there, and uploads it again.
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
