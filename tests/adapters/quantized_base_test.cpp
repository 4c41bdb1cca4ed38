// Bases of few bits as adapters see them: fingerprints, what is said of their weights, and adapters that were made for
// another form of the model.
#include <fstream>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "adapters/files/recorded_base.h"
#include "adapters/plan/base_model.h"
#include "adapters/plan/report.h"
#include "tests/support/goldens.h"
#include "tests/support/temp_dir.h"

namespace lorad::adapters::quantized_base_test {
namespace {

using namespace lorad::testing;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

BaseModel base_of(const std::string& folder) {
    auto base = BaseModel::load(goldens_dir() / "quantized/hf" / folder);
    EXPECT_TRUE(base.ok()) << base.error().message;
    return std::move(base).value();
}

TEST(QuantizedBase, EachQuantizationOfAModelHasAFingerprintOfItsOwn) {
    std::map<std::string, std::set<std::string>> folders;
    for (const auto& entry : std::filesystem::directory_iterator(goldens_dir() / "quantized/hf")) {
        const std::string name = entry.path().filename();
        folders[base_of(name).fingerprint].insert(name);
    }
    std::set<std::set<std::string>> same;
    for (const auto& [fingerprint, names] : folders) {
        if (names.size() > 1) same.insert(names);
    }
    // Their codes and numbers are the same: only how zero points are stored is not.
    const std::set<std::set<std::string>> expected = {
        {"llama-gptq-asym", "llama-gptq-v2-asym"},
        {"llama-gptq-sym", "llama-gptq-v2-sym", "llama-gptq-v2-zeros-named-v1"}};
    EXPECT_EQ(same, expected);
    EXPECT_EQ(folders.size(), 24u - 3u);
}

TEST(QuantizedBase, FormatsAndBytesAreTold) {
    EXPECT_EQ(base_of("llama-bnb-nf4-double").formats.text(),
              "2 matrices in F16, 14 in NF4 with double quantization; 273412 bytes");
    EXPECT_EQ(base_of("qwen3-fp8-block").formats.text(), "1 matrix in BF16, 14 in FP8; 471840 bytes");
    const auto plain = BaseModel::load(goldens_dir() / "models/qwen2-tied");
    ASSERT_TRUE(plain.ok());
    EXPECT_FALSE(plain->formats.is_quantized);
    EXPECT_TRUE(base_of("llama-awq").formats.is_quantized);
}

TEST(QuantizedBase, AnAdapterMadeForAnotherFormIsWarnedOf) {
    const WeightFormats nf4 = base_of("llama-bnb-nf4").formats, gptq = base_of("llama-gptq-sym").formats;
    for (const char* name :
         {"unsloth/Llama-3.2-1B-bnb-4bit", "models/x-NF4", "someone/webnb-7b", "meta-llama/Llama-3.1-8B", ""}) {
        EXPECT_EQ(quantization_warning(name, nf4), std::nullopt) << name;
    }
    EXPECT_THAT(quantization_warning("unsloth/Llama-3.2-1B-bnb-4bit", gptq).value_or(""),
                AllOf(HasSubstr("\"unsloth/Llama-3.2-1B-bnb-4bit\", whose weights are quantized by bitsandbytes"),
                      HasSubstr("14 in GPTQ int4")));
    EXPECT_EQ(quantization_warning("someone/webnb-7b", gptq), std::nullopt);
    EXPECT_EQ(quantization_warning("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", gptq), std::nullopt);
    EXPECT_THAT(quantization_warning("Qwen/Qwen2.5-7B-Instruct-AWQ", gptq).value_or(""), HasSubstr("quantized by AWQ"));
    EXPECT_EQ(quantization_warning("Qwen/Qwen2.5-7B-Instruct-AWQ", {}), std::nullopt)
        << "of a base's config alone nothing is known";
}

// The golden adapter with another recorded base.
class RecordedBase : public ::testing::Test {
  protected:
    AdapterReport report(const std::string& base_name, const BaseModel& base) {
        const auto from = goldens_dir() / "quantized/adapters/hf-llama";
        std::filesystem::copy(
            from, dir_.path(),
            std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
        std::filesystem::permissions(dir_.path() / "adapter_config.json", std::filesystem::perms::owner_write,
                                     std::filesystem::perm_options::add);
        std::ifstream in(from / "adapter_config.json");
        std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
        const std::string recorded = "\"hf/llama\"";
        EXPECT_NE(text.find(recorded), std::string::npos);
        text.replace(text.find(recorded), recorded.size(), "\"" + base_name + "\"");
        std::ofstream(dir_.path() / "adapter_config.json") << text;
        return inspect_adapter(dir_.path(), base);
    }
    TempDir dir_;
};

TEST_F(RecordedBase, ADifferenceInFormIsAWarningAndNoRefusal) {
    const AdapterReport other = report("someone/llama-AWQ", base_of("llama-bnb-nf4"));
    EXPECT_TRUE(other.fits());
    EXPECT_THAT(other.warnings,
                Contains(HasSubstr("made for \"someone/llama-AWQ\", whose weights are quantized by AWQ")));
    EXPECT_THAT(report("someone/llama-bnb-4bit", base_of("llama-bnb-nf4")).warnings, IsEmpty());
}

}  // namespace
}  // namespace lorad::adapters::quantized_base_test
