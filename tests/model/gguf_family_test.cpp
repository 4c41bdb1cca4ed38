// The golden families as GGUF files of llama.cpp's layout: the same layers, the same numbers, and the references'
// logits.
#include <cmath>
#include <fstream>

#include <gtest/gtest.h>

#include "model/config/rope.h"
#include "model/exec/runner.h"
#include "model/files/model_files.h"
#include "tests/support/families.h"
#include "tests/support/family_gguf.h"
#include "tests/support/load_executor.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_device.h"

namespace lorad::model::gguf_family_test {
namespace {

using namespace lorad::testing;

constexpr double kRelativeErrorMax = 2e-3;  // activations are f32

struct FamilyFile {
    const char* model;
    const char* gguf;
    ExpertsAs experts = ExpertsAs::kPlain;
    bool turns_by_its_name = false;  // every fourth layer turns nothing: the file cannot say the golden's own layers
};
std::ostream& operator<<(std::ostream& out, const FamilyFile& file) { return out << file.model; }

class GgufFamily : public ::testing::TestWithParam<FamilyFile> {
  protected:
    void SetUp() override {
        const auto folder = ModelFiles::open(families_dir() / "models" / GetParam().model);
        ASSERT_TRUE(folder.ok()) << folder.error().message;
        config_ = (*folder)->config().value();
        numbers_ = meaning_of((*folder)->tensors().value(), config_);
        file_ = dir_.path() / "model.gguf";
        std::ofstream(file_, std::ios::binary)
            << family_as_gguf(numbers_, config_, GetParam().gguf, GetParam().experts);
    }

    lorad::testing::TempDir dir_;
    ModelConfig config_;
    NamedNumbers numbers_;
    std::filesystem::path file_;
};

TEST_P(GgufFamily, HasTheLayersAndTheNumbersOfTheFolder) {
    const auto gguf = ModelFiles::open(file_);
    ASSERT_TRUE(gguf.ok()) << gguf.error().message;
    const ModelConfig found = (*gguf)->config().value();
    EXPECT_EQ(found.architecture, config_.architecture);
    ASSERT_EQ(found.n_layers, config_.n_layers);
    for (uint32_t layer = 0; layer < found.n_layers; ++layer) {
        LayerFacts expected = config_.layer(layer), is = found.layer(layer);
        // Fields of GGUF are f32.
        EXPECT_NEAR(is.attention.scale, expected.attention.scale, 1e-7);
        EXPECT_NEAR(is.attention.position_scale.beta, expected.attention.position_scale.beta, 1e-7);
        if (GetParam().turns_by_its_name) expected.attention.rope = (layer + 1) % 4 == 0 ? kNoRope : 0;
        is.attention.scale = expected.attention.scale;
        is.attention.position_scale = expected.attention.position_scale;
        EXPECT_TRUE(is == expected) << "layer " << layer;
    }
    EXPECT_NEAR(found.embed_scale, config_.embed_scale, 1e-5);
    EXPECT_NEAR(found.logit_scale, config_.logit_scale, 1e-6);
    EXPECT_EQ(found.final_softcap, config_.final_softcap);
    EXPECT_EQ(found.tied_embeddings, config_.tied_embeddings);
    EXPECT_EQ(found.wide_activations, config_.wide_activations);
    EXPECT_EQ(found.per_layer_vocab, config_.per_layer_vocab);
    ASSERT_EQ(found.n_ropes(), config_.n_ropes());
    for (uint32_t i = 0; i < found.n_ropes(); ++i) {
        const RopeConfig &is = found.rope_of(i), &expected = config_.rope_of(i);
        EXPECT_EQ(is.rotary_dim, expected.rotary_dim);
        EXPECT_EQ(pair_stride(is), pair_stride(expected));
        EXPECT_NEAR(is.attention_factor, expected.attention_factor, 1e-6);
        const std::vector<double> a = rope_frequencies(is), b = rope_frequencies(expected);
        ASSERT_EQ(a.size(), b.size());
        for (size_t pair = 0; pair < a.size(); ++pair)
            EXPECT_NEAR(a[pair] / b[pair], 1.0, 1e-6) << "rope " << i << ", pair " << pair;
    }
    const auto tensors = (*gguf)->tensors();
    ASSERT_TRUE(tensors.ok()) << tensors.error().message;
    const NamedNumbers read = meaning_of(*tensors, found);
    for (const auto& [name, expected] : numbers_) {
        ASSERT_TRUE(read.contains(name)) << name;
        const std::vector<float>& is = read.at(name);
        ASSERT_EQ(is.size(), expected.size()) << name;
        const bool is_norm =
            config_.one_plus_norms && name.ends_with("norm.weight") && !name.ends_with("linear_attn.norm.weight");
        for (size_t i = 0; i < is.size(); ++i) {
            const float wanted = expected[i] + (is_norm ? 1.0f : 0.0f);
            if (name.ends_with("A_log"))
                ASSERT_NEAR(is[i], wanted, 1e-6) << name;
            else
                ASSERT_EQ(is[i], wanted) << name << " " << i;
        }
    }
    EXPECT_EQ(read.size(), numbers_.size());
}

// Of the files that say the golden's own model.
using GgufFamilyWithLogits = GgufFamily;
TEST_P(GgufFamilyWithLogits, EqualTheReference) {
    const std::filesystem::path stem = families_dir() / "expected/models" / GetParam().model;
    const auto prompts = read_golden_prompts(stem.string() + ".json");
    const auto files = TensorFiles::map(stem.string() + ".safetensors", ErrorCode::kIo);
    ASSERT_TRUE(files.ok()) << files.error().message;
    const auto executor = load_executor(file_, {.n_rows_max = 64,
                                                .n_sequences_max = 4,
                                                .n_positions_max = 256,
                                                .n_adapter_slots = 2,
                                                .kernel_path = gpu::KernelPath::kPortableF32,
                                                .decode = gpu::PersistentDecode::kOff});
    Runner runner(*executor);
    const auto reference = golden_floats(*files, "prompt0.last_logits");
    const auto logits = runner.logits(prompts[0].ids, false);
    ASSERT_TRUE(logits.ok()) << logits.error().message;
    ASSERT_EQ(logits->size(), reference.size());
    EXPECT_LE(relative_error(logits->data(), reference.data(), reference.size()), kRelativeErrorMax);
}

constexpr FamilyFile kFiles[] = {{"gemma4-dense", "gemma4"},
                                 {"gemma4-e2b", "gemma4"},
                                 {"gemma4-moe", "gemma4"},
                                 {"granite", "granite"},
                                 {"granite-hybrid", "granitehybrid"},
                                 {"ministral3-nested", "mistral3"},
                                 {"olmo2", "olmo2"},
                                 {"olmo3", "olmo2"},
                                 {"smollm3", "smollm3", ExpertsAs::kPlain, true},
                                 {"qwen35", "qwen35"},
                                 {"lfm2", "lfm2"},
                                 {"qwen3-next", "qwen3next"},
                                 {"qwen35-moe", "qwen35moe"},
                                 {"gpt-oss", "gpt-oss"},
                                 {"gpt-oss-mxfp4", "gpt-oss", ExpertsAs::kMxfp4}};
std::vector<FamilyFile> files_of_goldens() {
    std::vector<FamilyFile> files;
    std::ranges::copy_if(kFiles, std::back_inserter(files),
                         [](const FamilyFile& file) { return !file.turns_by_its_name; });
    return files;
}
std::string name_of(const ::testing::TestParamInfo<FamilyFile>& instance) {
    std::string name = instance.param.model;
    std::ranges::replace(name, '-', '_');
    return name;
}
INSTANTIATE_TEST_SUITE_P(All, GgufFamily, ::testing::ValuesIn(kFiles), name_of);
INSTANTIATE_TEST_SUITE_P(All, GgufFamilyWithLogits, ::testing::ValuesIn(files_of_goldens()), name_of);

}  // namespace
}  // namespace lorad::model::gguf_family_test
