// A model with short and long rotary factors: a text is turned by the ones or the others as a whole, by its length.

#include <algorithm>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/exec/runner.h"
#include "tests/support/goldens.h"
#include "tests/support/load_executor.h"
#include "tests/support/temp_dir.h"

namespace lorad::model::longrope_test {
namespace {

using namespace lorad::testing;

constexpr uint32_t kShort = 32;

// A golden model with other rotary factors, all 16 of a kind alike. The scaling factor leaves cos and sin as they are.
std::unique_ptr<Executor> load(double short_factor, double long_factor,
                               gpu::PersistentDecode decode = gpu::PersistentDecode::kOff) {
    const TempDir folder;
    std::filesystem::copy(goldens_dir() / "models/qwen2-tied", folder.path());
    const auto file = folder.path() / "config.json";
    std::ifstream in(file);
    auto config = nlohmann::json::parse(in);
    config["rope_scaling"] = {{"rope_type", "longrope"},
                              {"factor", 1.0},
                              {"original_max_position_embeddings", kShort},
                              {"short_factor", std::vector<double>(16, short_factor)},
                              {"long_factor", std::vector<double>(16, long_factor)}};
    std::ofstream(file) << config.dump();
    return load_executor(
        folder.path(),
        {.n_rows_max = 64, .n_sequences_max = 4, .n_positions_max = 128, .n_adapter_slots = 1, .decode = decode});
}

std::vector<TokenId> text_of(uint32_t n) {
    std::vector<TokenId> tokens(n);
    for (uint32_t i = 0; i < n; ++i) tokens[i] = static_cast<TokenId>((i * 37 + 11) % 900);
    return tokens;
}

TEST(LongRope, TurnsAWholeTextByItsLength) {
    const auto both = load(1.5, 6.0), always_short = load(1.5, 1.5), always_long = load(6.0, 6.0);
    Runner runner(*both), short_runner(*always_short), long_runner(*always_long);
    for (const uint32_t n : {1u, 17u, kShort, kShort + 1, 90u}) {
        for (const uint32_t n_chunk_rows : {0u, 5u}) {
            const auto logits = runner.logits(text_of(n), true, kNoAdapterSlot, n_chunk_rows);
            const auto expected =
                (n > kShort ? long_runner : short_runner).logits(text_of(n), true, kNoAdapterSlot, n_chunk_rows);
            ASSERT_TRUE(logits.ok() && expected.ok());
            EXPECT_EQ(*logits, *expected) << n << " tokens in chunks of " << n_chunk_rows;
        }
    }
}

// Each token is what the whole text before it asks for.
TEST(LongRope, ComputesATextAgainWhenItHasOutgrownTheShortFactors) {
    for (const auto decode : {gpu::PersistentDecode::kOff, gpu::PersistentDecode::kOn}) {
        const auto executor = load(1.5, 6.0, decode);
        Runner runner(*executor);
        std::vector<TokenId> text = text_of(kShort - 3);
        const auto generated = runner.generate(text, {.n_tokens_max = 8, .ignore_eos = true});
        ASSERT_TRUE(generated.ok());
        for (const TokenId id : generated->ids) {
            const auto logits = runner.logits(text, false);
            ASSERT_TRUE(logits.ok());
            const auto best = std::ranges::max_element(*logits);
            // One dispatch for all layers rounds otherwise.
            EXPECT_GT(logits->at(static_cast<size_t>(id)), *best - 0.02f) << text.size() << " tokens";
            text.push_back(id);
        }
    }
}

}  // namespace
}  // namespace lorad::model::longrope_test
