// Logits of decodes of made-up tokens, for tests that compare two ways of computing a step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "model/exec/executor.h"

namespace lorad::testing {

struct Decodes {
    uint32_t n = 1, n_steps = 1;
    uint32_t first_position = 0, vocab = 1;
};

// Sequence i in block i, with the adapter slot_of(i); n_steps of all of them, two in flight.
template <typename SlotOf>
std::vector<float> decode_logits(model::Executor& executor, const Decodes& decodes, const SlotOf& slot_of) {
    std::vector<float> all;
    const auto finish = [&] {
        const auto output = executor.finish();
        ASSERT_TRUE(output.ok());
        for (uint32_t i = 0; i < decodes.n; ++i)
            all.insert(all.end(), output->logits(i).begin(), output->logits(i).end());
    };
    for (uint32_t step = 0; step < decodes.n_steps; ++step) {
        model::StepBatch batch;
        for (uint32_t i = 0; i < decodes.n; ++i) {
            const BlockId block{i};
            const auto token = static_cast<TokenId>((7 * step + 11 * i) % decodes.vocab);
            batch.add_output(batch.add_rows({&token, 1}, decodes.first_position + step, {&block, 1}, slot_of(i)), true);
        }
        EXPECT_TRUE(executor.submit(batch).ok());
        if (executor.n_in_flight() == 2) finish();
    }
    finish();
    EXPECT_EQ(all.size(), size_t{decodes.n} * decodes.n_steps * decodes.vocab);
    return all;
}

}  // namespace lorad::testing
