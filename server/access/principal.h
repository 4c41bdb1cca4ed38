// Whose request it is: what stands for a key once it is known to be valid.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/access/account.h"
#include "server/access/scope.h"

namespace lorad::server::access {

// A name with * for any run of characters, none included.
bool matches_pattern(std::string_view pattern, std::string_view name);

// Never changes once it is made; requests hold it, so one that began before a reload ends as it began.
struct Principal {
    std::string id;      // the key's id, for the log
    std::string tenant;  // whose share of the server, and whose cached prefixes
    Scopes scopes;
    // Patterns of the adapters that exist for this key; nothing: all of them.
    std::optional<std::vector<std::string>> adapters;
    int64_t expires_s = std::numeric_limits<int64_t>::max();  // Unix time at which the key expires
    int32_t priority_min = 0;                                 // lower ones, which come earlier, are not for this key
    std::string prefix_salt;                                  // from the tenant and a secret of this process
    std::shared_ptr<Account> account;                         // its quotas; never null

    bool is_restricted() const { return adapters.has_value(); }
    bool may_use(std::string_view adapter) const;
};

// Without keys (null) everything is everybody's.
inline bool may_use(const Principal* principal, std::string_view adapter) {
    return principal == nullptr || principal->may_use(adapter);
}

}  // namespace lorad::server::access
