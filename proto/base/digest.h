// SHA-256, and how a digest is written. Nothing here allocates but what returns a string, so that nothing fails where
// memory is short.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace lorad {

using Sha256Digest = std::array<std::byte, 32>;

// SHA-256 of what comes piece by piece. For one thread.
class Sha256 {
  public:
    Sha256();
    Sha256(const Sha256&) = delete;
    Sha256& operator=(const Sha256&) = delete;
    void add(std::span<const std::byte> bytes);
    void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
    // Either of them once, at the end.
    std::string hex();
    Sha256Digest digest();

  private:
    alignas(8) std::array<std::byte, 112> state_;  // SHA256_CTX of OpenSSL
};

// 64 lower-case hex digits.
std::string sha256_hex(std::span<const std::byte> bytes);

// RFC 2104.
Sha256Digest hmac_sha256(std::string_view key, std::string_view text);

// A SHA-256: 64 hex digits, lower case.
inline bool is_sha256_hex(std::string_view text) {
    return text.size() == 64 &&
           std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace lorad
