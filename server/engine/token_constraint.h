// A request's grammar as the engine sees it: the tokens that its answer may have next. One object for each sequence;
// after hand-over only the threads of the mask pool use it, one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/result.h"

namespace lorad::server {

class TokenConstraint {
  public:
    virtual ~TokenConstraint() = default;
    // Resizes `words` to the vocabulary, also where it fails, and sets bit id % 32 of words[id / 32]
    // for every token that may come next. Where the answer is complete the end-of-sequence tokens
    // are among them.
    virtual Status next_mask(std::vector<uint32_t>& words) = 0;
    // The token that was chosen. After an error no mask is of use.
    virtual Status accept(TokenId token) = 0;
    // Processor time of one of its masks; 0: unknown.
    virtual double mask_seconds() const { return 0; }
    // Returns a copy in the same state, for another sequence.
    virtual Result<std::unique_ptr<TokenConstraint>> duplicate() const = 0;
};

}  // namespace lorad::server
