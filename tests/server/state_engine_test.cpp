// Models with recurrent state: each running sequence has a slot to itself, every row goes on from the state behind the
// row before it, and none is computed twice on it. What the prefix cache keeps of states is found by those alone whose
// text it is the state of.
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "tests/server/engine_fixture.h"
#include "tests/server/hash_constraint.h"

namespace lorad::server::state_engine_test {
namespace {

// The fake device, which keeps beside its cache what each slot has seen, tokens and what adapters did to them. A row
// that goes on from anything but what its own blocks hold is wrong.
class StateRunner final : public StepRunner {
  public:
    StateRunner(uint32_t n_blocks, uint32_t n_slots) : fake(n_blocks), n_slots_(n_slots) {}

    Status submit(const model::StepBatch& batch) override {
        TRY(fake.submit(batch));
        std::set<uint32_t> written;
        std::map<uint32_t, uint64_t> next = states_;
        for (const gpu::StateRun& run : batch.state_runs()) {
            const model::BatchRow& first = batch.rows()[run.row_begin];
            for (uint32_t i = 0; i < run.n_rows; ++i) {
                EXPECT_EQ(batch.rows()[run.row_begin + i].position, first.position + i);
                EXPECT_EQ(&batch.state_runs()[batch.rows()[run.row_begin + i].state_run], &run);
            }
            EXPECT_EQ(run.from == gpu::kNoState, first.position == 0);
            if (run.from != gpu::kNoState && states_[run.from] != fake.history(batch, first, first.position)) {
                ++n_wrong;
                ADD_FAILURE() << "slot " << run.from << " is not the state behind " << first.position << " tokens";
            }
            n_resumed += run.from != gpu::kNoState && run.from != run.to ? 1 : 0;
            const auto write = [&](uint32_t slot, uint32_t n_rows) {
                EXPECT_LT(slot, n_slots_);
                EXPECT_TRUE(written.insert(slot).second) << "two write slot " << slot;
                next[slot] = fake.history(batch, first, first.position + n_rows);
            };
            write(run.to, run.n_rows);
            for (const gpu::StateSave& save : run.saves) {
                EXPECT_LE(save.n_rows, run.n_rows);
                if (save.n_rows != 0) write(save.to, save.n_rows);
            }
        }
        for (const gpu::StateRun& run : batch.state_runs()) {
            EXPECT_TRUE(run.from == run.to || !written.contains(run.from))
                << "slot " << run.from << " is written while others go on from it";
        }
        states_ = std::move(next);
        return ok_status();
    }
    Result<StepResult> finish() override { return fake.finish(); }
    std::span<uint32_t> masks() override { return fake.masks(); }
    Result<bool> submit_draw() override { return fake.submit_draw(); }
    void use_merged(std::shared_ptr<const model::MergedWeights> merged) override { fake.use_merged(std::move(merged)); }

    FakeRunner fake;
    uint32_t n_wrong = 0, n_resumed = 0;

  private:
    const uint32_t n_slots_;
    std::map<uint32_t, uint64_t> states_;
};

struct StateEngine {
    explicit StateEngine(uint32_t n_blocks, uint32_t n_sequences, uint32_t n_snapshots = 0)
        : runner(n_blocks, n_sequences + n_snapshots),
          metrics({.model_name = "base",
                   .block_tokens = model::kBlockTokens,
                   .n_kv_blocks = n_blocks,
                   .n_adapters_max = 4,
                   .device_name = "fake",
                   .device_driver = "none",
                   .prefix_cache = n_snapshots > 0,
                   .n_snapshots = n_snapshots}),
          engine(runner, metrics, options(n_blocks, n_sequences, n_snapshots)) {}

    static EngineOptions options(uint32_t n_blocks, uint32_t n_sequences, uint32_t n_snapshots) {
        EngineOptions out;
        out.limits = {128, n_sequences, model::kBlockTokens};
        out.n_kv_blocks = n_blocks;
        out.n_sampling_threads = 2;
        out.prefix_cache = n_snapshots > 0;
        out.has_state = true;
        out.n_snapshots = n_snapshots;
        out.snapshot_tokens = 256;
        return out;
    }
    std::shared_ptr<TokenStream> submit(std::vector<TokenId> prompt, uint32_t n_max,
                                        std::shared_ptr<TokenConstraint> constraint = nullptr,
                                        const AdapterUse& adapter = {}, const std::string& salt = {}) {
        Request request;
        request.prompt = std::move(prompt);
        request.n_tokens_max = n_max;
        request.sampling.temperature = 0.0f;
        request.constraint = std::move(constraint);
        request.adapter = adapter;
        request.prefix = fake_prefix(adapter, request.prompt, salt);
        request.stream = std::make_shared<TokenStream>(n_max);
        auto stream = request.stream;
        EXPECT_TRUE(engine.submit(std::move(request)).ok());
        return stream;
    }
    void run_until_idle() {
        for (int i = 0; i < 100000 && engine.step(); ++i) {
        }
    }

    struct Answer {
        std::vector<TokenId> tokens;
        uint32_t n_cached = 0;
        uint64_t n_rows = 0;  // that were computed for it
    };
    // One request alone; its tokens are checked.
    Answer run(const std::vector<TokenId>& prompt, uint32_t n, const AdapterUse& adapter = {},
               const std::string& salt = {}) {
        const uint64_t n_before = runner.fake.n_rows();
        const auto stream = submit(prompt, n, nullptr, adapter, salt);
        run_until_idle();
        TokenStream::Batch batch = stream->pop(std::chrono::milliseconds(0));
        EXPECT_TRUE(batch.end);
        EXPECT_EQ(batch.tokens, fake_continuation(prompt, adapter.rows(), n));
        EXPECT_EQ(runner.fake.n_broken(), 0u);
        return {batch.tokens, stream->n_cached_tokens(), runner.fake.n_rows() - n_before};
    }
    uint64_t metric(const std::string& name) const {
        const std::string head = name + "{model_name=\"base\"} ", text = metrics.text({});
        const size_t at = text.find(head);
        EXPECT_NE(at, std::string::npos) << name;
        return at == std::string::npos ? 0 : std::stoull(text.substr(at + head.size()));
    }

    StateRunner runner;
    Metrics metrics;
    Engine engine;
};

AdapterUse use(uint32_t slot, float scale = 1.0f) {
    AdapterUse adapter;
    adapter.uses = {{slot, scale}};
    return adapter;
}

std::vector<TokenId> joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

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
    EXPECT_GT(served.metric("vllm:num_preemptions_total"), 0u);
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

// A chat: each turn has the turn before it, and what it answered, in front.
TEST(StateSnapshotEngine, ASecondTurnCostsATenthOfAMissAtMost) {
    StateEngine served(80, 4, 8);
    const auto first = prompt_of(1500, 1);
    const StateEngine::Answer one = served.run(first, 100);
    EXPECT_EQ(one.n_cached, 0u);
    const auto second = joined(joined(first, one.tokens), prompt_of(40, 2));
    const StateEngine::Answer two = served.run(second, 1);
    EXPECT_EQ(two.n_cached, 1536u) << "of 1599 tokens that were computed";
    EXPECT_EQ(two.n_rows, second.size() - 1536);
    EXPECT_LE(two.n_rows * 10, second.size());
    EXPECT_EQ(served.metric("lorad_state_snapshots_used_total"), 1u);
    EXPECT_EQ(served.metric("vllm:prefix_cache_hits_total"), 1536u);
    // A template that leaves out what was thought: the answer, and the words before it, are others.
    std::vector<TokenId> rewritten(first.begin(), first.end() - 5);
    rewritten = joined(rewritten, prompt_of(60, 3));
    const StateEngine::Answer three = served.run(rewritten, 1);
    EXPECT_EQ(three.n_cached, 1472u);
    EXPECT_LE(three.n_rows * 10, rewritten.size());
    // The same question with other words in front of the answer: of 1472 + 12 tokens the last 12 may be such words.
    const auto at_border = prompt_of(1484, 4);
    served.run(at_border, 1);
    std::vector<TokenId> changed(at_border.begin(), at_border.end() - 12);
    EXPECT_EQ(served.run(joined(changed, prompt_of(30, 5)), 1).n_cached, 1408u);
}

TEST(StateSnapshotEngine, WhatSeveralBeginWithIsKeptWhenTheSecondComes) {
    StateEngine served(80, 4, 8);
    const auto common = prompt_of(700, 1);
    EXPECT_EQ(served.run(joined(common, prompt_of(300, 2)), 2).n_cached, 0u);
    EXPECT_EQ(served.run(joined(common, prompt_of(300, 3)), 2).n_cached, 512u) << "the interval's";
    EXPECT_EQ(served.run(joined(common, prompt_of(300, 4)), 2).n_cached, 640u);
    EXPECT_EQ(served.run(joined(common, prompt_of(300, 5)), 2).n_cached, 640u);
}

TEST(StateSnapshotEngine, EveryContentScaleAndSaltKeepsToItself) {
    StateEngine served(256, 4, 64);
    const auto prompt = prompt_of(150, 7);
    const std::vector<std::pair<AdapterUse, std::string>> all = {
        {{}, ""},           {use(1), ""},   {use(2), ""}, {use(1, 0.5f), ""}, {use(1, -1.0f), ""},
        {use(1), "tenant"}, {{}, "tenant"}, {{}, "1"}};
    for (const auto& [adapter, salt] : all) EXPECT_EQ(served.run(prompt, 4, adapter, salt).n_cached, 0u);
    for (const auto& [adapter, salt] : all) EXPECT_EQ(served.run(prompt, 4, adapter, salt).n_cached, 128u);
    AdapterUse activated = use(3);
    activated.from_position = 130;
    EXPECT_EQ(served.run(prompt, 4, activated).n_cached, 128u) << "the base up to its activation";
    activated.from_position = 100;
    EXPECT_EQ(served.run(prompt, 4, activated).n_cached, 0u) << "there is no state at 64 tokens";
}

// Few blocks and fewer places: whoever is put back, cancelled or evicted, tokens are those of the text alone, in the
// middle of a prompt and of an answer.
TEST(StateSnapshotEngine, TokensAreThoseOfTheTextAloneWhateverIsFoundAndEvicted) {
    for (const uint32_t seed : {1u, 2u, 3u}) {
        SCOPED_TRACE(seed);
        std::mt19937 random(seed);
        StateEngine served(14, 5, 1 + 3 * seed);
        struct Asked {
            std::vector<TokenId> prompt;
            AdapterUse adapter;
            uint32_t n_max = 0;
            std::shared_ptr<TokenStream> stream;
            bool is_cancelled = false;
        };
        const std::vector<AdapterUse> adapters = {{}, use(1), use(1, 0.5f), use(2)};
        std::vector<Asked> all;
        for (uint32_t i = 0; i < 120; ++i) {
            Asked asked;
            const bool is_next_turn = !all.empty() && random() % 2 == 0;
            const Asked* before = is_next_turn ? &all[random() % all.size()] : nullptr;
            if (before != nullptr && before->prompt.size() < 300) {
                asked.prompt = joined(
                    joined(before->prompt, fake_continuation(before->prompt, before->adapter.rows(), random() % 90)),
                    prompt_of(1 + random() % 30, i));
                asked.adapter = random() % 4 == 0 ? adapters[random() % adapters.size()] : before->adapter;
            } else {
                asked.prompt = joined(prompt_of(random() % 3 * 100, 7), prompt_of(1 + random() % 150, i));
                asked.adapter = adapters[random() % adapters.size()];
            }
            asked.n_max = 1 + random() % 100;
            asked.stream = served.submit(asked.prompt, asked.n_max, nullptr, asked.adapter);
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
        EXPECT_EQ(served.runner.fake.n_broken(), 0u);
        EXPECT_EQ(served.runner.n_wrong, 0u);
        EXPECT_GT(served.runner.n_resumed, 10u);
        EXPECT_EQ(served.metric("lorad_state_snapshots_used_total"), served.runner.n_resumed);
        EXPECT_GT(served.metric("lorad_state_snapshots_evicted_total"), 10u);
        EXPECT_GT(served.metric("vllm:num_preemptions_total"), 0u);
    }
}

TEST(StateSnapshotEngine, MergedRowsAreFoundOnlyWhileTheirMixIsMerged) {
    StateEngine served(256, 4, 16);
    served.runner.fake.merged_slot_ = 2;
    const auto prompt = prompt_of(220, 14);
    const auto merge = [&](bool on) {
        std::optional<MergedMix> mix;
        if (on) mix = MergedMix{{{2, 1.0f}}, std::make_shared<const model::MergedWeights>(), nullptr};
        served.engine.set_merged(std::move(mix));
        served.engine.step();
    };
    merge(true);
    EXPECT_EQ(served.run(prompt, 2, use(2)).n_cached, 0u);
    EXPECT_EQ(served.run(prompt, 2, use(2)).n_cached, 192u);
    merge(false);
    EXPECT_EQ(served.run(prompt, 2, use(2)).n_cached, 0u);
    EXPECT_EQ(served.run(prompt, 2, use(2)).n_cached, 192u);
    merge(true);
    EXPECT_EQ(served.run(prompt, 2, use(2)).n_cached, 192u);
    EXPECT_EQ(served.run(prompt, 2, use(1)).n_cached, 0u);
}

TEST(StateSnapshotEngine, WhatIsNotFiniteOrWasNeverComputedIsNotKept) {
    StateEngine served(64, 4, 8);
    served.runner.fake.not_finite_token_ = 990;
    auto prompt = prompt_of(200, 12);
    std::ranges::replace(prompt, TokenId(990), TokenId(1));
    const auto clean = prompt;
    prompt.back() = 990;
    const auto ask = [&](const std::vector<TokenId>& text) {
        const auto stream = served.submit(text, 2);
        served.run_until_idle();
        EXPECT_TRUE(stream->pop(std::chrono::milliseconds(0)).end);
        return stream->n_cached_tokens();
    };
    ask(prompt);
    EXPECT_EQ(served.metric("lorad_state_snapshots"), 0u);
    EXPECT_EQ(ask(clean), 0u);
    EXPECT_EQ(ask(clean), 128u);
    const auto other = prompt_of(100, 13);
    const uint64_t n_steps = served.runner.fake.n_steps();
    served.runner.fake.refuse_step_ = [n_steps](uint64_t step) { return step == n_steps + 1; };
    ask(other);
    EXPECT_EQ(served.run(other, 2).n_cached, 0u);
    EXPECT_EQ(served.run(other, 2).n_cached, 64u);
}

// In an answer only the newest block's end is kept.
TEST(StateSnapshotEngine, AnAnswerKeepsItsNewestStateAlone) {
    StateEngine served(64, 4, 16);
    const auto prompt = prompt_of(100, 1);
    const auto answer = served.run(prompt, 400);
    EXPECT_EQ(served.metric("lorad_state_snapshots"), 2u) << "of 64 and of 448 tokens";
    EXPECT_EQ(served.run(joined(joined(prompt, answer.tokens), prompt_of(9, 2)), 1).n_cached, 448u);
}

// Answers to one prompt need one state of it.
TEST(StateSnapshotEngine, OnePromptSavesItsStateOnce) {
    StateEngine served(64, 8, 4);
    const auto other = prompt_of(150, 2), prompt = prompt_of(120, 1);
    served.run(other, 1);
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (int i = 0; i < 8; ++i) streams.push_back(served.submit(prompt, 3));
    served.run_until_idle();
    for (const auto& stream : streams)
        EXPECT_EQ(stream->pop(std::chrono::milliseconds(0)).tokens, fake_continuation(prompt, kNoAdapterSlot, 3));
    EXPECT_EQ(served.metric("lorad_state_snapshots"), 2u);
    EXPECT_EQ(served.metric("lorad_state_snapshots_evicted_total"), 0u);
    EXPECT_EQ(served.run(other, 1).n_cached, 128u);
}

// The bookkeeping alone.
TEST(StateSnapshotSlots, MakeWayByWorthAndByUse) {
    server::StateSnapshots snapshots(10, 3);
    const auto name = [](uint8_t number) {
        StateSnapshots::Name made{};
        made.identity[0] = decltype(made.identity)::value_type(number);
        return made;
    };
    using Worth = server::StateSnapshots::Worth;
    for (const uint8_t number : {1, 2, 3}) {
        const uint32_t slot = snapshots.reserve();
        EXPECT_EQ(slot, 9u + number);
        snapshots.publish(slot, name(number), number == 3 ? Worth::kLow : Worth::kHigh);
    }
    EXPECT_EQ(snapshots.reserve(), 12u) << "what is worth least";
    EXPECT_EQ(snapshots.find(name(3)), gpu::kNoState);
    snapshots.hold(10);
    EXPECT_EQ(snapshots.reserve(), 11u) << "the first is held";
    EXPECT_EQ(snapshots.reserve(), gpu::kNoState);
    snapshots.publish(11, name(1), Worth::kHigh);  // there is one of that name
    EXPECT_EQ(snapshots.find(name(1)), 10u);
    EXPECT_EQ(snapshots.reserve(), 11u);
    snapshots.forget(name(1));
    EXPECT_EQ(snapshots.find(name(1)), gpu::kNoState);
    EXPECT_EQ(snapshots.reserve(), gpu::kNoState) << "its holder still reads it";
    snapshots.release(10);
    EXPECT_EQ(snapshots.reserve(), 10u);
    snapshots.publish(10, name(4), Worth::kHigh);
    snapshots.publish(11, name(5), Worth::kHigh);
    snapshots.hold(11);
    snapshots.release(11);
    snapshots.replace(name(4));
    snapshots.replace(name(5));
    EXPECT_EQ(snapshots.find(name(4)), gpu::kNoState);
    EXPECT_EQ(snapshots.find(name(5)), 11u) << "somebody has used it";
    snapshots.drop(12);
    EXPECT_EQ(snapshots.n_named(), 1u);
}

}  // namespace
}  // namespace lorad::server::state_engine_test
