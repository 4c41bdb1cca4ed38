// What making adapters part of the weights costs on the device: GPU time of merges and of DoRA's norms for a model's shape,
// without its files. The floor is reading and writing the weights once at the bandwidth that a plain copy reaches in the same run.
//
//   merge_bench [--shape 7b|1.5b|0.5b] [--type bf16|f16|f32] [--rank 16,64] [--adapters 1,4] [--runs 5] [--json]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench_util.h"
#include "gpu/kernels/kernels.h"
#include "gpu/profiler.h"
#include "gpu/queue.h"
#include "gpu/upload.h"
#include "model/weight_transform.h"

namespace lorad::bench {
namespace {

using gpu::ScalarType;

struct Options {
    std::string shape = "7b", type = "bf16";
    std::vector<uint32_t> ranks = {16, 64}, adapters = {1, 4};
    uint32_t runs = 5;
    bool json = false;
};

model::ModelConfig config_of(const std::string& shape) {
    model::ModelConfig config;
    config.n_layers = shape == "0.5b" ? 24 : 28;
    config.hidden_size = shape == "7b" ? 3584 : shape == "1.5b" ? 1536 : 896;
    config.intermediate_size = shape == "7b" ? 18944 : shape == "1.5b" ? 8960 : 4864;
    config.n_heads = shape == "7b" ? 28 : shape == "1.5b" ? 12 : 14;
    config.n_kv_heads = shape == "7b" ? 4 : 2;
    config.head_dim = shape == "0.5b" ? 64 : 128;
    return config;
}

void stop_on_error(const Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "merge_bench stopped: %s\n", status.error().message.c_str());
    std::exit(1);
}

class MergeBench {
  public:
    MergeBench(gpu::Device& device, const Options& options)
        : device_(device), options_(options), config_(config_of(options.shape)),
          kernels_(must(gpu::KernelSet::create(device, {.path = gpu::KernelPath::kPortable}))) {
        const ScalarType type = options.type == "f32" ? ScalarType::kF32 : options.type == "f16" ? ScalarType::kF16 : ScalarType::kBf16;
        const uint32_t hidden = config_.hidden_size, ffn = config_.intermediate_size;
        weights_.layers.resize(config_.n_layers);
        for (model::LayerWeights& w : weights_.layers) {
            make(w.qkv, config_.q_size() + 2 * config_.kv_size(), hidden, type);
            make(w.o, hidden, config_.q_size(), type);
            make(w.gate_up, 2 * ffn, hidden, type);
            make(w.down, hidden, ffn, type);
        }
        stop_on_error(device.uploader().finish());
        transform_ = std::make_unique<model::WeightTransform>(device, *kernels_, config_, weights_, 0);
    }

    void run() {
        const double copy_ms = median([&] { return copy_once(); });
        report("copy", 0, 0, copy_ms, copy_ms);
        for (const uint32_t rank : options_.ranks) {
            for (const uint32_t n : options_.adapters) {
                std::vector<model::AdapterView> adapters;
                for (uint32_t i = 0; i < n; ++i) adapters.push_back(make_adapter(rank));
                std::vector<model::MergeTerm> terms;
                for (const auto& adapter : adapters) terms.push_back({&adapter, 0.5f});
                report("merge", rank, n, median([&] { return must(transform_->merge(terms))->gpu_ms(); }), copy_ms);
            }
        }
    }

  private:
    gpu::Buffer zeros(uint64_t n_bytes) {
        gpu::Buffer buffer = must(device_.create_buffer(n_bytes, gpu::MemoryKind::kDeviceLocal, "bench"));
        stop_on_error(device_.uploader().fill_zero(buffer, 0, n_bytes));
        return buffer;
    }
    void make(model::Matrix& matrix, uint32_t n, uint32_t k, ScalarType type) {
        matrix.n = n;
        matrix.k = k;
        matrix.n_padded = gpu::padded(n);
        matrix.k_stride = gpu::padded(k);
        matrix.type = type;
        matrix.buffer = zeros(uint64_t{matrix.n_padded} * matrix.k_stride * gpu::bytes_of(type));
        n_bytes_ += matrix.buffer.size();
    }
    // Each adapter has its own matrices, in bf16.
    model::AdapterView make_adapter(uint32_t rank) {
        model::AdapterView view;
        for (uint32_t i = 0; i < config_.n_layers * model::kLinearModules; ++i) {
            const auto shape = config_.shape(static_cast<model::LinearModule>(i % model::kLinearModules));
            buffers_.push_back(zeros(uint64_t{rank} * gpu::padded(shape.k) * 2));
            const gpu::DeviceAddress a = buffers_.back().address();
            buffers_.push_back(zeros(uint64_t{shape.n} * gpu::round_up(rank, 8) * 2));
            view.modules.push_back({.a = a, .b = buffers_.back().address(), .rank = rank, .scale = 2.0f, .weight_type = 2});
        }
        stop_on_error(device_.uploader().finish());
        return view;
    }
    double copy_once() {
        gpu::Recorder recorder = must(gpu::Recorder::begin(device_, {.timestamps = true}));
        std::vector<gpu::Buffer> copies;
        for (const model::LayerWeights& w : weights_.layers) {
            for (const model::Matrix* matrix : {&w.qkv, &w.o, &w.gate_up, &w.down}) {
                copies.push_back(must(device_.create_buffer(matrix->buffer.size(), gpu::MemoryKind::kDeviceLocal, "copy")));
                kernels_->merge_weights(recorder,
                                        {.from = matrix->buffer.address(), .to = copies.back().address(), .parts = 0, .n_parts = 0,
                                         .n_rows = matrix->n_padded, .n_changed = 0, .stride = matrix->k_stride},
                                        matrix->type);
            }
        }
        const gpu::CommandBuffer recording = must(std::move(recorder).end());
        const gpu::CommandBuffer* recordings[] = {&recording};
        stop_on_error(device_.compute_queue().wait(must(device_.compute_queue().submit(recordings))));
        double us = 0;
        for (const gpu::DispatchTime& time : must(gpu::read_dispatch_times(device_, recording))) us += time.us;
        return us / 1000;
    }
    template <typename Once>
    double median(const Once& once) {
        std::vector<double> times;
        once();  // pipelines are compiled, clocks go up
        for (uint32_t i = 0; i < options_.runs; ++i) times.push_back(once());
        std::sort(times.begin(), times.end());
        return times[times.size() / 2];
    }
    void report(const char* what, uint32_t rank, uint32_t n, double ms, double copy_ms) const {
        const double gb_per_s = 2e-6 * static_cast<double>(n_bytes_) / ms;
        const char* line = options_.json ? R"({"what":"%s","rank":%u,"adapters":%u,"gpu_ms":%.3f,"gb_per_s":%.0f,"over_copy":%.3f})"
                                         : "%-6s rank %3u  adapters %u  %8.3f ms on the device  %6.0f GB/s  %.2fx a copy";
        std::printf(line, what, rank, n, ms, gb_per_s, ms / copy_ms);
        std::printf("\n");
        std::fflush(stdout);
    }

    gpu::Device& device_;
    const Options& options_;
    const model::ModelConfig config_;
    std::unique_ptr<gpu::KernelSet> kernels_;
    model::ModelWeights weights_;
    uint64_t n_bytes_ = 0;
    std::vector<gpu::Buffer> buffers_;
    std::unique_ptr<model::WeightTransform> transform_;
};

}  // namespace
}  // namespace lorad::bench

int main(int argc, char** argv) {
    using namespace lorad;
    bench::Options options;
    CLI::App app("GPU time of merging adapters into the weights of a model's shape");
    app.add_option("--shape", options.shape)->check(CLI::IsMember({"7b", "1.5b", "0.5b"}));
    app.add_option("--type", options.type)->check(CLI::IsMember({"bf16", "f16", "f32"}));
    app.add_option("--rank", options.ranks)->delimiter(',')->check(CLI::Range(1u, 512u));
    app.add_option("--adapters", options.adapters)->delimiter(',')->check(CLI::Range(1u, 8u));
    app.add_option("--runs", options.runs)->check(CLI::Range(1u, 1000u));
    app.add_flag("--json", options.json);
    CLI11_PARSE(app, argc, argv);
    const auto device = bench::must(gpu::Device::create({}));
    std::printf("%s, %s, %s\n", device->capabilities().name.c_str(), options.shape.c_str(), options.type.c_str());
    bench::MergeBench(*device, options).run();
    return 0;
}
