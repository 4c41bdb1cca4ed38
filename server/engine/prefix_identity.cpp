#include "server/engine/prefix_identity.h"

#include <algorithm>

#include "proto/base/check.h"

namespace lorad::server {

PrefixIdentity::PrefixIdentity(PrefixScope scope, uint32_t block_tokens)
    : scope_(std::move(scope)), block_tokens_(block_tokens) {
    CHECK(block_tokens > 0);
}

void PrefixIdentity::lengthen() {
    scope_.base_fingerprint += " long";
    blocks_.clear();
}

void PrefixIdentity::extend(std::span<const TokenId> tokens) {
    if (!is_shared() || tokens.size() / block_tokens_ <= blocks_.size()) return;
    std::vector<adapters::CacheAdapter> adapters;
    for (const adapters::LeasedContent& content : scope_.adapters)
        adapters.push_back({content.generation, content.scale});
    auto digest = [&](bool with_adapters, std::string_view parent, std::span<const TokenId> some) {
        return adapters::cache_digest(scope_.base_fingerprint,
                                      with_adapters ? std::span<const adapters::CacheAdapter>(adapters)
                                                    : std::span<const adapters::CacheAdapter>(),
                                      scope_.tenant_salt, parent, some);
    };
    auto text_of = [](const BlockIdentity& identity) {
        return std::string_view(reinterpret_cast<const char*>(identity.data()), identity.size());
    };
    blocks_.reserve(tokens.size() / block_tokens_);
    while ((blocks_.size() + 1) * block_tokens_ <= tokens.size()) {
        size_t begin = blocks_.size() * block_tokens_;
        std::span<const TokenId> block = tokens.subspan(begin, block_tokens_);
        std::string_view parent = blocks_.empty() ? std::string_view() : text_of(blocks_.back());
        // If the adapters begin within the block, its two parts are hashed one after the other, as two links.
        size_t n_base = std::min(scope_.from_position > begin ? scope_.from_position - begin : 0, block.size());
        if (n_base == 0 || n_base == block.size()) {
            blocks_.push_back(digest(n_base == 0, parent, block));
        } else {
            BlockIdentity first = digest(false, parent, block.first(n_base));
            blocks_.push_back(digest(true, text_of(first), block.subspan(n_base)));
        }
    }
}

}  // namespace lorad::server
