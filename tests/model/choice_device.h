// Rows of logits and rules through sample_argmax and what follows it, without a model around.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "gpu/kernels/kernels.h"
#include "gpu/queue.h"
#include "tests/support/test_device.h"

namespace lorad::testing {

class ChoiceDevice {
  public:
    struct Found {
        int32_t token = 0;
        int32_t sampled = 0;  // where the next step reads it
    };

    ChoiceDevice() : kernels_(value(gpu::KernelSet::create(test_device(), {.path = gpu::KernelPath::kPortable}))) {}

    // Rows of equal length.
    std::vector<Found> choose(const std::vector<std::vector<float>>& rows, const std::vector<gpu::ChoiceRule>& rules) {
        const auto n = static_cast<uint32_t>(rows.size()), vocab = static_cast<uint32_t>(rows[0].size());
        const uint32_t stride = gpu::padded(vocab);
        gpu::StepHeader header{};
        header.n_logit_rows = n;
        const std::vector<gpu::LogitRow> logit_rows(n, {0, gpu::kNoReadback});
        const uint64_t rules_at = sizeof(header) + n * sizeof(gpu::LogitRow);
        gpu::Buffer step = buffer(rules_at + n * sizeof(gpu::ChoiceRule));
        put(step, 0, &header, 1);
        put(step, sizeof(header), logit_rows.data(), n);
        put(step, rules_at, rules.data(), n);
        gpu::Buffer logits = buffer(uint64_t{n} * stride * 4);
        std::memset(logits.mapped().data(), 0x7f, logits.size());  // the padding may hold anything
        for (uint32_t i = 0; i < n; ++i) put(logits, uint64_t{i} * stride * 4, rows[i].data(), vocab);
        gpu::Buffer sampled = buffer(n * 4), results = buffer(n * sizeof(gpu::SampleResult));
        gpu::Buffer partials = buffer(gpu::KernelSet::sample_partial_bytes(n));

        auto recorder = value(gpu::Recorder::begin(test_device()));
        kernels_->sample_argmax(recorder,
                                {.n_logit_rows = step.address() + offsetof(gpu::StepHeader, n_logit_rows),
                                 .logits = logits.address(),
                                 .logit_rows = step.address() + sizeof(header),
                                 .sampled = sampled.address(),
                                 .results = results.address(),
                                 .host_logits = 0,
                                 .partials = partials.address(),
                                 .vocab = vocab,
                                 .logits_stride = stride},
                                n);
        recorder.barrier();
        kernels_->sample_draw(recorder,
                              {.step = step.address(),
                               .logit_rows = step.address() + sizeof(header),
                               .rules = step.address() + rules_at,
                               .logits = logits.address(),
                               .sampled = sampled.address(),
                               .results = results.address(),
                               .logprobs = 0,
                               .vocab = vocab,
                               .logits_stride = stride},
                              n);
        EXPECT_TRUE(kernels_->status().ok()) << kernels_->status().error().message;
        const gpu::CommandBuffer made = value(std::move(recorder).end());
        const gpu::CommandBuffer* recordings[] = {&made};
        gpu::Queue& queue = test_device().compute_queue();
        EXPECT_TRUE(queue.wait(value(queue.submit(recordings))).ok());
        std::vector<Found> found(n);
        const auto* result = reinterpret_cast<const gpu::SampleResult*>(results.mapped().data());
        const auto* fed_back = reinterpret_cast<const int32_t*>(sampled.mapped().data());
        for (uint32_t i = 0; i < n; ++i) found[i] = {result[i].token, fed_back[i]};
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
        std::memcpy(to.mapped().data() + offset, from, n * sizeof(T));
    }

    std::unique_ptr<gpu::KernelSet> kernels_;
};

}  // namespace lorad::testing
