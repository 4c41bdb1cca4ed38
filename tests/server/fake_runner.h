// A device made of arithmetic: it keeps a KV cache of tokens and of what the adapters did to them,
// and the next token is a hash of what the row can see through its block table. A wrong block,
// position, order, slot, scale or content of a slot changes the tokens.
#pragma once

#include <atomic>
#include <bit>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "model/exec/kv_cache.h"
#include "model/output/logits.h"
#include "model/output/sampler.h"
#include "server/engine/step_runner.h"

namespace lorad::server {

inline constexpr uint32_t kFakeVocab = 997;

inline constexpr uint32_t kFakeHidden = 4;
inline constexpr uint32_t kMaskWords = model::mask_words(kFakeVocab);

// What lies in a slot; stands for the adapter's weights.
using SlotDigest = std::function<uint64_t(uint32_t slot)>;

inline uint64_t fake_mix(uint64_t hash, uint64_t value) { return (hash ^ value) * 1099511628211ull; }

// What the adapters of a row do to it; 0: nothing.
inline uint64_t fake_delta(std::span<const LoraUse> uses, const SlotDigest& digest) {
    uint64_t hash = 0;
    for (const LoraUse& use : uses) {
        hash = fake_mix(fake_mix(hash + 1, digest ? digest(use.slot) : use.slot), std::bit_cast<uint32_t>(use.scale));
    }
    return hash;
}

// The same in a text whose positions begin elsewhere in the table of cos and sin.
inline uint64_t fake_turned(uint64_t delta, uint32_t rope_begin) {
    return rope_begin == 0 ? delta : fake_mix(delta + 1, rope_begin);
}

// The model: tokens, and what the adapters did at each of them.
class FakeState {
  public:
    void add(TokenId token, uint64_t delta) { hash_ = fake_mix(fake_mix(hash_, uint64_t(token)), delta); }
    // With many tokens that may be drawn.
    std::vector<float> spread_logits() const {
        std::vector<float> logits(kFakeVocab);
        for (uint32_t id = 0; id < kFakeVocab; ++id)
            logits[id] = float(fake_mix(fake_mix(hash_, id), 77) >> 40 & 0xffffu) / 8192.0f;
        logits[size_t(next_token())] = 8.0f;
        return logits;
    }
    TokenId next_token() const { return TokenId((hash_ >> 20) % kFakeVocab); }
    // A hidden state, never all zeros.
    std::vector<float> hidden() const {
        std::vector<float> out;
        for (uint32_t i = 0; i < kFakeHidden; ++i) out.push_back(1.0f + float(hash_ >> (16 * i) & 0xff));
        return out;
    }

  private:
    uint64_t hash_ = 1469598103934665603ull;
};

// The hidden state of a prompt's last token under the adapter of a slot.
inline std::vector<float> fake_hidden(std::span<const TokenId> prompt, uint32_t adapter_slot) {
    LoraUse use{adapter_slot, 1.0f};
    uint64_t delta = adapter_slot == kNoAdapterSlot ? 0 : fake_delta({&use, 1}, {});
    FakeState state;
    for (TokenId token : prompt) state.add(token, delta);
    return state.hidden();
}

// What a prompt is continued with under adapters that act from a position on.
inline std::vector<TokenId> fake_continuation(std::span<const TokenId> prompt, const model::RowAdapters& adapters,
                                              size_t n, const SlotDigest& digest = {}) {
    uint64_t delta = fake_delta(adapters.uses, digest);
    FakeState state;
    for (size_t i = 0; i < prompt.size(); ++i) state.add(prompt[i], i < adapters.from_position ? 0 : delta);
    std::vector<TokenId> out;
    while (out.size() < n) {
        out.push_back(state.next_token());
        state.add(out.back(), prompt.size() + out.size() <= adapters.from_position ? 0 : delta);
    }
    return out;
}

inline std::vector<TokenId> fake_continuation(const std::vector<TokenId>& prompt, uint32_t adapter_slot, size_t n) {
    LoraUse use{adapter_slot, 1.0f};
    return fake_continuation(prompt, model::RowAdapters{{&use, adapter_slot == kNoAdapterSlot ? 0u : 1u}}, n);
}

class FakeRunner final : public StepRunner {
  public:
    explicit FakeRunner(uint32_t n_blocks) : cache_(size_t(n_blocks) * model::kBlockTokens) {}

    Status submit(const model::StepBatch& batch) override {
        CHECK(pending_.size() < 2 && deferred_.empty());
        n_in_flight_max_ = std::max(n_in_flight_max_, uint32_t(pending_.size()) + 1);
        n_rows_max_ = std::max(n_rows_max_, batch.n_rows());
        ++n_steps_;
        n_rows_ += batch.n_rows();
        trace_ = fake_mix(trace_, batch.n_rows());
        for (const model::BatchRow& row : batch.rows()) {
            trace_ = fake_mix(fake_mix(trace_, uint64_t(row.token)), row.position);
            trace_ = fake_mix(trace_, place(batch, row, row.position));
        }
        CHECK(!batch.is_merged() || merged_);
        (batch.is_merged() ? n_merged_rows_ : n_unmerged_rows_) += batch.n_rows();
        for (const model::BatchRow& row : batch.rows()) {
            if (batch.is_merged() && row.adapter_slot != merged_slot_) n_broken_.fetch_add(1);
        }
        if (fail_at_step_ && n_steps_ == *fail_at_step_)
            return make_error(ErrorCode::kDeviceLost, "the fake device is gone");
        if (refuse_step_ && refuse_step_(n_steps_)) return make_error(refusal_, "the fake device refuses this step");
        // Each slot is read once when the step begins and once when it ends.
        std::map<uint32_t, uint64_t> slots;
        for (const LoraUse& use : batch.lora_uses()) {
            if (slot_digest_ && !slots.contains(use.slot)) slots[use.slot] = slot_digest_(use.slot);
        }
        SlotDigest digest;
        if (slot_digest_) digest = [&slots](uint32_t slot) { return slots.at(slot); };
        // As on the device: all rows are stored before any is looked at.
        for (const model::BatchRow& row : batch.rows()) {
            TokenId token = row.token < 0 ? last_argmax_.at(size_t(~row.token)) : row.token;
            auto uses = batch.lora_uses().subspan(row.use_begin, row.n_uses);
            cache_[place(batch, row, row.position)] = {token, row.position,
                                                       fake_turned(fake_delta(uses, digest), row.rope_begin)};
        }
        StepResult result;
        std::vector<gpu::ChoiceLogprobs> logprobs_for_step;
        for (const model::OutputRow& output : batch.outputs()) {
            const model::BatchRow& row = batch.rows()[output.row];
            FakeState state;
            bool whole = true;
            TokenId last = -1;
            for (uint32_t position = 0; position <= row.position; ++position) {
                const Entry& entry = cache_[place(batch, row, position)];
                whole = whole && entry.position == position;
                state.add(entry.token, entry.delta);
                last = entry.token;
            }
            if (!whole) n_broken_.fetch_add(1);
            TokenId next = state.next_token();
            if (not_finite_token_ && last == *not_finite_token_) next = -1;
            std::vector<float> row_values(kFakeVocab, 0.0f);
            if (next >= 0 && spread_logits_)
                row_values = state.spread_logits();
            else if (next >= 0)
                row_values.at(size_t(next)) = 50.0f;
            result.argmax.push_back(next);
            gpu::ChoiceLogprobs& logprobs = logprobs_for_step.emplace_back();
            if (output.choice >= 0 && next >= 0) {
                Deferred choice = deferred_of(batch, row, batch.choices()[size_t(output.choice)]);
                choice.output = result.argmax.size() - 1;
                choice.own = row_values;
                if ((choice.rule.what & gpu::kRuleMasked) != 0)
                    deferred_.push_back(std::move(choice));
                else
                    result.argmax.back() = choose(choice, logprobs);
            }
            result.hidden.emplace_back();
            if (output.want_hidden) {
                hidden_.push_back(std::make_shared<std::vector<float>>(state.hidden()));
                result.hidden.back() = *hidden_.back();
            }
            if (output.want_logits) {
                auto row_logits = std::make_shared<std::vector<float>>(std::move(row_values));
                result.logits.emplace_back(*row_logits);
                logits_.push_back(std::move(row_logits));
            } else {
                result.logits.emplace_back();
            }
        }
        last_argmax_ = result.argmax;
        // What is not written is seen as nothing allowed, or as anything.
        masks_.assign(batch.n_masks() * kMaskWords, 0xa5a5a5a5u);
        if (batch.n_masks() > 0) {
            ++n_masked_steps_;
            n_masked_ahead_ += pending_.empty() ? 0 : 1;
        }
        needs_draw_ = batch.n_masks() > 0;
        const Clock::time_point now = Clock::now();
        if (!pending_.empty() && now < pending_.back().done) {
            const double left = std::chrono::duration<double>(pending_.back().done - now) / step_time_.load();
            n_late_ = left < 0.5 ? n_late_ + 1 : 0;
        }
        last_done_ = std::max(now, last_done_) + step_time_.load();
        pending_.push_back({std::move(result), std::move(slots), std::move(logprobs_for_step), last_done_});
        return ok_status();
    }

    std::span<uint32_t> masks() override {
        CHECK(needs_draw_);
        return masks_;
    }

    Result<bool> submit_draw() override {
        CHECK(needs_draw_);
        needs_draw_ = false;
        Pending& step = pending_.back();
        for (const Deferred& choice : deferred_)
            step.result.argmax[choice.output] = choose(choice, step.logprobs[choice.output]);
        deferred_.clear();
        last_argmax_ = step.result.argmax;
        return false;
    }

    Status health() const override {
        return lost_ ? make_error(ErrorCode::kDeviceLost, "the fake device is gone") : ok_status();
    }

    Result<StepResult> finish() override {
        CHECK(!pending_.empty() && (pending_.size() > 1 || !needs_draw_));
        std::this_thread::sleep_until(pending_.front().done);
        // The device reads the slots until the step is done.
        for (const auto& [slot, digest] : pending_.front().slots) {
            if (slot_digest_(slot) != digest) n_broken_.fetch_add(1);
        }
        StepResult result = std::move(pending_.front().result);
        finished_logprobs_ = std::move(pending_.front().logprobs);
        result.logprobs = finished_logprobs_;
        pending_.pop_front();
        while (logits_.size() > 256) logits_.pop_front();
        while (hidden_.size() > 256) hidden_.pop_front();
        return result;
    }

    // The number that a row of the step submitted last sees at a position of its sequence; it changes with the token
    // and with what adapters did there.
    uint64_t seen(const model::StepBatch& batch, const model::BatchRow& row, uint32_t position) const {
        const Entry& entry = cache_[place(batch, row, position)];
        return fake_mix(fake_mix(position + 1, uint64_t(entry.token)), entry.delta);
    }
    // The number of its first n tokens.
    uint64_t history(const model::StepBatch& batch, const model::BatchRow& row, uint32_t n) const {
        uint64_t hash = 0;
        for (uint32_t position = 0; position < n; ++position) hash = fake_mix(hash, seen(batch, row, position));
        return hash;
    }

    void use_merged(std::shared_ptr<const model::MergedWeights> merged) override { merged_ = std::move(merged); }
    bool has_merged() const { return merged_ != nullptr; }

    uint32_t n_broken() const {
        return n_broken_.load();
    }  // outputs that saw a KV entry not their own, slots written under a step
    uint64_t n_steps() const { return n_steps_; }
    // Of all that the steps were given: tokens, positions and places in the cache.
    uint64_t trace() const { return trace_; }
    uint64_t n_rows() const { return n_rows_; }  // of all steps
    uint32_t n_rows_max() const { return n_rows_max_; }
    uint64_t n_rules() const { return n_rules_; }  // outputs whose token was chosen by a rule
    uint32_t n_in_flight_max() const { return n_in_flight_max_; }
    // Steps with masks, and of those the ones that were begun before the step before was finished.
    uint64_t n_masked_steps() const { return n_masked_steps_; }
    uint64_t n_masked_ahead() const { return n_masked_ahead_; }

    // Rows of steps on the merged weights, and of others.
    uint64_t n_merged_rows() const { return n_merged_rows_; }
    uint64_t n_unmerged_rows() const { return n_unmerged_rows_; }

    uint32_t merged_slot_ = kNoAdapterSlot;               // rows of merged steps have to be this one's
    std::atomic<std::chrono::microseconds> step_time_{};  // from its submission, or the end of the step before
    std::optional<uint64_t> fail_at_step_;
    ErrorCode refusal_ = ErrorCode::kOutOfMemory;
    std::function<bool(uint64_t step)> refuse_step_;  // whether it is refused; steps count from 1
    std::atomic<bool> lost_{false};                   // somebody else has found the device lost
    bool spread_logits_ = false;                      // else one token has nearly all of the probability
    std::optional<TokenId> not_finite_token_;         // after it the output is not finite
    SlotDigest slot_digest_;                          // without it a slot's number stands for its content

    // The last so many steps were submitted when less than half of the one before them was left, but not none.
    uint32_t n_late() const { return n_late_; }

  private:
    using Clock = std::chrono::steady_clock;
    struct Entry {
        TokenId token = -1;
        uint32_t position = 0xffffffffu;
        uint64_t delta = 0;
    };
    struct Pending {
        StepResult result;
        std::map<uint32_t, uint64_t> slots;  // digests of those that the step reads
        std::vector<gpu::ChoiceLogprobs> logprobs;
        Clock::time_point done;
    };

    // All that a choice by a rule depends on; where the rule has a mask it has to wait for that.
    struct Deferred {
        size_t output = 0;
        gpu::ChoiceRule rule;
        std::vector<TokenId> allowed;
        std::vector<gpu::TokenChange> changes;
        TokenId last_token = -1;
        std::vector<float> own;
    };
    Deferred deferred_of(const model::StepBatch& batch, const model::BatchRow& row, const gpu::ChoiceRule& rule) {
        auto allowed = batch.choice_allowed().subspan(rule.allowed_begin, rule.n_allowed);
        auto changes = batch.choice_changes().subspan(rule.change_begin, rule.n_changes);
        return {.rule = rule,
                .allowed = {allowed.begin(), allowed.end()},
                .changes = {changes.begin(), changes.end()},
                .last_token = row.token < 0 ? last_argmax_.at(size_t(~row.token)) : -1};
    }

    // What the device's kernels do by a rule.
    TokenId choose(const Deferred& choice, gpu::ChoiceLogprobs& to) {
        ++n_rules_;
        const gpu::ChoiceRule& rule = choice.rule;
        const std::vector<float>& own = choice.own;
        std::vector<float> logits = own;
        if (!choice.allowed.empty()) model::allow_only(logits, choice.allowed);
        if ((rule.what & gpu::kRuleMasked) != 0)
            model::apply_mask(logits, std::span(masks_).subspan(rule.mask * kMaskWords, kMaskWords));
        model::change_logits(logits, rule, choice.changes, choice.last_token);
        model::SamplerScratch scratch;
        TokenId token = model::sample(logits, rule, scratch);
        if (token < 0) return gpu::kNothingAllowed;
        if ((rule.what & gpu::kRuleLogprobs) == 0) return token;
        proto::TokenLogprobs found = model::logprobs_of(own, token, rule.n_top);
        to.logprob = found.token.logprob;
        to.rank = found.token.rank;
        to.n_top = uint32_t(found.top.size());
        for (uint32_t i = 0; i < to.n_top; ++i) {
            to.tokens[i] = uint32_t(found.top[i].id);
            to.logprobs[i] = found.top[i].logprob;
        }
        return token;
    }
    size_t place(const model::StepBatch& batch, const model::BatchRow& row, uint32_t position) const {
        uint32_t index = position / model::kBlockTokens;
        CHECK(index < row.n_blocks);
        return size_t(batch.block_tables()[row.table_begin + index]) * model::kBlockTokens +
               position % model::kBlockTokens;
    }

    std::vector<Entry> cache_;
    std::deque<std::shared_ptr<std::vector<float>>> logits_;  // of the last steps
    std::deque<std::shared_ptr<std::vector<float>>> hidden_;  // likewise
    std::deque<Pending> pending_;                             // oldest first
    std::vector<gpu::ChoiceLogprobs> finished_logprobs_;
    std::vector<Deferred> deferred_;  // of the youngest step, until its masks are there
    std::vector<uint32_t> masks_;
    bool needs_draw_ = false;
    uint64_t n_masked_steps_ = 0, n_masked_ahead_ = 0;
    std::vector<TokenId> last_argmax_;  // what the next step can feed back
    Clock::time_point last_done_{};
    std::atomic<uint64_t> n_steps_{0};
    std::atomic<uint32_t> n_late_{0};
    uint64_t trace_ = 0, n_rules_ = 0, n_rows_ = 0;
    std::atomic<uint64_t> n_merged_rows_{0}, n_unmerged_rows_{0};
    std::shared_ptr<const model::MergedWeights> merged_;
    uint32_t n_rows_max_ = 0;
    uint32_t n_in_flight_max_ = 0;
    std::atomic<uint32_t> n_broken_{0};
};

}  // namespace lorad::server
