// A hybrid of delta nets, and one of short convolutions, served: rows of several sequences in each step, prompts in
// chunks, preemptions. The tokens are those of each text alone.
#include <algorithm>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "model/exec/runner.h"
#include "proto/base/log.h"
#include "server/engine/engine.h"
#include "server/engine/executor_runner.h"
#include "tests/server/demo_engine.h"
#include "tests/support/families.h"
#include "tests/support/load_executor.h"

namespace lorad::server::state_device_test {
namespace {

constexpr uint32_t kTokens = 24, kBlocks = 9;

class StateDevice : public ::testing::TestWithParam<const char*> {};

TEST_P(StateDevice, TokensOfAllTogetherAreThoseOfEachAlone) {
    set_log_level(LogLevel::kError);
    const std::string name = GetParam();
    const auto executor = testing::load_executor(testing::families_dir() / "models" / name,
                                                 {.n_rows_max = 96,
                                                  .n_sequences_max = 5,
                                                  .n_positions_max = 256,
                                                  .n_adapter_slots = 1,
                                                  .n_kv_blocks = kBlocks,
                                                  .kernel_path = gpu::KernelPath::kPortableF32});
    const auto prompts = testing::read_golden_prompts(testing::families_dir() / "expected/models" / (name + ".json"));
    std::vector<std::vector<TokenId>> want;
    for (const auto& prompt : prompts) {
        const auto generated =
            model::Runner(*executor).generate(prompt.ids, {.n_tokens_max = kTokens, .ignore_eos = true});
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
    const auto executor = testing::load_executor(testing::families_dir() / "models" / name,
                                                 {.n_rows_max = 256,
                                                  .n_sequences_max = 2,
                                                  .n_positions_max = 256,
                                                  .n_adapter_slots = 1,
                                                  .n_kv_blocks = 20,
                                                  .kernel_path = gpu::KernelPath::kPortableF32});
    for (const uint32_t n : {1u, 63u, 64u, 65u, 130u, 211u}) {
        std::vector<TokenId> ids;
        for (uint32_t i = 0; i < n; ++i) ids.push_back((i * 37 + n) % 300);
        const auto whole = model::Runner(*executor).logits(ids, false, kNoAdapterSlot, 256);
        ASSERT_TRUE(whole.ok()) << whole.error().message;
        for (const uint32_t n_chunk : {64u, 37u, 1u}) {
            const auto cut = model::Runner(*executor).logits(ids, false, kNoAdapterSlot, n_chunk);
            ASSERT_TRUE(cut.ok()) << cut.error().message;
            EXPECT_LE(testing::relative_error(cut->data(), whole->data(), whole->size()), 1e-5)
                << n << " tokens in pieces of " << n_chunk;
        }
    }
}

// A text in three hands: the base, an adapter, and that with half its scale; and what is said next.
struct Chat {
    std::vector<TokenId> prompt;
    std::string adapter;
    float scale = 1.0f;
    std::vector<TokenId> want;
};

class StateCacheDevice : public StateDevice {
  protected:
    static constexpr uint32_t kLong = 464;

    void SetUp() override {
        const std::filesystem::path adapters = testing::families_dir() / "adapters" / GetParam();
        for (const auto& entry : std::filesystem::directory_iterator(adapters))
            names_.push_back(entry.path().filename().string());
        std::ranges::sort(names_);
        ASSERT_GE(names_.size(), 2u);
        names_.resize(2);
        served_ =
            std::make_unique<DemoEngine>(DemoEngine::Options{.executor = {.n_rows_max = 256,
                                                                          .n_sequences_max = 6,
                                                                          .n_positions_max = 1024,
                                                                          .n_adapter_slots = 4,
                                                                          .n_kv_blocks = 96,
                                                                          .snapshot_bytes_max = uint64_t{64} << 20,
                                                                          .kernel_path = gpu::KernelPath::kPortableF32},
                                                             .adapters = names_,
                                                             .checks_numbers = true,
                                                             .base = testing::families_dir() / "models" / GetParam(),
                                                             .adapter_dir = adapters});
        ASSERT_GT(served_->executor->n_snapshots(), 0u);
        std::mt19937 random(11);
        for (TokenId& token : text_) token = TokenId(5 + random() % 300);
        for (const auto& [adapter, scale] :
             {std::pair<std::string, float>{"", 1.0f}, {names_[0], 1.0f}, {names_[0], 0.5f}, {names_[1], 1.0f}}) {
            chats_.push_back({{text_.begin(), text_.begin() + kLong}, adapter, scale, {}});
        }
    }
    EngineOptions options(bool has_cache, uint32_t n_blocks = 96, uint32_t n_beside = 0) const {
        EngineOptions out;
        out.limits = {256, 6, model::kBlockTokens};
        out.n_kv_blocks = n_blocks;
        out.prefix_cache = has_cache;
        out.has_state = true;
        out.n_snapshots = has_cache ? served_->executor->n_snapshots() : 0;
        out.snapshot_tokens = 256;
        out.n_prefill_rows_max = n_beside;
        return out;
    }
    std::vector<DemoEngine::Answer> run(Engine& engine, const std::vector<Chat>& chats) {
        std::vector<Request> requests;
        for (const Chat& chat : chats)
            requests.push_back(served_->request(chat.prompt, chat.adapter, kTokens, {.temperature = 0.0f}, chat.scale));
        return served_->run(engine, std::move(requests));
    }
    // The answers of each alone, computed from its first token on.
    void expect_of(std::vector<Chat>& chats) {
        Engine plain(*served_->runner, served_->metrics, options(false));
        for (Chat& chat : chats) chat.want = run(plain, {chat})[0].tokens;
    }
    std::vector<Chat> next_turns(const std::vector<Chat>& chats) const {
        std::vector<Chat> next = chats;
        for (Chat& chat : next) {
            chat.prompt.insert(chat.prompt.end(), chat.want.begin(), chat.want.end());
            chat.prompt.insert(chat.prompt.end(), text_.begin() + 40, text_.begin() + 48);
        }
        return next;
    }
    static void expect_tokens(const std::vector<DemoEngine::Answer>& answers, const std::vector<Chat>& chats) {
        for (size_t i = 0; i < chats.size(); ++i) EXPECT_EQ(answers[i].tokens, chats[i].want) << "chat " << i;
    }

    std::vector<std::string> names_;
    std::unique_ptr<DemoEngine> served_;
    std::vector<TokenId> text_ = std::vector<TokenId>(kLong + 20);
    std::vector<Chat> chats_;
};

TEST_P(StateCacheDevice, ASecondTurnHasTheSameTokensForATenthOfTheWork) {
    expect_of(chats_);
    std::vector<Chat> next = next_turns(chats_);
    expect_of(next);
    Engine engine(*served_->runner, served_->metrics, options(true, 96, 100));
    const std::vector<DemoEngine::Answer> first = run(engine, chats_);
    expect_tokens(first, chats_);
    for (const DemoEngine::Answer& answer : first) EXPECT_EQ(answer.n_cached, 0u) << "others' adapters or scales";
    const std::vector<DemoEngine::Answer> second = run(engine, next);
    expect_tokens(second, next);
    for (size_t i = 0; i < next.size(); ++i)
        EXPECT_LE((next[i].prompt.size() - second[i].n_cached) * 10, next[i].prompt.size()) << "computed of chat " << i;
    // A name that stands for another content.
    const auto replaced = served_->registry->load(
        names_[0], testing::families_dir() / "adapters" / GetParam() / names_[1], {.load_inplace = true});
    ASSERT_TRUE(replaced.ok()) << replaced.error().message;
    next[1].want = next[3].want;
    next[1].prompt = next[3].prompt;
    const DemoEngine::Answer other = run(engine, {next[1]})[0];
    EXPECT_EQ(other.tokens, next[3].want);
    EXPECT_GT(other.n_cached, 400u) << "of the same content by its other name";
    next[2].prompt[0] ^= 1;
    EXPECT_EQ(run(engine, {next[2]})[0].n_cached, 0u);
}

// Blocks for two of four: they are put back in the middle of prompts and of answers, and go on from what is kept of
// them.
TEST_P(StateCacheDevice, TokensAreTheSameWhereBlocksRunOut) {
    expect_of(chats_);
    std::vector<Chat> next = next_turns(chats_);
    expect_of(next);
    Engine engine(*served_->runner, served_->metrics, options(true, 17, 70));
    for (int round = 0; round < 2; ++round) {
        std::vector<Chat> all = chats_;
        all.insert(all.end(), next.begin(), next.end());
        expect_tokens(run(engine, all), all);
    }
}

std::string name_of(const ::testing::TestParamInfo<const char*>& model) {
    std::string name = model.param;
    std::ranges::replace(name, '-', '_');
    return name;
}
INSTANTIATE_TEST_SUITE_P(Hybrids, StateDevice, ::testing::Values("qwen35", "lfm2", "granite-hybrid"), name_of);
INSTANTIATE_TEST_SUITE_P(Hybrids, StateCacheDevice, ::testing::Values("qwen35", "lfm2", "granite-hybrid"), name_of);
// its layers with a state are those of qwen35
INSTANTIATE_TEST_SUITE_P(SlowHybrids, StateCacheDevice, ::testing::Values("qwen3-next"), name_of);

}  // namespace
}  // namespace lorad::server::state_device_test
