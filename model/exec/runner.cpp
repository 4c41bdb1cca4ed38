#include "model/exec/runner.h"

#include <algorithm>
#include <utility>

#include "model/config/rope.h"
#include "model/output/sampler.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

bool contains(const std::vector<TokenId>& ids, TokenId id) { return std::ranges::find(ids, id) != ids.end(); }

// RowAdapters::rope_begin for a text of n_tokens.
uint32_t rope_begin(const Executor& executor, uint32_t n_tokens) {
    const uint32_t n_short = short_text_tokens(executor.config().rope, executor.options().n_positions_max);
    return n_tokens > n_short ? n_short : 0;
}

}  // namespace

Runner::Runner(Executor& executor) : executor_(&executor), pool_(executor.n_kv_blocks()) {}

// Blocks of one sequence, given back when it ends.
class Runner::Blocks {
  public:
    Blocks(BlockPool& pool, uint32_t n_tokens) : pool_(pool) {
        is_enough_ = pool.allocate(blocks_for_tokens(n_tokens), blocks_);
    }
    ~Blocks() { pool_.release(blocks_); }
    Blocks(const Blocks&) = delete;
    Blocks& operator=(const Blocks&) = delete;

    bool is_enough() const { return is_enough_; }
    std::span<const BlockId> view() const { return blocks_; }

  private:
    BlockPool& pool_;
    std::vector<BlockId> blocks_;
    bool is_enough_ = false;
};

Status Runner::check_tokens(std::span<const TokenId> tokens, uint32_t n_more) const {
    const ModelConfig& config = executor_->config();
    if (tokens.empty()) return make_error(ErrorCode::kInvalidRequest, "no tokens");
    for (size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] < 0 || static_cast<uint32_t>(tokens[i]) >= config.vocab_size) {
            return make_error(ErrorCode::kInvalidRequest,
                              format("token {} is {}, the vocabulary has {}", i, tokens[i], config.vocab_size));
        }
    }
    const uint64_t n_context = executor_->options().n_positions_max;
    if (tokens.size() + n_more > n_context) {
        return make_error(
            ErrorCode::kContextLengthExceeded,
            format("{} tokens and {} to generate are more than the context of {}", tokens.size(), n_more, n_context));
    }
    return ok_status();
}

Result<std::vector<float>> Runner::logits(std::span<const TokenId> tokens, bool all_positions, uint32_t adapter_slot,
                                          uint32_t n_chunk_rows) {
    const std::vector<LoraUse> uses = uses_of(adapter_slot);
    return logits(tokens, all_positions, RowAdapters{uses}, n_chunk_rows);
}

Result<std::vector<float>> Runner::logits(std::span<const TokenId> tokens, bool all_positions,
                                          const RowAdapters& adapters, uint32_t n_chunk_rows) {
    TRY(check_tokens(tokens, 0));
    const auto n_tokens = static_cast<uint32_t>(tokens.size());
    RowAdapters rows = adapters;
    rows.rope_begin = rope_begin(*executor_, n_tokens);
    const Blocks blocks(pool_, n_tokens);
    if (!blocks.is_enough()) return make_error(ErrorCode::kOutOfMemory, "the KV cache is too small for this text");
    uint32_t n_chunk = std::min(n_chunk_rows ? n_chunk_rows : UINT32_MAX, executor_->options().n_rows_max);
    if (all_positions) n_chunk = std::min(n_chunk, executor_->options().n_outputs_max);

    std::vector<float> all;
    all.reserve(size_t{all_positions ? n_tokens : 1} * executor_->config().vocab_size);
    StepBatch batch;
    for (uint32_t begin = 0; begin < n_tokens; begin += n_chunk) {
        const uint32_t n_rows = std::min(n_chunk, n_tokens - begin);
        batch.clear();
        if (merged_) batch.set_merged();
        batch.add_rows(tokens.subspan(begin, n_rows), begin, blocks.view(), rows);
        const bool is_last = begin + n_rows == n_tokens;
        if (all_positions) {
            for (uint32_t row = 0; row < n_rows; ++row) batch.add_output(row, true);
        } else if (is_last) {
            batch.add_output(n_rows - 1, true);
        }
        TRY(executor_->submit(batch));
        TRY_ASSIGN(const StepOutput output, executor_->finish());
        for (uint32_t i = 0; i < batch.n_outputs(); ++i) {
            const auto row = output.logits(i);
            all.insert(all.end(), row.begin(), row.end());
        }
    }
    return all;
}

Result<Generated> Runner::generate(std::span<const TokenId> prompt, const GenerateOptions& options) {
    TRY(check_tokens(prompt, options.n_tokens_max));
    const bool is_greedy = options.sampling.greedy();
    const auto n_prompt = static_cast<uint32_t>(prompt.size());
    const Blocks blocks(pool_, n_prompt + options.n_tokens_max);
    if (!blocks.is_enough()) return make_error(ErrorCode::kOutOfMemory, "the KV cache is too small for this text");
    const uint32_t n_chunk =
        std::min(options.n_chunk_rows ? options.n_chunk_rows : UINT32_MAX, executor_->options().n_rows_max);

    Generated generated;
    SamplerScratch scratch;
    StepBatch batch;
    RowAdapters rows{options.uses, options.uses_from, rope_begin(*executor_, n_prompt)};
    std::vector<TokenId> known(prompt.begin(), prompt.end());
    uint32_t n_computed = 0;
    while (generated.ids.size() < options.n_tokens_max) {
        const auto n_known = static_cast<uint32_t>(known.size());
        const uint32_t turns = rope_begin(*executor_, n_known);
        if (std::exchange(rows.rope_begin, turns) != turns) n_computed = 0;
        const uint32_t n_rows = std::min(n_chunk, n_known - n_computed);
        batch.clear();
        if (merged_) batch.set_merged();
        batch.add_rows(std::span(known).subspan(n_computed, n_rows), n_computed, blocks.view(), rows);
        n_computed += n_rows;
        const bool is_complete = n_computed == known.size();
        if (is_complete) batch.add_output(n_rows - 1, !is_greedy);
        TRY(executor_->submit(batch));
        TRY_ASSIGN(const StepOutput output, executor_->finish());
        if (!is_complete) continue;
        const TokenId token =
            is_greedy ? output.sampled[0] : sample(output.logits(0), options.sampling, n_computed, scratch);
        if (token < 0)
            return make_error(ErrorCode::kInternal,
                              format("a logit at position {} is not a finite number", n_computed - 1));
        known.push_back(token);
        generated.ids.push_back(token);
        if (options.on_token) options.on_token(token);
        if (!options.ignore_eos && contains(executor_->config().generation.eos_token_ids, token)) {
            generated.stopped = true;
            break;
        }
    }
    return generated;
}

}  // namespace lorad::model
