// Prefix caching on a real device with the demo model: what is found in the cache is what would have
// been computed.
#include <random>

#include <gtest/gtest.h>

#include "tests/server/demo_engine.h"

namespace lorad::server::prefix_device_test {
namespace {

constexpr uint32_t kTokens = 12, kBlocks = 64;

using Answer = DemoEngine::Answer;
using Asked = std::pair<std::vector<TokenId>, std::string>;  // prompt and adapter

struct Served : DemoEngine {
    explicit Served(bool batch_invariant, gpu::KvType kv_type)
        : DemoEngine({.executor = options_of(batch_invariant, kv_type), .adapters = {"pirate"}}) {}

    static model::ExecutorOptions options_of(bool batch_invariant, gpu::KvType kv_type) {
        model::ExecutorOptions options{.n_rows_max = 128,
                                       .n_sequences_max = 8,
                                       .n_positions_max = 512,
                                       .n_adapter_slots = 4,
                                       .n_kv_blocks = kBlocks};
        options.batch_invariant = batch_invariant;
        options.kv_type = kv_type;
        // Inputs of products in f32: in another batch a logit differs by 1e-6. With 16 bits it is 1e-3, which near ties
        // show.
        if (!batch_invariant) options.kernel_path = gpu::KernelPath::kPortableF32;
        return options;
    }
    std::vector<Answer> run(Engine& engine, const std::vector<Asked>& all) {
        std::vector<Request> requests;
        for (const auto& [prompt, adapter] : all)
            requests.push_back(request(prompt, adapter, kTokens, {.temperature = 0.0f}));
        return DemoEngine::run(engine, std::move(requests));
    }
    EngineOptions options(bool prefix_cache, uint32_t n_prefill_rows_max) const {
        EngineOptions out;
        out.limits = {128, 8, model::kBlockTokens};
        out.n_kv_blocks = kBlocks;
        out.prefix_cache = prefix_cache;
        out.n_prefill_rows_max = n_prefill_rows_max;
        return out;
    }
};

// Prompts of one text with different ends, for the base and an adapter; the second half of them
// goes on where the first one's answers ended.
void compare(bool batch_invariant, gpu::KvType kv_type = gpu::KvType::kF16) {
    Served served(batch_invariant, kv_type);
    std::mt19937 random(7);
    std::vector<TokenId> text(200);
    for (TokenId& token : text) token = TokenId(3 + random() % (served.vocab_size() - 3));
    std::vector<Asked> all;
    for (const char* adapter : {"", "pirate"}) {
        for (uint32_t n : {64u, 65u, 130u, 200u}) {
            std::vector<TokenId> prompt(text.begin(), text.begin() + n);
            for (uint32_t i = 0; i < n % 7; ++i) prompt.push_back(TokenId(3 + random() % (served.vocab_size() - 3)));
            all.push_back({std::move(prompt), adapter});
        }
    }
    // The engines have the device's blocks one after the other.
    std::vector<Answer> expected, expected_next;
    std::vector<Asked> next;
    {
        Engine plain(*served.runner, served.metrics, served.options(false, 0));
        for (const auto& one : all) expected.push_back(served.run(plain, {one})[0]);
        // The next turn: an answer, and a few tokens more.
        for (size_t i = 0; i < all.size(); i += 3) {
            next.push_back(all[i]);
            std::vector<TokenId>& prompt = next.back().first;
            prompt.insert(prompt.end(), expected[i].tokens.begin(), expected[i].tokens.end());
            prompt.insert(prompt.end(), text.begin() + 20, text.begin() + 31);
            expected_next.push_back(served.run(plain, {next.back()})[0]);
        }
        for (const Answer& answer : expected_next) EXPECT_EQ(answer.n_cached, 0u);
    }
    Engine cached(*served.runner, served.metrics, served.options(true, 64));
    for (int round = 0; round < 2; ++round) {
        uint32_t n_cached = 0;
        std::vector<Answer> answers = served.run(cached, all);
        for (size_t i = 0; i < all.size(); ++i) {
            EXPECT_EQ(answers[i].tokens, expected[i].tokens) << "prompt " << i << " round " << round;
            n_cached += answers[i].n_cached;
        }
        // In the second round all full blocks: of 65, 67, 134 and 204 tokens.
        EXPECT_TRUE(round == 0 || n_cached == 2 * (64 + 64 + 128 + 192)) << n_cached;
    }
    for (size_t i = 0; i < next.size(); ++i) {
        Answer answer = served.run(cached, {next[i]})[0];
        EXPECT_EQ(answer.tokens, expected_next[i].tokens) << "turn " << i;
        EXPECT_GT(answer.n_cached, 0u);
    }
}

TEST(PrefixDevice, BatchInvariantTokensAreTheSameWithHitsAsWithout) { compare(true); }
TEST(PrefixDevice, TokensFromAnEightBitCacheAreTheSameWithHitsAsWithout) { compare(true, gpu::KvType::kInt8); }
TEST(PrefixDevice, GreedyTokensOfTheDemoModelAreTheSameWithHitsAsWithout) { compare(false); }

}  // namespace
}  // namespace lorad::server::prefix_device_test
