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

// A mix of greedy and drawn requests, with and without changes of the logits, of short and long prompts.
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
    if (index % 6 == 2) sampling.repetition_penalty = 1.3f;
    if (index % 6 == 3) sampling.frequency_penalty = 0.7f;
    if (index % 6 == 4) sampling.presence_penalty = -1.5f;
    if (index % 5 == 2) sampling.logit_bias = {{TokenId(random() % vocab), 9.0f}, {TokenId(vocab + 7), 1.0f}};
    if (index % 8 == 3) sampling.allowed_token_ids = {3, 40, 41, 42, 90};
    if (index % 4 == 2) {
        request.n_tokens_min = request.n_tokens_max / 2;
        for (uint32_t i = 0; i < 20; ++i) request.stop_tokens.push_back(TokenId(random() % vocab));
    }
    if (index % 3 == 0) request.n_logprobs = index % 20;
    request.stream = std::make_shared<TokenStream>(request.n_tokens_max);
    return request;
}

struct Outcome {
    std::vector<std::vector<TokenId>> tokens;                  // by request
    std::vector<std::vector<proto::TokenLogprobs>> logprobs;  // by request
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
        outcome.logprobs.push_back(batch.logprobs);
    }
    EXPECT_EQ(fixture.runner.n_broken(), 0u);
    outcome.n_in_flight_max = fixture.runner.n_in_flight_max();
    outcome.n_rules = fixture.runner.n_rules();
    outcome.preempted = fixture.metrics.text({}).find("vllm:num_preemptions_total{model_name=\"base\"} 0\n") ==
                        std::string::npos;
    return outcome;
}

void expect_near(const Outcome& found, const Outcome& expected) {
    EXPECT_EQ(found.tokens, expected.tokens);
    for (size_t i = 0; i < expected.logprobs.size(); ++i) {
        ASSERT_EQ(found.logprobs[i].size(), expected.logprobs[i].size()) << "request " << i;
        for (size_t k = 0; k < expected.logprobs[i].size(); ++k) {
            const proto::TokenLogprobs &a = found.logprobs[i][k], &b = expected.logprobs[i][k];
            EXPECT_EQ(a.token.id, b.token.id);
            EXPECT_EQ(a.token.rank, b.token.rank);
            // Sums of a few thousand floats, in another order and in double.
            EXPECT_NEAR(a.token.logprob, b.token.logprob, 2e-5f);
            ASSERT_EQ(a.top.size(), b.top.size());
            for (size_t n = 0; n < a.top.size(); ++n) {
                EXPECT_EQ(a.top[n].id, b.top[n].id);
                EXPECT_NEAR(a.top[n].logprob, b.top[n].logprob, 2e-5f);
            }
        }
    }
}

TEST(DrawEngine, DrawnTokensAreThoseOfTheHostAndStepsOverlap) {
    Outcome on_host = run_fake(24, 64, false), on_device = run_fake(24, 64, true);
    expect_near(on_device, on_host);
    EXPECT_EQ(on_host.n_rules, 0u);
    EXPECT_GT(on_device.n_rules, 500u);
    EXPECT_EQ(on_device.n_in_flight_max, 2u);
}

TEST(DrawEngine, PreemptionChangesNoDraw) {
    Outcome roomy = run_fake(24, 64, false), crowded = run_fake(24, 8, true);
    EXPECT_FALSE(roomy.preempted);
    EXPECT_TRUE(crowded.preempted);
    expect_near(crowded, roomy);
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

    Outcome run(uint32_t n_blocks, bool draws_on_device) {
        ExecutorRunner runner(*executor_);
        Metrics metrics({"base", model::kBlockTokens, n_blocks, 4, "", "", true});
        Engine engine(runner, metrics, options_of(n_blocks, draws_on_device));
        std::vector<std::shared_ptr<TokenStream>> streams;
        for (uint32_t i = 0; i < 16; ++i) {
            Request request = request_of(i, 40, executor_->config().vocab_size);
            streams.push_back(request.stream);
            EXPECT_TRUE(engine.submit(std::move(request)).ok());
        }
        for (int i = 0; i < 10000 && engine.step(); ++i) {
        }
        Outcome outcome;
        for (const auto& stream : streams) {
            TokenStream::Batch batch = stream->pop(milliseconds(0));
            EXPECT_TRUE(batch.end && !batch.end->error);
            outcome.tokens.push_back(batch.tokens);
            outcome.logprobs.push_back(batch.logprobs);
        }
        return outcome;
    }

    std::unique_ptr<model::Executor> executor_;
};

TEST_F(DrawDevice, StreamsDrawnOnTheDeviceAreThoseDrawnOnTheHost) {
    const auto on_host = run(executor_->n_kv_blocks(), false);
    expect_near(run(executor_->n_kv_blocks(), true), on_host);
    expect_near(run(6, true), on_host);  // with preemptions
}

}  // namespace
}  // namespace lorad::server
