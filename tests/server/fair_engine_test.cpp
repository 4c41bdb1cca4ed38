// Order, limits and fairness through the engine, on a clock that the test moves: a step takes a
// millisecond.
//
// LORAD_TEST_STEPS makes the simulation long, LORAD_TEST_SEED repeats one.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "tests/server/engine_fixture.h"
#include "tests/support/number_from.h"

namespace lorad::server::fair_engine_test {
namespace {

using std::chrono::milliseconds;

struct Clock {
    std::shared_ptr<uint64_t> ms = std::make_shared<uint64_t>(1000);
    std::function<std::chrono::steady_clock::time_point()> function() const {
        return [ms = ms] { return std::chrono::steady_clock::time_point(milliseconds(*ms)); };
    }
};

struct Sent {
    Request request;  // what it was given, without what the engine took
    std::shared_ptr<TokenStream> stream;
    std::vector<TokenId> tokens;
    std::optional<StreamEnd> end;
    uint64_t sent_ms = 0, first_ms = 0, end_ms = 0;
};

struct Fixture {
    explicit Fixture(EngineOptions options) : f((options.clock = clock.function(), options)) {}

    size_t send(const std::string& tenant, uint32_t n_prompt, uint32_t n_tokens, int32_t priority = 0,
                uint32_t prompt_seed = 0, AdapterUse adapter = {}) {
        Sent sent;
        sent.request.prompt = prompt_of(n_prompt, prompt_seed ? prompt_seed : uint32_t(1000 + all.size()));
        sent.request.n_tokens_max = n_tokens;
        sent.request.sampling.temperature = 0.0f;
        sent.request.priority = priority;
        sent.request.tenant = tenant;
        sent.request.adapter = adapter;
        sent.stream = sent.request.stream = std::make_shared<TokenStream>(n_tokens);
        sent.sent_ms = *clock.ms;
        Request request = sent.request;
        request.prefix = fake_prefix(adapter, request.prompt);
        EXPECT_TRUE(f.engine.submit(std::move(request)).ok());
        all.push_back(std::move(sent));
        return all.size() - 1;
    }
    bool step() {
        bool worked = f.engine.step();
        ++*clock.ms;
        ++n_steps;
        for (Sent& sent : all) {
            if (sent.end || (worked && n_steps % collect_every != 0)) continue;
            TokenStream::Batch batch = sent.stream->pop(milliseconds(0));
            if (sent.tokens.empty() && !batch.tokens.empty()) sent.first_ms = *clock.ms;
            sent.tokens.insert(sent.tokens.end(), batch.tokens.begin(), batch.tokens.end());
            if (batch.end) sent.end_ms = *clock.ms;
            sent.end = batch.end;
        }
        return worked;
    }
    void steps(uint32_t n) {
        for (uint32_t i = 0; i < n; ++i) step();
    }
    void run_until_idle() {
        for (int i = 0; i < 1000000 && step(); ++i) {
        }
    }
    uint64_t wait_of(size_t index) const { return all[index].first_ms - all[index].sent_ms; }

    uint64_t n_steps = 0, collect_every = 1;
    Clock clock;
    EngineFixture f;
    std::vector<Sent> all;
};

EngineOptions options_of(uint32_t n_blocks, SchedulerLimits limits) {
    EngineOptions options;
    options.limits = limits;
    options.n_kv_blocks = n_blocks;
    options.n_waiting_max = 1000;
    options.starvation_bound = milliseconds(500);
    return options;
}

TEST(FairEngine, UrgentRequestsComeFirst) {
    Fixture f(options_of(64, {128, 1, 64}));
    size_t running = f.send("t", 10, 20);
    f.steps(3);
    size_t late = f.send("t", 10, 20, 5), normal = f.send("t", 10, 20, 0), urgent = f.send("t", 10, 20, -5);
    f.run_until_idle();
    EXPECT_LT(f.all[running].end_ms, f.all[urgent].first_ms);
    EXPECT_LT(f.all[urgent].end_ms, f.all[normal].first_ms);
    EXPECT_LT(f.all[normal].end_ms, f.all[late].first_ms);
}

TEST(FairEngine, AFloodOfOneTenantDoesNotHoldUpAnother) {
    Fixture f(options_of(256, {256, 4, 64}));
    for (int i = 0; i < 100; ++i) f.send("flood", 100, 30);
    f.steps(5);
    size_t other = f.send("other", 100, 30);
    f.run_until_idle();
    // Behind those that run, not behind those that wait: in order of arrival it would be 750 ms.
    EXPECT_LT(f.wait_of(other), 60u);
}

TEST(FairEngine, AdaptersOfOneTenantTakeTurns) {
    Fixture f(options_of(256, {256, 2, 64}));
    AdapterUse busy{.uses = {{1, 1.0f}}, .name = "busy"}, rare{.uses = {{2, 1.0f}}, .name = "rare"};
    for (int i = 0; i < 50; ++i) f.send("t", 60, 30, 0, 0, busy);
    f.steps(5);
    size_t other = f.send("t", 60, 30, 0, 0, rare);
    f.run_until_idle();
    EXPECT_LT(f.wait_of(other), 60u);
}

TEST(FairEngine, LowPriorityWaitsNoLongerThanTheBoundUnderAFloodOfUrgentOnes) {
    Fixture f(options_of(256, {256, 2, 64}));
    f.collect_every = 8;
    for (int i = 0; i < 4; ++i) f.send("t", 20, 20, -1);
    size_t low = f.send("t", 20, 20, 100);
    for (int i = 0; i < 200; ++i) {
        f.steps(10);
        f.send("t", 20, 20, -1);
        f.send("t", 20, 20, -1);
    }
    EXPECT_GE(f.wait_of(low), 400u) << "urgent ones do come first";
    EXPECT_LE(f.wait_of(low), 500u + 35u + f.collect_every) << "the bound, and until one of those that run ends";
    f.run_until_idle();
    EXPECT_TRUE(f.all[low].end);
}

TEST(FairEngine, RequestsThatRunForLongYieldToOneThatStarvesAndStillEnd) {
    Fixture f(options_of(512, {256, 2, 64}));
    size_t first = f.send("long", 100, 5000), second = f.send("long", 100, 5000);
    f.steps(100);
    size_t other = f.send("other", 100, 300);
    f.run_until_idle();
    EXPECT_LE(f.wait_of(other), 500u + 15u);
    for (size_t i : {first, second, other}) {
        EXPECT_EQ(f.all[i].tokens,
                  fake_continuation(f.all[i].request.prompt, kNoAdapterSlot, f.all[i].request.n_tokens_max));
    }
    EXPECT_EQ(f.f.runner.n_broken(), 0u);
}

TEST(FairEngine, TheOnlyPlaceIsSharedByThoseThatNeedItForLong) {
    Fixture f(options_of(512, {256, 1, 64}));
    std::vector<size_t> all;
    for (const char* tenant : {"a", "b", "c"}) all.push_back(f.send(tenant, 100, 3000));
    f.run_until_idle();
    for (size_t i : all) {
        EXPECT_EQ(f.all[i].tokens, fake_continuation(f.all[i].request.prompt, kNoAdapterSlot, 3000));
        EXPECT_LE(f.wait_of(i), 1100u) << "tenants before it run for the bound";
    }
    EXPECT_EQ(f.f.runner.n_broken(), 0u);
}

TEST(FairEngine, AStarvingRequestGetsBlocksAsWell) {
    // Places enough, but the two that run hold and need nearly all blocks.
    Fixture f(options_of(40, {256, 8, 64}));
    f.send("long", 1000, 900);
    f.send("long", 900, 900);
    f.steps(300);
    size_t other = f.send("other", 1200, 50);
    f.run_until_idle();
    EXPECT_LE(f.wait_of(other), 500u + 300u + 30u);
    for (const Sent& sent : f.all) EXPECT_EQ(sent.end->reason, FinishReason::kLength);
}

TEST(FairEngine, WithoutABoundNobodyYields) {
    EngineOptions options = options_of(512, {256, 1, 64});
    options.starvation_bound = milliseconds(0);
    Fixture f(options);
    size_t first = f.send("a", 10, 2000);
    f.step();
    size_t second = f.send("b", 10, 10, -7);
    f.run_until_idle();
    EXPECT_GT(f.all[second].first_ms, f.all[first].end_ms);
}

TEST(FairEngine, DecodesGoOnBesideALongPrompt) {
    EngineOptions options = options_of(512, {1024, 8, 64});
    options.n_prefill_rows_max = 64;
    Fixture f(options);
    f.send("t", 10, 200);
    f.steps(5);
    uint64_t rows = f.f.runner.n_rows();
    size_t big = f.send("t", 4000, 5);
    size_t before = f.all[0].tokens.size();
    f.steps(60);
    EXPECT_EQ(f.all[0].tokens.size(), before + 60) << "a token in each step";
    EXPECT_EQ(f.f.runner.n_rows() - rows, 60u * 65u);
    f.run_until_idle();
    EXPECT_EQ(f.all[big].tokens, fake_continuation(f.all[big].request.prompt, kNoAdapterSlot, 5));
    // Nobody decodes: the whole step is the prompt's.
    EXPECT_EQ(f.f.runner.n_rows_max(), 65u);
    f.send("t", 4000, 1);
    f.run_until_idle();
    EXPECT_EQ(f.f.runner.n_rows_max(), 1024u);
}

TEST(FairEngine, AShortPromptIsInTheNextStepThoughALongOneIsHalfComputed) {
    // Of another tenant and of the same; alone with the long one, and beside decodes in few rows.
    for (const char* tenant : {"calm", "heavy"}) {
        for (bool decodes : {false, true}) {
            EngineOptions options = options_of(512, {512, 8, 64});
            options.n_prefill_rows_max = 64;
            Fixture f(options);
            if (decodes) f.send("third", 10, 1000);
            f.steps(3);
            size_t big = f.send("heavy", 20000, 5);
            f.steps(6);
            size_t small = f.send(tenant, 48, 5);
            f.steps(6);
            EXPECT_FALSE(f.all[small].tokens.empty());
            EXPECT_LE(f.wait_of(small), 4u) << "two steps in flight, its own, and it is told";
            EXPECT_TRUE(f.all[big].tokens.empty());
            f.run_until_idle();
            EXPECT_EQ(f.all[big].tokens, fake_continuation(f.all[big].request.prompt, kNoAdapterSlot, 5));
        }
    }
}

TEST(FairEngine, ALongPromptMovesOnUnderAFloodOfUrgentOnes) {
    EngineOptions options = options_of(512, {128, 8, 64});
    options.n_prefill_rows_max = 64;
    options.prefix_cache = false;
    Fixture f(options);
    f.collect_every = 8;
    f.send("t", 10, 3000);
    f.steps(3);
    size_t big = f.send("t", 4000, 5, 1);
    f.steps(10);
    // More rows than there are come in each step.
    for (int i = 0; i < 1200 && f.all[big].tokens.empty(); ++i) {
        f.send("t", 80, 1, 0, 7);
        f.step();
    }
    EXPECT_GE(f.wait_of(big), 500u) << "urgent ones do come first";
    EXPECT_LE(f.wait_of(big), 500u + 4000 / 64 + 30u) << "the bound, and its own steps";
    f.run_until_idle();
}

// Two tenants that always have prompts waiting, long ones and short ones: what is computed of them is shared evenly.
TEST(FairEngine, PromptsOfBackloggedTenantsAreComputedAlike) {
    EngineOptions options = options_of(1024, {256, 16, 64});
    options.prefix_cache = false;
    Fixture f(options);
    f.collect_every = 4;
    std::map<std::string, uint32_t> size{{"long", 3000}, {"short", 60}};
    std::map<std::string, std::vector<size_t>> sent;
    double worst = 0;
    for (int step = 0; step < 1500; ++step) {
        std::map<std::string, uint64_t> done;
        for (auto& [tenant, n_prompt] : size) {
            uint32_t n_open = 0;
            for (size_t i : sent[tenant]) (f.all[i].end ? done[tenant] += n_prompt : n_open += 1);
            for (; n_open < (tenant == "long" ? 3u : 30u); ++n_open)
                sent[tenant].push_back(f.send(tenant, n_prompt, 1));
        }
        f.step();
        worst = std::max(worst, std::abs(double(done["long"]) - double(done["short"])));
    }
    // The bound, one that is half computed, and what was not collected yet.
    EXPECT_LE(worst, 256.0 + 64 + 3000 + 256 * 8);
    EXPECT_GE(sent["short"].size() * 60, 1500u * 256 / 3);
}

TEST(FairEngine, ARequestThatTakesTooLongEndsWithWhatThereIs) {
    EngineOptions options = options_of(64, {128, 1, 64});
    options.request_time_max = milliseconds(100);
    Fixture f(options);
    size_t running = f.send("t", 10, 1000), waiting = f.send("t", 10, 10);
    f.run_until_idle();
    EXPECT_EQ(f.all[running].end->reason, FinishReason::kTimeout);
    EXPECT_STREQ(to_string(FinishReason::kTimeout), "timeout");
    size_t n = f.all[running].tokens.size();
    EXPECT_GE(n, 95u);
    EXPECT_LE(n, 100u);
    EXPECT_EQ(f.all[running].tokens, fake_continuation(f.all[running].request.prompt, kNoAdapterSlot, n));
    // It never ran: the client is told to come again.
    ASSERT_TRUE(f.all[waiting].end->error);
    EXPECT_EQ(f.all[waiting].end->error->code, ErrorCode::kOverloaded);
    EXPECT_LE(f.all[waiting].end_ms - f.all[waiting].sent_ms, 102u);
}

struct Summary {
    uint64_t trace = 0, n_steps = 0, n_preempted = 0, n_cached = 0, n_late = 0;
};

// Random tenants, priorities, sizes, limits and cancellations. Every request ends, with its own
// tokens; steps keep to their budget; all blocks come back; nobody is passed over for longer than
// the bound and the time that those before it may take.
Summary simulate(uint64_t seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random{uint32_t(seed)};
    uint32_t n_blocks = 6 + random() % 30;
    SchedulerLimits limits{8 + uint32_t(random() % 300), 1 + uint32_t(random() % 8), model::kBlockTokens};
    EngineOptions options = options_of(n_blocks, limits);
    options.starvation_bound = milliseconds(random() % 3 == 0 ? 0 : 20 + random() % 200);
    if (random() % 3 == 0) options.n_prefill_rows_max = 1 + random() % 100;
    if (random() % 5 == 0) options.request_time_max = milliseconds(200 + random() % 2000);
    options.prefix_cache = random() % 4 != 0;
    Fixture f(options);
    f.collect_every = 16;
    std::set<size_t> cancelled;
    uint32_t n_requests = 5 + random() % 40;
    while (f.all.size() < n_requests) {
        if (random() % 6 == 0) {
            uint32_t n_positions_max = n_blocks * model::kBlockTokens;
            uint32_t n_prompt = 1 + random() % (n_positions_max - 1);
            if (random() % 2) n_prompt = 1 + n_prompt % 100;
            uint32_t n_tokens = 1 + random() % std::min(n_positions_max - n_prompt, 300u);
            AdapterUse adapter;
            if (random() % 3 == 0)
                adapter = {.uses = {{uint32_t(random() % 3), 1.0f}}, .name = std::to_string(random() % 3)};
            f.send(std::to_string(random() % 3), n_prompt, n_tokens, int32_t(random() % 3), 1 + random() % 2, adapter);
        }
        if (!f.all.empty() && random() % 40 == 0) {
            size_t i = random() % f.all.size();
            cancelled.insert(i);
            f.all[i].stream->cancel();
        }
        f.step();
    }
    f.run_until_idle();
    Summary run;
    for (size_t i = 0; i < f.all.size(); ++i) {
        const Sent& sent = f.all[i];
        EXPECT_TRUE(sent.end);
        if (!sent.end) continue;
        auto expected = fake_continuation(sent.request.prompt, sent.request.adapter.rows(), sent.request.n_tokens_max);
        bool is_late = sent.end->reason == FinishReason::kTimeout || sent.end->reason == FinishReason::kError;
        EXPECT_TRUE(!is_late || options.request_time_max.count() > 0);
        if (is_late) {
            ++run.n_late;
            EXPECT_LE(sent.end_ms - sent.sent_ms, uint64_t(options.request_time_max.count()) + 3 + f.collect_every);
        }
        if (is_late || cancelled.contains(i)) expected.resize(std::min(expected.size(), sent.tokens.size()));
        EXPECT_EQ(sent.tokens, expected) << "request " << i;
        run.n_cached += sent.stream->n_cached_tokens();
    }
    EXPECT_EQ(f.f.runner.n_broken(), 0u);
    EXPECT_LE(f.f.runner.n_rows_max(), limits.n_rows_max);
    std::string text = f.f.metrics.text({});
    EXPECT_NE(text.find("vllm:kv_cache_usage_perc{model_name=\"base\"} 0\n"), std::string::npos);
    EXPECT_NE(text.find("vllm:num_requests_waiting{model_name=\"base\"} 0\n"), std::string::npos);
    std::string name = "vllm:num_preemptions_total{model_name=\"base\"} ";
    run.n_preempted = std::stoul(text.substr(text.find(name) + name.size()));
    run.trace = f.f.runner.trace();
    run.n_steps = f.f.runner.n_steps();
    return run;
}

TEST(FairEngineSimulation, EveryRequestEndsNothingIsLostAndTheSameSeedIsTheSameRun) {
    const uint64_t n_steps = lorad::testing::number_from("LORAD_TEST_STEPS", 100000);
    uint64_t seed = lorad::testing::number_from("LORAD_TEST_SEED", 1);
    Summary sum;
    uint64_t n_runs = 0;
    for (; sum.n_steps < n_steps && !::testing::Test::HasFailure(); ++seed, ++n_runs) {
        Summary run = simulate(seed);
        if (n_runs % 10 == 0) {
            EXPECT_EQ(simulate(seed).trace, run.trace) << "seed " << seed << " again is another run";
        }
        sum.n_steps += run.n_steps;
        sum.n_preempted += run.n_preempted;
        sum.n_cached += run.n_cached;
        sum.n_late += run.n_late;
    }
    std::printf("%llu runs, %llu steps, %llu preemptions, %llu cached tokens, %llu late\n",
                static_cast<unsigned long long>(n_runs), static_cast<unsigned long long>(sum.n_steps),
                static_cast<unsigned long long>(sum.n_preempted), static_cast<unsigned long long>(sum.n_cached),
                static_cast<unsigned long long>(sum.n_late));
    EXPECT_GT(sum.n_preempted, n_steps / 1000);
    EXPECT_GT(sum.n_cached, n_steps / 10);
    EXPECT_GT(sum.n_late, 0u);
}

}  // namespace
}  // namespace lorad::server::fair_engine_test
