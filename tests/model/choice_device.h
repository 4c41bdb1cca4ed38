// Rows of logits and rules through sample_argmax and what follows it, without a model around.
#pragma once

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/kernels/kernels.h"
#include "gpu/queue.h"
#include "tests/support/test_device.h"

namespace lorad::testing {

// One output of a step.
struct ChoiceRow {
    std::vector<float> logits;
    gpu::ChoiceRule rule{};
    std::vector<gpu::TokenChange> changes = {};
    std::vector<int32_t> allowed = {};
    std::vector<uint32_t> mask = {};  // with kRuleMasked
    int32_t last_token = -1;          // what the step before has chosen, where the host did not know it
};

class ChoiceDevice {
  public:
    struct Found {
        int32_t token = 0;
        int32_t sampled = 0;  // where the next step reads it
        gpu::ChoiceLogprobs logprobs{};
    };

    ChoiceDevice() : kernels_(value(gpu::KernelSet::create(test_device(), {.path = gpu::KernelPath::kPortable}))) {}

    // Rows of equal length. As model/forward/forward.cpp runs them.
    std::vector<Found> choose(const std::vector<ChoiceRow>& rows) {
        const auto n = static_cast<uint32_t>(rows.size()), vocab = static_cast<uint32_t>(rows[0].logits.size());
        const uint32_t stride = gpu::padded(vocab);
        gpu::StepHeader header{};
        header.n_rows = header.n_logit_rows = n;
        const uint64_t logit_rows_at = sizeof(header) + n * sizeof(gpu::StepRow);
        const uint64_t rules_at = logit_rows_at + n * sizeof(gpu::LogitRow);
        uint64_t lists_at = round_up(static_cast<uint32_t>(rules_at + n * sizeof(gpu::ChoiceRule)), 16), end = lists_at;
        for (const ChoiceRow& row : rows) end += row.changes.size() * sizeof(gpu::TokenChange);
        uint64_t allowed_at = end;
        for (const ChoiceRow& row : rows) end += row.allowed.size() * sizeof(int32_t);
        const uint32_t n_words = (vocab + 31) / 32;
        uint32_t n_masks = 0;
        gpu::Buffer step = buffer(end), masks = buffer(uint64_t{n + 1} * n_words * 4);
        std::memset(masks.mapped().data(), 0x55, masks.size());  // of rows without one nobody reads any
        gpu::Buffer logits = buffer(uint64_t{n} * stride * 4), sampled = buffer(n * 4);
        std::memset(logits.mapped().data(), 0x7f, logits.size());  // the padding may hold anything
        put(step, 0, &header, 1);
        for (uint32_t i = 0; i < n; ++i) {
            const ChoiceRow& row = rows[i];
            gpu::StepRow step_row{};
            step_row.token = row.last_token < 0 ? 0 : ~static_cast<int32_t>(i);
            const gpu::LogitRow logit_row{i, gpu::kNoReadback};
            gpu::ChoiceRule rule = row.rule;
            rule.change_begin = static_cast<uint32_t>(lists_at / sizeof(gpu::TokenChange));
            rule.n_changes = static_cast<uint32_t>(row.changes.size());
            rule.allowed_begin = static_cast<uint32_t>(allowed_at / sizeof(int32_t));
            rule.n_allowed = static_cast<uint32_t>(row.allowed.size());
            if (!row.mask.empty()) {
                rule.mask = n_masks++;
                put(masks, uint64_t{rule.mask} * n_words * 4, row.mask.data(), n_words);
            }
            put(step, sizeof(header) + i * sizeof(step_row), &step_row, 1);
            put(step, logit_rows_at + i * sizeof(logit_row), &logit_row, 1);
            put(step, rules_at + i * sizeof(rule), &rule, 1);
            put(step, lists_at, row.changes.data(), row.changes.size());
            put(step, allowed_at, row.allowed.data(), row.allowed.size());
            lists_at += row.changes.size() * sizeof(gpu::TokenChange);
            allowed_at += row.allowed.size() * sizeof(int32_t);
            put(sampled, i * 4, &row.last_token, 1);
            put(logits, uint64_t{i} * stride * 4, row.logits.data(), vocab);
        }
        gpu::Buffer results = buffer(n * sizeof(gpu::SampleResult)), logprobs = buffer(n * sizeof(gpu::ChoiceLogprobs));
        gpu::Buffer partials = buffer(gpu::SamplingKernels::sample_partial_bytes(n));
        std::memset(logprobs.mapped().data(), 0, logprobs.size());

        const gpu::SampleChoiceParams params{.step = step.address(),
                                             .logit_rows = step.address() + logit_rows_at,
                                             .rules = step.address() + rules_at,
                                             .logits = logits.address(),
                                             .sampled = sampled.address(),
                                             .results = results.address(),
                                             .logprobs = logprobs.address(),
                                             .masks = n_masks > 0 ? masks.address() : 0,
                                             .vocab = vocab,
                                             .logits_stride = stride};
        auto recorder = value(gpu::Recorder::begin(test_device()));
        kernels_->sampling.sample_last_tokens(recorder, params, n);
        recorder.barrier();
        kernels_->sampling.sample_argmax(recorder,
                                         {.n_logit_rows = step.address() + offsetof(gpu::StepHeader, n_logit_rows),
                                          .logits = logits.address(),
                                          .logit_rows = params.logit_rows,
                                          .sampled = sampled.address(),
                                          .results = results.address(),
                                          .host_logits = 0,
                                          .partials = partials.address(),
                                          .vocab = vocab,
                                          .logits_stride = stride},
                                         n);
        recorder.barrier();
        kernels_->sampling.sample_changes(recorder, params, n, false);
        recorder.barrier();
        kernels_->sampling.sample_draw(recorder, params, n);
        recorder.barrier();
        kernels_->sampling.sample_changes(recorder, params, n, true);
        recorder.barrier();
        kernels_->sampling.sample_logprobs(recorder, params, n);
        const Status recorded = kernels_->status();
        EXPECT_TRUE(recorded.ok()) << recorded.error().message;
        const gpu::CommandBuffer made = value(std::move(recorder).end());
        const gpu::CommandBuffer* recordings[] = {&made};
        gpu::Queue& queue = test_device().compute_queue();
        EXPECT_TRUE(queue.wait(value(queue.submit(recordings))).ok());
        std::vector<Found> found(n);
        const auto* result = reinterpret_cast<const gpu::SampleResult*>(results.mapped().data());
        const auto* fed_back = reinterpret_cast<const int32_t*>(sampled.mapped().data());
        const auto* logprob = reinterpret_cast<const gpu::ChoiceLogprobs*>(logprobs.mapped().data());
        for (uint32_t i = 0; i < n; ++i) {
            found[i] = {result[i].token, fed_back[i], logprob[i]};
            EXPECT_EQ(0,
                      std::memcmp(logits.mapped().data() + uint64_t{i} * stride * 4, rows[i].logits.data(), vocab * 4))
                << "row " << i << " is not what it was";
        }
        return found;
    }

  private:
    template <typename T>
    static T value(Result<T> result) {
        EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
        return std::move(result).value();
    }
    static gpu::Buffer buffer(uint64_t n_bytes) {
        return value(test_device().create_buffer(n_bytes, gpu::MemoryKind::kHostReadback, "test"));
    }
    template <typename T>
    static void put(const gpu::Buffer& to, uint64_t offset, const T* from, size_t n) {
        if (n > 0) std::memcpy(to.mapped().data() + offset, from, n * sizeof(T));
    }

    std::unique_ptr<gpu::KernelSet> kernels_;
};

}  // namespace lorad::testing
