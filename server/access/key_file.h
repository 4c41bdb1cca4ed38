// The file of keys: one JSON object for each line, so that a key is added by appending a line and a mistake has a line
// number. Empty lines and lines that begin with # are left out.
//
//   {"id":"ci","sha256":"9f86...","scopes":["generate","adapters:read"],"adapters":["sql","team-*"],"tenant":"acme",
//    "expires":"2027-01-31","requests_per_minute":600,"tokens_per_minute":200000,"max_queued_requests":16,
//    "max_queued_tokens":32768,"priority_min":0}
//
// id, sha256 and scopes are required. The file holds digests, never keys. Plain SHA-256 is right here: keys are 256
// random bits that `lorad key new` draws, so there is no list of likely ones to try, which is what slow password hashes
// are for; and each request pays for the digest.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/access/principal.h"

namespace lorad::server::access {

inline constexpr size_t kKeysMax = 4096;  // each is compared with for every request
inline constexpr size_t kKeyFileBytesMax = 4 << 20;
inline constexpr size_t kKeyBytesMax = 512;  // a client's longer key is never valid
inline constexpr size_t kKeyBytesMin = 16;   // for keys that an operator chooses

using KeyDigest = std::array<uint8_t, 32>;
KeyDigest key_digest(std::string_view key);

struct KeyEntry {
    KeyDigest digest{};
    Principal principal;  // without account and salt
    Quotas quotas;
};

// kInvalidConfig: "keys.jsonl:3: scopes: expected ...". `name` begins the messages.
Result<std::vector<KeyEntry>> parse_keys(std::string_view text, std::string_view name);
// The same of a file that only its owner may write to; kInvalidConfig.
Result<std::vector<KeyEntry>> read_key_file(const std::string& path);

// A line for the file.
std::string key_line(const KeyEntry& entry);
// 256 random bits, "lorad-" and 64 hex digits. kIo where the system gives none.
Result<std::string> new_key();

// 2027-01-31 (its first second in UTC) or 2027-01-31T12:00:00Z. kInvalidConfig.
Result<int64_t> parse_utc(std::string_view text);

}  // namespace lorad::server::access
