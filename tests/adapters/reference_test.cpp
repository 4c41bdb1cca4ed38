// What adapter files mean, without a device: every golden adapter is checked, packed and placed in host memory, and a
// forward pass in double precision over exactly those bytes gives PEFT's logits.
#include <algorithm>
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "adapters/plan/check.h"
#include "adapters/plan/pack.h"
#include "tests/adapters/fake_store.h"
#include "tests/support/goldens.h"
#include "tests/support/host_model.h"

namespace lorad::adapters::reference_test {
namespace {

using namespace lorad::testing;

// PEFT computed in f32: errors of 2^-24 = 6e-8 in sums of up to 350 products grow like their root, 1e-6.
constexpr double kRelativeErrorMax = 1e-5;

class GainStore final : public FakeStore {
  public:
    explicit GainStore(const HostModel& model) : FakeStore(1), model_(model) {}
    Status finish_gains(const model::AdapterView& adapter) override {
        model_.finish_gains(adapter);
        return ok_status();
    }

  private:
    const HostModel& model_;
};

const HostModel& model_of(const std::string& name) {
    static std::map<std::string, HostModel> models;
    return models.try_emplace(name, goldens_dir() / "models" / name).first->second;
}

const BaseModel& base_of(const std::string& name) {
    static std::map<std::string, BaseModel> bases;
    const auto found = bases.find(name);
    if (found != bases.end()) return found->second;
    auto base = BaseModel::load(goldens_dir() / "models" / name);
    EXPECT_TRUE(base.ok());
    return bases.emplace(name, std::move(base).value()).first->second;
}

double relative_error(const reference::Vector& values, const std::vector<float>& expected) {
    const std::vector<float> narrow(values.begin(), values.end());
    return testing::relative_error(narrow.data(), expected.data(), expected.size());
}

void expect_peft_logits(const std::string& model_name, const std::string& adapter_name) {
    SCOPED_TRACE(model_name + "/" + adapter_name);
    const HostModel& model = model_of(model_name);
    const auto checked = check_adapter(goldens_dir() / "adapters" / model_name / adapter_name, base_of(model_name));
    ASSERT_TRUE(checked.ok()) << checked.error().message;
    const auto image = pack(**checked);
    ASSERT_TRUE(image.ok());
    EXPECT_EQ(image->n_bytes, packed_bytes(**checked));
    GainStore store(model);
    store.block_bytes = 1 << 20;
    const auto placed = place(*image, store);
    ASSERT_TRUE(placed.ok()) << placed.error().message;
    const HostAdapter adapter(placed->view, model.config());
    const std::vector<HostUse> uses{{&adapter, 1.0}};
    const auto folder = goldens_dir() / "expected/adapters" / model_name;
    auto files = model::TensorFiles::map(folder / (adapter_name + ".safetensors"), ErrorCode::kIo);
    ASSERT_TRUE(files.ok());
    const auto prompts = read_golden_prompts(folder / (adapter_name + ".json"));
    ASSERT_FALSE(prompts.empty());
    for (size_t i = 0; i < prompts.size(); ++i) {
        const auto expected = golden_floats(*files, "prompt" + std::to_string(i) + ".last_logits");
        const double error = relative_error(model.last_logits(prompts[i].ids, uses), expected);
        EXPECT_LT(error, kRelativeErrorMax) << "prompt " << i << " of " << prompts[i].ids.size() << " tokens";
    }
}

class GoldenModels : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenModels, EveryAdapterGivesTheLogitsOfPeftInDoublePrecision) {
    size_t n_adapters = 0;
    for (const auto& folder : std::filesystem::directory_iterator(goldens_dir() / "adapters" / GetParam())) {
        expect_peft_logits(GetParam(), folder.path().filename());
        ++n_adapters;
    }
    EXPECT_GT(n_adapters, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModels,
                         ::testing::Values("llama-scaled", "llama-tied", "mistral-window", "phi3-sharded", "qwen2-tied",
                                           "qwen3"),
                         [](const auto& instance) {
                             std::string name = instance.param;
                             std::ranges::replace(name, '-', '_');
                             return name;
                         });

}  // namespace
}  // namespace lorad::adapters::reference_test
