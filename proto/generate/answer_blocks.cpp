#include "proto/generate/answer_blocks.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace lorad::proto {

void AnswerBlocks::close(std::vector<BlockChange>& changes, bool cut) {
    if (blocks_.empty() || blocks_.back().ended) return;
    blocks_.back().ended = true;
    blocks_.back().cut = cut;
    changes.push_back({BlockChange::What::kEnds, static_cast<uint32_t>(blocks_.size()) - 1});
}

AnswerBlock& AnswerBlocks::open(BlockKind kind, std::vector<BlockChange>& changes) {
    close(changes);
    blocks_.push_back({.kind = kind, .id = make_id_(kind)});
    return blocks_.back();
}

void AnswerBlocks::grow(BlockKind kind, const std::string& delta, std::vector<BlockChange>& changes) {
    if (delta.empty()) return;
    if (blocks_.empty() || blocks_.back().ended || blocks_.back().kind != kind) {
        open(kind, changes);
        changes.push_back({BlockChange::What::kBegins, static_cast<uint32_t>(blocks_.size()) - 1});
    }
    AnswerBlock& block = blocks_.back();
    block.text += delta;
    BlockChange change{BlockChange::What::kGrows, static_cast<uint32_t>(blocks_.size()) - 1, delta};
    if (kind == BlockKind::kText) {
        change.logprobs = std::exchange(logprobs_, {});
        block.logprobs.insert(block.logprobs.end(), change.logprobs.begin(), change.logprobs.end());
    }
    changes.push_back(std::move(change));
}

std::vector<BlockChange> AnswerBlocks::take(const ChoicePart& part) {
    std::vector<BlockChange> changes;
    if (part.logprobs) {
        logprobs_.insert(logprobs_.end(), part.logprobs->tokens.begin(), part.logprobs->tokens.end());
    }
    // Thoughts come before the text, which is where it stands among the calls.
    grow(BlockKind::kReasoning, part.reasoning, changes);
    size_t n_text = 0;
    const auto grow_text = [&](size_t end) {
        end = std::clamp(end, n_text, part.text.size());
        grow(BlockKind::kText, part.text.substr(n_text, end - n_text), changes);
        n_text = end;
    };
    for (const ToolCallPart& call : part.tool_calls) {
        grow_text(call.text_before);
        if (!call.name.empty()) {
            AnswerBlock& block = open(BlockKind::kToolCall, changes);
            block.call_id = call.id;
            block.name = call.name;
            changes.push_back({BlockChange::What::kBegins, static_cast<uint32_t>(blocks_.size()) - 1});
        }
        grow(BlockKind::kToolCall, call.arguments, changes);
    }
    grow_text(part.text.size());
    bool whole = part.finish_reason == "stop" || part.finish_reason == "tool_calls";
    if (!part.finish_reason.empty()) close(changes, !whole);
    return changes;
}

}  // namespace lorad::proto
