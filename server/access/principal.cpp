#include "server/access/principal.h"

#include <algorithm>

namespace lorad::server::access {

// Greedy with one place to come back to: at most |pattern| * |name| steps.
bool matches_pattern(std::string_view pattern, std::string_view name) {
    constexpr size_t kNone = std::string_view::npos;
    size_t p = 0, n = 0, star = kNone, star_name = 0;
    while (n < name.size()) {
        if (p < pattern.size() && pattern[p] == '*') {
            star = p++;
            star_name = n;
        } else if (p < pattern.size() && pattern[p] == name[n]) {
            ++p;
            ++n;
        } else if (star != kNone) {
            p = star + 1;
            n = ++star_name;
        } else {
            return false;
        }
    }
    while (p < pattern.size() && pattern[p] == '*') ++p;
    return p == pattern.size();
}

bool Principal::may_use(std::string_view adapter) const {
    return !adapters || std::ranges::any_of(
                            *adapters, [&](const std::string& pattern) { return matches_pattern(pattern, adapter); });
}

}  // namespace lorad::server::access
