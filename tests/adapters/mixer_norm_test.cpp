// Adapters that bring a norm of a mixer along (modules_to_save): the model answers as one that has this norm itself.
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/exec/runner.h"
#include "tests/adapters/served.h"
#include "tests/support/families.h"
#include "tests/support/temp_dir.h"

namespace lorad::adapters::mixer_norm_test {
namespace {

using namespace lorad::testing;

struct NormCase {
    const char* model;
    const char* norm;  // of layer 0
};
std::ostream& operator<<(std::ostream& out, const NormCase& of) { return out << of.model; }

struct Tensors {
    struct One {
        std::vector<float> numbers;
        std::vector<uint64_t> shape;
    };
    std::map<std::string, One> all;

    static Tensors read(const std::filesystem::path& path) {
        const auto files = model::TensorFiles::map(path, ErrorCode::kIo);
        EXPECT_TRUE(files.ok()) << files.error().message;
        Tensors tensors;
        for (const model::Tensor& tensor : files->tensors())
            tensors.all[tensor.name] = {model::numbers_of(tensor), tensor.shape};
        return tensors;
    }
    void put(const std::string& name, const std::vector<float>& numbers) { all[name] = {numbers, {numbers.size()}}; }
    void write(const std::filesystem::path& path) const {
        nlohmann::json header;
        std::string data;
        for (const auto& [name, one] : all) {
            const size_t n_bytes = one.numbers.size() * sizeof(float);
            header[name] = {
                {"dtype", "F32"}, {"shape", one.shape}, {"data_offsets", {data.size(), data.size() + n_bytes}}};
            data.append(reinterpret_cast<const char*>(one.numbers.data()), n_bytes);
        }
        std::string text = header.dump();
        text.append((8 - text.size() % 8) % 8, ' ');
        const uint64_t n_bytes = text.size();
        std::ofstream file(path, std::ios::binary);
        file.write(reinterpret_cast<const char*>(&n_bytes), sizeof(n_bytes));
        file << text << data;
    }
};

class MixerNorm : public ::testing::TestWithParam<NormCase> {
  protected:
    void SetUp() override {
        const std::filesystem::path base = families_dir() / "models" / GetParam().model;
        std::filesystem::copy(base, changed(), std::filesystem::copy_options::recursive);
        Tensors tensors = Tensors::read(base / "model.safetensors");
        norm_ = tensors.all.at(GetParam().norm).numbers;
        for (size_t i = 0; i < norm_.size(); ++i) norm_[i] = norm_[i] * 0.5f + 0.25f * static_cast<float>(i % 3);
        tensors.put(GetParam().norm, norm_);
        tensors.write(changed() / "model.safetensors");

        const std::filesystem::path adapter = families_dir() / "adapters" / GetParam().model / "qv";
        std::filesystem::copy(adapter, saved(), std::filesystem::copy_options::recursive);
        std::ifstream config_file(adapter / "adapter_config.json");
        nlohmann::json config = nlohmann::json::parse(config_file);
        const std::string name = GetParam().norm;
        config["modules_to_save"] = {name.substr(0, name.rfind('.'))};
        std::ofstream(saved() / "adapter_config.json") << config.dump();
        Tensors of_adapter = Tensors::read(adapter / "adapter_model.safetensors");
        of_adapter.put("base_model.model." + name, norm_);
        of_adapter.write(saved() / "adapter_model.safetensors");
    }
    std::filesystem::path changed() const { return dir_.path() / "changed"; }
    std::filesystem::path saved() const { return dir_.path() / "saved"; }

    std::vector<float> logits(Served& served, uint32_t slot) {
        const std::vector<TokenId> tokens{5, 9, 33, 2, 100, 41, 7, 8, 9, 10, 250, 3};
        auto got = model::Runner(served.executor()).logits(tokens, false, slot);
        EXPECT_TRUE(got.ok()) << got.error().message;
        return got.ok() ? *got : std::vector<float>();
    }

    TempDir dir_;
    std::vector<float> norm_;
};

TEST_P(MixerNorm, AnAdaptersOwnStandsForTheBases) {
    const auto served = Served::load(families_dir() / "models" / GetParam().model), other = Served::load(changed());
    ASSERT_NE(served, nullptr);
    ASSERT_NE(other, nullptr);
    const std::filesystem::path qv = families_dir() / "adapters" / GetParam().model / "qv";
    for (const auto& [registry, name, folder] :
         {std::tuple(&served->registry(), "saved", saved()), std::tuple(&served->registry(), "qv", qv),
          std::tuple(&other->registry(), "qv", qv)}) {
        const auto loaded = registry->load(name, folder);
        ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    }
    const std::vector<float> before = logits(*served, kNoAdapterSlot), got = logits(*served, served->slot_of("saved")),
                             want = logits(*other, other->slot_of("qv")),
                             without = logits(*served, served->slot_of("qv"));
    EXPECT_LE(relative_error(got.data(), want.data(), want.size()), 1e-6);
    EXPECT_GT(relative_error(without.data(), want.data(), want.size()), 1e-3) << "the norm changes nothing";
    EXPECT_EQ(logits(*served, kNoAdapterSlot), before);
}

TEST_P(MixerNorm, OneOfAnotherSizeIsRefusedByName) {
    Tensors tensors = Tensors::read(saved() / "adapter_model.safetensors");
    norm_.push_back(1.0f);
    tensors.put(std::string("base_model.model.") + GetParam().norm, norm_);
    tensors.write(saved() / "adapter_model.safetensors");
    const auto served = Served::load(families_dir() / "models" / GetParam().model);
    ASSERT_NE(served, nullptr);
    const auto loaded = served->registry().load("saved", saved());
    ASSERT_FALSE(loaded.ok());
    EXPECT_THAT(loaded.error().message, ::testing::HasSubstr(GetParam().norm));
    EXPECT_THAT(loaded.error().message, ::testing::HasSubstr("expected [" + std::to_string(norm_.size() - 1) + "]"));
}

INSTANTIATE_TEST_SUITE_P(Models, MixerNorm,
                         ::testing::Values(NormCase{"qwen35", "model.layers.0.linear_attn.norm.weight"},
                                           NormCase{"granite-hybrid", "model.layers.0.mamba.norm.weight"}));

}  // namespace
}  // namespace lorad::adapters::mixer_norm_test
