// lorad-bench merge: what making adapters part of the weights costs on the device: GPU time of merges for a model's
// shape, without its files. The floor is reading and writing the weights once at the bandwidth that a plain copy
// reaches in the same run.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/commands.h"
#include "bench/model_shapes.h"
#include "bench/results.h"
#include "bench/weight_pool.h"
#include "gpu/kernels/kernels.h"
#include "gpu/profiler.h"
#include "gpu/queue.h"
#include "gpu/upload.h"
#include "model/weights/weight_transform.h"
#include "proto/base/format.h"

namespace lorad::bench {
namespace {

using gpu::ScalarType;

struct MergeOptions {
    std::string shape = "7b", type = "bf16";
    std::vector<uint32_t> ranks = {16, 64}, adapters = {1, 4};
    uint32_t runs = 5;
};

model::ModelConfig config_of(const std::string& shape) {
    const ModelShape& m = kModelShapes.at(shape);
    model::ModelConfig config;
    config.n_layers = m.n_layers;
    config.hidden_size = m.hidden;
    config.intermediate_size = m.ffn;
    config.n_heads = m.q_heads;
    config.n_kv_heads = m.kv_heads;
    config.head_dim = m.head_dim;
    return config;
}

class MergeBench {
  public:
    MergeBench(gpu::Device& device, const MergeOptions& options, Results& results)
        : device_(device),
          options_(options),
          results_(results),
          config_(config_of(options.shape)),
          type_(options.type == "f32"   ? ScalarType::kF32
                : options.type == "f16" ? ScalarType::kF16
                                        : ScalarType::kBf16),
          kernels_(must(gpu::KernelSet::create(device, {.path = gpu::KernelPath::kPortable}))),
          weight_pool_(device, type_, kPoolGib),
          adapter_pool_(device, ScalarType::kBf16, kPoolGib) {
        const uint32_t hidden = config_.hidden_size, ffn = config_.intermediate_size;
        weights_.layers.resize(config_.n_layers);
        for (model::LayerWeights& w : weights_.layers) {
            make(w.qkv, config_.q_size() + 2 * config_.kv_size(), hidden);
            make(w.o, hidden, config_.q_size());
            make(w.gate_up, 2 * ffn, hidden);
            make(w.down, hidden, ffn);
        }
        stop_on_error(device.uploader().finish());
        transform_ = std::make_unique<model::WeightTransform>(device, *kernels_, config_, weights_, 0);
    }

    void run() {
        wait_for_clock(device_, *kernels_, weight_pool_);
        const auto copies = sample([&] { return copy_once(); });
        const double copy_ms = summarize(copies).median;
        report("copy", 0, 0, copies, copy_ms);
        for (const uint32_t rank : options_.ranks) {
            for (const uint32_t n : options_.adapters) {
                std::vector<model::AdapterView> adapters;
                for (uint32_t i = 0; i < n; ++i) adapters.push_back(make_adapter(rank));
                std::vector<model::MergeTerm> terms;
                for (const auto& adapter : adapters) terms.push_back({&adapter, 0.5f});
                report("merge", rank, n, sample([&] { return must(transform_->merge(terms))->gpu_ms(); }), copy_ms);
            }
        }
    }

  private:
    static constexpr double kPoolGib = 1.0 / 256;  // of random values that are repeated

    gpu::Buffer random_buffer(uint64_t n_bytes, const WeightPool& pool) {
        gpu::Buffer buffer = must(device_.create_buffer(n_bytes, gpu::MemoryKind::kDeviceLocal, "bench"));
        pool.copy_to(device_, buffer);
        return buffer;
    }
    void make(model::Matrix& matrix, uint32_t n, uint32_t k) {
        matrix.n = n;
        matrix.k = k;
        matrix.n_padded = gpu::padded(n);
        matrix.k_stride = gpu::padded(k);
        matrix.type = type_;
        matrix.buffer = random_buffer(uint64_t{matrix.n_padded} * matrix.k_stride * gpu::bytes_of(type_), weight_pool_);
        n_bytes_ += matrix.buffer.size();
    }
    // Each adapter has its own matrices, in bf16.
    model::AdapterView make_adapter(uint32_t rank) {
        model::AdapterView view;
        for (uint32_t i = 0; i < config_.n_layers * model::kLinearModules; ++i) {
            const auto shape = config_.shape(static_cast<model::LinearModule>(i % model::kLinearModules));
            buffers_.push_back(random_buffer(uint64_t{rank} * gpu::padded(shape.k) * 2, adapter_pool_));
            const gpu::DeviceAddress a = buffers_.back().address();
            buffers_.push_back(random_buffer(uint64_t{shape.n} * round_up(rank, 8) * 2, adapter_pool_));
            view.modules.push_back(
                {.a = a, .b = buffers_.back().address(), .rank = rank, .scale = 2.0f, .weight_type = 2});
        }
        stop_on_error(device_.uploader().finish());
        return view;
    }
    double copy_once() {
        gpu::Recorder recorder = must(gpu::Recorder::begin(device_, {.timestamps = true}));
        std::vector<gpu::Buffer> copies;
        for (const model::LayerWeights& w : weights_.layers) {
            for (const model::Matrix* matrix : {&w.qkv, &w.o, &w.gate_up, &w.down}) {
                copies.push_back(
                    must(device_.create_buffer(matrix->buffer.size(), gpu::MemoryKind::kDeviceLocal, "copy")));
                kernels_->lora.merge_weights(recorder,
                                             {.from = matrix->buffer.address(),
                                              .to = copies.back().address(),
                                              .parts = 0,
                                              .n_parts = 0,
                                              .n_rows = matrix->n_padded,
                                              .n_changed = 0,
                                              .stride = matrix->k_stride,
                                              .first_row = 0,
                                              .pad = 0},
                                             matrix->type);
            }
        }
        stop_on_error(kernels_->status());
        const gpu::CommandBuffer recording = must(std::move(recorder).end());
        const gpu::CommandBuffer* recordings[] = {&recording};
        stop_on_error(device_.compute_queue().wait(must(device_.compute_queue().submit(recordings))));
        double us = 0;
        for (const gpu::DispatchTime& time : must(gpu::read_dispatch_times(device_, recording))) us += time.us;
        return us / 1000;
    }
    template <typename Once>
    std::vector<double> sample(const Once& once) {
        std::vector<double> times;
        once();  // pipelines are compiled, clocks go up
        for (uint32_t i = 0; i < options_.runs; ++i) times.push_back(once());
        return times;
    }
    void report(const char* what, uint32_t rank, uint32_t n, const std::vector<double>& times, double copy_ms) const {
        Row row(what);
        row.field("shape", options_.shape)
            .field("type", options_.type)
            .field("rank", rank)
            .field("adapters", n)
            .samples("ms", times);
        const Summary ms = row.summary();
        const double gb_per_s = 2e-6 * static_cast<double>(n_bytes_) / ms.median;
        row.field("gb_s", gb_per_s).field("over_copy", ms.median / copy_ms);
        results_.add(
            std::move(row),
            lorad::format(
                "{:<6} rank {:3}  adapters {}  {:8.3f} ms ({:.3f}..{:.3f}) on the device  {:6.0f} GB/s  {:.2f}x a copy",
                what, rank, n, ms.median, ms.p10, ms.p90, gb_per_s, ms.median / copy_ms));
    }

    gpu::Device& device_;
    const MergeOptions& options_;
    Results& results_;
    const model::ModelConfig config_;
    const ScalarType type_;
    std::unique_ptr<gpu::KernelSet> kernels_;
    WeightPool weight_pool_, adapter_pool_;
    model::ModelWeights weights_;
    uint64_t n_bytes_ = 0;
    std::vector<gpu::Buffer> buffers_;
    std::unique_ptr<model::WeightTransform> transform_;
};

}  // namespace

void add_merge_command(CLI::App& app, CommonOptions& common) {
    auto options = std::make_shared<MergeOptions>();
    CLI::App* command = app.add_subcommand("merge", "GPU time of merging adapters into the weights of a model's shape");
    command->add_option("--shape", options->shape)->check(CLI::IsMember(kModelShapes));
    command->add_option("--type", options->type)->check(CLI::IsMember({"bf16", "f16", "f32"}));
    command->add_option("--rank", options->ranks)->delimiter(',')->check(CLI::Range(1u, 512u));
    command->add_option("--adapters", options->adapters)->delimiter(',')->check(CLI::Range(1u, 8u));
    command->add_option("--runs", options->runs)->check(CLI::Range(1u, 1000u));
    command->callback([options, &common] {
        const auto device = open_device(common);
        Results results(common.json, device->capabilities());
        MergeBench(*device, *options, results).run();
    });
}

}  // namespace lorad::bench
