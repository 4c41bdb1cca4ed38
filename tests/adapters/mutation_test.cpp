// Damaged adapter files never do harm: thousands of small changes to sound ones are accepted or refused, nothing else.
// The sanitizer builds give this test its teeth.
#include <fstream>
#include <iterator>
#include <random>

#include <gtest/gtest.h>

#include "adapters/plan/check.h"
#include "adapters/plan/pack.h"
#include "adapters/plan/report.h"
#include "tests/adapters/foreign_files.h"
#include "tests/support/source_dir.h"

namespace lorad::adapters::mutation_test {
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
    std::ifstream in(lorad::testing::source_dir() / "tests/goldens/adapters/llama-scaled/patterns/adapter_config.json");
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

// Whole adapters of each kind, as a client could send them: checked and packed, or refused.
struct SoundAdapter {
    const char* name;
    std::vector<std::pair<std::string, std::string>> files;
};

std::vector<SoundAdapter> sound_adapters() {
    TestTensors variants = plain_tensors();
    for (int layer = 0; layer < 2; ++layer) {
        for (const auto& [module, n] : {std::pair("q_proj", 64), std::pair("v_proj", 32)}) {
            TestTensor magnitude = matrix(1, static_cast<uint64_t>(n), 3);
            magnitude.shape = {static_cast<uint64_t>(n)};
            variants[format("base_model.model.model.layers.{}.self_attn.{}.lora_magnitude_vector", layer, module)] =
                magnitude;
        }
    }
    variants["base_model.model.lm_head.weight"] = matrix(100, 40, 4, "F16");
    variants["base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"] = matrix(2, 40, 5);
    const std::string config =
        R"({"peft_type":"LORA","r":4,"lora_alpha":8,"use_dora":true,"modules_to_save":["lm_head"],
        "trainable_token_indices":{"embed_tokens":[9,3]},"target_modules":["q_proj","v_proj"]})";
    TestTensors plain;
    for (const auto& [name, tensor] : plain_tensors())
        plain[name.substr(std::string("base_model.model.").size())] = tensor;
    return {{"peft", {{"adapter_config.json", config}, {"adapter_model.safetensors", safetensors_bytes(variants)}}},
            {"gguf", {{"adapter.gguf", as_gguf(plain, small_config(), 8)}}},
            {"mlx",
             {{"adapter_config.json", R"({"fine_tune_type":"lora","lora_parameters":{"rank":4,"scale":2.5}})"},
              {"adapters.safetensors", safetensors_bytes(as_mlx(plain))}}}};
}

// True if it was accepted.
bool check_and_pack(const std::vector<std::pair<std::string, std::string>>& contents) {
    std::vector<SourceFile> files;
    for (const auto& [name, text] : contents)
        files.push_back({name, FileBytes::copy_of(std::as_bytes(std::span(text)))});
    auto source = make_adapter_source(std::move(files));
    if (!source.ok()) {
        EXPECT_TRUE(is_refusal(source.error())) << source.error().message;
        return false;
    }
    Inspection inspection = compare_adapter(*std::move(source), small_config());
    EXPECT_TRUE(inspection.error || pack(*inspection.adapter).ok());
    const AdapterReport report = inspect_adapter(std::move(inspection.adapter->source), small_config());
    EXPECT_TRUE(parse_json(report_json(report)).ok());
    if (!report.fits()) {
        EXPECT_TRUE(is_refusal(*report.error)) << report.error->message;
        return false;
    }
    return true;
}

TEST(MutatedAdapters, OfEveryKindAreCheckedOrRefused) {
    std::mt19937 random(3);
    for (const SoundAdapter& sound : sound_adapters()) {
        ASSERT_TRUE(check_and_pack(sound.files)) << sound.name;
        int n_accepted = 0, n_refused = 0;
        for (int i = 0; i < 1500; ++i) {
            auto files = sound.files;
            auto& [name, text] = files[random() % files.size()];
            text = mutated(text, random, i % 4 ? 2000 : text.size());
            (check_and_pack(files) ? n_accepted : n_refused)++;
        }
        EXPECT_GT(n_accepted, 10) << sound.name;
        EXPECT_GT(n_refused, 500) << sound.name;
    }
}

TEST(MutatedAdapters, CutShortAnywhereAreRefused) {
    for (const SoundAdapter& sound : sound_adapters()) {
        for (size_t file = 0; file < sound.files.size(); ++file) {
            const size_t size = sound.files[file].second.size();
            for (size_t cut = 0; cut < size; cut += cut < 4000 ? 1 + cut % 7 : 97) {
                auto files = sound.files;
                files[file].second.resize(cut);
                EXPECT_FALSE(check_and_pack(files)) << sound.name << " " << files[file].first << " at " << cut;
            }
        }
    }
}

TEST(MutatedAdapters, EveryBitOfTheBeginningMayFlip) {
    for (const SoundAdapter& sound : sound_adapters()) {
        for (size_t file = 0; file < sound.files.size(); ++file) {
            const size_t n_bits = std::min<size_t>(sound.files[file].second.size(), 400) * 8;
            for (size_t bit = 0; bit < n_bits; ++bit) {
                auto files = sound.files;
                files[file].second[bit / 8] ^= static_cast<char>(1 << bit % 8);
                check_and_pack(files);
            }
        }
    }
}

}  // namespace
}  // namespace lorad::adapters::mutation_test
