// A device made of arithmetic: it keeps a KV cache of tokens, and the next token is a hash of what
// the row can see through its block table and of its adapter. A wrong block, position, order or
// slot changes the tokens.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "model/kv_cache.h"
#include "server/engine/step_runner.h"

namespace lorad::server {

inline constexpr uint32_t kFakeVocab = 997;

// What a sequence of tokens is continued with under an adapter.
inline TokenId fake_next_token(std::span<const TokenId> tokens, uint32_t adapter_slot) {
    uint64_t hash = 1469598103934665603ull ^ adapter_slot;
    for (TokenId token : tokens) hash = (hash ^ uint64_t(token)) * 1099511628211ull;
    return TokenId((hash >> 20) % kFakeVocab);
}

inline std::vector<TokenId> fake_continuation(std::vector<TokenId> tokens, uint32_t adapter_slot,
                                              size_t n) {
    std::vector<TokenId> out;
    for (size_t i = 0; i < n; ++i) {
        out.push_back(fake_next_token(tokens, adapter_slot));
        tokens.push_back(out.back());
    }
    return out;
}

class FakeRunner final : public StepRunner {
  public:
    explicit FakeRunner(uint32_t n_blocks) : cache_(size_t(n_blocks) * model::kBlockTokens) {}

    Status submit(const model::StepBatch& batch) override {
        CHECK(pending_.size() < 2);
        n_in_flight_max_ = std::max(n_in_flight_max_, uint32_t(pending_.size()) + 1);
        n_rows_max_ = std::max(n_rows_max_, batch.n_rows());
        ++n_steps_;
        CHECK(!batch.is_merged() || merged_);
        (batch.is_merged() ? n_merged_rows_ : n_unmerged_rows_) += batch.n_rows();
        for (const model::BatchRow& row : batch.rows()) {
            if (batch.is_merged() && row.adapter_slot != merged_slot_) n_broken_.fetch_add(1);
        }
        if (fail_at_step_ && n_steps_ == *fail_at_step_)
            return make_error(ErrorCode::kDeviceLost, "the fake device is gone");
        // As on the device: all rows are stored before any is looked at.
        for (const model::BatchRow& row : batch.rows()) {
            TokenId token = row.token < 0 ? last_argmax_.at(size_t(~row.token)) : row.token;
            cache_[place(batch, row, row.position)] = {token, row.position, row.adapter_slot};
        }
        StepResult result;
        for (const model::OutputRow& output : batch.outputs()) {
            const model::BatchRow& row = batch.rows()[output.row];
            std::vector<TokenId> seen;
            bool whole = true;
            for (uint32_t position = 0; position <= row.position; ++position) {
                const Entry& entry = cache_[place(batch, row, position)];
                whole =
                    whole && entry.position == position && entry.adapter_slot == row.adapter_slot;
                seen.push_back(entry.token);
            }
            if (!whole) n_broken_.fetch_add(1);
            TokenId next = fake_next_token(seen, row.adapter_slot);
            if (not_finite_token_ && seen.back() == *not_finite_token_) next = -1;
            result.argmax.push_back(next);
            if (output.want_logits) {
                auto row_logits = std::make_shared<std::vector<float>>(kFakeVocab, 0.0f);
                if (next >= 0) row_logits->at(size_t(next)) = 50.0f;
                result.logits.emplace_back(*row_logits);
                logits_.push_back(std::move(row_logits));
            } else {
                result.logits.emplace_back();
            }
        }
        last_argmax_ = result.argmax;
        pending_.push_back(std::move(result));
        return ok_status();
    }

    Result<StepResult> finish() override {
        CHECK(!pending_.empty());
        if (step_time_.count() > 0) std::this_thread::sleep_for(step_time_);
        StepResult result = std::move(pending_.front());
        pending_.pop_front();
        while (logits_.size() > 64) logits_.pop_front();
        return result;
    }

    void use_merged(std::shared_ptr<const model::MergedWeights> merged) override {
        merged_ = std::move(merged);
    }
    bool has_merged() const { return merged_ != nullptr; }

    uint32_t n_broken() const {
        return n_broken_.load();
    }  // outputs that saw a KV entry not their own
    uint32_t n_rows_max() const { return n_rows_max_; }
    uint32_t n_in_flight_max() const { return n_in_flight_max_; }

    // Rows of steps on the merged weights, and of others. Engine's thread, or after it ended.
    uint64_t n_merged_rows() const { return n_merged_rows_; }
    uint64_t n_unmerged_rows() const { return n_unmerged_rows_; }

    uint32_t merged_slot_ = kNoAdapterSlot;  // rows of merged steps have to be this one's
    std::chrono::microseconds step_time_{0};
    std::optional<uint64_t> fail_at_step_;
    std::optional<TokenId> not_finite_token_;  // after it the output is not finite

  private:
    struct Entry {
        TokenId token = -1;
        uint32_t position = 0xffffffffu;
        uint32_t adapter_slot = 0;
    };
    size_t place(const model::StepBatch& batch, const model::BatchRow& row,
                 uint32_t position) const {
        uint32_t index = position / model::kBlockTokens;
        CHECK(index < row.n_blocks);
        return size_t(batch.block_tables()[row.table_begin + index]) * model::kBlockTokens +
               position % model::kBlockTokens;
    }

    std::vector<Entry> cache_;
    std::deque<std::shared_ptr<std::vector<float>>> logits_;  // of the last steps
    std::deque<StepResult> pending_;                          // oldest first
    std::vector<TokenId> last_argmax_;                        // what the next step can feed back
    uint64_t n_steps_ = 0;
    uint64_t n_merged_rows_ = 0, n_unmerged_rows_ = 0;
    std::shared_ptr<const model::MergedWeights> merged_;
    uint32_t n_rows_max_ = 0;
    uint32_t n_in_flight_max_ = 0;
    std::atomic<uint32_t> n_broken_{0};
};

}  // namespace lorad::server
