// The identities under which the KV blocks of one request may be used again: one digest for each full block of its
// tokens, each over the one before it (adapters/pool/cache_identity.h). HTTP workers compute those of the prompt; the
// engine goes on with the tokens that it generates, a block at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "adapters/pool/cache_identity.h"
#include "adapters/pool/lease.h"

namespace lorad::server {

using BlockIdentity = adapters::CacheDigest;

// The inputs of keys and values besides the tokens: contents, never names.
struct PrefixScope {
    std::string base_fingerprint;
    std::vector<adapters::LeasedContent> adapters;  // in the order in which they are added up
    uint32_t from_position = 0;                     // tokens before it are the base's (activated LoRA)
    std::string tenant_salt;                        // requests with different ones never share blocks
};

// Copied and moved with its request; one thread at a time.
class PrefixIdentity {
  public:
    PrefixIdentity() = default;  // for requests whose blocks are not shared
    PrefixIdentity(PrefixScope scope, uint32_t block_tokens);

    bool is_shared() const { return block_tokens_ != 0; }
    // Identities of all full blocks of `tokens`, which begin with the tokens of the calls before.
    // About a microsecond for each new block.
    void extend(std::span<const TokenId> tokens);
    // The text has become a long one (model/config/rope.h), whose keys are others: forgets the blocks.
    void lengthen();
    // By block, from the first on.
    std::span<const BlockIdentity> blocks() const { return blocks_; }

  private:
    PrefixScope scope_;
    uint32_t block_tokens_ = 0;
    std::vector<BlockIdentity> blocks_;
};

}  // namespace lorad::server
