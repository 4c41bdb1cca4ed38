#include "server/engine/request.h"

#include <algorithm>
#include <limits>

namespace lorad::server {

uint32_t activation_position(std::span<const TokenId> prompt, std::span<const TokenId> invocation) {
    auto found = std::find_end(prompt.begin(), prompt.end(), invocation.begin(), invocation.end());
    // With nothing to look for, or nothing found, find_end gives the end.
    if (found == prompt.end()) return std::numeric_limits<uint32_t>::max();
    return static_cast<uint32_t>(found - prompt.begin());
}

}  // namespace lorad::server
