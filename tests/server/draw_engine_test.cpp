// Tokens that the device draws: the next step is submitted before they are known, and nothing else changes.
#include <gtest/gtest.h>

#include "server/engine/executor_runner.h"
#include "tests/server/engine_fixture.h"
#include "tests/support/goldens.h"
#include "tests/support/test_device.h"

namespace lorad::server {
namespace {

using std::chrono::milliseconds;

EngineOptions options_of(uint32_t n_blocks, bool draws_on_device) {
    EngineOptions options;
    options.limits = {128, 8, model::kBlockTokens};
    options.n_kv_blocks = n_blocks;
    options.n_sampling_threads = 2;
    options.draws_on_device = draws_on_device;
    return options;
}

// A mix of greedy and drawn requests, of short and long prompts.
Request request_of(uint32_t index, uint32_t n_max, uint32_t vocab) {
    Request request;
    std::mt19937 random(index * 7919 + 1);
    request.prompt.resize(3 + random() % 100);
    for (TokenId& token : request.prompt) token = TokenId(random() % vocab);
    request.n_tokens_max = 1 + random() % n_max;
    proto::SamplingParams& sampling = request.sampling;
    sampling.temperature = index % 4 == 0 ? 0.0f : 0.3f * float(1 + random() % 5);
    sampling.seed = random();
    if (index % 2 == 1) sampling.top_p = 0.9f;
    if (index % 3 == 1) sampling.top_k = 20;
    if (index % 5 == 1) sampling.min_p = 0.05f;
    if (index % 7 == 1) sampling.typical_p = 0.8f;
    request.stream = std::make_shared<TokenStream>(request.n_tokens_max);
    return request;
}

struct Outcome {
    std::vector<std::vector<TokenId>> tokens;  // by request
    uint32_t n_in_flight_max = 0;
    uint64_t n_rules = 0;
    bool preempted = false;
};

Outcome run_fake(uint32_t n_requests, uint32_t n_blocks, bool draws_on_device) {
    EngineFixture fixture(options_of(n_blocks, draws_on_device));
    fixture.runner.spread_logits_ = true;
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (uint32_t i = 0; i < n_requests; ++i) {
        Request request = request_of(i, 90, kFakeVocab);
        streams.push_back(request.stream);
        EXPECT_TRUE(fixture.engine.submit(std::move(request)).ok());
    }
    fixture.run_until_idle();
    Outcome outcome;
    for (const auto& stream : streams) {
        TokenStream::Batch batch = stream->pop(milliseconds(0));
        EXPECT_TRUE(batch.end && !batch.end->error);
        outcome.tokens.push_back(batch.tokens);
    }
    EXPECT_EQ(fixture.runner.n_broken(), 0u);
    outcome.n_in_flight_max = fixture.runner.n_in_flight_max();
    outcome.n_rules = fixture.runner.n_rules();
    outcome.preempted = fixture.metrics.text({}).find("vllm:num_preemptions_total{model_name=\"base\"} 0\n") ==
                        std::string::npos;
    return outcome;
}

TEST(DrawEngine, DrawnTokensAreThoseOfTheHostAndStepsOverlap) {
    Outcome on_host = run_fake(24, 64, false), on_device = run_fake(24, 64, true);
    EXPECT_EQ(on_device.tokens, on_host.tokens);
    EXPECT_EQ(on_host.n_rules, 0u);
    EXPECT_GT(on_device.n_rules, 500u);
    EXPECT_EQ(on_device.n_in_flight_max, 2u);
}

TEST(DrawEngine, PreemptionChangesNoDraw) {
    Outcome roomy = run_fake(24, 64, false), crowded = run_fake(24, 8, true);
    EXPECT_FALSE(roomy.preempted);
    EXPECT_TRUE(crowded.preempted);
    EXPECT_EQ(crowded.tokens, roomy.tokens);
}

// The device, with a whole model.
class DrawDevice : public ::testing::Test {
  protected:
    void SetUp() override {
        const auto folder = lorad::testing::goldens_dir() / "models" / "qwen2-tied";
        auto config = model::load_model_config(folder);
        ASSERT_TRUE(config.ok());
        model::ExecutorOptions options;
        options.n_rows_max = 128;
        options.n_sequences_max = 8;
        options.n_positions_max = 256;
        options.n_adapter_slots = 2;
        options.kernel_path = gpu::KernelPath::kPortable;
        options.batch_invariant = true;
        auto executor = model::Executor::load(lorad::testing::test_device(), folder, *config, options);
        ASSERT_TRUE(executor.ok()) << executor.error().message;
        executor_ = std::move(executor).value();
    }

    std::vector<std::vector<TokenId>> run(uint32_t n_blocks, bool draws_on_device) {
        ExecutorRunner runner(*executor_);
        Metrics metrics({"base", model::kBlockTokens, n_blocks, 4, "", "", true});
        Engine engine(runner, metrics, options_of(n_blocks, draws_on_device));
        std::vector<std::shared_ptr<TokenStream>> streams;
        for (uint32_t i = 0; i < 10; ++i) {
            Request request = request_of(i, 40, executor_->config().vocab_size);
            streams.push_back(request.stream);
            EXPECT_TRUE(engine.submit(std::move(request)).ok());
        }
        for (int i = 0; i < 10000 && engine.step(); ++i) {
        }
        std::vector<std::vector<TokenId>> tokens;
        for (const auto& stream : streams) {
            TokenStream::Batch batch = stream->pop(milliseconds(0));
            EXPECT_TRUE(batch.end && !batch.end->error);
            tokens.push_back(batch.tokens);
        }
        return tokens;
    }

    std::unique_ptr<model::Executor> executor_;
};

TEST_F(DrawDevice, StreamsDrawnOnTheDeviceAreThoseDrawnOnTheHost) {
    const auto on_host = run(executor_->n_kv_blocks(), false);
    EXPECT_EQ(run(executor_->n_kv_blocks(), true), on_host);
    EXPECT_EQ(run(6, true), on_host) << "with preemptions";
}

}  // namespace
}  // namespace lorad::server
