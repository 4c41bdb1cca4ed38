// A model on a device with its adapters: what serve, logits, generate and profile all begin with.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "adapters/pool/registry.h"
#include "adapters/pool/weight_store.h"
#include "gpu/device.h"
#include "model/exec/executor.h"
#include "proto/base/result.h"

namespace lorad::server {

struct Config;

struct DeviceArguments {
    std::string device;  // index, or part of the name; empty: the best one
    bool validation = false;
    std::string pipeline_cache;            // empty: in the user's cache folder, by device
    std::string self_test = "remembered";  // or always
    uint32_t submission_ms = 500;          // 0: no bound
    bool kernel_statistics = false;        // see gpu::DeviceOptions
};

// compile_only: devices that kernels can only be compiled for count as well.
Result<gpu::DeviceOptions> device_options(const DeviceArguments& arguments, bool compile_only = false);

struct LoadArguments {
    DeviceArguments device;
    std::filesystem::path folder;
    std::string base_name;
    std::string kernel_path = "auto";
    std::string tune = "remembered";  // always, off
    std::string dtype = "auto";
    std::string quantize = "none";
    std::string quantized_weights = "auto";
    std::string kv_cache_dtype = "auto";
    std::string persistent_decode = "auto";  // auto, on, off
    uint32_t n_adapters_max = 64;
    uint64_t adapter_bytes = 0;        // 0: a tenth of the device's memory, at most 8 GiB
    std::string state_dir;             // parent of the adapter stores, one for each base; empty: in memory
    uint64_t adapter_ram_bytes = 0;    // packed adapters that are kept in host memory
    uint64_t adapter_store_bytes = 0;  // for all stored files; 0: no limit
    uint32_t adapter_wait_s = 60;
    std::function<Status(std::string_view source)> check_template;  // see adapters::BaseModel
    model::ExecutorOptions executor;  // kernel_path, decode and adapter_bytes are taken from above
};

// auto, keep, decode: whether matrices of few bits stay so on the device. None: the device decides.
Result<std::optional<bool>> parse_quantized_weights(const std::string& text);
// Software devices compute with plain weights several times as fast, and have the host's memory.
bool keeps_packed(std::optional<bool> wish, bool quantizes, const gpu::DeviceCapabilities& capabilities);

// Logs which matrices of the model do not get the type that was asked for. None: nothing was asked for.
Status warn_of_quantizing(const std::filesystem::path& folder, std::optional<model::QuantizeType> type);

// The arguments that serve loads a model with.
LoadArguments load_arguments(const Config& config, const std::string& base_name);
// `executor` with what the texts say; `capabilities` decide what is left to them.
Result<model::ExecutorOptions> executor_options(const LoadArguments& arguments,
                                                const gpu::DeviceCapabilities& capabilities);

// Members are in the order of their dependencies: destroyed in reverse.
struct LoadedModel {
    model::ModelConfig config;
    std::unique_ptr<gpu::Device> device;
    std::unique_ptr<model::Executor> executor;
    std::unique_ptr<adapters::WeightStore> store;
    std::unique_ptr<adapters::Registry> registry;

    // Logs progress and the memory plan.
    static Result<LoadedModel> load(const LoadArguments& arguments);
};

}  // namespace lorad::server
