// lorad-bench: what the engine, its kernels and single operations reach on this machine's device, as ratios to a
// ceiling that is measured in the same run. docs/PERFORMANCE.md says how to use it.
//
//   lorad-bench engine --model DIR [--batch 1,8,32,64] [--context 160,1024] [--prefill 512,2048] [--adapters 0,8
//       --adapter 'DIR{}' --mix zipf]
//   lorad-bench kernels [--shape 7b] [--rows 1,8,64] [--sweep]   |   kernels --model DIR: each kernel of the model's
//       own step
//   lorad-bench ops
//   lorad-bench attention [--rows 64,2048] [--context 8192] [--splits 1,8]
//   lorad-bench layers [--shape 7b] [--splits 1,2]
//   lorad-bench merge [--shape 7b]
//   lorad-bench pipelines --model DIR [--json F]: every kernel of the model's usual steps, made and not run, also for
//       GPUs that are not there
//   lorad-bench train [--shape 7b] [--batch 4x2048] [--profile]
#include "bench/bench_util.h"
#include "bench/commands.h"
#include "bench/results.h"

namespace lorad::bench {

server::DeviceArguments device_arguments(const CommonOptions& common) {
    return {.device = common.device, .kernel_statistics = common.statistics};
}

std::unique_ptr<gpu::Device> open_device(const CommonOptions& common) {
    return must(gpu::Device::create(must(server::device_options(device_arguments(common)))));
}

gpu::KernelPath kernel_path(const CommonOptions& common) {
    return common.kernel_path == "portable-f32" ? gpu::KernelPath::kPortableF32
           : common.kernel_path == "portable"   ? gpu::KernelPath::kPortable
           : common.kernel_path == "coopmat"    ? gpu::KernelPath::kCoopmat
           : common.kernel_path == "coopmat2"   ? gpu::KernelPath::kCoopmat2
                                                : gpu::KernelPath::kAuto;
}

}  // namespace lorad::bench

int main(int argc, char** argv) {
    lorad::bench::CommonOptions common;
    CLI::App app("Benchmarks of lorad on this machine's Vulkan device");
    app.set_version_flag("--version", lorad::bench::build_commit(), "the commit that was built");
    app.require_subcommand(1);
    app.fallthrough();
    app.add_option("--json", common.json, "file that gets a JSON line for each case; lines are appended");
    app.add_option("--device", common.device, "index or part of the name, as `lorad devices` prints it");
    app.add_option("--kernel-path", common.kernel_path)
        ->check(CLI::IsMember({"auto", "portable", "coopmat", "coopmat2", "warpgroup"}));
    app.add_flag(
        "--statistics", common.statistics,
        "say what the driver tells of each kernel that is made, after its specialization constants: registers, spills");
    app.add_option("--pool-gib", common.pool_gib, "random data that is read in turn, so that no cache is measured");
    lorad::bench::add_engine_command(app, common);
    lorad::bench::add_kernels_command(app, common);
    lorad::bench::add_ops_command(app, common);
    lorad::bench::add_attention_command(app, common);
    lorad::bench::add_layers_command(app, common);
    lorad::bench::add_merge_command(app, common);
    lorad::bench::add_train_command(app, common);
    lorad::bench::add_pipelines_command(app, common);
    CLI11_PARSE(app, argc, argv);
    return 0;
}
