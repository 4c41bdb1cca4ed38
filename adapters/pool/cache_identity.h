// The identity under which keys and values of a prefix may be used again: two prefixes with the same identity have the
// same keys and values, whatever they were called.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "proto/base/ids.h"

namespace lorad::adapters {

struct CacheAdapter {
    std::string_view generation;  // content, never a name
    float scale = 1.0f;           // 0 is the same as not being there
};

using CacheDigest = std::array<std::byte, 32>;

// SHA-256 of base, adapters in order, tenant, the prefix before (a former identity, or empty at the beginning) and
// the tokens. Every field has a type tag and its length before it, so that no two different sets of fields are the same
// bytes.
// An activated LoRA counts from where it acts on: tokens before that are the base's. Any thread.
CacheDigest cache_digest(std::string_view base_fingerprint, std::span<const CacheAdapter> adapters,
                         std::string_view tenant_salt, std::string_view parent, std::span<const TokenId> tokens);
// The same as 64 hex digits.
std::string cache_identity(std::string_view base_fingerprint, std::span<const CacheAdapter> adapters,
                           std::string_view tenant_salt, std::string_view parent, std::span<const TokenId> tokens);

}  // namespace lorad::adapters
