// A base model on the device with a registry of adapters, for tests.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "adapters/pool/registry.h"
#include "adapters/pool/weight_store.h"
#include "model/exec/executor.h"
#include "proto/base/log.h"
#include "tests/support/load_executor.h"
#include "tests/support/test_device.h"

namespace lorad::adapters {

class Served {
  public:
    static std::unique_ptr<Served> load(const std::filesystem::path& folder, bool batch_invariant = false,
                                        uint32_t n_slots = 24, gpu::KernelPath path = gpu::KernelPath::kPortableF32,
                                        gpu::PersistentDecode decode = gpu::PersistentDecode::kOff,
                                        std::optional<gpu::ScalarType> weight_type = std::nullopt) {
        set_log_level(LogLevel::kWarn);
        model::ExecutorOptions options;
        options.n_rows_max = 256;
        options.n_sequences_max = 24;
        options.n_positions_max = 256;
        options.n_adapter_slots = n_slots;
        options.n_kv_blocks = 96;
        options.kernel_path = path;
        options.decode = decode;
        options.batch_invariant = batch_invariant;
        options.weight_type = weight_type;
        std::unique_ptr<model::Executor> executor = testing::load_executor(folder, options);
        auto base = BaseModel::load(folder);
        EXPECT_TRUE(base.ok()) << (base.ok() ? "" : base.error().message);
        if (!base.ok()) return nullptr;
        return std::unique_ptr<Served>(new Served(std::move(executor), std::move(base).value()));
    }

    model::Executor& executor() { return *executor_; }
    Registry& registry() { return registry_; }
    uint32_t slot_of(const std::string& name) { return registry_.acquire(name)->slot(); }

  private:
    Served(std::unique_ptr<model::Executor> executor, BaseModel base)
        : executor_(std::move(executor)),
          store_(testing::test_device(), *executor_),
          registry_(std::move(base), store_, {.base_name = "base"}) {}

    std::unique_ptr<model::Executor> executor_;
    DeviceWeightStore store_;
    Registry registry_;
};

}  // namespace lorad::adapters
