// lorad-bench layers: the layers of a one-row step in one dispatch, for a model's shape and without its files: GPU time
// by splits of the context and workgroups, all of them in turns, against the time that its weights take at the ceiling.
// Results are compared with those of the first case.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/commands.h"
#include "bench/model_shapes.h"
#include "bench/results.h"
#include "bench/weight_pool.h"
#include "gpu/kernels/kernels.h"
#include "gpu/upload.h"
#include "proto/base/format.h"

namespace lorad::bench {
namespace {

using gpu::Buffer;
using gpu::MemoryKind;

struct Options {
    std::string shape = "7b";
    uint32_t context = 160, rounds = 6, runs = 12;
    std::vector<uint32_t> splits = {1}, workgroups = {0};
};

class LayersBench {
  public:
    LayersBench(gpu::Device& device, const CommonOptions& common, const Options& options, Results& results)
        : device_(device),
          options_(options),
          results_(results),
          shape_(kModelShapes.at(options.shape)),
          pool_(device, gpu::ScalarType::kF16, pool_gib(common, device)) {
        make_inputs();
        make_layers();
    }

    void run() {
        const auto reader = must(gpu::KernelSet::create(device_, {.path = gpu::KernelPath::kPortable}));
        const double ceiling_gb_s = measure_ceiling(device_, *reader, pool_, results_);
        // All pipelines first: what is compiled in between lets the device's clock fall.
        std::vector<Case> cases;
        for (const uint32_t workgroups : options_.workgroups) {
            kernels_.push_back(must(gpu::KernelSet::create(
                device_, {.decode = gpu::PersistentDecode::kOn, .decode_workgroups = workgroups})));
            for (const uint32_t splits : options_.splits) {
                if (!kernels_.back()->persistent.can_decode_layers(decode_shape(splits))) {
                    results_.say(lorad::format("workgroups {}: not possible here", workgroups));
                    continue;
                }
                Talk talk = make_talk();
                gpu::CommandBuffer recording = record(*kernels_.back(), splits, talk);
                cases.push_back({workgroups, splits, std::move(talk), std::move(recording), {}, 0});
            }
        }
        wait_for_clock(device_, *reader, pool_);
        for (uint32_t round = 0; round <= options_.rounds; round++) {
            for (Case& c : cases) {
                for (uint32_t i = 0; i < options_.runs; i++) {
                    const double us = run_span_us(device_, c.recording);
                    if (round > 0) c.us.push_back(us);
                }
                if (round == 0) c.difference = difference();
            }
        }
        for (const Case& c : cases) report(c, ceiling_gb_s);
    }

  private:
    // What workgroups tell each other by. Each case has its own, because a part of the matrices stays with its
    // multiprocessor.
    struct Talk {
        Buffer channels, sync;
    };

    struct Case {
        uint32_t workgroups, splits;
        Talk talk;
        gpu::CommandBuffer recording;
        std::vector<double> us;
        double difference;  // largest, over the largest value of the first case
    };

    static constexpr uint32_t kSplitsMax = 16;

    uint32_t n_blocks() const { return options_.context / gpu::kBlockTokens + 1; }

    Buffer make(uint64_t n_bytes, MemoryKind kind = MemoryKind::kDeviceLocal) {
        return must(device_.create_buffer(n_bytes, kind, "layers"));
    }

    gpu::DecodeLayersShape decode_shape(uint32_t splits) const {
        gpu::DecodeFamily family;
        if (shape_.is_gemma) family = {.activation = gpu::Activation::kGeluTanh, .norms_after = true, .by_layer = true};
        return {.type = gpu::ScalarType::kF16,
                .hidden = shape_.hidden,
                .n_q_heads = shape_.q_heads,
                .n_kv_heads = shape_.kv_heads,
                .head_dim = shape_.head_dim,
                .rotary_dim = shape_.head_dim,
                .ffn = shape_.ffn,
                .n_splits = splits,
                .family = family};
    }

    void make_inputs() {
        const uint64_t row_bytes = uint64_t{shape_.hidden} * 4;
        x_first_ = make(row_bytes);
        x_ = make(row_bytes);
        x_host_ = make(row_bytes, MemoryKind::kHostReadback);
        norm_ = make(gpu::padded(shape_.hidden) * 4);
        rope_ = make(uint64_t{options_.context + 1} * shape_.head_dim * 4);
        kv_ = make(uint64_t{n_blocks()} * 2 * shape_.kv_size() * gpu::kBlockTokens * 2);
        given_up_ = make(sizeof(uint32_t), MemoryKind::kHostReadback);
        std::memset(given_up_.mapped().data(), 0, sizeof(uint32_t));
        for (Buffer* to : {&x_first_, &kv_}) pool_.copy_to(device_, *to);
        stop_on_error(device_.uploader().finish());
        gpu::Recorder recorder = must(gpu::Recorder::begin(device_));
        constexpr uint32_t kOne = 0x3f800000, kRootOfHalf = 0x3f3504f3;  // as f32; turns by 45 degrees
        recorder.fill(norm_, 0, norm_.size(), kOne);
        recorder.fill(rope_, 0, rope_.size(), kRootOfHalf);
        recorder.barrier();
        run_and_wait(device_, must(std::move(recorder).end()));

        const uint64_t table_at = sizeof(gpu::StepHeader) + sizeof(gpu::StepRow);
        step_ = make(table_at + n_blocks() * 4, MemoryKind::kHostUpload);
        gpu::StepHeader header{};
        header.n_rows = 1;
        gpu::StepRow row{};
        row.position = row.kv_slot = options_.context;
        std::vector<uint32_t> table(n_blocks());
        for (uint32_t i = 0; i < n_blocks(); i++) table[i] = i;
        std::byte* bytes = step_.mapped().data();
        std::memcpy(bytes, &header, sizeof(header));
        std::memcpy(bytes + sizeof(header), &row, sizeof(row));
        std::memcpy(bytes + table_at, table.data(), table.size() * 4);
        block_table_ = step_.address() + table_at;
    }

    Talk make_talk() {
        Talk talk{make(gpu::PersistentPlanner::decode_channel_words(decode_shape(1), kSplitsMax) * 8),
                  make(sizeof(gpu::DecodeSync))};
        gpu::Recorder recorder = must(gpu::Recorder::begin(device_));
        recorder.fill(talk.channels, 0, talk.channels.size(), 0);
        recorder.fill(talk.sync, 0, talk.sync.size(), 0);
        recorder.barrier();
        run_and_wait(device_, must(std::move(recorder).end()));
        return talk;
    }

    void make_layers() {
        std::vector<gpu::DecodeLayer> layers(shape_.n_layers);
        const auto matrix = [&](uint32_t n, uint32_t k) {
            weight_bytes_ += uint64_t{n} * k * 2;
            return pool_.next(uint64_t{gpu::padded(n)} * gpu::padded(k) * 2);
        };
        for (gpu::DecodeLayer& layer : layers) {
            layer.qkv = matrix(shape_.q_size() + 2 * shape_.kv_size(), shape_.hidden);
            layer.o = matrix(shape_.hidden, shape_.q_size());
            layer.gate_up = matrix(2 * shape_.ffn, shape_.hidden);
            layer.down = matrix(shape_.hidden, shape_.ffn);
            layer.input_norm = layer.post_attention_norm = norm_.address();
            layer.kv = kv_.address();
            if (!shape_.is_gemma) continue;
            layer.o_after = layer.down_after = layer.q_norm = layer.k_norm = norm_.address();
            layer.rope = rope_.address();
        }
        table_ = make(layers.size() * sizeof(gpu::DecodeLayer));
        stop_on_error(device_.uploader().upload(table_, 0, std::as_bytes(std::span(layers))));
        stop_on_error(device_.uploader().finish());
    }

    gpu::CommandBuffer record(gpu::KernelSet& kernels, uint32_t splits, const Talk& talk) {
        gpu::Recorder recorder = must(gpu::Recorder::begin(device_, {.span_timestamps = true}));
        recorder.copy(x_first_, 0, x_, 0, x_.size());
        recorder.barrier();
        kernels.persistent.decode_layers(recorder,
                                         {.step = step_.address(),
                                          .layers = table_.address(),
                                          .block_tables = block_table_,
                                          .rope = rope_.address(),
                                          .x = x_.address(),
                                          .channels = talk.channels.address(),
                                          .sync = talk.sync.address(),
                                          .given_up = given_up_.address(),
                                          .n_layers = shape_.n_layers,
                                          .max_polls = 0,
                                          .eps = 1e-6f,
                                          .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim))},
                                         decode_shape(splits));
        recorder.barrier();
        stop_on_error(kernels.status());
        return must(std::move(recorder).end());
    }

    double difference() {
        gpu::Recorder recorder = must(gpu::Recorder::begin(device_));
        recorder.copy(x_, 0, x_host_, 0, x_.size());
        recorder.barrier();
        run_and_wait(device_, must(std::move(recorder).end()));
        const auto* values = reinterpret_cast<const float*>(x_host_.mapped().data());
        if (want_.empty()) want_.assign(values, values + shape_.hidden);
        double largest = 0, most = 0;
        for (uint32_t i = 0; i < shape_.hidden; i++) {
            most = std::max(most, double{std::fabs(values[i] - want_[i])});
            largest = std::max(largest, double{std::fabs(want_[i])});
        }
        return most / largest;
    }

    void report(const Case& c, double ceiling_gb_s) {
        uint32_t gave_up = 0;
        std::memcpy(&gave_up, given_up_.mapped().data(), sizeof(gave_up));
        Row row("layers");
        row.field("shape", options_.shape)
            .field("context", options_.context)
            .field("splits", c.splits)
            .field("workgroups", c.workgroups);
        row.samples("us", c.us);
        const Summary s = row.summary();
        const double gb_s = static_cast<double>(weight_bytes_) / s.median * 1e-3;
        row.field("gb_s", gb_s)
            .field("share_of_ceiling", gb_s / ceiling_gb_s)
            .field("difference", c.difference)
            .field("gave_up", gave_up != 0);
        results_.add(std::move(row),
                     lorad::format("{} layers, context {}, {:2} splits, {:3} workgroups  {:9.1f} us ({:.1f}..{:.1f})  "
                                   "{:7.1f} GB/s  {:.2f} of the ceiling  difference {:.1e}{}",
                                   options_.shape, options_.context, c.splits, c.workgroups, s.median, s.p10, s.p90,
                                   gb_s, gb_s / ceiling_gb_s, c.difference, gave_up != 0 ? "  GAVE UP" : ""));
    }

    gpu::Device& device_;
    const Options& options_;
    Results& results_;
    const ModelShape& shape_;
    WeightPool pool_;
    std::vector<std::unique_ptr<gpu::KernelSet>> kernels_;
    Buffer x_first_, x_, x_host_, norm_, rope_, kv_, given_up_, step_, table_;
    uint64_t block_table_ = 0, weight_bytes_ = 0;
    std::vector<float> want_;
};

}  // namespace

void add_layers_command(CLI::App& app, CommonOptions& common) {
    auto options = std::make_shared<Options>();
    CLI::App* command =
        app.add_subcommand("layers", "all layers of a one-row step in one dispatch, for a model's shape");
    command->add_option("--shape", options->shape)->check(CLI::IsMember(kModelShapes));
    command->add_option("--context", options->context, "tokens before the row")->check(CLI::Range(1u, 32768u));
    command->add_option("--splits", options->splits, "of the context")
        ->delimiter(',')
        ->check(CLI::IsMember({1u, 2u, 3u, 4u, 8u, 16u}));
    command->add_option("--workgroups", options->workgroups, "all at work at once; 0: one for each multiprocessor")
        ->delimiter(',');
    command->add_option("--rounds", options->rounds, "turns that all cases take")->check(CLI::Range(1u, 1000u));
    command->add_option("--runs", options->runs, "in a turn")->check(CLI::Range(1u, 1000u));
    command->callback([options, &common] {
        const auto device = open_device(common);
        // A software device runs workgroups one after the other: one alone has nobody to wait for.
        if (device->capabilities().is_cpu) options->workgroups = {1};
        Results results(common.json, device->capabilities());
        LayersBench(*device, common, *options, results).run();
    });
}

}  // namespace lorad::bench
