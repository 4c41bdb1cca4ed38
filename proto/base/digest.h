// How a digest is written.
#pragma once

#include <algorithm>
#include <string_view>

namespace lorad {

// A SHA-256: 64 hex digits, lower case.
inline bool is_sha256_hex(std::string_view text) {
    return text.size() == 64 && std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace lorad
