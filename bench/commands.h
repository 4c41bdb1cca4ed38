// The subcommands of lorad-bench; each adds its options and runs when it is chosen.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "gpu/device.h"
#include "gpu/kernels/kernel_ladder.h"
#include "server/loaded_model.h"

namespace lorad::bench {

struct CommonOptions {
    std::string json;    // file that JSON lines are appended to
    std::string device;  // index or part of the name
    std::string kernel_path = "auto";
    bool statistics = false;  // of each kernel that is made: registers, spills
    double pool_gib = 0;      // random data that is read in turn, so that no cache is measured; 0: 6, on a CPU 1/16
};

void add_engine_command(CLI::App& app, CommonOptions& common);
void add_kernels_command(CLI::App& app, CommonOptions& common);
void add_ops_command(CLI::App& app, CommonOptions& common);
void add_attention_command(CLI::App& app, CommonOptions& common);
void add_layers_command(CLI::App& app, CommonOptions& common);
void add_merge_command(CLI::App& app, CommonOptions& common);
void add_train_command(CLI::App& app, CommonOptions& common);
void add_pipelines_command(CLI::App& app, CommonOptions& common);

server::DeviceArguments device_arguments(const CommonOptions& common);
std::unique_ptr<gpu::Device> open_device(const CommonOptions& common);
gpu::KernelPath kernel_path(const CommonOptions& common);

}  // namespace lorad::bench
