#include "server/engine/engine.h"

#include <random>

#include <gtest/gtest.h>

#include "model/step/step_shape.h"
#include "tests/server/engine_fixture.h"
#include "tests/support/soon.h"

namespace lorad::server::engine_test {
namespace {

using std::chrono::milliseconds;
using Fixture = EngineFixture;

TEST(Engine, GivesExactlyTheTokensThatTheModelChooses) {
    Fixture f;
    auto prompt = prompt_of(10, 1);
    auto stream = f.submit(prompt, 20);
    f.run_until_idle();
    TokenStream::Batch batch = stream->pop(milliseconds(0));
    EXPECT_EQ(batch.tokens, fake_continuation(prompt, kNoAdapterSlot, 20));
    ASSERT_TRUE(batch.end);
    EXPECT_EQ(batch.end->reason, FinishReason::kLength);
}

TEST(Engine, ChunksALongPromptAndStillGivesTheSameTokens) {
    Fixture f(64, {16, 8, model::kBlockTokens});
    auto prompt = prompt_of(333, 2);
    auto stream = f.submit(prompt, 5);
    f.run_until_idle();
    EXPECT_EQ(stream->pop(milliseconds(0)).tokens, fake_continuation(prompt, kNoAdapterSlot, 5));
    EXPECT_LE(f.runner.n_rows_max(), 16u);
}

TEST(Engine, SamplesFromTheLogitsWhenAskedTo) {
    Fixture f;
    auto prompt = prompt_of(7, 3);
    Request request;
    request.prompt = prompt;
    request.n_tokens_max = 4;
    request.sampling.temperature = 0.5f;
    request.sampling.seed = 5;
    request.stream = std::make_shared<TokenStream>(4);
    auto stream = request.stream;
    ASSERT_TRUE(f.engine.submit(std::move(request)).ok());
    f.run_until_idle();
    // The fake's logits leave no doubt, so sampling finds the same tokens.
    EXPECT_EQ(stream->pop(milliseconds(0)).tokens, fake_continuation(prompt, kNoAdapterSlot, 4));
}

TEST(Engine, KeepsTwoStepsInFlightWhereTheDeviceChoosesTheTokens) {
    Fixture f;
    auto first = prompt_of(9, 30), second = prompt_of(100, 31);
    auto a = f.submit(first, 30), b = f.submit(second, 20);
    f.run_until_idle();
    EXPECT_EQ(f.runner.n_in_flight_max(), 2u);
    EXPECT_EQ(a->pop(milliseconds(0)).tokens, fake_continuation(first, kNoAdapterSlot, 30));
    EXPECT_EQ(b->pop(milliseconds(0)).tokens, fake_continuation(second, kNoAdapterSlot, 20));
}

TEST(Engine, TokensThatTheHostDrawsAreFinishedBeforeTheNextStepIsMade) {
    Fixture f({.limits = {128, 8, model::kBlockTokens}, .n_kv_blocks = 64, .draws_on_device = false});
    Request request;
    request.prompt = prompt_of(7, 32);
    request.n_tokens_max = 10;
    request.sampling.temperature = 1.0f;
    request.stream = std::make_shared<TokenStream>(10);
    ASSERT_TRUE(f.engine.submit(std::move(request)).ok());
    f.run_until_idle();
    EXPECT_EQ(f.runner.n_in_flight_max(), 1u);
}

TEST(Engine, EndsAtAStopTokenAndHandsItOut) {
    Fixture f;
    auto prompt = prompt_of(5, 4);
    auto expected = fake_continuation(prompt, kNoAdapterSlot, 6);
    Request request;
    request.prompt = prompt;
    request.n_tokens_max = 50;
    request.sampling.temperature = 0.0f;
    request.stop_tokens = {expected[5]};
    request.stream = std::make_shared<TokenStream>(50);
    auto stream = request.stream;
    ASSERT_TRUE(f.engine.submit(std::move(request)).ok());
    f.run_until_idle();
    TokenStream::Batch batch = stream->pop(milliseconds(0));
    EXPECT_EQ(batch.tokens, expected);
    EXPECT_EQ(batch.end->reason, FinishReason::kStop);
}

TEST(Engine, ACancelledRequestGivesItsBlocksBackBeforeTheNextStep) {
    Fixture f(4);
    auto cancelled = f.submit(prompt_of(100, 5), 100);
    ASSERT_TRUE(f.engine.step());
    cancelled->cancel();
    // Needs all four blocks, so it runs only if the other's are free.
    auto prompt = prompt_of(250, 6);
    auto stream = f.submit(prompt, 3);
    f.run_until_idle();
    EXPECT_EQ(cancelled->pop(milliseconds(0)).end->reason, FinishReason::kCancelled);
    EXPECT_EQ(stream->pop(milliseconds(0)).tokens, fake_continuation(prompt, kNoAdapterSlot, 3));
}

TEST(Engine, LetsGoOfTheAdapterWhenTheRequestEnds) {
    Fixture f;
    auto lease = std::make_shared<const int>(1);
    Request request;
    request.prompt = prompt_of(5, 7);
    request.n_tokens_max = 3;
    request.sampling.temperature = 0.0f;
    request.adapter = {.uses = {{2, 1.0f}}, .name = "sql", .lease = lease};
    request.stream = std::make_shared<TokenStream>(3);
    ASSERT_TRUE(f.engine.submit(std::move(request)).ok());
    ASSERT_TRUE(f.engine.step());
    EXPECT_EQ(lease.use_count(), 2);
    f.run_until_idle();
    EXPECT_EQ(lease.use_count(), 1);
}

TEST(Engine, AnActivatedAdapterLeavesTheTokensBeforeItsInvocationToTheBase) {
    for (uint32_t n_rows_max : {16u, 128u}) {
        Fixture f(64, {n_rows_max, 8, model::kBlockTokens});
        auto prompt = prompt_of(90, 14);
        AdapterUse adapter;
        adapter.uses = {{3, 1.0f}};
        adapter.from_position = 53;
        auto stream = f.submit(prompt, 12, adapter);
        auto plain = f.submit(prompt, 12, 3);
        f.run_until_idle();
        auto expected = fake_continuation(prompt, adapter.rows(), 12);
        EXPECT_EQ(stream->pop(milliseconds(0)).tokens, expected);
        EXPECT_NE(plain->pop(milliseconds(0)).tokens, expected);
    }
}

TEST(Engine, AnAdapterThatIsNotInvokedLeavesTheRequestToTheBase) {
    Fixture f;
    auto prompt = prompt_of(20, 15);
    AdapterUse adapter;
    adapter.uses = {{3, 1.0f}};
    adapter.from_position = activation_position(prompt, std::vector<TokenId>{1, 2, 3});
    auto stream = f.submit(prompt, 8, adapter);
    f.run_until_idle();
    EXPECT_EQ(stream->pop(milliseconds(0)).tokens, fake_continuation(prompt, kNoAdapterSlot, 8));
}

TEST(ActivationPosition, IsTheLastPlaceWhereTheInvocationBegins) {
    const std::vector<TokenId> prompt = {7, 8, 9, 7, 8, 7, 8, 8};
    auto at = [&](std::vector<TokenId> invocation) { return activation_position(prompt, invocation); };
    EXPECT_EQ(at({7, 8}), 5u);
    EXPECT_EQ(at({7, 8, 9}), 0u);
    EXPECT_EQ(at({8}), 7u);
    EXPECT_EQ(at({7, 8, 9, 7, 8, 7, 8, 8}), 0u);
    EXPECT_EQ(at({9, 9}), 0xffffffffu);
    EXPECT_EQ(at({8, 9}), 1u);
    EXPECT_EQ(at({}), 0xffffffffu);
    EXPECT_EQ(activation_position({}, prompt), 0xffffffffu);
}

TEST(Engine, ARevokedAdapterEndsItsRequestsWithinAStep) {
    Fixture f;
    auto lease = std::make_shared<const int>(1);
    auto revoked = std::make_shared<bool>(false);
    AdapterUse adapter;
    adapter.uses = {{2, 1.0f}};
    adapter.lease = lease;
    adapter.revoked = [revoked] { return *revoked; };
    auto prompt = prompt_of(9, 16), other = prompt_of(9, 17);
    auto running = f.submit(prompt, 1000, adapter);
    auto unaffected = f.submit(other, 20, 2);
    for (int i = 0; i < 6; ++i) ASSERT_TRUE(f.engine.step());
    auto waiting = f.submit(prompt, 1000, std::move(adapter));
    *revoked = true;
    ASSERT_TRUE(f.engine.step());
    for (auto& stream : {running, waiting}) {
        TokenStream::Batch batch = stream->pop(milliseconds(0));
        ASSERT_TRUE(batch.end);
        EXPECT_EQ(batch.end->reason, FinishReason::kAdapterRemoved);
        EXPECT_STREQ(to_string(batch.end->reason), "adapter_removed");
        // What came before stands.
        EXPECT_EQ(batch.tokens, fake_continuation(prompt, 2, batch.tokens.size()));
        EXPECT_EQ(batch.tokens.empty(), stream == waiting);
    }
    f.run_until_idle();
    EXPECT_EQ(lease.use_count(), 1);
    EXPECT_EQ(unaffected->pop(milliseconds(0)).tokens, fake_continuation(other, 2, 20));
}

TEST(Engine, RefusesWhatCanNeverFitTheCache) {
    Fixture f(2);
    Request request;
    request.prompt = prompt_of(100, 8);
    request.n_tokens_max = 30;
    request.stream = std::make_shared<TokenStream>(30);
    Status status = f.engine.submit(std::move(request));
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kContextLengthExceeded);
    // 100 + 29 positions are three blocks, 100 + 28 are two.
    auto stream = f.submit(prompt_of(100, 8), 29);
    f.run_until_idle();
    EXPECT_EQ(stream->pop(milliseconds(0)).tokens.size(), 29u);
}

TEST(Engine, AFullQueueIsAnAnswer) {
    Fixture f(64, {128, 8, model::kBlockTokens}, 2);
    f.submit({1}, 1);
    f.submit({2}, 1);
    Request request;
    request.prompt = {3};
    request.n_tokens_max = 1;
    request.stream = std::make_shared<TokenStream>(1);
    Status status = f.engine.submit(std::move(request));
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kOverloaded);
    f.run_until_idle();
    f.submit({4}, 1);
}

TEST(Engine, NonFiniteOutputEndsThatRequestOnly) {
    Fixture f;
    auto prompt = prompt_of(5, 9);
    auto expected = fake_continuation(prompt, kNoAdapterSlot, 10);
    f.runner.not_finite_token_ = 990;
    auto bad = f.submit({1, 2, 990}, 10);
    auto good = f.submit(prompt, 10);
    f.run_until_idle();
    TokenStream::Batch batch = bad->pop(milliseconds(0));
    ASSERT_TRUE(batch.end && batch.end->error);
    EXPECT_EQ(batch.end->error->code, ErrorCode::kNotFinite);
    EXPECT_EQ(good->pop(milliseconds(0)).tokens, expected);
}

TEST(Engine, ALostDeviceEndsEveryRequestWithItsError) {
    Fixture f;
    f.runner.fail_at_step_ = 3;
    auto first = f.submit(prompt_of(5, 10), 50);
    auto second = f.submit(prompt_of(5, 11), 50);
    f.run_until_idle();
    for (auto& stream : {first, second}) {
        TokenStream::Batch batch = stream->pop(milliseconds(0));
        ASSERT_TRUE(batch.end && batch.end->error);
        EXPECT_EQ(batch.end->error->code, ErrorCode::kDeviceLost);
    }
    EXPECT_TRUE(f.engine.failed());
    Request request;
    request.prompt = {1};
    request.n_tokens_max = 1;
    request.stream = std::make_shared<TokenStream>(1);
    EXPECT_FALSE(f.engine.submit(std::move(request)).ok());
}

// For want of memory, or of a kernel that the driver does not make.
class EngineRefusals : public ::testing::TestWithParam<ErrorCode> {};

INSTANTIATE_TEST_SUITE_P(All, EngineRefusals, ::testing::Values(ErrorCode::kOutOfMemory, ErrorCode::kKernelRefused),
                         [](const auto& code) { return code.param == ErrorCode::kOutOfMemory ? "Memory" : "Kernel"; });

TEST_P(EngineRefusals, AStepThatCannotBeMadeEndsItsOwnRequestsOnly) {
    Fixture f;
    f.runner.refusal_ = GetParam();
    f.shares_prefixes = true;
    f.runner.refuse_step_ = [](uint64_t step) { return step == 2; };
    auto in_flight = f.submit(prompt_of(5, 10), 50);
    ASSERT_TRUE(f.engine.step());  // the first step runs, the second is refused
    f.run_until_idle();
    TokenStream::Batch batch = in_flight->pop(milliseconds(0));
    ASSERT_TRUE(batch.end && batch.end->error);
    EXPECT_EQ(batch.end->error->code, GetParam());
    EXPECT_FALSE(f.engine.failed());
    // Later ones get what they would have had, also where their prompt's blocks were named by the step that was not
    // run.
    auto prompt = prompt_of(200, 11);
    f.runner.refuse_step_ = [](uint64_t step) { return step == 4; };
    auto refused = f.submit(prompt, 20);
    f.run_until_idle();
    auto again = f.submit(prompt, 20);
    f.run_until_idle();
    EXPECT_TRUE(refused->pop(milliseconds(0)).end->error);
    EXPECT_EQ(again->pop(milliseconds(0)).tokens, fake_continuation(prompt, kNoAdapterSlot, 20));
    EXPECT_EQ(f.runner.n_broken(), 0u);
    EXPECT_NE(f.metrics.text({}).find("vllm:kv_cache_usage_perc{model_name=\"base\"} 0\n"), std::string::npos);
}

TEST(Engine, ALossThatOthersFindEndsAnIdleEngineToo) {
    Fixture f;
    f.engine.start();
    EXPECT_TRUE(f.engine.accepting());
    f.runner.lost_ = true;
    EXPECT_TRUE(lorad::testing::soon([&] { return f.engine.failed(); }));
    EXPECT_FALSE(f.engine.accepting());
}

TEST(Engine, AStepIsMadeWhenTheOneBeforeIsNearlyDone) {
    Fixture f;
    f.runner.step_time_ = milliseconds(100);
    f.engine.start();
    auto stream = f.submit(prompt_of(5, 12), 1000);
    EXPECT_TRUE(lorad::testing::soon([&] { return f.runner.n_late() >= 3; }));
    stream->cancel();
}

TEST(Engine, DrainLetsRunningRequestsFinish) {
    Fixture f;
    f.runner.step_time_ = std::chrono::microseconds(200);
    f.engine.start();
    auto prompt = prompt_of(5, 12);
    auto stream = f.submit(prompt, 40);
    f.engine.drain(milliseconds(20000));
    TokenStream::Batch batch = stream->pop(milliseconds(0));
    EXPECT_EQ(batch.tokens, fake_continuation(prompt, kNoAdapterSlot, 40));
    EXPECT_EQ(batch.end->reason, FinishReason::kLength);
}

TEST(Engine, DrainEndsWhatTakesTooLong) {
    Fixture f;
    f.runner.step_time_ = milliseconds(5);
    f.engine.start();
    auto stream = f.submit(prompt_of(5, 13), 4000);
    f.engine.drain(milliseconds(30));
    for (;;) {
        TokenStream::Batch batch = stream->pop(milliseconds(1000));
        if (!batch.end) continue;
        ASSERT_TRUE(batch.end->error);
        EXPECT_EQ(batch.end->error->code, ErrorCode::kDraining);
        break;
    }
}

// Random traffic against a tiny cache: whatever is preempted, cancelled or chunked, every request
// ends, with exactly the tokens it would have had alone, and all blocks come back. Adds the
// preemptions to `n_preemptions`, and the tokens that the prefix cache had to `n_cached_tokens`.
void simulate(uint32_t seed, uint32_t& n_preemptions, uint64_t& n_cached_tokens) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    uint32_t n_blocks = 4 + random() % 12;
    SchedulerLimits limits{8 + uint32_t(random() % 200), 1 + uint32_t(random() % 8), model::kBlockTokens};
    Fixture f(n_blocks, limits, 1000);
    // Half of the runs share prefixes: their prompts are the beginnings of a few texts.
    f.shares_prefixes = random() % 2 == 0;
    struct Sent {
        std::vector<TokenId> prompt;
        AdapterUse adapter;
        uint32_t n_max;
        std::shared_ptr<TokenStream> stream;
        bool cancelled = false;
        std::vector<TokenId> tokens;
        std::optional<StreamEnd> end;
    };
    std::vector<Sent> all;
    auto collect = [&](Sent& sent) {
        TokenStream::Batch batch = sent.stream->pop(milliseconds(0));
        sent.tokens.insert(sent.tokens.end(), batch.tokens.begin(), batch.tokens.end());
        sent.end = batch.end;
    };
    for (uint32_t i = 0; i < 300; ++i) {
        if (all.size() < 60 && random() % 4 == 0) {
            uint32_t n_positions_max = n_blocks * model::kBlockTokens;
            uint32_t n_prompt = 1 + random() % (n_positions_max - 1);
            if (random() % 2) n_prompt = 1 + n_prompt % 70;
            uint32_t n_max = 1 + random() % std::min(n_positions_max - n_prompt, 150u);
            AdapterUse adapter;
            constexpr uint32_t kNumbers[] = {0, 1, 1, 2, 3, kLoraUsesMax};
            for (uint32_t n = kNumbers[random() % 6]; n > 0; --n) {
                constexpr float kScales[] = {1.0f, 1.0f, 0.5f, -1.0f};
                adapter.uses.push_back({uint32_t(random() % 5), kScales[random() % 4]});
            }
            // Some activated within the prompt, some never.
            if (random() % 3 == 0) adapter.from_position = uint32_t(random() % (n_prompt * 2));
            auto prompt = prompt_of(n_prompt, f.shares_prefixes ? random() % 3 : random());
            auto stream = f.submit(prompt, n_max, adapter, random() % 4 == 0 ? 0.5f : 0.0f);
            all.push_back({std::move(prompt), std::move(adapter), n_max, std::move(stream), false, {}, std::nullopt});
        }
        if (!all.empty() && random() % 10 == 0) {
            Sent& sent = all[random() % all.size()];
            sent.cancelled = true;
            sent.stream->cancel();
        }
        f.engine.step();
    }
    f.run_until_idle();
    for (Sent& sent : all) {
        collect(sent);
        ASSERT_TRUE(sent.end);
        auto expected = fake_continuation(sent.prompt, sent.adapter.rows(), sent.n_max);
        if (!sent.cancelled) {
            EXPECT_EQ(sent.end->reason, FinishReason::kLength);
            EXPECT_EQ(sent.tokens, expected);
        } else {
            ASSERT_LE(sent.tokens.size(), expected.size());
            EXPECT_TRUE(std::equal(sent.tokens.begin(), sent.tokens.end(), expected.begin()));
        }
    }
    EXPECT_EQ(f.runner.n_broken(), 0u);
    EXPECT_LE(f.runner.n_rows_max(), limits.n_rows_max);
    std::string text = f.metrics.text({});
    EXPECT_NE(text.find("vllm:kv_cache_usage_perc{model_name=\"base\"} 0\n"), std::string::npos);
    EXPECT_NE(text.find("vllm:num_requests_waiting{model_name=\"base\"} 0\n"), std::string::npos);
    std::string name = "vllm:num_preemptions_total{model_name=\"base\"} ";
    n_preemptions += uint32_t(std::stoul(text.substr(text.find(name) + name.size())));
    name = "vllm:prefix_cache_hits_total{model_name=\"base\"} ";
    uint64_t n_hits = std::stoul(text.substr(text.find(name) + name.size()));
    n_cached_tokens += n_hits;
    EXPECT_TRUE(f.shares_prefixes || n_hits == 0);
}

TEST(EngineSimulation, EveryRequestEndsWithItsOwnTokensAndAllBlocksComeBack) {
    uint32_t n_preemptions = 0;
    uint64_t n_cached_tokens = 0;
    for (uint32_t seed = 0; seed < 150; ++seed) {
        simulate(seed, n_preemptions, n_cached_tokens);
        if (HasFatalFailure() || HasNonfatalFailure()) break;
    }
    EXPECT_GT(n_preemptions, 100u) << "the caches are not small enough to test anything";
    EXPECT_GT(n_cached_tokens, 10000u) << "no prefixes were shared";
}

TEST(EngineSimulation, ThreadsThatSubmitAndCancelGetExactlyOneEndingEach) {
    Fixture f(12, {64, 6, model::kBlockTokens}, 1000);
    f.engine.start();
    std::atomic<uint32_t> n_right{0};
    std::vector<std::thread> clients;
    for (uint32_t client = 0; client < 8; ++client) {
        clients.emplace_back([&, client] {
            std::mt19937 random(client);
            for (uint32_t i = 0; i < 25; ++i) {
                auto prompt = prompt_of(1 + random() % 200, random());
                uint32_t slot = random() % 4;
                uint32_t n_max = 1 + random() % 40;
                auto stream = f.submit(prompt, n_max, slot);
                bool cancel = random() % 5 == 0;
                std::vector<TokenId> tokens;
                for (;;) {
                    TokenStream::Batch batch = stream->pop(milliseconds(10000));
                    tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
                    if (batch.end) break;
                    if (cancel && tokens.size() > 2) stream->cancel();
                }
                auto expected = fake_continuation(prompt, slot, n_max);
                expected.resize(std::min(expected.size(), tokens.size()));
                bool right = tokens == expected && (cancel || tokens.size() == n_max);
                n_right.fetch_add(right ? 1 : 0);
            }
        });
    }
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(n_right.load(), 8u * 25u);
    EXPECT_EQ(f.runner.n_broken(), 0u);
}

TEST(Engine, FillsStepsWithPromptsBesideDecodes) {
    Fixture f(256, {256, 8, model::kBlockTokens});
    for (uint32_t i = 0; i < 3; i++) f.submit(prompt_of(5, i), 500);
    for (uint32_t i = 0; i < 4; i++) f.engine.step();
    f.submit(prompt_of(2000, 9), 1);
    uint32_t n_full = 0;
    for (uint64_t before = f.runner.n_rows(); f.engine.step(); before = f.runner.n_rows()) {
        const uint32_t n_rows = uint32_t(f.runner.n_rows() - before);
        if (n_rows <= 3) continue;                       // decodes alone
        if (model::bucket_for(n_rows) != n_rows) break;  // the prompt's end
        EXPECT_GE(n_rows, 12u);
        ++n_full;
    }
    EXPECT_GE(n_full, 8u);
}

// A device whose steps take a millisecond on a clock of its own; the first large ones are recorded first, which takes
// twenty.
class RecordingRunner final : public StepRunner {
  public:
    Status submit(const model::StepBatch& batch) override {
        if (batch.n_rows() > 64 && n_recordings_ < kRecordings) {
            ++n_recordings_;
            now_ += std::chrono::milliseconds(20);
        }
        return inner_.submit(batch);
    }
    Result<StepResult> finish() override {
        now_ += std::chrono::milliseconds(1);
        return inner_.finish();
    }
    std::span<uint32_t> masks() override { return inner_.masks(); }
    Result<bool> submit_draw() override { return inner_.submit_draw(); }
    uint64_t n_recordings() const override { return n_recordings_; }
    void use_merged(std::shared_ptr<const model::MergedWeights> merged) override {
        inner_.use_merged(std::move(merged));
    }

    static constexpr uint64_t kRecordings = 12;
    FakeRunner inner_{256};
    uint64_t n_recordings_ = 0;
    std::chrono::steady_clock::time_point now_;
};

TEST(Engine, LearnsNothingFromStepsThatWaitedForARecording) {
    RecordingRunner runner;
    Metrics metrics({"base", model::kBlockTokens, 256, 4, "fake", "none", true});
    EngineOptions options;
    options.limits = {256, 8, model::kBlockTokens};
    options.n_kv_blocks = 256;
    options.clock = [&] { return runner.now_; };
    Engine engine(runner, metrics, options);
    const auto submit = [&](uint32_t n_prompt, uint32_t n_tokens) {
        Request request;
        request.prompt = prompt_of(n_prompt, n_prompt);
        request.n_tokens_max = n_tokens;
        request.sampling.temperature = 0.0f;
        request.stream = std::make_shared<TokenStream>(n_tokens);
        ASSERT_TRUE(engine.submit(std::move(request)).ok());
    };
    for (uint32_t i = 0; i < 3; i++) submit(5 + i, 500);
    for (uint32_t i = 0; i < 4; i++) engine.step();
    submit(9000, 1);
    for (uint32_t i = 0; i < 40; i++) engine.step();
    EXPECT_EQ(runner.n_recordings_, RecordingRunner::kRecordings);
    EXPECT_EQ(runner.inner_.n_rows_max(), 256u) << "no step without a recording was slow";
}

}  // namespace
}  // namespace lorad::server::engine_test
