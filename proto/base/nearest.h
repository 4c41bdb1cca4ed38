// Finds the names that somebody may have meant, for errors about unknown names. Any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lorad {

// Returns up to n_max of `names`, the likeliest first: those that differ in few letters, whatever their case, then
// those that contain the name or are contained in it, or share three quarters of its beginning. Looks at the first
// 2,000 names and at 128 bytes of each, so that it costs at most some milliseconds.
std::vector<std::string> nearest_names(std::string_view name, std::span<const std::string> names, size_t n_max);

}  // namespace lorad
