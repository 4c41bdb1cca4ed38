// lorad-bench kernels: the matrix products alone, as the engine plans them: microseconds, GB/s, TFLOP/s and the share
// of the bandwidth that reading alone reaches in the same run. With --model: every kernel of that model's own step
// instead.
#include "bench/kernels.h"

#include <chrono>
#include <memory>

#include <CLI/CLI.hpp>

#include "bench/model_shapes.h"
#include "bench/weight_pool.h"
#include "proto/base/format.h"

namespace lorad::bench {
namespace {

void run_kernels(const CommonOptions& common, const KernelsOptions& options) {
    if (!options.model.empty()) return profile_model(common, options);
    const gpu::ScalarType type = options.type == "f16"    ? gpu::ScalarType::kF16
                                 : options.type == "bf16" ? gpu::ScalarType::kBf16
                                                          : gpu::ScalarType::kF32;
    const auto device = open_device(common);
    Results results(common.json, device->capabilities());
    const auto begin = std::chrono::steady_clock::now();
    const auto kernels = must(gpu::KernelSet::create(*device, {.path = kernel_path(common)}));
    results.say(lorad::format("{}, {}, {} multiprocessors; kernels chosen and tested in {:.2f} s",
                              device->capabilities().name, device->capabilities().driver,
                              device->capabilities().n_compute_units_hint,
                              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()));
    const double gib = common.pool_gib > 0 || device->capabilities().is_cpu ? pool_gib(common, *device) : 15.0;
    measure_products(*device, *kernels, options, type, gib, results);
}

}  // namespace

void add_kernels_command(CLI::App& app, CommonOptions& common) {
    auto options = std::make_shared<KernelsOptions>();
    CLI::App* command =
        app.add_subcommand("kernels", "the matrix products of a model's shape, or every kernel of a model's step");
    command->add_option("--shape", options->shape)->check(CLI::IsMember(kModelShapes));
    command->add_option("--rows", options->rows)->delimiter(',');
    command->add_option("--type", options->type)->check(CLI::IsMember({"f16", "bf16", "f32"}));
    command->add_flag("--sweep", options->sweep, "time every plan that could serve");
    command->add_option("--model", options->model, "model folder: time each kernel of its step");
    command->add_option("--context", options->context, "with --model: positions that each row sees")->delimiter(',');
    command->add_flag("--prompt", options->prompt, "with --model: the rows are one prompt's");
    command->add_option("--chunk", options->chunk, "with --model: rows of one prompt beside the decodes")
        ->check(CLI::Range(0u, 65536u))
        ->excludes("--prompt");
    command->add_option("--adapter", options->adapter_folders,
                        "with --model: adapter folders, or a pattern DIR{} for DIR1, DIR2, ...");
    command->add_option("--adapters", options->adapters,
                        "with --model: how many of them the decodes have in turns; the prompt has the first");
    command->add_option("--repeats", options->repeats, "with --model")->check(CLI::Range(1u, 1000u));
    command->callback([options, &common] { run_kernels(common, *options); });
}

}  // namespace lorad::bench
