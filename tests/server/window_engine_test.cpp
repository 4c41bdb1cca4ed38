// Models with layers that see a window: their blocks are apart, go back behind the window to whoever needs some, and
// are there where a prefix is found.
#include <random>

#include <gtest/gtest.h>

#include "tests/server/engine_fixture.h"

namespace lorad::server::window_engine_test {
namespace {

constexpr uint32_t kWindow = 100;

// The fake device, which keeps beside its cache what such layers' blocks hold. A row that does not find all of its
// window there is wrong.
class WindowRunner final : public StepRunner {
  public:
    WindowRunner(uint32_t n_blocks, uint32_t n_window_blocks)
        : fake(n_blocks), held_(size_t(n_window_blocks) * model::kBlockTokens, 0) {}

    Status submit(const model::StepBatch& batch) override {
        TRY(fake.submit(batch));
        for (const model::BatchRow& row : batch.rows())
            held_[place(batch, row, row.position)] = fake.seen(batch, row, row.position);
        for (const model::BatchRow& row : batch.rows()) {
            for (uint32_t position = row.position + 1 > kWindow ? row.position + 1 - kWindow : 0;
                 position <= row.position; ++position) {
                if (held_[place(batch, row, position)] != fake.seen(batch, row, position)) ++n_wrong;
            }
        }
        return ok_status();
    }
    Result<StepResult> finish() override { return fake.finish(); }
    std::span<uint32_t> masks() override { return fake.masks(); }
    Result<bool> submit_draw() override { return fake.submit_draw(); }
    void use_merged(std::shared_ptr<const model::MergedWeights> merged) override { fake.use_merged(std::move(merged)); }

    FakeRunner fake;
    uint64_t n_wrong = 0;

  private:
    size_t place(const model::StepBatch& batch, const model::BatchRow& row, uint32_t position) const {
        EXPECT_NE(row.window_begin, row.table_begin);
        return size_t(batch.block_tables()[row.window_begin + position / model::kBlockTokens]) * model::kBlockTokens +
               position % model::kBlockTokens;
    }
    std::vector<uint64_t> held_;
};

struct WindowEngine {
    WindowEngine(uint32_t n_blocks, uint32_t n_sequences, uint32_t n_more_windows, uint32_t n_short_text_tokens = 0)
        : n_windows(uint32_t(groups().window_blocks_max(n_sequences, kRows)) + n_more_windows),
          runner(n_blocks, n_windows),
          metrics({.model_name = "base",
                   .block_tokens = model::kBlockTokens,
                   .n_kv_blocks = n_blocks,
                   .n_window_blocks = n_windows}),
          engine(runner, metrics, options(n_blocks, n_sequences, n_windows, n_short_text_tokens)) {}

    static constexpr uint32_t kRows = 128;
    static model::KvGroups groups() { return {.window = kWindow, .has_full = true, .windowed = {true, false}}; }
    static EngineOptions options(uint32_t n_blocks, uint32_t n_sequences, uint32_t n_windows,
                                 uint32_t n_short_text_tokens) {
        EngineOptions out;
        out.n_short_text_tokens = n_short_text_tokens;
        out.limits = {kRows, n_sequences, model::kBlockTokens};
        out.n_kv_blocks = n_blocks;
        out.groups = groups();
        out.n_window_blocks = n_windows;
        return out;
    }
    std::shared_ptr<TokenStream> submit(const std::vector<TokenId>& prompt, uint32_t n_max,
                                        const AdapterUse& adapter = {}) {
        Request request;
        request.prompt = prompt;
        request.n_tokens_max = n_max;
        request.sampling.temperature = 0.0f;
        request.adapter = adapter;
        request.prefix = fake_prefix(adapter, prompt);
        request.stream = std::make_shared<TokenStream>(n_max);
        auto stream = request.stream;
        EXPECT_TRUE(engine.submit(std::move(request)).ok());
        return stream;
    }
    void run_until_idle() {
        for (int i = 0; i < 100000 && engine.step(); ++i) {
        }
    }
    // Alone; what of the prompt was found.
    uint32_t run(const std::vector<TokenId>& prompt, uint32_t n, const AdapterUse& adapter = {}) {
        const auto stream = submit(prompt, n, adapter);
        run_until_idle();
        const TokenStream::Batch batch = stream->pop(std::chrono::milliseconds(0));
        EXPECT_TRUE(batch.end);
        EXPECT_EQ(batch.tokens, fake_continuation(prompt, adapter.rows(), n));
        EXPECT_EQ(runner.n_wrong, 0u);
        return stream->n_cached_tokens();
    }
    uint64_t metric(const std::string& name) const {
        const std::string head = name + "{model_name=\"base\"} ", text = metrics.text({});
        const size_t at = text.find(head);
        EXPECT_NE(at, std::string::npos) << name;
        return at == std::string::npos ? 0 : std::stoull(text.substr(at + head.size()));
    }

    const uint32_t n_windows;
    WindowRunner runner;
    Metrics metrics;
    Engine engine;
};

std::vector<TokenId> joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

TEST(WindowEngine, ALongTextHoldsItsWindowAlone) {
    WindowEngine served(64, 2, 0);
    const auto prompt = prompt_of(2500, 1);
    const auto stream = served.submit(prompt, 100);
    for (int i = 0; i < 60; ++i) {
        ASSERT_TRUE(served.engine.step());
        EXPECT_LE(served.metric("lorad_kv_window_blocks_used"), 7u) << "of 100 tokens, and of the rows of two steps";
    }
    served.run_until_idle();
    EXPECT_EQ(stream->pop(std::chrono::milliseconds(0)).tokens, fake_continuation(prompt, kNoAdapterSlot, 100));
    EXPECT_EQ(served.runner.n_wrong, 0u);
}

TEST(WindowEngine, APrefixIsFoundWhereTheWindowBeforeItsEndIsThere) {
    // No blocks beyond what may be needed: most of what goes back is soon others'.
    WindowEngine served(200, 2, 0);
    const auto first = prompt_of(1000, 1);
    EXPECT_EQ(served.run(first, 100), 0u);
    const auto answer = fake_continuation(first, kNoAdapterSlot, 100);
    const auto second = joined(joined(first, answer), prompt_of(30, 2));
    EXPECT_EQ(served.run(second, 2), 1088u) << "of 1099 tokens";
    EXPECT_EQ(served.run(joined(std::vector<TokenId>(first.begin(), first.end() - 5), prompt_of(80, 3)), 2), 960u)
        << "the window before the prompt's end is kept longest";
    AdapterUse other;
    other.uses = {{1, 0.5f}};
    EXPECT_EQ(served.run(second, 2, other), 0u);
    other.uses = {{1, 1.0f}};
    EXPECT_EQ(served.run(second, 2, other), 0u);
    EXPECT_EQ(served.run(second, 2, other), 1088u);
}

TEST(WindowEngine, WhatSeveralBeginWithIsKeptWhenTheSecondComes) {
    WindowEngine served(300, 2, 12);
    const auto common = prompt_of(700, 1);
    uint32_t found = 0;
    for (uint32_t i = 0; i < 4; ++i) found = served.run(joined(common, prompt_of(400, 10 + i)), 2);
    EXPECT_EQ(found, 640u);
}

// It is computed again from a prefix on while a step of its earlier rows is in flight.
TEST(WindowEngine, ATextThatBecomesLongGivesBackByItsNewPlace) {
    WindowEngine served(200, 2, 40, 600);
    const auto common = prompt_of(200, 1);
    const auto is_long = served.submit(joined(common, prompt_of(500, 2)), 2);
    served.run_until_idle();
    EXPECT_TRUE(is_long->pop(std::chrono::milliseconds(0)).end);
    const auto becomes_long = served.submit(joined(common, prompt_of(390, 3)), 60);
    served.run_until_idle();
    const TokenStream::Batch batch = becomes_long->pop(std::chrono::milliseconds(0));
    EXPECT_TRUE(batch.end);
    EXPECT_EQ(batch.tokens.size(), 60u);
    EXPECT_EQ(served.runner.n_wrong, 0u);
    EXPECT_EQ(served.runner.fake.n_broken(), 0u);
    EXPECT_EQ(served.metric("lorad_kv_window_blocks_used"), 0u);
}

// Few blocks of both kinds: texts are put back, cancelled and found again; each sees what it should.
TEST(WindowEngine, TokensAreThoseOfTheTextAloneWhoeverGivesBack) {
    for (const uint32_t seed : {1u, 2u, 3u}) {
        SCOPED_TRACE(seed);
        std::mt19937 random(seed);
        WindowEngine served(20, 5, seed * 2);
        struct Asked {
            std::vector<TokenId> prompt;
            AdapterUse adapter;
            uint32_t n_max = 0;
            std::shared_ptr<TokenStream> stream;
            bool is_cancelled = false;
        };
        std::vector<Asked> all;
        for (uint32_t i = 0; i < 100; ++i) {
            Asked asked;
            if (random() % 3 > 0) asked.adapter.uses = {{1 + uint32_t(random()) % 2, random() % 2 == 0 ? 1.0f : 0.5f}};
            const Asked* before = !all.empty() && random() % 2 == 0 ? &all[random() % all.size()] : nullptr;
            if (before != nullptr && before->prompt.size() < 600) {
                asked.prompt = joined(
                    joined(before->prompt, fake_continuation(before->prompt, before->adapter.rows(), random() % 90)),
                    prompt_of(1 + random() % 30, i));
                asked.adapter = before->adapter;
            } else {
                asked.prompt = joined(prompt_of(random() % 3 * 150, 7), prompt_of(1 + random() % 250, i));
            }
            asked.n_max = 1 + random() % 150;
            asked.stream = served.submit(asked.prompt, asked.n_max, asked.adapter);
            all.push_back(std::move(asked));
            for (uint32_t step = random() % 14; step > 0; --step) served.engine.step();
            if (random() % 8 == 0) {
                Asked& some = all[random() % all.size()];
                some.stream->cancel(FinishReason::kCancelled);
                some.is_cancelled = true;
            }
        }
        served.run_until_idle();
        for (const Asked& asked : all) {
            const TokenStream::Batch batch = asked.stream->pop(std::chrono::milliseconds(0));
            ASSERT_TRUE(batch.end);
            const std::vector<TokenId> want = fake_continuation(asked.prompt, asked.adapter.rows(), asked.n_max);
            if (!asked.is_cancelled) {
                EXPECT_EQ(batch.tokens.size(), want.size());
            }
            EXPECT_TRUE(std::equal(batch.tokens.begin(), batch.tokens.end(), want.begin()));
        }
        EXPECT_EQ(served.runner.n_wrong, 0u);
        EXPECT_EQ(served.runner.fake.n_broken(), 0u);
        EXPECT_GT(served.metric("vllm:prefix_cache_hits_total"), 1000u);
        EXPECT_GT(served.metric("vllm:num_preemptions_total"), 0u);
        EXPECT_EQ(served.metric("lorad_kv_window_blocks_used"), 0u);
    }
}

}  // namespace
}  // namespace lorad::server::window_engine_test
