#include "adapters/cache_identity.h"

#include <algorithm>
#include <array>
#include <bit>

#include "adapters/files.h"

namespace lorad::adapters {

namespace {

enum class Tag : uint8_t { kBase = 1, kAdapters, kGeneration, kScale, kTenant, kParent, kTokens };

template <typename T>
std::array<std::byte, sizeof(T)> little_endian(T value) {
    std::array<std::byte, sizeof(T)> bytes{};
    for (size_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<std::byte>(uint64_t{value} >> (8 * i));
    return bytes;
}

void add_field(Sha256& digest, Tag tag, uint64_t n_bytes) {
    digest.add(little_endian(static_cast<uint8_t>(tag)));
    digest.add(little_endian(n_bytes));
}
void add_text(Sha256& digest, Tag tag, std::string_view text) {
    add_field(digest, tag, text.size());
    digest.add(text);
}

}  // namespace

std::string cache_identity(std::string_view base_fingerprint, std::span<const CacheAdapter> adapters,
                           std::string_view tenant_salt, std::string_view parent, std::span<const TokenId> tokens) {
    Sha256 digest;
    digest.add("lorad cache 1");
    add_text(digest, Tag::kBase, base_fingerprint);
    const auto is_used = [](const CacheAdapter& adapter) { return adapter.scale != 0.0f; };
    add_field(digest, Tag::kAdapters, static_cast<uint64_t>(std::ranges::count_if(adapters, is_used)));
    for (const CacheAdapter& adapter : adapters) {
        if (!is_used(adapter)) continue;
        add_text(digest, Tag::kGeneration, adapter.generation);
        add_field(digest, Tag::kScale, sizeof(float));
        digest.add(little_endian(std::bit_cast<uint32_t>(adapter.scale)));
    }
    add_text(digest, Tag::kTenant, tenant_salt);
    add_text(digest, Tag::kParent, parent);
    add_field(digest, Tag::kTokens, tokens.size() * sizeof(TokenId));
    for (const TokenId token : tokens) digest.add(little_endian(static_cast<uint32_t>(token)));
    return digest.hex();
}

}  // namespace lorad::adapters
