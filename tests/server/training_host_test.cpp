// The serving process as jobs see it: a registry, and trainers of a small golden model.
#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/training/job_folder.h"
#include "server/training/server_host.h"
#include "tests/adapters/fake_store.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training_goldens.h"

namespace lorad::server::training {
namespace {

using ::testing::HasSubstr;

class TrainingServerHost : public ::testing::Test {
  protected:
    TrainingServerHost() { EXPECT_TRUE(registry.load("there", golden->tensors() / "initial").ok()); }

    std::unique_ptr<ServerHost> host(uint64_t memory_bytes = 0) {
        ServerHost::Options options;
        options.facts = {"base", golden->base->fingerprint, "a device", "0.0", config.vocab_size, 64};
        options.memory_bytes = memory_bytes;
        return std::make_unique<ServerHost>(
            ServerParts{lorad::testing::test_device(), config, *golden->weights, registry, pieces},
            std::make_unique<const TrainingText>(nullptr, nullptr, std::vector<TokenId>()), options);
    }
    static RunPlan plan_of(const proto::TrainingRecipe& recipe) {
        RunPlan plan = *plan_run(recipe, 4);
        plan.n_positions = 64;
        return plan;
    }

    const std::unique_ptr<lorad::testing::TrainingGolden> golden =
        lorad::testing::TrainingGolden::load("llama-tied-plain");
    model::ModelConfig config = golden->base->config;
    lorad::testing::FakeStore store{4};
    adapters::Registry registry{adapters::BaseModel::load(golden->model).value(), store, {.base_name = "base"}};
    PieceQueue pieces;
};

TEST_F(TrainingServerHost, RefusesAtCreationWhatItCouldNotTrain) {
    const auto large = host(), small = host(uint64_t{1} << 20);
    proto::TrainingRecipe recipe;
    EXPECT_TRUE(large->check_recipe(recipe).ok());
    EXPECT_TRUE(large->start_files("there").ok());
    const Status too_large = small->check_recipe(recipe);
    ASSERT_FALSE(too_large.ok());
    EXPECT_EQ(too_large.error().code, ErrorCode::kOutOfMemory);
    const auto start_too_large = small->start_files("there");
    ASSERT_FALSE(start_too_large.ok());
    EXPECT_EQ(start_too_large.error().code, ErrorCode::kOutOfMemory);
    EXPECT_THAT(start_too_large.error().message, HasSubstr("training needs"));
    const auto nobody = large->start_files("nobody");
    ASSERT_FALSE(nobody.ok());
    EXPECT_EQ(nobody.error().code, ErrorCode::kAdapterNotFound);
    config.final_softcap = 30;  // which is served, and not trained on
    for (const Status& refused : {large->check_recipe(recipe), Status(large->start_files("there").error())}) {
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().code, ErrorCode::kInvalidRequest);
        EXPECT_THAT(refused.error().message, HasSubstr("served, but not trained on"));
    }
}

TEST_F(TrainingServerHost, AJobBeginsWithTheFilesThatItHasKept) {
    const lorad::testing::TempDir dir;
    const auto one = host();
    const auto files = one->start_files("there");
    ASSERT_TRUE(files.ok()) << files.error().message;
    ASSERT_TRUE(adapters::write_peft_folder(*files, dir.path() / "start").ok());
    ASSERT_TRUE(registry.remove("there").ok());
    const auto kept = read_peft_folder(dir.path() / "start");
    ASSERT_TRUE(kept.ok()) << kept.error().message;
    EXPECT_EQ(kept->config, files->config);
    EXPECT_EQ(kept->tensors, files->tensors);
    const auto made = one->make_trainer(plan_of({}), dir.path() / "start", nullptr);
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_EQ(made->n_parameters, golden->initial.n_parameters());
    const auto adapter = made->trainer->adapter();
    ASSERT_TRUE(adapter.ok());
    std::map<std::string, std::vector<float>> values;
    for (const model::TrainedTensor* tensor : adapter->tensors()) values[tensor->name] = tensor->values;
    for (const model::TrainedTensor* tensor : std::as_const(golden->initial).tensors())
        EXPECT_EQ(values[tensor->name], tensor->values) << tensor->name;
}

// A record of a version that did not refuse it.
TEST_F(TrainingServerHost, AJobThatWasCreatedGoesOnWithARecipeThatIsRefusedOfNewOnes) {
    const auto one = host();
    proto::TrainingRecipe recipe;
    recipe.lora_trainable_modules = {"q_proj", "w.*"};
    recipe.rank_pattern = {{"k_proj", 2}};
    recipe.layers_to_transform = {0, 77};
    const Status refused = one->check_recipe(recipe);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidRequest);
    const auto made = one->make_trainer(plan_of(recipe), {}, nullptr);
    EXPECT_TRUE(made.ok()) << made.error().message;
}

}  // namespace
}  // namespace lorad::server::training
