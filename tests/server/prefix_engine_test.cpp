// Prefix caching through the engine: what is shared, with whom, and that the tokens stay the same.
// The fake device keeps what adapters did to each token, so a block that was taken from the wrong
// request changes what follows.
#include <gtest/gtest.h>

#include "adapters/pool/registry.h"
#include "proto/base/log.h"
#include "server/http/generate/adapter_choice.h"
#include "tests/adapters/fake_store.h"
#include "tests/server/engine_fixture.h"
#include "tests/server/slot_digest.h"

namespace lorad::server::prefix_engine_test {
namespace {

using std::chrono::milliseconds;

struct Answer {
    std::vector<TokenId> tokens;
    uint32_t n_cached = 0;
    FinishReason reason = FinishReason::kError;
};

struct Fixture : EngineFixture {
    using EngineFixture::EngineFixture;

    static AdapterUse use(uint32_t slot, float scale = 1.0f) {
        AdapterUse adapter;
        if (slot != kNoAdapterSlot) adapter.uses = {{slot, scale}};
        return adapter;
    }
    static Answer answer_of(TokenStream& stream) {
        TokenStream::Batch batch = stream.pop(milliseconds(0));
        EXPECT_TRUE(batch.end);
        if (!batch.end) return {};
        return {std::move(batch.tokens), stream.n_cached_tokens(), batch.end->reason};
    }
    std::shared_ptr<TokenStream> begin(const std::vector<TokenId>& prompt, uint32_t n, const AdapterUse& adapter,
                                       PrefixIdentity prefix, bool may_skip = true) {
        Request request;
        request.prompt = prompt;
        request.n_tokens_max = n;
        request.sampling.temperature = 0.0f;
        request.adapter = adapter;
        request.prefix = std::move(prefix);
        request.may_skip_prefix = may_skip;
        request.stream = std::make_shared<TokenStream>(n);
        auto stream = request.stream;
        EXPECT_TRUE(engine.submit(std::move(request)).ok());
        return stream;
    }
    // Runs one request alone and checks its tokens.
    Answer run(const std::vector<TokenId>& prompt, uint32_t n, const AdapterUse& adapter = {},
               const std::string& salt = {}) {
        auto stream = begin(prompt, n, adapter, fake_prefix(adapter, prompt, salt));
        run_until_idle();
        Answer answer = answer_of(*stream);
        EXPECT_EQ(answer.tokens, fake_continuation(prompt, adapter.rows(), n));
        EXPECT_EQ(runner.n_broken(), 0u);
        return answer;
    }
};

TEST(PrefixCaching, OnlyWhatFollowsTheCommonBlocksIsComputed) {
    Fixture f;
    auto prompt = prompt_of(300, 1);
    EXPECT_EQ(f.run(prompt, 3).n_cached, 0u);
    uint64_t n_before = f.runner.n_rows();
    // 200 tokens in common: three blocks. 108 rows of the prompt and two tokens fed back are left.
    std::vector<TokenId> other(prompt.begin(), prompt.begin() + 200);
    auto rest = prompt_of(100, 2);
    other.insert(other.end(), rest.begin(), rest.end());
    EXPECT_EQ(f.run(other, 3).n_cached, 192u);
    EXPECT_EQ(f.runner.n_rows() - n_before, 108u + 2u);
    std::string text = f.metrics.text({});
    EXPECT_NE(text.find("vllm:prefix_cache_queries_total{model_name=\"base\"} 600\n"), std::string::npos);
    EXPECT_NE(text.find("vllm:prefix_cache_hits_total{model_name=\"base\"} 192\n"), std::string::npos);
}

TEST(PrefixCaching, TheLastTokenOfAPromptIsAlwaysComputed) {
    Fixture f;
    auto prompt = prompt_of(128, 3);
    f.run(prompt, 2);
    EXPECT_EQ(f.run(prompt, 2).n_cached, 64u);
    prompt.push_back(7);
    EXPECT_EQ(f.run(prompt, 2).n_cached, 128u);
}

TEST(PrefixCaching, AnAnswerIsPartOfTheNextPrompt) {
    Fixture f;
    auto prompt = prompt_of(50, 4);
    Answer first = f.run(prompt, 100);
    prompt.insert(prompt.end(), first.tokens.begin(), first.tokens.end());
    auto next = prompt_of(20, 5);
    prompt.insert(prompt.end(), next.begin(), next.end());
    // 149 of the first request's tokens have keys and values: two blocks.
    EXPECT_EQ(f.run(prompt, 5).n_cached, 128u);
}

TEST(PrefixCaching, RequestsThatRunAtTheSameTimeShareBlocks) {
    Fixture f(9);
    auto prompt = prompt_of(250, 6);
    auto first = f.begin(prompt, 60, {}, fake_prefix({}, prompt));
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(f.engine.step());
    // Five blocks each would be fifteen: only shared do they fit at the same time.
    auto second = f.begin(prompt, 60, {}, fake_prefix({}, prompt));
    auto third = f.begin(prompt, 60, {}, fake_prefix({}, prompt));
    for (int i = 0; i < 12; ++i) ASSERT_TRUE(f.engine.step());
    EXPECT_NE(f.metrics.text({}).find("vllm:num_requests_running{model_name=\"base\"} 3\n"), std::string::npos);
    f.run_until_idle();
    auto expected = fake_continuation(prompt, kNoAdapterSlot, 60);
    for (auto& stream : {first, second, third}) EXPECT_EQ(f.answer_of(*stream).tokens, expected);
    EXPECT_EQ(f.runner.n_broken(), 0u);
}

TEST(PrefixCaching, EveryContentScaleAndSaltKeepsToItself) {
    Fixture f(256);
    auto prompt = prompt_of(130, 7);
    const std::vector<std::pair<AdapterUse, std::string>> all = {{f.use(kNoAdapterSlot), ""},
                                                                 {f.use(1), ""},
                                                                 {f.use(2), ""},
                                                                 {f.use(1, 0.5f), ""},
                                                                 {f.use(1, -1.0f), ""},
                                                                 {f.use(1), "tenant"},
                                                                 {f.use(kNoAdapterSlot), "tenant"},
                                                                 {f.use(kNoAdapterSlot), "1"}};
    for (const auto& [adapter, salt] : all) EXPECT_EQ(f.run(prompt, 4, adapter, salt).n_cached, 0u);
    for (const auto& [adapter, salt] : all) EXPECT_EQ(f.run(prompt, 4, adapter, salt).n_cached, 128u);
}

TEST(PrefixCaching, AnActivatedAdapterSharesWithTheBaseUpToItsActivation) {
    Fixture f(256);
    auto prompt = prompt_of(260, 8);
    f.run(prompt, 4);
    AdapterUse adapter = f.use(3);
    adapter.from_position = 150;  // within the third block
    EXPECT_EQ(f.run(prompt, 4, adapter).n_cached, 128u);
    EXPECT_EQ(f.run(prompt, 4, adapter).n_cached, 256u);
    // Activated elsewhere in the same block: that block is another one.
    adapter.from_position = 151;
    EXPECT_EQ(f.run(prompt, 4, adapter).n_cached, 128u);
    adapter.from_position = 192;
    EXPECT_EQ(f.run(prompt, 4, adapter).n_cached, 192u);
    EXPECT_EQ(f.run(prompt, 4).n_cached, 256u);
}

TEST(PrefixCaching, APreemptedSequenceFindsItsOwnBlocksAgain) {
    // Two grow until only one fits; blocks of the one that is put back stay until they are needed.
    Fixture f(9);
    auto first = prompt_of(190, 9), second = prompt_of(190, 10);
    auto a = f.begin(first, 150, {}, fake_prefix({}, first));
    auto b = f.begin(second, 150, {}, fake_prefix({}, second));
    f.run_until_idle();
    EXPECT_EQ(f.answer_of(*a).tokens, fake_continuation(first, kNoAdapterSlot, 150));
    Answer put_back = f.answer_of(*b);
    EXPECT_EQ(put_back.tokens, fake_continuation(second, kNoAdapterSlot, 150));
    EXPECT_EQ(put_back.n_cached, 0u) << "what it has computed itself is not counted as cached";
    EXPECT_EQ(f.metrics.text({}).find("vllm:num_preemptions_total{model_name=\"base\"} 0\n"), std::string::npos);
    // Without its blocks it would have computed some 250 tokens a second time.
    EXPECT_LT(f.runner.n_rows(), 2u * (190 + 149) + 150);
    EXPECT_EQ(f.runner.n_broken(), 0u);
}

TEST(PrefixCaching, WhatWantsEveryRowOfItsPromptGetsThemAndStillLeavesItsBlocks) {
    Fixture f;
    auto prompt = prompt_of(200, 11);
    f.run(prompt, 2);
    uint64_t n_before = f.runner.n_rows();
    auto stream = f.begin(prompt, 2, {}, fake_prefix({}, prompt), false);
    f.run_until_idle();
    EXPECT_EQ(f.answer_of(*stream).n_cached, 0u);
    EXPECT_EQ(f.runner.n_rows() - n_before, 201u);
}

TEST(PrefixCaching, OutputThatIsNotFiniteIsNotKept) {
    Fixture f;
    f.runner.not_finite_token_ = 990;
    auto prompt = prompt_of(140, 12);
    std::replace(prompt.begin(), prompt.end(), TokenId(990), TokenId(1));
    prompt.back() = 990;
    for (int i = 0; i < 2; ++i) {
        auto stream = f.begin(prompt, 4, {}, fake_prefix({}, prompt));
        f.run_until_idle();
        Answer answer = f.answer_of(*stream);
        EXPECT_EQ(answer.reason, FinishReason::kError);
        EXPECT_EQ(answer.n_cached, 0u);
    }
}

TEST(PrefixCaching, IsOffWhereTheOptionSaysSo) {
    FakeRunner runner(64);
    Metrics metrics({"base", model::kBlockTokens, 64, 4, "fake", "none", true});
    Engine engine(runner, metrics, {.limits = {128, 8, model::kBlockTokens}, .n_kv_blocks = 64, .prefix_cache = false});
    auto prompt = prompt_of(200, 13);
    for (int i = 0; i < 2; ++i) {
        Request request;
        request.prompt = prompt;
        request.n_tokens_max = 1;
        request.prefix = fake_prefix({}, prompt);
        request.stream = std::make_shared<TokenStream>(1);
        auto stream = request.stream;
        ASSERT_TRUE(engine.submit(std::move(request)).ok());
        while (engine.step()) {
        }
        EXPECT_EQ(Fixture::answer_of(*stream).n_cached, 0u);
    }
    EXPECT_EQ(runner.n_rows(), 400u);
}

TEST(PrefixCaching, MergedRowsAreFoundOnlyWhileTheirMixIsMerged) {
    Fixture f(256);
    f.runner.merged_slot_ = 2;
    auto prompt = prompt_of(200, 14);
    auto merge = [&](bool on) {
        std::optional<MergedMix> mix;
        if (on) mix = MergedMix{{{2, 1.0f}}, std::make_shared<const model::MergedWeights>(), nullptr};
        f.engine.set_merged(std::move(mix));
        f.engine.step();
    };
    merge(true);
    EXPECT_EQ(f.run(prompt, 2, f.use(2)).n_cached, 0u);
    EXPECT_EQ(f.run(prompt, 2, f.use(2)).n_cached, 192u);
    EXPECT_GT(f.runner.n_merged_rows(), 0u);
    merge(false);
    EXPECT_EQ(f.run(prompt, 2, f.use(2)).n_cached, 0u);
    EXPECT_EQ(f.run(prompt, 2, f.use(2)).n_cached, 192u);
    merge(true);
    // Blocks of pristine weights serve both.
    EXPECT_EQ(f.run(prompt, 2, f.use(2)).n_cached, 192u);
    EXPECT_EQ(f.run(prompt, 2, f.use(1)).n_cached, 0u);
}

// Contents come and go under names; what counts is the content.
class PrefixOfNames : public ::testing::Test {
  protected:
    static constexpr uint32_t kContents = 3;

    void SetUp() override {
        set_log_level(LogLevel::kError);  // a line for each of thousands of changes
        for (uint32_t i = 0; i < kContents; ++i) {
            folders.push_back(std::make_unique<testing::AdapterFolder>(testing::kPlainConfig,
                                                                       testing::plain_tensors(4, 100 + i * 50)));
        }
        f.runner.slot_digest_ = [this](uint32_t slot) { return digest_of(store.slots[slot]); };
    }
    void TearDown() override { set_log_level(LogLevel::kInfo); }
    void load(const std::string& name, uint32_t content) {
        auto loaded = registry.load(name, folders[content]->path(), {.load_inplace = true});
        ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    }
    // The tokens for a mix must be those of what its names stand for now.
    Answer run(const std::vector<adapters::AdapterTerm>& terms, const std::string& salt = {}) {
        auto lease = registry.acquire(terms);
        EXPECT_TRUE(lease.ok());
        AdapterUse use = use_of(*lease, prompt);
        std::vector<TokenId> expected =
            fake_continuation(prompt, use.rows(), 5, [this](uint32_t slot) { return digest_of(store.slots[slot]); });
        auto stream = f.begin(prompt, 5, use, prefix_of(registry, *lease, use, prompt, salt));
        f.run_until_idle();
        Answer answer = f.answer_of(*stream);
        EXPECT_EQ(answer.tokens, expected) << "stale keys and values";
        return answer;
    }

    std::vector<std::unique_ptr<testing::AdapterFolder>> folders;
    testing::FakeStore store{4};
    adapters::Registry registry{testing::small_config(), store, {.base_name = "base"}};
    Fixture f{512};
    const std::vector<TokenId> prompt = prompt_of(200, 20);
};

TEST_F(PrefixOfNames, AReplacedAdapterFindsNothingOfTheOneBefore) {
    // Every content is computed once, whatever it is called and however often the name changes.
    std::set<uint32_t> seen;
    for (uint32_t i = 0; i < 1000; ++i) {
        uint32_t content = (i * 7 + i / 5) % kContents;
        load("name", content);
        EXPECT_EQ(run({{"name", 1.0f}}).n_cached, seen.insert(content).second ? 0u : 192u) << i;
    }
    EXPECT_EQ(seen.size(), kContents);
}

TEST_F(PrefixOfNames, TheSameContentUnderTwoNamesIsOnePrefix) {
    load("one", 0);
    load("two", 0);
    EXPECT_EQ(run({{"one", 1.0f}}).n_cached, 0u);
    EXPECT_EQ(run({{"two", 1.0f}}).n_cached, 192u);
}

TEST_F(PrefixOfNames, BaseScalesOrdersAndSaltsKeepApart) {
    load("one", 0);
    load("two", 1);
    const std::vector<std::pair<std::vector<adapters::AdapterTerm>, std::string>> all = {
        {{}, ""},
        {{}, "one"},  // a salt that is called like an adapter
        {{{"one", 1.0f}}, ""},
        {{{"one", 1.0f}}, "one"},
        {{{"one", 0.5f}}, ""},
        {{{"two", 1.0f}}, ""},
        {{{"one", 1.0f}, {"two", 1.0f}}, ""},
        {{{"two", 1.0f}, {"one", 1.0f}}, ""},
    };
    for (const auto& [terms, salt] : all) EXPECT_EQ(run(terms, salt).n_cached, 0u);
    for (const auto& [terms, salt] : all) EXPECT_EQ(run(terms, salt).n_cached, 192u);
    // A term at scale 0 is not there.
    EXPECT_EQ(run({{"one", 1.0f}, {"two", 0.0f}}).n_cached, 192u);
}

// What a text is continued with where texts of more than n_short tokens are turned as long ones.
std::vector<TokenId> growing_continuation(std::vector<TokenId> text, uint32_t n, uint32_t n_short) {
    std::vector<TokenId> out;
    while (out.size() < n) {
        FakeState state;
        for (TokenId token : text) state.add(token, fake_turned(0, text.size() > n_short ? n_short : 0));
        out.push_back(state.next_token());
        text.push_back(out.back());
    }
    return out;
}

TEST(LongTexts, AreComputedAgainFromTheirFirstTokenOn) {
    constexpr uint32_t kShort = 100;
    for (const uint32_t n_blocks : {64u, 9u}) {
        Fixture f(EngineOptions{
            .limits = {128, 8, model::kBlockTokens}, .n_kv_blocks = n_blocks, .n_short_text_tokens = kShort});
        auto all = prompt_of(300, 11);
        // The second round finds what the first left in the prefix cache: keys of short and of long texts with the same
        // tokens.
        for (int round = 0; round < 2; ++round) {
            std::vector<std::vector<TokenId>> prompts;
            std::vector<std::shared_ptr<TokenStream>> streams;
            for (const uint32_t n : {50u, 70u, 99u, 100u, 101u, 140u, 300u}) {
                prompts.emplace_back(all.begin(), all.begin() + n);
                streams.push_back(f.begin(prompts.back(), 80, {}, fake_prefix({}, prompts.back())));
            }
            f.run_until_idle();
            for (size_t i = 0; i < prompts.size(); ++i)
                EXPECT_EQ(f.answer_of(*streams[i]).tokens, growing_continuation(prompts[i], 80, kShort))
                    << prompts[i].size();
        }
        EXPECT_EQ(f.runner.n_broken(), 0u);
        const uint32_t n_cached = f.run(std::vector<TokenId>(all.begin(), all.begin() + 90), 5).n_cached;
        EXPECT_EQ(n_cached, n_blocks == 64 ? 64u : 0u);  // few blocks are soon somebody else's
    }
}

// How many steps one stream waits at most for its next token, and when both end.
struct Pace {
    int first_end = 0, second_end = 0, longest_gap = 0;
};
Pace pace_of(Fixture& f, TokenStream& first, TokenStream& second) {
    Pace pace;
    int gap = 0;
    for (int step = 1; step < 600 && (pace.first_end == 0 || pace.second_end == 0); ++step) {
        f.engine.step();
        const TokenStream::Batch a = first.pop(milliseconds(0)), b = second.pop(milliseconds(0));
        gap = a.tokens.empty() && pace.first_end == 0 ? gap + 1 : 0;
        pace.longest_gap = std::max(pace.longest_gap, gap);
        if (a.end && pace.first_end == 0) pace.first_end = step;
        if (b.end && pace.second_end == 0) pace.second_end = step;
    }
    return pace;
}

TEST(LongTexts, KeepTheirPlacesWhileTheyAreComputedAgain) {
    for (const int32_t priority_of_other : {0, 5}) {
        Fixture f(
            EngineOptions{.limits = {128, 1, model::kBlockTokens}, .n_kv_blocks = 64, .n_short_text_tokens = 100});
        const auto prompt = prompt_of(90, 1), other_prompt = prompt_of(30, 2);
        const auto first = f.begin(prompt, 40, {}, fake_prefix({}, prompt));
        for (int i = 0; i < 4; ++i) f.engine.step();
        Request request;
        request.prompt = other_prompt;
        request.n_tokens_max = 60;
        request.priority = priority_of_other;
        request.sampling.temperature = 0.0f;
        request.prefix = fake_prefix({}, other_prompt);
        const auto second = request.stream = std::make_shared<TokenStream>(60);
        ASSERT_TRUE(f.engine.submit(std::move(request)).ok());
        const Pace pace = pace_of(f, *first, *second);
        EXPECT_GT(pace.first_end, 0);
        EXPECT_LT(pace.first_end, pace.second_end);
        EXPECT_LE(pace.longest_gap, 5);
    }
}

TEST(LongTexts, TakeTheBlocksOfThoseBehindThem) {
    // Two blocks hold 128 tokens; the text that is computed again needs a third, and the other one has the rest.
    Fixture f(EngineOptions{.limits = {128, 8, model::kBlockTokens}, .n_kv_blocks = 7, .n_short_text_tokens = 128});
    const auto prompt = prompt_of(120, 1), other_prompt = prompt_of(300, 2);
    const auto first = f.begin(prompt, 40, {}, fake_prefix({}, prompt)),
               second = f.begin(other_prompt, 120, {}, fake_prefix({}, other_prompt));
    const Pace pace = pace_of(f, *first, *second);
    EXPECT_GT(pace.first_end, 0);
    EXPECT_LT(pace.first_end, pace.second_end);
    EXPECT_LE(pace.longest_gap, 8);
}

}  // namespace
}  // namespace lorad::server::prefix_engine_test
