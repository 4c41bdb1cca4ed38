// A hybrid of delta nets, and one of short convolutions, served: rows of several sequences in each step, prompts in chunks, preemptions. The tokens are those of each text alone.
#include <gtest/gtest.h>

#include "model/runner.h"
#include "proto/base/log.h"
#include "server/engine/engine.h"
#include "server/engine/executor_runner.h"
#include "tests/support/families.h"
#include "tests/support/load_executor.h"

namespace lorad::server::state_device_test {
namespace {

constexpr uint32_t kTokens = 24, kBlocks = 9;

class StateDevice : public ::testing::TestWithParam<const char*> {};

TEST_P(StateDevice, TokensOfAllTogetherAreThoseOfEachAlone) {
    set_log_level(LogLevel::kError);
    const std::string name = GetParam();
    const auto executor = testing::load_executor(testing::families_dir() / "models" / name, {.n_rows_max = 96, .n_sequences_max = 5, .n_positions_max = 256, .n_adapter_slots = 1, .n_kv_blocks = kBlocks,
                                                                                             .kernel_path = gpu::KernelPath::kPortable});
    const auto prompts = testing::read_golden_prompts(testing::families_dir() / "expected/models" / (name + ".json"));
    std::vector<std::vector<TokenId>> want;
    for (const auto& prompt : prompts) {
        const auto generated = model::Runner(*executor).generate(prompt.ids, {.n_tokens_max = kTokens, .ignore_eos = true});
        ASSERT_TRUE(generated.ok()) << generated.error().message;
        want.push_back(generated->ids);
    }
    ExecutorRunner runner(*executor);
    Metrics metrics{{"golden", model::kBlockTokens, kBlocks, 1, "device", "", false}};
    EngineOptions options;
    options.limits = {96, 5, model::kBlockTokens};
    options.n_kv_blocks = kBlocks;
    options.prefix_cache = false;
    options.has_state = true;
    options.n_prefill_rows_max = 37;  // chunks end anywhere
    Engine engine(runner, metrics, options);
    std::vector<std::shared_ptr<TokenStream>> streams;
    std::vector<size_t> which;
    for (uint32_t round = 0; round < 2; ++round) {
        for (size_t i = 0; i < prompts.size(); ++i) {
            Request request;
            request.prompt = prompts[i].ids;
            request.n_tokens_max = kTokens;
            request.sampling.temperature = 0.0f;
            request.stream = std::make_shared<TokenStream>(kTokens);
            streams.push_back(request.stream);
            which.push_back(i);
            ASSERT_TRUE(engine.submit(std::move(request)).ok());
            engine.step();
        }
    }
    while (engine.step()) {
    }
    for (size_t i = 0; i < streams.size(); ++i) {
        const TokenStream::Batch batch = streams[i]->pop(std::chrono::milliseconds(0));
        ASSERT_TRUE(batch.end);
        EXPECT_EQ(batch.tokens, want[which[i]]) << "prompt " << which[i];
    }
    set_log_level(LogLevel::kInfo);
}

// Whatever pieces a prompt comes in: the state of its last row is the same.
TEST_P(StateDevice, PromptsAreWhatTheyAreHoweverTheyAreCut) {
    const std::string name = GetParam();
    const auto executor = testing::load_executor(testing::families_dir() / "models" / name, {.n_rows_max = 256, .n_sequences_max = 2, .n_positions_max = 256, .n_adapter_slots = 1, .n_kv_blocks = 20,
                                                                                             .kernel_path = gpu::KernelPath::kPortable});
    for (const uint32_t n : {1u, 63u, 64u, 65u, 130u, 211u}) {
        std::vector<TokenId> ids;
        for (uint32_t i = 0; i < n; ++i) ids.push_back((i * 37 + n) % 300);
        const auto whole = model::Runner(*executor).logits(ids, false, kNoAdapterSlot, 256);
        ASSERT_TRUE(whole.ok()) << whole.error().message;
        for (const uint32_t n_chunk : {64u, 37u, 1u}) {
            const auto cut = model::Runner(*executor).logits(ids, false, kNoAdapterSlot, n_chunk);
            ASSERT_TRUE(cut.ok()) << cut.error().message;
            EXPECT_LE(testing::relative_error(cut->data(), whole->data(), whole->size()), 1e-5) << n << " tokens in pieces of " << n_chunk;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Hybrids, StateDevice, ::testing::Values("qwen35", "lfm2", "granite-hybrid"));

}  // namespace
}  // namespace lorad::server::state_device_test
