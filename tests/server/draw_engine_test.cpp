// Tokens that the device draws: the next step is submitted before they are known, and nothing else changes.
#include <gtest/gtest.h>

#include "server/engine/executor_runner.h"
#include "tests/server/engine_fixture.h"
#include "tests/server/hash_constraint.h"
#include "tests/support/goldens.h"
#include "tests/support/load_executor.h"

namespace lorad::server::draw_engine_test {
namespace {

using std::chrono::milliseconds;

EngineOptions options_of(uint32_t n_blocks, bool draws_on_device) {
    EngineOptions options;
    options.limits = {128, 8, model::kBlockTokens};
    options.n_kv_blocks = n_blocks;
    options.n_sampling_threads = 2;
    options.draws_on_device = draws_on_device;
    options.mask_wait = std::chrono::minutes(1);  // no mask is late, however busy the machine
    return options;
}

// Which of the requests have a grammar.
enum class Grammars { kNone, kSome, kAll };

// A mix of greedy and drawn requests, with and without changes of the logits, of short and long prompts.
Request request_of(uint32_t index, uint32_t n_max, uint32_t vocab, Grammars grammars) {
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
    if (grammars == Grammars::kAll || (grammars == Grammars::kSome && index % 2 == 0)) {
        // Some of these come to their end. What is allowed beside that often leaves no token.
        if (index % 3 == 0) request.stop_tokens = {TokenId(index % vocab), 1, 2};
        request.sampling.allowed_token_ids.clear();
        if (index % 8 == 3) {
            for (uint32_t id = 0; id < vocab; id += 2) request.sampling.allowed_token_ids.push_back(TokenId(id));
        }
        request.constraint = std::make_shared<HashConstraint>(vocab, index, request.stop_tokens,
                                                              request.stop_tokens.empty() ? 0xffffffffu : 5 + index);
    }
    request.stream = std::make_shared<TokenStream>(request.n_tokens_max);
    return request;
}

struct Outcome {
    std::vector<std::vector<TokenId>> tokens;                 // by request
    std::vector<std::vector<proto::TokenLogprobs>> logprobs;  // by request
    std::vector<std::optional<Error>> errors;                 // by request
    uint32_t n_in_flight_max = 0;
    uint64_t n_rules = 0, n_masked_steps = 0, n_masked_ahead = 0;
    bool preempted = false;
};

void take(TokenStream::Batch batch, Outcome& to) {
    EXPECT_TRUE(batch.end);
    to.errors.push_back(batch.end ? batch.end->error : std::nullopt);
    // A grammar and what else is not allowed may leave no token; nothing else goes wrong.
    if (const auto& error = to.errors.back()) {
        EXPECT_EQ(error->code, ErrorCode::kInvalidRequest) << error->message;
    }
    to.tokens.push_back(batch.tokens);
    to.logprobs.push_back(batch.logprobs);
}

Outcome run_fake(uint32_t n_requests, uint32_t n_blocks, bool draws_on_device, Grammars grammars = Grammars::kNone) {
    EngineFixture fixture(options_of(n_blocks, draws_on_device));
    fixture.runner.spread_logits_ = true;
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (uint32_t i = 0; i < n_requests; ++i) {
        Request request = request_of(i, 90, kFakeVocab, grammars);
        streams.push_back(request.stream);
        EXPECT_TRUE(fixture.engine.submit(std::move(request)).ok());
    }
    fixture.run_until_idle();
    Outcome outcome;
    for (const auto& stream : streams) {
        take(stream->pop(milliseconds(0)), outcome);
    }
    EXPECT_EQ(fixture.runner.n_broken(), 0u);
    outcome.n_in_flight_max = fixture.runner.n_in_flight_max();
    outcome.n_rules = fixture.runner.n_rules();
    outcome.n_masked_steps = fixture.runner.n_masked_steps();
    outcome.n_masked_ahead = fixture.runner.n_masked_ahead();
    outcome.preempted =
        fixture.metrics.text({}).find("vllm:num_preemptions_total{model_name=\"base\"} 0\n") == std::string::npos;
    return outcome;
}

void expect_near(const Outcome& found, const Outcome& expected) {
    EXPECT_EQ(found.tokens, expected.tokens);
    for (size_t i = 0; i < expected.errors.size(); ++i)
        EXPECT_EQ(found.errors[i].has_value(), expected.errors[i].has_value()) << i;
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

TEST(DrawEngine, MaskedTokensAreThoseOfTheHostAndStepsOverlap) {
    for (Grammars grammars : {Grammars::kSome, Grammars::kAll}) {
        Outcome on_host = run_fake(24, 64, false, grammars), on_device = run_fake(24, 64, true, grammars);
        expect_near(on_device, on_host);
        EXPECT_EQ(on_host.n_masked_steps, 0u);
        EXPECT_EQ(on_device.n_in_flight_max, 2u);
        // All but those behind a step that admitted nobody new and had nothing to feed back.
        EXPECT_GT(on_device.n_masked_steps, 60u);
        EXPECT_GT(double(on_device.n_masked_ahead), 0.9 * double(on_device.n_masked_steps));
        size_t n_long = 0;
        for (const auto& tokens : on_host.tokens) n_long += tokens.size() > 10 ? 1 : 0;
        EXPECT_GT(n_long, 8u) << "answers that say something";
    }
}

TEST(DrawEngine, PreemptionChangesNoMaskedDraw) {
    Outcome roomy = run_fake(24, 64, false, Grammars::kSome), crowded = run_fake(24, 8, true, Grammars::kSome);
    EXPECT_TRUE(crowded.preempted);
    expect_near(crowded, roomy);
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
        model::ExecutorOptions options;
        options.n_rows_max = 128;
        options.n_sequences_max = 8;
        options.n_positions_max = 256;
        options.n_adapter_slots = 2;
        options.kernel_path = gpu::KernelPath::kPortableF32;
        options.batch_invariant = true;
        executor_ = lorad::testing::load_executor(lorad::testing::goldens_dir() / "models" / "qwen2-tied", options);
    }

    Outcome run(uint32_t n_blocks, bool draws_on_device, Grammars grammars = Grammars::kNone) {
        ExecutorRunner runner(*executor_);
        Metrics metrics({"base", model::kBlockTokens, n_blocks, 4, "", "", true});
        Engine engine(runner, metrics, options_of(n_blocks, draws_on_device));
        std::vector<std::shared_ptr<TokenStream>> streams;
        for (uint32_t i = 0; i < 16; ++i) {
            Request request = request_of(i, 40, executor_->config().vocab_size, grammars);
            streams.push_back(request.stream);
            EXPECT_TRUE(engine.submit(std::move(request)).ok());
        }
        for (int i = 0; i < 10000 && engine.step(); ++i) {
        }
        Outcome outcome;
        for (const auto& stream : streams) take(stream->pop(milliseconds(0)), outcome);
        return outcome;
    }

    std::unique_ptr<model::Executor> executor_;
};

TEST_F(DrawDevice, StreamsDrawnOnTheDeviceAreThoseDrawnOnTheHost) {
    const auto on_host = run(executor_->n_kv_blocks(), false);
    expect_near(run(executor_->n_kv_blocks(), true), on_host);
    expect_near(run(6, true), on_host);  // with preemptions
}

TEST_F(DrawDevice, MaskedStreamsAreThoseOfTheHost) {
    const auto on_host = run(executor_->n_kv_blocks(), false, Grammars::kSome);
    expect_near(run(executor_->n_kv_blocks(), true, Grammars::kSome), on_host);
    expect_near(run(6, true, Grammars::kSome), on_host);  // with preemptions
}

}  // namespace
}  // namespace lorad::server::draw_engine_test
