#include "adapters/pool/cache_identity.h"

#include <algorithm>
#include <array>
#include <bit>

#include "adapters/files/files.h"

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

Sha256& add_all(Sha256& digest, std::string_view base_fingerprint, std::span<const CacheAdapter> adapters,
                std::string_view tenant_salt, std::string_view parent, std::span<const TokenId> tokens) {
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
    // Sixteen at a time: requests are waiting for this.
    std::array<std::byte, 64> bytes{};
    for (size_t begin = 0; begin < tokens.size(); begin += 16) {
        const std::span<const TokenId> some = tokens.subspan(begin, std::min<size_t>(16, tokens.size() - begin));
        for (size_t i = 0; i < some.size(); ++i) {
            const auto token = little_endian(static_cast<uint32_t>(some[i]));
            std::ranges::copy(token, bytes.begin() + static_cast<ptrdiff_t>(i * token.size()));
        }
        digest.add(std::span(bytes).first(some.size() * sizeof(TokenId)));
    }
    return digest;
}

}  // namespace

CacheDigest cache_digest(std::string_view base_fingerprint, std::span<const CacheAdapter> adapters,
                         std::string_view tenant_salt, std::string_view parent, std::span<const TokenId> tokens) {
    Sha256 digest;
    return add_all(digest, base_fingerprint, adapters, tenant_salt, parent, tokens).digest();
}

std::string cache_identity(std::string_view base_fingerprint, std::span<const CacheAdapter> adapters,
                           std::string_view tenant_salt, std::string_view parent, std::span<const TokenId> tokens) {
    Sha256 digest;
    return add_all(digest, base_fingerprint, adapters, tenant_salt, parent, tokens).hex();
}

}  // namespace lorad::adapters
