#include "adapters/plan/report.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "adapters/plan/pack.h"
#include "proto/json/json.h"
#include "tests/adapters/adapter_folder.h"
#include "tests/support/source_dir.h"

namespace lorad::adapters::report_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace lorad::testing;

const std::filesystem::path kGoldens = lorad::testing::source_dir() / "tests/goldens";

TEST(AdapterReport, TellsWhatAnAdapterIs) {
    const AdapterFolder folder(
        R"({"peft_type":"LORA","r":4,"lora_alpha":8,"use_rslora":true,"alpha_pattern":{"v_proj":3},
        "base_model_name_or_path":"some/base","target_modules":["q_proj","v_proj"]})");
    const AdapterReport report = inspect_adapter(folder.path(), small_config());
    EXPECT_TRUE(report.fits());
    EXPECT_EQ(report.kind, AdapterKind::kPeft);
    EXPECT_EQ(report.base_model_name, "some/base");
    EXPECT_EQ(report.rank_min, 4u);
    EXPECT_EQ(report.rank_max, 4u);
    EXPECT_THAT(report.targets, ElementsAre("q_proj", "v_proj"));
    ASSERT_EQ(report.modules.size(), 4u);
    EXPECT_EQ(report.modules[3].name, "model.layers.1.self_attn.v_proj");
    EXPECT_EQ(report.modules[3].scale, 1.5f);
    EXPECT_EQ(report.modules[2].scale, 4.0f);
    EXPECT_EQ(report.modules[2].dtype, "F32");
    EXPECT_FALSE(report.modules[2].is_zero);
    EXPECT_TRUE(report.changes_something);
    EXPECT_EQ(report.n_parameters, 2u * (4 * 40 + 64 * 4 + 4 * 40 + 32 * 4));
    const auto checked = check_adapter(folder.path(), small_config());
    ASSERT_TRUE(checked.ok());
    EXPECT_EQ(report.device_bytes, pack(**checked)->n_bytes);
    EXPECT_EQ(report.generation, (*checked)->generation());
}

TEST(AdapterReport, WarnsOfAnAdapterThatChangesNothing) {
    TestTensors tensors = plain_tensors();
    for (auto& [name, tensor] : tensors) {
        if (name.find("lora_B") == std::string::npos) continue;
        std::ranges::fill(tensor.data, std::byte{0});
        tensor.data[3] = std::byte{0x80};  // -0.0
    }
    AdapterReport report = inspect_adapter(AdapterFolder(kPlainConfig, tensors).path(), small_config());
    EXPECT_TRUE(report.fits());
    EXPECT_FALSE(report.changes_something);
    ASSERT_EQ(report.warnings.size(), 1u);
    EXPECT_THAT(report.warnings[0], HasSubstr("changes nothing"));
    tensors[lora_name(1, "self_attn.v_proj", 'B')].data[0] = std::byte{1};
    report = inspect_adapter(AdapterFolder(kPlainConfig, tensors).path(), small_config());
    EXPECT_TRUE(report.changes_something);
    EXPECT_TRUE(report.warnings.empty());
    EXPECT_FALSE(report.modules[3].is_zero);
    EXPECT_TRUE(report.modules[2].is_zero);
    const AdapterFolder without_scale(
        R"({"peft_type":"LORA","r":4,"lora_alpha":0,"target_modules":["q_proj","v_proj"]})");
    EXPECT_FALSE(inspect_adapter(without_scale.path(), small_config()).changes_something);
}

TEST(AdapterReport, WarnsOfATemplateThatDoesNotParse) {
    const AdapterFolder folder(kPlainConfig, plain_tensors());
    const auto warnings_with = [&](const char* source) {
        std::ofstream(folder.path() / kTemplateFile) << source;
        const AdapterReport report = inspect_adapter(folder.path(), small_config());
        EXPECT_TRUE(report.fits());
        return report.warnings;
    };
    EXPECT_THAT(warnings_with("{% for m in messages %}{{ m.content }}"),
                ElementsAre(HasSubstr("chat_template.jinja: ")));
    EXPECT_THAT(warnings_with("{% for m in messages %}{{ m.content }}{% endfor %}"), ElementsAre());
}

TEST(AdapterReport, RefusesATemplateThatIsNoText) {
    const AdapterFolder folder(kPlainConfig, plain_tensors());
    std::ofstream(folder.path() / kTemplateFile) << "{{ 'é\xff\xfe' }}";
    const AdapterReport report = inspect_adapter(folder.path(), small_config());
    EXPECT_FALSE(report.fits());
    EXPECT_EQ(report.error->code, ErrorCode::kAdapterInvalid);
    EXPECT_EQ(report.error->message, "chat_template.jinja: byte 6: expected UTF-8");
}

TEST(AdapterReport, NamesEveryReasonOfARefusalAndWhatFitsBesides) {
    TestTensors tensors = plain_tensors();
    tensors[lora_name(0, "self_attn.q_proj", 'A')] = matrix(8, 40, 1);
    tensors["base_model.model.model.layers.0.self_attn.k_proj.ia3_l"] = matrix(1, 1, 1);
    for (int i = 0; i < 30; ++i) tensors[format("unknown\n{}", i)] = matrix(1, 1, 1);
    const AdapterReport report = inspect_adapter(AdapterFolder(kPlainConfig, tensors).path(), small_config());
    EXPECT_FALSE(report.fits());
    ASSERT_EQ(report.refused.size(), 32u);  // also beyond what one message shows
    EXPECT_EQ(report.modules.size(), 3u);
    EXPECT_EQ(report.error->code, ErrorCode::kAdapterInvalid);
    EXPECT_EQ(report_text(report).find("unknown\n"), std::string::npos);
    const auto document = parse_json(report_json(report));
    ASSERT_TRUE(document.ok());
    EXPECT_FALSE(*document->root().require("fits")->as_bool());
    const auto refused = *document->root().require("refused")->as_array();
    ASSERT_EQ(refused.size(), 32u);
    EXPECT_EQ(*refused[0].require("reason")->as_string(), "unsupported");
    EXPECT_EQ(*refused[0].require("tensor")->as_string(), "base_model.model.model.layers.0.self_attn.k_proj.ia3_l");
}

TEST(AdapterReport, OfFilesThatAreNoAdapterHoldsTheReason) {
    const AdapterReport missing = inspect_adapter("no/such/folder", small_config());
    EXPECT_EQ(missing.error->code, ErrorCode::kAdapterNotFound);
    const AdapterReport broken = inspect_adapter(AdapterFolder("{").path(), small_config());
    EXPECT_EQ(broken.error->code, ErrorCode::kAdapterInvalid);
    EXPECT_EQ(broken.generation.size(), 64u);
    EXPECT_THAT(report_text(broken), HasSubstr("refused: adapter_config.json: not valid JSON"));
    EXPECT_TRUE(parse_json(report_json(broken)).ok());
    EXPECT_TRUE(parse_json(report_json(missing)).ok());
}

TEST(AdapterReport, OfEveryGoldenAdapterIsJsonWithItsParts) {
    const auto base = BaseModel::load(kGoldens / "models/llama-scaled");
    ASSERT_TRUE(base.ok());
    for (const auto& entry : std::filesystem::directory_iterator(kGoldens / "adapters/llama-scaled")) {
        const AdapterReport report = inspect_adapter(entry.path(), *base);
        EXPECT_TRUE(report.fits()) << entry.path() << report_text(report);
        EXPECT_TRUE(report.changes_something);
        EXPECT_TRUE(parse_json(report_json(report)).ok());
        const bool is_dora = std::ranges::any_of(report.modules, &AdapterReport::Module::has_dora);
        EXPECT_EQ(is_dora, entry.path().filename() == "dora");
    }
    const AdapterReport saved = inspect_adapter(kGoldens / "adapters/llama-scaled/embed-and-head-saved", *base);
    EXPECT_THAT(saved.replaced_parts, ElementsAre("model.embed_tokens", "lm_head"));
    const AdapterReport tokens = inspect_adapter(kGoldens / "adapters/llama-scaled/trainable-tokens", *base);
    EXPECT_THAT(tokens.replaced_parts, ElementsAre("rows of 3 tokens in model.embed_tokens"));
}

TEST(BaseModel, HasTheOutputLayerOfItsFiles) {
    const AdapterFolder folder;
    std::filesystem::copy_file(kGoldens / "models/llama-tied/config.json", folder.path() / "config.json");
    TestTensors tensors{{"model.embed_tokens.weight", matrix(4, 2, 1)}, {"lm_head.weight", matrix(4, 2, 1)}};
    for (const bool same : {true, false}) {
        if (!same) tensors["lm_head.weight"] = matrix(4, 2, 2);
        std::ofstream(folder.path() / "model.safetensors", std::ios::binary) << safetensors_bytes(tensors);
        const auto base = BaseModel::load(folder.path());
        ASSERT_TRUE(base.ok()) << base.error().message;
        EXPECT_EQ(base->config.tied_embeddings, same);
        EXPECT_EQ(base->config.tied_by_name, !same);
    }
}

TEST(BaseFingerprint, ChangesWithTheWeightsAndTheConfigOnly) {
    const auto base = BaseModel::load(kGoldens / "models/llama-scaled");
    const auto other = BaseModel::load(kGoldens / "models/llama-tied");
    ASSERT_TRUE(base.ok() && other.ok());
    EXPECT_EQ(base->fingerprint.size(), 64u);
    EXPECT_NE(base->fingerprint, other->fingerprint);
    const std::filesystem::path folder = kGoldens / "models/llama-scaled";
    const auto files = model::TensorFiles::map_folder(folder);
    ASSERT_TRUE(files.ok());
    EXPECT_EQ(base_fingerprint(base->config, *files), base->fingerprint);
    model::ModelConfig config = base->config;
    config.rope.theta += 1;
    EXPECT_NE(base_fingerprint(config, *files), base->fingerprint);
    // One bit of the last tensor's last byte.
    const AdapterFolder copy;
    for (const char* name : {"config.json", "model.safetensors"})
        std::filesystem::copy_file(folder / name, copy.path() / name);
    const std::filesystem::path weights = copy.path() / "model.safetensors";
    std::filesystem::permissions(weights, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
    std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(file.good());
    file.seekg(-1, std::ios::end);
    const char last = static_cast<char>(file.get());
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(last ^ 1));
    file.close();
    const auto changed = BaseModel::load(copy.path());
    ASSERT_TRUE(changed.ok());
    EXPECT_NE(changed->fingerprint, base->fingerprint);
}

}  // namespace
}  // namespace lorad::adapters::report_test
