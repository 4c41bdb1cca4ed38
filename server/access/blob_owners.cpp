#include "server/access/blob_owners.h"

#include <algorithm>

#include "proto/base/mutex.h"

namespace lorad::server::access {

void BlobOwners::add(const std::string& tenant, const std::string& sha256) {
    MutexLock lock(mutex_);
    std::deque<std::string>& owned = by_tenant_[tenant];
    if (std::ranges::find(owned, sha256) != owned.end()) return;
    owned.push_back(sha256);
    if (owned.size() > kPerTenant) owned.pop_front();
}

bool BlobOwners::has(const std::string& tenant, std::string_view sha256) const {
    MutexLock lock(mutex_);
    auto found = by_tenant_.find(tenant);
    return found != by_tenant_.end() && std::ranges::find(found->second, sha256) != found->second.end();
}

}  // namespace lorad::server::access
