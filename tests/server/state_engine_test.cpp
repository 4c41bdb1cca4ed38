// Models with recurrent state: each running sequence has a slot to itself, every row goes on from the state behind the row before it, and none is computed twice on it.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "tests/server/engine_fixture.h"
#include "tests/server/hash_constraint.h"

namespace lorad::server::state_engine_test {
namespace {

// The fake device, which keeps beside its cache what each slot has seen: a row that does not follow the last one of its slot, in number or in what came before, is wrong.
class StateRunner final : public StepRunner {
  public:
    StateRunner(uint32_t n_blocks, uint32_t n_slots) : fake(n_blocks), n_slots_(n_slots) {}

    Status submit(const model::StepBatch& batch) override {
        std::vector<bool> is_used(n_slots_, false);
        for (const gpu::StateRun& run : batch.state_runs()) {
            const model::BatchRow& first = batch.rows()[run.row_begin];
            if (run.to >= n_slots_ || is_used[run.to]) {
                ADD_FAILURE() << "slot " << run.to << " is shared or does not exist";
                continue;
            }
            is_used[run.to] = true;
            EXPECT_EQ(run.from == gpu::kNoState, first.position == 0);
            if (run.from != gpu::kNoState) {
                EXPECT_EQ(run.from, run.to);
                EXPECT_EQ(n_seen_[run.from], first.position) << "a row is skipped or computed twice";
                EXPECT_EQ(block_of_[run.from], batch.block_tables()[first.table_begin]) << "another sequence's state";
            }
            n_seen_[run.to] = first.position + run.n_rows;
            block_of_[run.to] = batch.block_tables()[first.table_begin];
            for (uint32_t i = 0; i < run.n_rows; ++i) {
                EXPECT_EQ(batch.rows()[run.row_begin + i].position, first.position + i);
                EXPECT_EQ(&batch.state_runs()[batch.rows()[run.row_begin + i].state_run], &run);
            }
        }
        return fake.submit(batch);
    }
    Result<StepResult> finish() override { return fake.finish(); }
    std::span<uint32_t> masks() override { return fake.masks(); }
    Result<bool> submit_draw() override { return fake.submit_draw(); }
    void use_merged(std::shared_ptr<const model::MergedWeights> merged) override { fake.use_merged(std::move(merged)); }

    FakeRunner fake;

  private:
    const uint32_t n_slots_;
    std::map<uint32_t, uint32_t> n_seen_;
    std::map<uint32_t, BlockId> block_of_;
};

struct StateEngine {
    explicit StateEngine(uint32_t n_blocks, uint32_t n_sequences)
        : runner(n_blocks, n_sequences),
          metrics({"base", model::kBlockTokens, n_blocks, 4, "fake", "none", false}),
          engine(runner, metrics, options(n_blocks, n_sequences)) {}

    static EngineOptions options(uint32_t n_blocks, uint32_t n_sequences) {
        EngineOptions out;
        out.limits = {128, n_sequences, model::kBlockTokens};
        out.n_kv_blocks = n_blocks;
        out.n_sampling_threads = 2;
        out.prefix_cache = false;
        out.has_state = true;
        return out;
    }
    std::shared_ptr<TokenStream> submit(std::vector<TokenId> prompt, uint32_t n_max, std::shared_ptr<TokenConstraint> constraint = nullptr) {
        Request request;
        request.prompt = std::move(prompt);
        request.n_tokens_max = n_max;
        request.sampling.temperature = 0.0f;
        request.constraint = std::move(constraint);
        request.stream = std::make_shared<TokenStream>(n_max);
        auto stream = request.stream;
        EXPECT_TRUE(engine.submit(std::move(request)).ok());
        return stream;
    }

    StateRunner runner;
    Metrics metrics;
    Engine engine;
};

TEST(StateEngine, TokensAreThoseOfTheTextAloneWhoeverIsPreemptedOrCancelled) {
    constexpr uint32_t kSeed = 20261129;
    SCOPED_TRACE(kSeed);
    std::mt19937 random(kSeed);
    // Far fewer blocks than all need at once, so that most are preempted now and then.
    StateEngine served(12, 6);
    struct Asked {
        std::vector<TokenId> prompt;
        uint32_t n_max;
        std::shared_ptr<TokenStream> stream;
        bool is_cancelled = false;
    };
    std::vector<Asked> all;
    for (uint32_t i = 0; i < 40; ++i) {
        Asked asked{prompt_of(1 + random() % 150, i), uint32_t(1 + random() % 90), nullptr};
        asked.stream = served.submit(asked.prompt, asked.n_max);
        all.push_back(std::move(asked));
        for (uint32_t step = random() % 12; step > 0; --step) served.engine.step();
        if (random() % 6 == 0) {
            Asked& some = all[random() % all.size()];
            some.stream->cancel(FinishReason::kCancelled);
            some.is_cancelled = true;
        }
    }
    for (int i = 0; i < 100000 && served.engine.step(); ++i) {
    }
    for (const Asked& asked : all) {
        const TokenStream::Batch batch = asked.stream->pop(std::chrono::milliseconds(0));
        ASSERT_TRUE(batch.end);
        const std::vector<TokenId> want = fake_continuation(asked.prompt, kNoAdapterSlot, asked.n_max);
        if (!asked.is_cancelled) {
            EXPECT_EQ(batch.tokens.size(), want.size());
        }
        EXPECT_TRUE(std::equal(batch.tokens.begin(), batch.tokens.end(), want.begin()));
    }
    EXPECT_EQ(served.runner.fake.n_broken(), 0u);
    const std::string name = "vllm:num_preemptions_total{model_name=\"base\"} ";
    const std::string text = served.metrics.text({});
    EXPECT_GT(std::stoul(text.substr(text.find(name) + name.size())), 0u);
}

// Elsewhere a row whose mask is late is computed again.
TEST(StateEngine, RowsOfSlowGrammarsWaitForTheirMasks) {
    StateEngine served(40, 8);
    served.runner.fake.spread_logits_ = true;
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (uint32_t i = 0; i < 3; ++i) {
        auto grammar = std::make_shared<HashConstraint>(kFakeVocab, i);
        grammar->delay = std::chrono::milliseconds(30);
        streams.push_back(served.submit(prompt_of(70 + i, i), 4, std::move(grammar)));
    }
    streams.push_back(served.submit(prompt_of(5, 9), 60));
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    std::vector<bool> ended(streams.size(), false);
    std::vector<size_t> n_tokens(streams.size(), 0);
    while (std::ranges::find(ended, false) != ended.end() && std::chrono::steady_clock::now() < until) {
        served.engine.step();
        for (size_t i = 0; i < streams.size(); ++i) {
            const TokenStream::Batch batch = streams[i]->pop(std::chrono::milliseconds(0));
            n_tokens[i] += batch.tokens.size();
            ended[i] = ended[i] || batch.end.has_value();
        }
    }
    EXPECT_EQ(n_tokens, (std::vector<size_t>{4, 4, 4, 60}));
}

}  // namespace
}  // namespace lorad::server::state_engine_test
