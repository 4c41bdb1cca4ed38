// With --model: every kernel of that model's own step, by name and bytes.
#include <algorithm>
#include <filesystem>
#include <memory>

#include "bench/adapter_folders.h"
#include "bench/kernels.h"
#include "bench/weight_pool.h"
#include "gpu/profiler.h"
#include "proto/base/format.h"
#include "server/loaded_model.h"

namespace lorad::bench {

void profile_model(const CommonOptions& common, const KernelsOptions& options) {
    server::LoadArguments arguments;
    arguments.device = device_arguments(common);
    arguments.folder = options.model;
    arguments.base_name = "base";
    arguments.kernel_path = common.kernel_path;
    const uint32_t rows_max = *std::ranges::max_element(options.rows),
                   context_max = *std::ranges::max_element(options.context);
    arguments.executor.n_positions_max = std::max({context_max, rows_max, options.chunk}) + 64;
    arguments.executor.n_rows_max = std::max(2048u, rows_max + options.chunk);
    arguments.n_adapters_max = std::max(options.adapters, 1u);
    arguments.executor.n_sequences_max = std::max(64u, options.prompt ? 1 : rows_max + 1);
    std::unique_ptr<Results> results;
    {
        const auto device = open_device(common);
        results = std::make_unique<Results>(common.json, device->capabilities());
    }
    const double ceiling = measure_ceiling(common, *results);
    const auto folders = adapter_folders(options.adapter_folders, options.adapters);
    auto loaded = must(server::LoadedModel::load(arguments));
    const LoadedAdapters loaded_adapters = load_adapters(loaded, folders);
    wait_for_clock(*loaded.device);
    const std::string name = std::filesystem::path(options.model).filename().string();
    for (const uint32_t rows : options.rows) {
        for (const uint32_t context : options.context) {
            const auto kernels = must(loaded.executor->profile(
                {.n_rows = rows, .n_context = context, .is_prompt = options.prompt, .n_chunk = options.chunk},
                loaded_adapters.slots, options.repeats));
            double total_us = 0;
            for (const gpu::KernelProfile& kernel : kernels) total_us += kernel.us / options.repeats;
            results->say(lorad::format(
                "{}, {} {}, context {}, {} rows of a prompt beside them, {} adapters: {:.1f} us in kernels", name, rows,
                options.prompt ? "rows of a prompt" : "rows", context, options.chunk, options.adapters, total_us));
            for (const gpu::KernelProfile& kernel : kernels) {
                const double calls = static_cast<double>(kernel.n_calls) / options.repeats,
                             us = kernel.us / options.repeats;
                const double gb_s = us > 0 ? static_cast<double>(kernel.bytes) / options.repeats / us * 1e-3 : 0;
                Row row("model_kernel");
                row.field("model", name).field("kernel", kernel.name).field("rows", rows).field("context", context);
                row.field("prompt", options.prompt)
                    .field("chunk", options.chunk)
                    .field("adapters", options.adapters)
                    .field("calls", calls)
                    .field("us", us)
                    .field("share", us / total_us);
                row.field("bytes", static_cast<double>(kernel.bytes) / options.repeats)
                    .field("bytes_each", kernel.bytes / kernel.n_calls)
                    .field("gb_s", gb_s)
                    .field("of_ceiling", gb_s / ceiling);
                row.field("samples", options.repeats);
                results->add(std::move(row), lorad::format("  {:<36} {:6.0f} calls {:10.1f} us {:5.1f} %  {:8.2f} us "
                                                           "each  {:8.1f} GB/s {:3.0f} % of the ceiling",
                                                           kernel.name, calls, us, 100 * us / total_us, us / calls,
                                                           gb_s, 100 * gb_s / ceiling));
            }
        }
    }
}

}  // namespace lorad::bench
