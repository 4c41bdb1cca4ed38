// Models with windows on a real device, with blocks of their windows apart: texts of many windows' lengths, together,
// put back and found again, give the tokens that they give where all blocks are kept.
#include <random>

#include <gtest/gtest.h>

#include "tests/server/demo_engine.h"
#include "tests/support/families.h"

namespace lorad::server::window_device_test {
namespace {

constexpr uint32_t kTokens = 12, kBlocks = 40;

struct Windowed {
    const char* model;
    const char* folder;  // of tests/goldens
    bool has_both;       // kinds of layers
};

class WindowDevice : public ::testing::TestWithParam<Windowed> {
  protected:
    struct Text {
        std::vector<TokenId> prompt;
        std::string adapter;
        float scale = 1.0f;
    };

    std::unique_ptr<DemoEngine> load(bool may_group_kv) {
        const std::filesystem::path folder = testing::goldens_dir() / GetParam().folder;
        const std::filesystem::path adapters = folder / "adapters" / GetParam().model;
        if (names_.empty()) {
            for (const auto& entry : std::filesystem::directory_iterator(adapters))
                names_.push_back(entry.path().filename().string());
            std::ranges::sort(names_);
            names_.resize(1);
        }
        return std::make_unique<DemoEngine>(
            DemoEngine::Options{.executor = {.n_rows_max = 128,
                                             .n_sequences_max = 4,
                                             .n_positions_max = 512,
                                             .n_adapter_slots = 4,
                                             .n_kv_blocks = kBlocks,
                                             .may_group_kv = may_group_kv,
                                             .kernel_path = gpu::KernelPath::kPortableF32},
                                .adapters = names_,
                                .checks_numbers = true,
                                .base = folder / "models" / GetParam().model,
                                .adapter_dir = adapters});
    }
    EngineOptions options(const DemoEngine& served, bool has_cache, uint32_t n_blocks = kBlocks) const {
        const model::MemoryPlan& plan = served.executor->memory_plan();
        EngineOptions out;
        out.limits = {128, 4, model::kBlockTokens};
        out.n_kv_blocks = n_blocks;
        out.prefix_cache = has_cache;
        out.n_prefill_rows_max = 70;
        out.groups = plan.groups;
        out.n_window_blocks = plan.n_window_blocks;
        return out;
    }
    std::vector<DemoEngine::Answer> run(DemoEngine& served, Engine& engine, const std::vector<Text>& texts) const {
        std::vector<Request> requests;
        for (const Text& text : texts)
            requests.push_back(served.request(text.prompt, text.adapter, kTokens, {.temperature = 0.0f}, text.scale));
        return served.run(engine, std::move(requests));
    }

    std::vector<std::string> names_;
};

TEST_P(WindowDevice, TokensAreThoseOfBlocksThatAreKept) {
    std::vector<Text> texts;
    std::vector<std::vector<TokenId>> want;
    {
        const std::unique_ptr<DemoEngine> kept = load(false);
        ASSERT_EQ(kept->executor->memory_plan().n_window_blocks, 0u);
        std::mt19937 random(5);
        std::vector<TokenId> all(270);
        for (TokenId& token : all) token = TokenId(5 + random() % 300);
        for (const uint32_t n : {15u, 131u, 270u}) {
            const std::vector<TokenId> prompt(all.end() - n, all.end());
            texts.push_back({prompt, "", 1.0f});
            texts.push_back({prompt, names_[0], n == 131 ? 0.5f : 1.0f});
        }
        Engine plain(*kept->runner, kept->metrics, options(*kept, false));
        for (size_t i = 0; i < texts.size(); ++i) want.push_back(run(*kept, plain, {texts[i]})[0].tokens);
        // The next turn.
        for (size_t i = texts.size() - 2, end = texts.size(); i < end; ++i) {
            Text next = texts[i];
            next.prompt.insert(next.prompt.end(), want[i].begin(), want[i].end());
            next.prompt.insert(next.prompt.end(), all.begin(), all.begin() + 9);
            want.push_back(run(*kept, plain, {next})[0].tokens);
            texts.push_back(std::move(next));
        }
    }
    const std::unique_ptr<DemoEngine> served = load(true);
    const model::MemoryPlan& plan = served->executor->memory_plan();
    ASSERT_TRUE(plan.groups.has_windows());
    EXPECT_EQ(plan.groups.has_both(), GetParam().has_both);
    ASSERT_LT(plan.n_window_blocks, kBlocks);
    EXPECT_EQ(plan.n_kv_blocks, kBlocks);
    for (const auto& [n_rounds, n_blocks] : {std::pair{2, kBlocks}, {1, 8u}}) {
        Engine engine(*served->runner, served->metrics, options(*served, true, n_blocks));
        for (int round = 0; round < n_rounds; ++round) {
            const std::vector<DemoEngine::Answer> answers = run(*served, engine, texts);
            uint32_t n_cached = 0;
            for (size_t i = 0; i < texts.size(); ++i) {
                EXPECT_EQ(answers[i].tokens, want[i])
                    << "text " << i << ", round " << round << ", " << n_blocks << " blocks";
                n_cached += answers[i].n_cached;
            }
            EXPECT_TRUE(n_cached > 0 || round == 0);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Models, WindowDevice,
                         ::testing::Values(Windowed{"gemma3-nested", "families", true},
                                           Windowed{"gemma4-dense", "families", true},
                                           Windowed{"gemma4-e2b", "families", true},
                                           Windowed{"gpt-oss", "families", true}, Windowed{"olmo3", "families", true},
                                           Windowed{"mistral-window", "", false}),
                         [](const auto& one) {
                             std::string name = one.param.model;
                             std::ranges::replace(name, '-', '_');
                             return name;
                         });

}  // namespace
}  // namespace lorad::server::window_device_test
