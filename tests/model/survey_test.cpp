// The kernels of a model's usual steps on a device that only compiles.
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/exec/executor.h"
#include "tests/support/goldens.h"
#include "tests/support/source_dir.h"

namespace lorad::model::survey_test {
namespace {

using namespace lorad::testing;

std::unique_ptr<gpu::Device> open() {
    auto device = gpu::Device::create({.validation = true, .kernel_statistics = true, .compile_only = true});
    EXPECT_TRUE(device.ok());
    return std::move(device).value();
}

// Steps have few rows: software compiles fewer kernels for them.
constexpr uint32_t kRows = 4;
ExecutorOptions few_rows() {
    return {.n_rows_max = kRows,
            .n_sequences_max = kRows,
            .n_positions_max = 256,
            .n_adapter_slots = 2,
            .decode = gpu::PersistentDecode::kOff};
}

std::set<std::string> modules_of(const KernelSurvey& survey) {
    std::set<std::string> modules;
    for (const gpu::KernelReport& kernel : survey.kernels) modules.insert(kernel.module);
    return modules;
}

TEST(Survey, AConfigAloneHasTheKernelsThatTheWholeFolderHas) {
    const auto folder = goldens_dir() / "models/qwen2-tied";
    const auto config = load_model_config(folder);
    ASSERT_TRUE(config.ok());
    const auto device = open();
    auto files = TensorFiles::map_folder(folder);
    ASSERT_TRUE(files.ok());
    const auto whole = Executor::survey(*device, std::move(files).value(), *config, few_rows());
    ASSERT_TRUE(whole.ok()) << whole.error().message;
    EXPECT_THAT(whole->failures, ::testing::IsEmpty());
    EXPECT_GT(whole->n_steps, 10u);
    for (const gpu::KernelReport& kernel : whole->kernels) {
        EXPECT_EQ(kernel.refusal, "");
        EXPECT_GT(kernel.use.n_dispatches, 0u) << kernel.module << " was made for no step";
    }
    const auto alone = Executor::survey(*device, WeightLoader::imagine(*config).value(), *config, few_rows());
    ASSERT_TRUE(alone.ok()) << alone.error().message;
    EXPECT_EQ(modules_of(*alone), modules_of(*whole));
    EXPECT_EQ(alone->kernels.size(), whole->kernels.size());
    EXPECT_EQ(alone->plan.weight_bytes, whole->plan.weight_bytes);
    EXPECT_EQ(device->validation_message_count(), 0u);
}

// A refused kernel is an entry, not the end.
TEST(Survey, SaysWhatTheDriverRefuses) {
    const auto config = load_model_config(goldens_dir() / "models/qwen2-tied");
    ASSERT_TRUE(config.ok());
    const auto device = open();
    ExecutorOptions options = few_rows();
    options.refused_kernels = {"attention_combine", "qkv_post"};
    const auto survey = Executor::survey(*device, WeightLoader::imagine(*config).value(), *config, options);
    ASSERT_TRUE(survey.ok()) << survey.error().message;
    EXPECT_THAT(survey->failures, ::testing::Contains(::testing::HasSubstr("qkv_post")));
    EXPECT_TRUE(std::ranges::any_of(survey->kernels, [](const gpu::KernelReport& kernel) {
        return kernel.module == "qkv_post" && !kernel.refusal.empty();
    }));
    EXPECT_TRUE(std::ranges::any_of(survey->kernels, [](const gpu::KernelReport& kernel) {
        return kernel.module == "add_norm" && kernel.refusal.empty();
    }));
}

}  // namespace
}  // namespace lorad::model::survey_test
