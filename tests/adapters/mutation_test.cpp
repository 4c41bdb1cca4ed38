// Damaged adapter files never do harm: thousands of small changes to sound ones are accepted or refused, nothing else.
// The sanitizer builds give this test its teeth.
#include <fstream>
#include <iterator>
#include <random>

#include <gtest/gtest.h>

#include "adapters/check.h"
#include "tests/adapters/adapter_folder.h"

namespace lorad::adapters {
namespace {

using namespace lorad::testing;

std::string mutated(std::string text, std::mt19937& random, size_t n_first_bytes) {
    const auto n_changes = 1 + random() % 3;
    for (unsigned i = 0; i < n_changes && !text.empty(); ++i) {
        const size_t at = random() % std::min(text.size(), n_first_bytes);
        switch (random() % 6) {
            case 0: text[at] = static_cast<char>(random() % 256); break;
            case 1: text[at] = static_cast<char>(text[at] ^ (1 << random() % 8)); break;
            case 2: text.erase(at, 1 + random() % 4); break;
            case 3: text.insert(at, 1, "0123456789-.eE\"{}[]:,"[random() % 21]); break;
            case 4: text.insert(at, text.substr(random() % text.size(), random() % 40)); break;
            default: text.resize(at); break;
        }
    }
    return text;
}

bool is_refusal(const Error& error) {
    return (error.code == ErrorCode::kAdapterInvalid || error.code == ErrorCode::kAdapterUnsupported) &&
           !error.message.empty() && replace_invalid_utf8(error.message) == error.message;
}

TEST(MutatedAdapters, ConfigsAreAcceptedOrRefused) {
    std::ifstream in(std::filesystem::path(LORAD_SOURCE_DIR) / "tests/goldens/adapters/llama-scaled/patterns/adapter_config.json");
    const std::string sound((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    ASSERT_TRUE(parse_peft_config(sound).ok());
    std::mt19937 random(1);
    int n_accepted = 0, n_refused = 0;
    for (int i = 0; i < 4000; ++i) {
        const auto config = parse_peft_config(mutated(sound, random, SIZE_MAX));
        if (config.ok()) {
            ++n_accepted;
            RegexBudget budget;
            for (const char* module : {"model.layers.1.mlp.down_proj", "model.layers.2.self_attn.q_proj"}) {
                const auto rank = config->rank_of(module, budget);
                EXPECT_TRUE(!rank.ok() || (*rank >= 1 && *rank <= 512));
                (void)config->targets(module, budget).ok();
            }
        } else {
            ++n_refused;
            EXPECT_TRUE(is_refusal(config.error())) << config.error().message;
        }
    }
    EXPECT_GT(n_accepted, 100);
    EXPECT_GT(n_refused, 1000);
}

TEST(MutatedAdapters, WeightFilesAreAcceptedOrRefused) {
    const std::string sound = safetensors_bytes(plain_tensors());
    const Result<PeftConfig> peft = parse_peft_config(kPlainConfig);
    ASSERT_TRUE(peft.ok());
    uint64_t n_header_bytes = 0;
    std::memcpy(&n_header_bytes, sound.data(), sizeof(n_header_bytes));
    std::mt19937 random(2);
    int n_accepted = 0, n_refused = 0;
    for (int i = 0; i < 4000; ++i) {
        const std::string file = mutated(sound, random, i % 4 ? n_header_bytes + 8 : sound.size());
        const auto tensors = model::parse_safetensors(std::as_bytes(std::span(file)), ErrorCode::kAdapterInvalid);
        if (!tensors.ok()) {
            ++n_refused;
            EXPECT_TRUE(is_refusal(tensors.error())) << tensors.error().message;
            continue;
        }
        const auto plan = plan_adapter(*peft, *tensors, small_config());
        if (plan.ok()) {
            ++n_accepted;
            continue;
        }
        ++n_refused;
        EXPECT_TRUE(is_refusal(plan.error())) << plan.error().message;
    }
    EXPECT_GT(n_accepted, 10);
    EXPECT_GT(n_refused, 1000);
}

}  // namespace
}  // namespace lorad::adapters
