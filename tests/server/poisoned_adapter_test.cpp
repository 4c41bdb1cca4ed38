// An adapter with numbers that are not finite, in one batch with others on a real device. Registration refuses it; with
// that check put off by the test, its requests end by themselves, and every other row has the bits that it has alone.
//
// LORAD_TEST_TOKENS: how many tokens of others are compared (default 600).
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <tuple>

#include <gtest/gtest.h>

#include "adapters/files/source.h"
#include "tests/server/demo_engine.h"
#include "tests/support/temp_dir.h"

namespace lorad::server::poisoned_adapter_test {
namespace {

using namespace lorad::testing;
using Answer = DemoEngine::Answer;
namespace fs = std::filesystem;

constexpr uint32_t kRows = 16, kTokens = 10, kBlocks = 24;
constexpr const char* kClean[] = {"", "pirate", "shout", "json"};

std::string text_of(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
}

// The pirate with one number of some matrix of each layer replaced.
void write_poisoned(const fs::path& folder, float value, bool everywhere) {
    fs::create_directories(folder);
    std::string weights = text_of(kDemoModel / "adapters/pirate" / adapters::kPeftFile);
    const auto tensors = model::parse_safetensors(std::as_bytes(std::span(weights)), ErrorCode::kAdapterInvalid);
    ASSERT_TRUE(tensors.ok());
    for (const model::Tensor& tensor : *tensors) {
        const size_t at = static_cast<size_t>(tensor.data.data() - reinterpret_cast<const std::byte*>(weights.data()));
        const uint32_t n_bytes = model::bytes_of(tensor.dtype);
        uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof(bits));
        if (tensor.dtype == model::DType::kBF16) bits >>= 16;
        if (tensor.dtype == model::DType::kF16) bits = value != value ? 0x7e00 : 0x7c00;  // it has no 1e38
        for (size_t i = 0; i < (everywhere ? tensor.n_elements() : 1); ++i)
            std::memcpy(weights.data() + at + i * n_bytes, &bits, n_bytes);
        if (!everywhere && tensor.name.find("lora_B") != std::string::npos) break;
    }
    std::ofstream(folder / adapters::kPeftFile, std::ios::binary) << weights;
    fs::copy_file(kDemoModel / "adapters/pirate" / adapters::kConfigFile, folder / adapters::kConfigFile,
                  fs::copy_options::overwrite_existing);
}

struct PoisonedAdapter : ::testing::Test {
    struct Asked {
        std::string adapter;
        std::vector<TokenId> prompt;
        float temperature;
        uint64_t seed;
        bool operator<(const Asked& o) const {
            return std::tie(adapter, prompt, temperature, seed) < std::tie(o.adapter, o.prompt, o.temperature, o.seed);
        }
    };
    // Half of them drawn: a drawn token shows a change of any logit's bits.
    Asked some(const std::string& adapter, uint32_t i) const {
        Asked asked{adapter, {}, i % 2 ? 1.0f : 0.0f, i};
        std::mt19937 random(i);
        for (uint32_t n = 3 + i % 40; asked.prompt.size() < n;)
            asked.prompt.push_back(TokenId(3 + random() % (demo.vocab_size() - 3)));
        return asked;
    }

    std::vector<Answer> run(Engine& engine, const std::vector<Asked>& all) {
        std::vector<Request> requests;
        for (const Asked& asked : all)
            requests.push_back(demo.request(asked.prompt, asked.adapter, kTokens,
                                            {.temperature = asked.temperature, .seed = asked.seed}));
        return demo.run(engine, std::move(requests));
    }

    DemoEngine demo{{.executor = {.n_rows_max = 64,
                                  .n_sequences_max = kRows,
                                  .n_positions_max = 128,
                                  .n_adapter_slots = 4,
                                  .n_kv_blocks = kBlocks,
                                  .batch_invariant = true},
                     .adapters = {"pirate", "shout", "json"},
                     .checks_numbers = false}};
};

TEST_F(PoisonedAdapter, IsRefusedWhereNumbersAreChecked) {
    const TempDir folder;
    adapters::Registry checking(demo.executor->config(), *demo.store, {.base_name = "base"});
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity(), 1e38f}) {
        for (const bool everywhere : {false, true}) {
            write_poisoned(folder.path() / "x", value, everywhere);
            const auto refused = checking.load("x", folder.path() / "x");
            ASSERT_FALSE(refused.ok()) << value;
            EXPECT_EQ(refused.error().code, ErrorCode::kAdapterInvalid);
        }
    }
}

TEST_F(PoisonedAdapter, EndsItsOwnRequestsAndChangesNoBitOfOthers) {
    const char* const told = std::getenv("LORAD_TEST_TOKENS");
    const uint64_t n_wanted = told ? std::strtoull(told, nullptr, 10) : 600;
    Engine engine(*demo.runner, demo.metrics, {.limits = {64, kRows, model::kBlockTokens}, .n_kv_blocks = kBlocks});
    const TempDir folder;
    uint64_t n_tokens = 0, n_ended = 0;
    std::map<Asked, std::vector<TokenId>> alone;
    const float values[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e38f};
    for (uint32_t round = 0; n_tokens < n_wanted; ++round) {
        write_poisoned(folder.path() / "x", values[round % 3], round / 3 % 2 == 1);
        ASSERT_TRUE(demo.registry->load("x", folder.path() / "x", {.load_inplace = true}).ok());
        std::vector<Asked> together;
        const uint32_t poisoned = round * 7 % kRows;
        for (uint32_t row = 0; row < kRows; ++row)
            together.push_back(some(row == poisoned ? "x" : kClean[row % 4], (round * 5 + row) % 32));
        for (const Asked& asked : together) {
            if (asked.adapter == "x" || alone.contains(asked)) continue;
            const std::vector<Answer> answer = run(engine, {asked});
            ASSERT_EQ(answer[0].tokens.size(), kTokens);
            alone[asked] = answer[0].tokens;
        }
        const std::vector<Answer> answers = run(engine, together);
        for (uint32_t row = 0; row < kRows; ++row) {
            if (row == poisoned) {
                ASSERT_TRUE(answers[row].end.error) << "round " << round << ": it was answered";
                ASSERT_EQ(answers[row].end.error->code, ErrorCode::kNotFinite) << answers[row].end.error->message;
                ++n_ended;
                continue;
            }
            ASSERT_EQ(answers[row].tokens, alone.at(together[row]))
                << "round " << round << " row " << row << " " << together[row].adapter;
            n_tokens += kTokens;
        }
        // The blocks that it has written come to others next.
        const std::vector<Answer> after = run(engine, {together[(poisoned + 1) % kRows]});
        ASSERT_EQ(after[0].tokens, alone.at(together[(poisoned + 1) % kRows])) << "after round " << round;
    }
    RecordProperty("tokens of others", std::to_string(n_tokens));
    RecordProperty("poisoned requests ended", std::to_string(n_ended));
    RecordProperty("trials", std::to_string(n_tokens));
}

}  // namespace
}  // namespace lorad::server::poisoned_adapter_test
