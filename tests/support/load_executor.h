// A model's executor on the test device.
#pragma once

#include <filesystem>
#include <memory>

#include "model/exec/executor.h"

namespace lorad::testing {

// Fails the test, and ends the program, where there is none.
std::unique_ptr<model::Executor> load_executor(const std::filesystem::path& folder, model::ExecutorOptions options);

}  // namespace lorad::testing
