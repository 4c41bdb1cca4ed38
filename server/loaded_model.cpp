#include "server/loaded_model.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <ranges>

#include <unistd.h>

#include "gpu/facts/start_record.h"
#include "model/exec/kv_cache.h"
#include "model/files/model_files.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "server/config.h"
#include "server/engine/engine.h"

namespace lorad::server {
namespace {

Result<gpu::KernelPath> parse_kernel_path(const std::string& text) {
    if (text == "auto") return gpu::KernelPath::kAuto;
    if (text == "portable-f32") return gpu::KernelPath::kPortableF32;
    if (text == "portable") return gpu::KernelPath::kPortable;
    if (text == "coopmat") return gpu::KernelPath::kCoopmat;
    if (text == "coopmat2") return gpu::KernelPath::kCoopmat2;
    if (text == "warpgroup") return gpu::KernelPath::kWarpgroup;
    return make_error(
        ErrorCode::kInvalidConfig,
        format("kernel-path: expected auto, portable-f32, portable, coopmat, coopmat2 or warpgroup, found \"{}\"",
               text),
        "kernel-path");
}

// vLLM's flag and names.
Result<std::optional<gpu::ScalarType>> parse_dtype(const std::string& text) {
    using Wish = std::optional<gpu::ScalarType>;
    if (text == "auto") return Wish();
    if (text == "float16" || text == "half") return Wish(gpu::ScalarType::kF16);
    if (text == "bfloat16") return Wish(gpu::ScalarType::kBf16);
    if (text == "float32" || text == "float") return Wish(gpu::ScalarType::kF32);
    return make_error(ErrorCode::kInvalidConfig,
                      format("dtype: expected auto, float16, bfloat16 or float32, found \"{}\"", text), "dtype");
}

// vLLM's flag. Its fp8 types keep three bits of a number; int8 with a scale for each 32 values takes as much room and
// keeps seven.
Result<gpu::KvType> parse_kv_type(const std::string& text) {
    if (text == "auto" || text == "float16") return gpu::KvType::kF16;
    if (text == "int8") return gpu::KvType::kInt8;
    return make_error(ErrorCode::kInvalidConfig,
                      format("kv-cache-dtype: expected auto, float16 or int8, found \"{}\"", text), "kv-cache-dtype");
}

Result<gpu::PersistentDecode> parse_persistent_decode(const std::string& text) {
    if (text == "auto") return gpu::PersistentDecode::kAuto;
    if (text == "on") return gpu::PersistentDecode::kOn;
    if (text == "off") return gpu::PersistentDecode::kOff;
    return make_error(ErrorCode::kInvalidConfig,
                      format("persistent-decode: expected auto, on or off, found \"{}\"", text), "persistent-decode");
}

Result<gpu::Tuning> parse_tuning(const std::string& text) {
    if (text == "remembered") return gpu::Tuning::kRemembered;
    if (text == "always") return gpu::Tuning::kAlways;
    if (text == "off") return gpu::Tuning::kOff;
    return make_error(ErrorCode::kInvalidConfig, format("tune: expected remembered, always or off, found \"{}\"", text),
                      "tune");
}

// Tells how far loading is, at most once in two seconds and only when it takes that long.
class ProgressLog {
  public:
    void operator()(uint64_t n_bytes_done, uint64_t n_bytes) {
        auto now = std::chrono::steady_clock::now();
        if (now - last_ < std::chrono::seconds(2) || n_bytes == 0) return;
        last_ = now;
        log_info("loading weights: {} of {} MiB ({} %)", n_bytes_done >> 20, n_bytes >> 20,
                 100 * n_bytes_done / n_bytes);
    }

  private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

Result<gpu::DeviceOptions> device_options(const DeviceArguments& arguments, bool compile_only) {
    gpu::DeviceOptions options;
    options.compile_only = compile_only;
    options.validation = arguments.validation;
    options.kernel_statistics = arguments.kernel_statistics;
    options.pipeline_cache = arguments.pipeline_cache;
    options.cache_folder = default_cache_folder();
    if (arguments.self_test != "always" && arguments.self_test != "remembered") {
        return make_error(ErrorCode::kInvalidConfig,
                          format("self-test: expected remembered or always, found \"{}\"", arguments.self_test),
                          "self-test");
    }
    options.repeats_tests = arguments.self_test == "always";
    options.submission_max = std::chrono::milliseconds(arguments.submission_ms);
    if (arguments.device.empty()) return options;
    const char* end = arguments.device.data() + arguments.device.size();
    int index = 0;
    auto [stopped, error] = std::from_chars(arguments.device.data(), end, index);
    if (error == std::errc() && stopped == end && index >= 0) {
        options.device_index = index;
        return options;
    }
    TRY_ASSIGN(std::vector<gpu::DeviceReport> reports, gpu::list_devices(options));
    auto lower = [](std::string text) {
        std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
        return text;
    };
    for (size_t i = 0; i < reports.size(); ++i) {
        if (lower(reports[i].capabilities.name).find(lower(arguments.device)) == std::string::npos) continue;
        options.device_index = int(i);
        return options;
    }
    return make_error(ErrorCode::kNoDevice,
                      format("no Vulkan device has \"{}\" in its name; `lorad devices` lists them", arguments.device),
                      "device");
}

namespace {

// The store of adapters for this base: a folder below `state_dir`, named by the base's fingerprint.
Result<std::unique_ptr<adapters::Store>> open_store(const LoadArguments& arguments, const adapters::BaseModel& base) {
    adapters::StoreLimits limits;
    limits.bytes_max = arguments.adapter_store_bytes;
    if (arguments.state_dir.empty()) return adapters::memory_store(limits);
    const std::filesystem::path folder = std::filesystem::path(arguments.state_dir) / base.fingerprint.substr(0, 16);
    auto opened = [&]() -> Result<std::unique_ptr<adapters::Store>> {
        TRY_ASSIGN(auto files, adapters::open_file_system(folder));
        return adapters::disk_store(std::move(files), limits);
    }();
    if (!opened.ok()) {
        return make_error(ErrorCode::kInvalidConfig,
                          format("state-dir {}: {}", folder.string(), opened.error().message), "state-dir");
    }
    log_info("adapter store: {} ({} adapters, {} MiB)", folder.string(), (*opened)->found().aliases.size(),
             (*opened)->bytes() >> 20);
    return opened;
}

}  // namespace

Result<std::optional<bool>> parse_quantized_weights(const std::string& text) {
    if (text == "auto") return std::optional<bool>();
    if (text == "keep" || text == "decode") return std::optional(text == "keep");
    return make_error(ErrorCode::kInvalidConfig,
                      format("quantized-weights: expected auto, keep or decode, found \"{}\"", text),
                      "quantized-weights");
}

bool keeps_packed(std::optional<bool> wish, bool quantizes, const gpu::DeviceCapabilities& capabilities) {
    return wish.value_or(!capabilities.is_cpu || quantizes);
}

LoadArguments load_arguments(const Config& config, const std::string& base_name) {
    LoadArguments load;
    load.device = {.device = config.device,
                   .validation = config.validation,
                   .pipeline_cache = config.pipeline_cache,
                   .self_test = config.self_test,
                   .submission_ms = config.submission_ms};
    load.folder = config.model;
    load.base_name = base_name;
    load.kernel_path = config.kernel_path;
    load.tune = config.tune;
    load.dtype = config.dtype;
    load.quantize = config.quantize;
    load.quantized_weights = config.quantized_weights;
    load.kv_cache_dtype = config.kv_cache_dtype;
    load.persistent_decode = config.persistent_decode;
    load.n_adapters_max = config.max_loras;
    load.adapter_bytes = uint64_t(config.adapter_memory_mib) << 20;
    if (config.state_dir != "none") load.state_dir = config.state_dir.empty() ? default_state_dir() : config.state_dir;
    load.adapter_ram_bytes = config.adapter_ram_mib != 0
                                 ? uint64_t(config.adapter_ram_mib) << 20
                                 : uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE)) / 4;
    load.adapter_store_bytes = uint64_t(config.adapter_store_mib) << 20;
    load.adapter_wait_s = config.adapter_wait_s;
    load.executor.n_rows_max = config.max_num_batched_tokens;
    load.executor.n_sequences_max = config.max_num_seqs;
    load.executor.n_outputs_max = config.max_num_seqs + kPromptOutputsMax;
    load.executor.n_positions_max = config.max_model_len;
    load.executor.memory_utilization = config.gpu_memory_utilization;
    load.executor.n_kv_blocks = config.num_kv_blocks;
    load.executor.may_group_kv = true;
    if (config.no_prefix_cache)
        load.executor.snapshot_bytes_max = 0;
    else if (config.state_cache_mib != 0)
        load.executor.snapshot_bytes_max = uint64_t(config.state_cache_mib) << 20;
    else
        load.executor.snapshot_bytes_max = std::nullopt;
    load.executor.batch_invariant = config.batch_invariant;
    load.executor.merged_bytes = uint64_t(config.merge_memory_mib) << 20;
    if (config.training_jobs > 0) load.executor.training_bytes = uint64_t(config.training_memory_mib) << 20;
    load.executor.warm_up = true;
    return load;
}

Result<model::ExecutorOptions> executor_options(const LoadArguments& arguments,
                                                const gpu::DeviceCapabilities& capabilities) {
    model::ExecutorOptions options = arguments.executor;
    TRY_ASSIGN(options.kernel_path, parse_kernel_path(arguments.kernel_path));
    TRY_ASSIGN(options.tuning, parse_tuning(arguments.tune));
    TRY_ASSIGN(options.weight_type, parse_dtype(arguments.dtype));
    if (arguments.quantize != "none") {
        TRY_ASSIGN(options.quantize, model::parse_quantize_type(arguments.quantize));
    }
    TRY_ASSIGN(const std::optional<bool> wish, parse_quantized_weights(arguments.quantized_weights));
    TRY_ASSIGN(options.kv_type, parse_kv_type(arguments.kv_cache_dtype));
    TRY_ASSIGN(options.decode, parse_persistent_decode(arguments.persistent_decode));
    options.keeps_packed = keeps_packed(wish, arguments.quantize != "none", capabilities);
    // Software devices compile a kernel when it first runs, whenever it was made: to make them all in advance takes
    // longer than the rest of a start, and saves the first request little.
    if (capabilities.is_cpu && options.kernel_path <= gpu::KernelPath::kPortable) options.warm_up = false;
    options.adapter_bytes = arguments.adapter_bytes;
    if (options.adapter_bytes == 0)
        options.adapter_bytes = std::min<uint64_t>(capabilities.device_local_bytes / 10, uint64_t(8) << 30);
    return options;
}

Status warn_of_quantizing(const std::filesystem::path& folder, std::optional<model::QuantizeType> type) {
    if (!type) return ok_status();
    TRY_ASSIGN(const auto files, model::ModelFiles::open(folder));
    TRY_ASSIGN(const model::TensorFiles tensors, files->tensors());
    if (const std::string note = model::quantize_note(tensors, *type); !note.empty()) log_warn("{}", note);
    return ok_status();
}

Result<LoadedModel> LoadedModel::load(const LoadArguments& arguments) {
    auto begin = std::chrono::steady_clock::now();
    LoadedModel loaded;
    // The cheap checks first: a wrong folder is told at once.
    TRY_ASSIGN(adapters::BaseModel base, adapters::BaseModel::load(arguments.folder));
    loaded.config = base.config;
    base.check_template = arguments.check_template;
    if (base.formats.is_quantized) log_info("quantized weights: {}", base.formats.text());
    if (!base.config.quantization.note.empty()) log_info("{}", base.config.quantization.note);
    TRY_ASSIGN(std::unique_ptr<adapters::Store> files, open_store(arguments, base));
    TRY(executor_options(arguments, {}));  // before a device is opened
    TRY_ASSIGN(gpu::DeviceOptions options, device_options(arguments.device));
    TRY_ASSIGN(loaded.device, gpu::Device::create(options));
    const gpu::DeviceCapabilities& capabilities = loaded.device->capabilities();
    TRY_ASSIGN(const model::ExecutorOptions options_of_executor, executor_options(arguments, capabilities));
    log_info("device: {} ({}, Vulkan {}){}", capabilities.name, capabilities.driver, capabilities.api_version,
             capabilities.is_cpu ? ", a software device: no GPU was found or chosen" : "");
    if (!loaded.device->start_record().was_there())
        log_info("first start of this build on this device: kernels are compiled and tested, later starts are shorter");

    TRY(warn_of_quantizing(arguments.folder, options_of_executor.quantize));
    ProgressLog progress;
    TRY_ASSIGN(loaded.executor,
               model::Executor::load(*loaded.device, arguments.folder, loaded.config, options_of_executor,
                                     [&](uint64_t done, uint64_t all) { progress(done, all); }));
    const std::string plan = loaded.executor->memory_plan().table();
    for (const auto line : std::views::split(std::string_view(plan), '\n')) {
        if (!line.empty()) log_info("memory plan: {}", std::string_view(line.begin(), line.end()));
    }
    loaded.store = std::make_unique<adapters::DeviceWeightStore>(*loaded.device, *loaded.executor);
    adapters::RegistryOptions registry_options;
    registry_options.base_name = arguments.base_name;
    registry_options.n_adapters_max = arguments.n_adapters_max;
    registry_options.device_bytes_max = options_of_executor.adapter_bytes;
    registry_options.ram_bytes_max = arguments.adapter_ram_bytes;
    registry_options.wait_timeout = std::chrono::seconds(arguments.adapter_wait_s);
    loaded.registry =
        std::make_unique<adapters::Registry>(std::move(base), *loaded.store, registry_options, std::move(files));
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    log_info("model {} loaded in {:.2f} s: {}, {} layers, {} KV blocks of {} tokens",
             arguments.folder.filename().string(), seconds, loaded.config.architecture, loaded.config.n_layers,
             loaded.executor->n_kv_blocks(), model::kBlockTokens);
    return loaded;
}

}  // namespace lorad::server
