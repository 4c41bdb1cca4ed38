// An answer as a sequence of blocks - what the model thought, said and called - as /v1/responses and
// /v1/messages show it: one block is open at a time, and grows. One per request; its HTTP worker.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "proto/generate/generate_response.h"

namespace lorad::proto {

enum class BlockKind : uint8_t { kReasoning, kText, kToolCall };

struct AnswerBlock {
    BlockKind kind = BlockKind::kText;
    std::string id;                       // the block's own
    std::string text;                     // so far; of a call: its arguments
    std::string call_id, name;            // for calls
    std::vector<TokenLogprobs> logprobs;  // of a text's tokens, if requested
    bool ended = false;
    bool cut = false;  // ended because the answer did, before it was whole
};

struct BlockChange {
    enum class What : uint8_t { kBegins, kGrows, kEnds } what = What::kGrows;
    uint32_t block = 0;
    std::string delta = {};                    // for kGrows
    std::vector<TokenLogprobs> logprobs = {};  // for kGrows
};

class AnswerBlocks {
  public:
    explicit AnswerBlocks(std::function<std::string(BlockKind)> make_id) : make_id_(std::move(make_id)) {}

    // Adds a part of the answer. Returns the changes, in order; the last part ends the open block.
    std::vector<BlockChange> take(const ChoicePart& part);
    const std::vector<AnswerBlock>& blocks() const { return blocks_; }

  private:
    AnswerBlock& open(BlockKind kind, std::vector<BlockChange>& changes);
    void close(std::vector<BlockChange>& changes, bool cut = false);
    void grow(BlockKind kind, const std::string& delta, std::vector<BlockChange>& changes);

    const std::function<std::string(BlockKind)> make_id_;
    std::vector<AnswerBlock> blocks_;      // all but the last have ended
    std::vector<TokenLogprobs> logprobs_;  // of tokens whose text has not arrived
};

}  // namespace lorad::proto
