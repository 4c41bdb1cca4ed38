// The golden adapters as files: every one is understood, every broken one is refused with the reason. What they compute
// is in tests/adapters/reference_test.cpp and device_test.cpp.
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "adapters/plan/check.h"
#include "adapters/pool/registry.h"
#include "proto/json/json.h"
#include "tests/adapters/fake_store.h"
#include "tests/support/source_dir.h"

namespace lorad::adapters::golden_files_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

const std::filesystem::path kGoldens = lorad::testing::source_dir() / "tests/goldens";

struct GoldenCase {
    std::string model, name;
    bool optional = false;  // beyond plain LoRA
    std::string expect;     // of the broken ones
};

std::vector<GoldenCase> read_cases(const std::filesystem::path& file) {
    std::ifstream in(file);
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const Result<JsonDocument> document = parse_json(text);
    EXPECT_TRUE(document.ok()) << file;
    std::vector<GoldenCase> cases;
    for (const JsonValue& row : *document->root().as_array()) {
        cases.push_back({.model = std::string(*row.string_or("model", "")),
                         .name = std::string(*row.string_or("name", "")),
                         .optional = *row.bool_or("optional", false),
                         .expect = std::string(*row.string_or("expect", ""))});
    }
    EXPECT_FALSE(cases.empty());
    return cases;
}

const BaseModel& base_of(const std::string& name) {
    static std::map<std::string, BaseModel> bases;
    const auto found = bases.find(name);
    if (found != bases.end()) return found->second;
    Result<BaseModel> base = BaseModel::load(kGoldens / "models" / name);
    EXPECT_TRUE(base.ok()) << (base.ok() ? "" : base.error().message);
    return bases.emplace(name, std::move(base).value()).first->second;
}

TEST(GoldenAdapters, EveryOneIsUnderstood) {
    size_t n_adapters = 0;
    for (const GoldenCase& c : read_cases(kGoldens / "adapters/cases.json")) {
        ++n_adapters;
        const std::string where = c.model + "/" + c.name;
        const auto adapter = check_adapter(kGoldens / "adapters" / c.model / c.name, base_of(c.model));
        ASSERT_TRUE(adapter.ok()) << where << ": " << adapter.error().message;
        EXPECT_GT((*adapter)->n_modules, 0u) << where;
        // The base's own table saved along is not one that replaces it.
        const bool replaces = c.name.ends_with("-saved") || c.name == "trainable-tokens";
        EXPECT_EQ((*adapter)->has_replaced_parts(), replaces) << where;
    }
    EXPECT_EQ(n_adapters, 49u);
}

TEST(GoldenAdapters, ScalesAndRanksFollowThePatterns) {
    const auto adapter = check_adapter(kGoldens / "adapters/llama-scaled/patterns", base_of("llama-scaled"));
    ASSERT_TRUE(adapter.ok());
    const auto module = [&](size_t layer, model::LinearModule m) {
        return (*adapter)->plan.layers[layer][static_cast<size_t>(m)];
    };
    EXPECT_EQ(module(1, model::LinearModule::kDown).rank, 10u);
    EXPECT_EQ(module(0, model::LinearModule::kK).rank, 2u);
    EXPECT_EQ(module(2, model::LinearModule::kQ).rank, 5u);
    EXPECT_EQ(module(2, model::LinearModule::kV).scale, 24.0f / 6);
    EXPECT_EQ(module(1, model::LinearModule::kV).scale, 12.0f / 6);
    EXPECT_EQ(module(1, model::LinearModule::kUp).scale, 3.0f / 6);
    const auto rslora = check_adapter(kGoldens / "adapters/phi3-sharded/rslora-r8", base_of("phi3-sharded"));
    ASSERT_TRUE(rslora.ok());
    EXPECT_EQ((*rslora)->plan.layers[0][0].scale, static_cast<float>((*rslora)->peft.alpha / std::sqrt(8.0)));
}

TEST(BrokenAdapters, EachIsRefusedOrLoadedAsTheReferenceSaysAndNothingIsLeftBehind) {
    testing::FakeStore store(4);
    Registry registry(base_of("llama-scaled"), store, {.base_name = "base"});
    size_t n_cases = 0;
    for (const GoldenCase& c : read_cases(kGoldens / "broken-adapters/cases.json")) {
        ++n_cases;
        const auto loaded = registry.load(c.name, kGoldens / "broken-adapters" / c.name);
        const std::string found = loaded.ok() ? "loaded" : loaded.error().message;
        if (c.expect == "load") {
            EXPECT_TRUE(loaded.ok()) << c.name << ": " << found;
        } else if (c.expect == "reject") {
            EXPECT_FALSE(loaded.ok()) << c.name;
        }
        if (loaded.ok()) {
            EXPECT_TRUE(registry.remove(c.name).ok());
        } else {
            const ErrorCode code = loaded.error().code;
            EXPECT_TRUE(code == ErrorCode::kAdapterInvalid || code == ErrorCode::kAdapterUnsupported)
                << c.name << ": " << loaded.error().message;
            EXPECT_GT(loaded.error().message.size(), 20u) << c.name;
            EXPECT_LT(loaded.error().message.size(), 8000u) << c.name;
            EXPECT_EQ(loaded.error().message.find(kGoldens.string()), std::string::npos) << loaded.error().message;
        }
        EXPECT_TRUE(registry.list().empty()) << c.name;
        EXPECT_EQ(store.allocated_bytes, 0u) << c.name;
    }
    EXPECT_EQ(n_cases, 89u);
    // Unusual features are honoured or refused.
    const auto alora = check_adapter(kGoldens / "broken-adapters/config-alora", base_of("llama-scaled"));
    ASSERT_TRUE(alora.ok()) << alora.error().message;
    EXPECT_THAT((*alora)->plan.invocation_tokens, ::testing::ElementsAre(5, 6));
    EXPECT_FALSE(check_adapter(kGoldens / "broken-adapters/config-layer-replication", base_of("llama-scaled")).ok());
    EXPECT_EQ(store.n_freed_while_pending, 0u);
    // All slots are free again.
    for (const char* name : {"a", "b", "c", "d"}) {
        EXPECT_TRUE(registry.load(name, kGoldens / "broken-adapters/control-sound").ok());
    }
}

TEST(BrokenAdapters, MessagesNameTheTensorWhatWasExpectedAndWhatWasFound) {
    const std::pair<const char*, const char*> cases[] = {
        {"rank-mismatch-a-b", R"(lora_B\.weight: expected \[128, 4\], found \[128, 6\])"},
        {"rank-not-the-configs", R"(lora_A\.weight: expected \[8, 128\], found \[4, 128\])"},
        {"shape-not-the-bases-input", R"(lora_A\.weight: expected \[4, 128\], found \[4, 136\])"},
        {"missing-lora-b", R"(lora_B\.weight: expected \[[0-9]+, 4\], found none)"},
        {"layer-beyond-base", "expected layers 0 to 2, found layer 99"},
        {"nan-weight", "expected finite numbers"},
        {"target-not-in-base", "expected a linear layer of LlamaForCausalLM, found self_attn.c_attn"},
        {"config-alpha-nan", "adapter_config.json: lora_alpha: not valid JSON at line"},
        {"config-rank-string", "adapter_config.json: r: expected integer, found string \"four\""},
        {"pickle-only", "adapter_model.bin is a pickle"},
        {"pickle-named-safetensors", "a pickle under the name"},
        {"ia3", "peft_type = \"IA3\""},
        {"no-config", "adapter_config.json: the file is missing"},
        {"config-layers-out-of-range", "layers_to_transform name"},
        {"no-tensors", "expected a tensor"},
        {"duplicate-key", "occurs twice"},
        {"dora-without-magnitudes", "lora_magnitude_vector: expected"},
        {"modules-to-save-missing", "lm_head.weight: expected a tensor, as modules_to_save names"},
        {"modules-to-save-unknown",
         "expected the embedding, the output layer or norms, found a module that the base does not have"},
        {"vocab-mismatch-lm-head", R"(lm_head\.weight: expected \[1000, 128\], found \[1016, 128\])"},
        {"unknown-tensor", "lora_C"},
    };
    for (const auto& [name, message] : cases) {
        const auto adapter = check_adapter(kGoldens / "broken-adapters" / name, base_of("llama-scaled"));
        ASSERT_FALSE(adapter.ok()) << name;
        EXPECT_THAT(adapter.error().message, ContainsRegex(message)) << name;
    }
}

}  // namespace
}  // namespace lorad::adapters::golden_files_test
