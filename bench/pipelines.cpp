// lorad-bench pipelines: every kernel that the usual steps of a model run, made on a device that runs none of them, and
// what the driver tells of each: registers, spills, shared memory. Of the model only config.json is needed. With
// RADV_FORCE_FAMILY the device may be a Radeon that is not there (docs/PORTABILITY.md).
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/commands.h"
#include "bench/results.h"
#include "proto/base/format.h"
#include "server/config.h"
#include "server/kernel_survey.h"

namespace lorad::bench {
namespace {

struct PipelinesOptions {
    std::string model, dtype = "auto", quantize = "none", kv_cache_dtype = "auto";
    bool batch_invariant = false, brief = false;
};

// Drivers have many names for the same number; these are read.
struct Numbers {
    explicit Numbers(const gpu::KernelStatistics& told)
        : registers(told.find({"VGPRs", "Register Count", "GRF registers"})),
          scalar_registers(told.find({"SGPRs"})),
          spills(told.find({"Spilled VGPRs", "Spill Count", "Local Memory Size"})),
          scalar_spills(told.find({"Spilled SGPRs"})),
          scratch_bytes(told.find({"Scratch size", "Scratch Size", "Stack Size"})),
          shared_bytes(told.find({"LDS size", "LDS Size", "Shared Memory Size", "Workgroup Memory Size"})),
          instructions(told.find({"Instructions", "Instruction Count"})),
          waves(told.find({"Subgroups per SIMD", "Max Waves"})),
          code_bytes(told.find({"Code size", "Code Size", "Binary Size"})) {}

    using Number = std::optional<double>;
    Number registers, scalar_registers, spills, scalar_spills, scratch_bytes, shared_bytes, instructions, waves,
        code_bytes;

    static std::string text(const Number& number) { return number ? lorad::format("{:.0f}", *number) : "-"; }
};

void add(Row& row, const char* name, const Numbers::Number& number) {
    if (number) row.field(name, *number);
}

void report(Results& results, const gpu::KernelReport& kernel, const PipelinesOptions& options) {
    const Numbers told(kernel.statistics);
    const std::string constants = lorad::format("{}", fmt::join(kernel.constants, " "));
    const uint32_t subgroup =
        kernel.statistics.subgroup_size != 0 ? kernel.statistics.subgroup_size : kernel.subgroup_size;
    Row row("pipeline");
    row.field("kernel", kernel.module)
        .field("constants", constants)
        .field("name", kernel.use.name)
        .field("threads", kernel.constants.front());
    row.field("dispatches", kernel.use.n_dispatches)
        .field("workgroups_max", kernel.use.n_workgroups_max)
        .field("subgroup_size", subgroup);
    if (kernel.use.tells_bytes) row.field("flops_per_byte_min", kernel.use.flops_per_byte_min);
    if (!kernel.refusal.empty()) row.field("refusal", kernel.refusal);
    add(row, "registers", told.registers);
    add(row, "scalar_registers", told.scalar_registers);
    add(row, "spills", told.spills);
    add(row, "scalar_spills", told.scalar_spills);
    add(row, "scratch_bytes", told.scratch_bytes);
    add(row, "shared_bytes", told.shared_bytes);
    add(row, "instructions", told.instructions);
    add(row, "waves", told.waves);
    add(row, "code_bytes", told.code_bytes);
    std::string line =
        lorad::format("{:<28} {:>5} {:>4} {:>5} {:>6} {:>7} {:>7} {:>6} {:>6}  {} [{}]", kernel.module,
                      subgroup == 0 ? "-" : lorad::format("{}", subgroup), Numbers::text(told.registers),
                      Numbers::text(told.spills), Numbers::text(told.scalar_spills), Numbers::text(told.shared_bytes),
                      Numbers::text(told.instructions), Numbers::text(told.waves),
                      kernel.use.tells_bytes ? lorad::format("{:.1f}", kernel.use.flops_per_byte_min) : "-",
                      kernel.use.name, constants);
    if (!kernel.refusal.empty()) line += "  REFUSED: " + kernel.refusal;
    results.add(std::move(row), options.brief ? std::string() : line);
}

void run(const CommonOptions& common, const PipelinesOptions& options) {
    server::Config config;
    config.model = options.model;
    config.device = common.device;
    config.kernel_path = common.kernel_path;
    config.dtype = options.dtype;
    config.quantize = options.quantize;
    config.kv_cache_dtype = options.kv_cache_dtype;
    config.batch_invariant = options.batch_invariant;
    config.state_dir = "none";
    const auto begin = std::chrono::steady_clock::now();
    const server::ModelSurvey made =
        must(server::survey_model({.load = server::load_arguments(config, "model"), .memory_bytes = 0}));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    Results results(common.json, made.capabilities);
    const gpu::DeviceCapabilities& caps = made.capabilities;
    results.say(lorad::format(
        "{} ({}), opened to compile only: nothing runs. Subgroups of {} ({} to {}), {} KiB of shared memory", caps.name,
        caps.driver, caps.subgroup_size, caps.subgroup_size_min, caps.subgroup_size_max,
        caps.shared_memory_bytes >> 10));
    results.say(lorad::format("{}{}: {}", options.model, made.has_weights ? "" : " (its config alone)",
                              made.survey.weight_formats));
    results.say(lorad::format("{:<28} {:>5} {:>4} {:>5} {:>6} {:>7} {:>7} {:>6} {:>6}  {}", "kernel", "subg.", "regs",
                              "spill", "scalar", "shared", "instr.", "waves", "F/byte", "of [constants]"));
    for (const gpu::KernelReport& kernel : made.survey.kernels) report(results, kernel, options);
    for (const std::string& failure : made.survey.failures) results.say("failed: " + failure);
    Row row("pipelines");
    row.field("model", options.model)
        .field("kernels", made.survey.kernels.size())
        .field("steps", made.survey.n_steps)
        .field("failures", made.survey.failures.size())
        .field("seconds", seconds);
    row.field("path", gpu::path_name(made.survey.ladder.path()))
        .field("shared_memory_bytes", caps.shared_memory_bytes)
        .field("subgroup_size_of_device", caps.subgroup_size);
    results.add(std::move(row), lorad::format("{} kernels of {} steps in {:.1f} s, kernel path {}, {} failures",
                                              made.survey.kernels.size(), made.survey.n_steps, seconds,
                                              gpu::path_name(made.survey.ladder.path()), made.survey.failures.size()));
    if (!made.survey.failures.empty()) std::exit(1);
}

}  // namespace

void add_pipelines_command(CLI::App& app, CommonOptions& common) {
    auto options = std::make_shared<PipelinesOptions>();
    CLI::App* command = app.add_subcommand(
        "pipelines", "every kernel of a model's usual steps: made, not run, with what the driver tells of it");
    command->add_option("--model", options->model, "model folder or GGUF file; a folder with config.json alone will do")
        ->required();
    command->add_option("--dtype", options->dtype, "as of lorad serve; as are the next three");
    command->add_option("--quantize", options->quantize);
    command->add_option("--kv-cache-dtype", options->kv_cache_dtype);
    command->add_flag("--batch-invariant", options->batch_invariant);
    command->add_flag("--brief", options->brief, "no line for each kernel");
    command->callback([options, &common] { run(common, *options); });
}

}  // namespace lorad::bench
