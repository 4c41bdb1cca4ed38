#include "tests/support/load_executor.h"

#include <gtest/gtest.h>

#include "model/files/model_files.h"
#include "tests/support/test_device.h"

namespace lorad::testing {

std::unique_ptr<model::Executor> load_executor(const std::filesystem::path& folder, model::ExecutorOptions options) {
    // A software device runs one workgroup after the other, so there is only one.
    if (options.decode == gpu::PersistentDecode::kOn && test_device().capabilities().is_cpu)
        options.decode_workgroups = 1;
    const auto files = model::ModelFiles::open(folder);
    EXPECT_TRUE(files.ok()) << files.error().message;
    const auto config = (*files)->config();
    EXPECT_TRUE(config.ok()) << config.error().message;
    auto executor = model::Executor::load(test_device(), folder, *config, options);
    EXPECT_TRUE(executor.ok()) << executor.error().message;
    return std::move(executor).value();
}

}  // namespace lorad::testing
