// The matrix products alone, as the engine plans them. Each dispatch is followed by a barrier, as in a step, and takes
// another set of weights, so that no cache is measured, nor one of address translations. Chains are timed as a whole:
// timestamps between dispatches add some 3 us to each. Sampled results are compared with fp64 on the CPU.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <thread>

#include "bench/kernels.h"
#include "bench/model_shapes.h"
#include "bench/weight_pool.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/kernels/products/deferred_norm.h"
#include "gpu/profiler.h"
#include "gpu/queue.h"
#include "gpu/upload.h"
#include "proto/base/format.h"

namespace lorad::bench {
namespace {

using gpu::Buffer;
using gpu::MatmulPlan;
using gpu::MemoryKind;
using gpu::ScalarType;

struct Shape {
    const char* name;
    uint32_t n, k, n_per_model;
};

std::vector<Shape> products_of(const ModelShape& m) {
    return {{"qkv", m.q_size() + 2 * m.kv_size(), m.hidden, m.n_layers},
            {"o", m.hidden, m.q_size(), m.n_layers},
            {"gate_up", 2 * m.ffn, m.hidden, m.n_layers},
            {"down", m.hidden, m.ffn, m.n_layers},
            {"lm_head", m.vocab, m.hidden, 1}};
}

class KernelsBench {
  public:
    KernelsBench(gpu::Device& device, gpu::KernelSet& kernels, const KernelsOptions& options, ScalarType type,
                 double gib, Results& results)
        : device_(device),
          kernels_(kernels),
          options_(options),
          type_(type),
          results_(results),
          pool_(device, type, gib) {
        uint64_t x_elements = 0, y_elements = 0;
        for (const Shape& s : products_of(kModelShapes.at(options.shape))) {
            for (const uint32_t rows : options.rows) {
                const MatmulPlan plan = engine_plan(s, rows);
                const uint64_t tall = round_up(rows, plan.row_tile) + gpu::kSlackRows;
                x_elements = std::max(x_elements, tall * gpu::padded(s.k));
                if (!skipped(s, rows))
                    y_elements = std::max(
                        y_elements, ((options.sweep && rows <= 128 ? 16 : plan.n_splits) * tall) * gpu::padded(s.n));
            }
        }
        x_ = must(device.create_buffer(x_elements * 4, MemoryKind::kHostUpload, "activations"));
        x_device_ = must(device.create_buffer(x_elements * 4, MemoryKind::kDeviceLocal, "activations"));
        y_ = must(device.create_buffer(y_elements * 4, MemoryKind::kDeviceLocal, "results"));
        y_host_ = must(device.create_buffer(kSamples * 4 * 16, MemoryKind::kHostReadback, "sampled results"));
        count_ = must(device.create_buffer(16, MemoryKind::kHostUpload, "row count"));
        std::mt19937 random(9);
        for (uint64_t i = 0; i < x_elements; i++) {
            const uint16_t value = pool_.random_value(static_cast<uint32_t>(random()));
            if (kernels_.act_type(type) == ScalarType::kF32) {
                reinterpret_cast<float*>(x_.mapped().data())[i] = gpu::decode16(value, type);
            } else {
                reinterpret_cast<uint16_t*>(x_.mapped().data())[i] = value;
            }
        }
        stop_on_error(device.uploader().upload(x_device_, 0, x_.mapped()));
        stop_on_error(device.uploader().finish());
    }

    void run() {
        ceiling_ = measure_ceiling(device_, kernels_, pool_, results_) * 1e-3;
        if (options_.sweep) return sweep();
        for (const uint32_t rows : options_.rows) {
            double step_ms = 0;
            for (const Shape& s : products_of(kModelShapes.at(options_.shape))) {
                if (skipped(s, rows)) continue;
                step_ms += print(s, rows) * s.n_per_model * 1e-3;
            }
            results_.say(lorad::format("rows {:4}: all products of a step {:.3f} ms", rows, step_ms));
            print_layer(rows);
        }
    }

  private:
    static constexpr uint32_t kSamples = 64;
    static constexpr size_t kChains = 5;
    static constexpr double kWantedUs = 6000;  // of a chain
    static constexpr double kWarmUs = 2e4;
    static constexpr uint32_t kWarmChainsMax = 1000;
    static constexpr double kSweepUs = 2000;     // of each candidate's chain
    static constexpr size_t kSweepChecked = 12;  // the fastest ones

    static uint32_t max_splits(const Shape& s) { return std::strcmp(s.name, "lm_head") == 0 ? 1 : 16; }
    // prefill needs few logits
    static bool skipped(const Shape& s, uint32_t rows) { return max_splits(s) == 1 && rows > 256; }
    uint64_t next_weights(const Shape& s) {
        return pool_.next(uint64_t{gpu::padded(s.n)} * gpu::padded(s.k) * gpu::bytes_of(type_));
    }
    double bytes(const Shape& s) const { return static_cast<double>(gpu::bytes_of(type_)) * s.n * s.k; }

    gpu::MatmulParams params(const Shape& s, const MatmulPlan& plan, uint64_t w) const {
        gpu::MatmulParams p{};
        p.n_rows = count_.address();
        p.w = w;
        p.x = x_device_.address();
        p.y = y_.address();
        p.n = s.n;
        p.k = s.k;
        p.w_stride = p.x_stride = gpu::padded(s.k);
        p.y_stride = gpu::padded(s.n);
        p.split_stride = round_up(plan.rows, plan.row_tile) * p.y_stride;
        return p;
    }

    struct Planned {
        Shape shape;
        MatmulPlan plan;
    };
    // As Pass::attention_input() has it: what attention gives o is arranged in blocks in steps of many rows, for
    // warpgroups alone; in steps of decodes it may be in blocks as it comes.
    MatmulPlan engine_plan(const Shape& s, uint32_t rows) const {
        const MatmulPlan in_blocks = *kernels_.products.plan({.n = s.n,
                                                              .k = s.k,
                                                              .type = type_,
                                                              .rows = rows,
                                                              .max_splits = max_splits(s),
                                                              .may_be_in_fragments = true});
        if (std::strcmp(s.name, "o") != 0 || rows <= 64 ||
            (rows >= 128 && in_blocks.variant == gpu::MatmulVariant::kWarpgroup))
            return in_blocks;
        return *kernels_.products.plan({.n = s.n, .k = s.k, .type = type_, .rows = rows, .max_splits = max_splits(s)});
    }

    // Microseconds of these products one after the other, with barriers, in chains of as many such turns as take
    // wanted_us; a sample is a chain.
    std::vector<double> measure(const std::vector<Planned>& turn, uint32_t rows, double wanted_us) {
        std::memcpy(count_.mapped().data(), &rows, 4);
        double guess_us = 0;
        for (const Planned& p : turn) guess_us += bytes(p.shape) / 3e6 + 2.0 * p.shape.n * p.shape.k * rows / 150e6 + 3;
        const auto n_turns = static_cast<uint32_t>(std::clamp(wanted_us / guess_us, 5.0, 100.0));
        return measure_chains(n_turns, [&](gpu::Recorder& recorder) {
            for (const Planned& p : turn) {
                kernels_.products.record(recorder, p.plan, {.product = params(p.shape, p.plan, next_weights(p.shape))});
                recorder.barrier();
            }
        });
    }

    struct Sample {
        uint32_t t, n;
    };
    static Sample sample(const Shape& s, uint32_t rows, uint32_t i) {
        return {i * 7919u % rows, static_cast<uint32_t>(uint64_t{i} * 2654435761u % s.n)};
    }

    // Largest error of sampled results, in units of the result's typical size. have: of each sample.
    double sampled_error(const Shape& s, uint32_t rows, const MatmulPlan& plan,
                         const std::array<double, kSamples>& have) {
        const uint32_t stride = gpu::padded(s.k);
        const auto x = [&](uint32_t t, uint32_t k) {
            const uint64_t element =
                plan.x_in_fragments ? gpu::fragment_offset(t, k, stride, plan.x_order) / 2 : uint64_t{t} * stride + k;
            if (plan.act_type == ScalarType::kF32) return reinterpret_cast<const float*>(x_.mapped().data())[element];
            return gpu::decode16(reinterpret_cast<const uint16_t*>(x_.mapped().data())[element], type_);
        };
        double worst = 0, norm = 0;
        for (uint32_t i = 0; i < kSamples; i++) {
            const auto [t, n] = sample(s, rows, i);
            double want = 0;
            for (uint32_t k = 0; k < s.k; k++) want += double{pool_.value(uint64_t{n} * stride + k)} * x(t, k);
            worst = std::isfinite(have[i]) ? std::max(worst, std::fabs(have[i] - want)) : INFINITY;
            norm += want * want;
        }
        return worst / std::sqrt(norm / kSamples);
    }

    double check(const Shape& s, uint32_t rows, const MatmulPlan& plan) {
        std::memcpy(count_.mapped().data(), &rows, 4);
        pool_.rewind();
        const gpu::MatmulParams p = params(s, plan, next_weights(s));
        gpu::Recorder recorder = must(gpu::Recorder::begin(device_));
        recorder.fill(y_, 0, y_.size(), 0xffffffffu);
        recorder.barrier();
        kernels_.products.record(recorder, plan, {.product = p});
        recorder.barrier();
        for (uint32_t i = 0; i < kSamples; i++) {
            const auto [t, n] = sample(s, rows, i);
            for (uint32_t split = 0; split < plan.splits_of(t); split++) {
                const uint64_t element = uint64_t{split} * p.split_stride + uint64_t{t} * p.y_stride + n;
                recorder.copy(y_, element * 4, y_host_, (uint64_t{i} * 16 + split) * 4, 4);
            }
        }
        recorder.barrier();
        stop_on_error(kernels_.status());
        run_and_wait(device_, must(std::move(recorder).end()));
        std::array<double, kSamples> have{};
        for (uint32_t i = 0; i < kSamples; i++) {
            for (uint32_t split = 0; split < plan.splits_of(sample(s, rows, i).t); split++)
                have[i] += got()[size_t{i} * 16 + split];
        }
        return sampled_error(s, rows, plan, have);
    }
    const float* got() { return reinterpret_cast<const float*>(y_host_.mapped().data()); }

    // Microseconds of what `turn` records, with what it wants of barriers, in chains of n_turns; a sample is a chain.
    template <typename Turn>
    std::vector<double> measure_chains(uint32_t n_turns, Turn turn) {
        std::vector<double> us;
        // A device that waited for the host has lost its clock: the first chains do not count.
        double passed_us = device_.capabilities().is_cpu ? kWarmUs : 0;
        for (uint32_t chain = 0; us.size() < kChains; chain++) {
            gpu::Recorder recorder = must(gpu::Recorder::begin(device_, {.span_timestamps = true}));
            for (uint32_t j = 0; j < n_turns; j++) turn(recorder);
            stop_on_error(kernels_.status());
            const double span = run_span_us(device_, must(std::move(recorder).end()));
            if (passed_us >= kWarmUs || chain >= kWarmChainsMax) us.push_back(span / n_turns);
            passed_us += span;
        }
        return us;
    }

    // Times every candidate plan; the pipelines are made side by side before.
    void sweep() {
        for (const uint32_t rows : options_.rows) {
            for (const Shape& s : products_of(kModelShapes.at(options_.shape))) {
                if (skipped(s, rows)) continue;
                std::vector<MatmulPlan> plans = kernels_.products.candidates({.n = s.n,
                                                                              .k = s.k,
                                                                              .type = type_,
                                                                              .rows = rows,
                                                                              .max_splits = max_splits(s),
                                                                              .may_be_in_fragments = true});
                std::erase_if(plans, [&](const MatmulPlan& p) {
                    const uint64_t tall = round_up(rows, p.row_tile) + gpu::kSlackRows;
                    // x is of the type that the path's other kernels write.
                    return p.act_type != kernels_.act_type(type_) ||
                           p.n_splits * tall * gpu::padded(s.n) * 4 > y_.size();
                });
                plans.push_back(engine_plan(s, rows));
                std::atomic<size_t> next{0};
                std::vector<std::thread> threads;
                for (unsigned i = 0; i < std::thread::hardware_concurrency(); i++) {
                    threads.emplace_back([&] {
                        for (size_t j = next++; j < plans.size(); j = next++) {
                            gpu::Recorder recorder = must(gpu::Recorder::begin(device_));
                            kernels_.products.record(recorder, plans[j],
                                                     {.product = params(s, plans[j], pool_.first())});
                            stop_on_error(kernels_.status());
                            (void)must(std::move(recorder).end());
                        }
                    });
                }
                for (std::thread& t : threads) t.join();
                struct Timed {
                    double us;
                    size_t plan;
                };
                std::vector<Timed> timed;
                for (size_t i = 0; i < plans.size(); i++)
                    timed.push_back({summarize(measure({{s, plans[i]}}, rows, kSweepUs)).median, i});
                std::ranges::sort(timed, {}, &Timed::us);
                for (size_t i = 0; i < timed.size(); i++) {
                    const MatmulPlan& plan = plans[timed[i].plan];
                    const bool present = timed[i].plan + 1 == plans.size();
                    const double error = i < kSweepChecked || present ? check(s, rows, plan) : 0;
                    std::printf("%-8s rows %4u  %8.2f us  %5.2f TB/s  %6.1f TFLOP/s  error %.0e  %s splits %u%s\n",
                                s.name, rows, timed[i].us, bytes(s) / timed[i].us * 1e-6,
                                2e-6 * s.n * s.k * rows / timed[i].us, error, gpu::describe(plan).c_str(),
                                plan.n_splits, present ? " <- what the engine takes" : "");
                }
                std::fflush(stdout);
                if (rows <= gpu::kDeferredRows && (std::strcmp(s.name, "o") == 0 || std::strcmp(s.name, "down") == 0))
                    sweep_residual(s, rows);
            }
        }
    }

    // Products that end in the residual stream, which take the place of splits and add_norm. x is as ever; the stream,
    // gamma, xn and the norm's parts lie one after the other where other products have their results.
    void sweep_residual(const Shape& s, uint32_t rows) {
        const uint32_t stride = gpu::padded(s.n);
        const uint64_t slot = uint64_t{round_up(rows, 16) + gpu::kSlackRows} * stride * 4;
        const auto record = [&](gpu::Recorder& recorder, const MatmulPlan& plan) {
            kernels_.products.record(recorder, plan,
                                     {.product = params(s, plan, next_weights(s)),
                                      .residual = {.bias = 0,
                                                   .stream = y_.address(),
                                                   .gamma = y_.address() + slot,
                                                   .xn = y_.address() + 2 * slot,
                                                   .norms = y_.address() + 3 * slot,
                                                   .stream_stride = stride,
                                                   .xn_stride = stride}});
            recorder.barrier();
        };
        struct Timed {
            double us, error;
            MatmulPlan plan;
        };
        std::memcpy(count_.mapped().data(), &rows, 4);
        std::vector<Timed> timed;
        for (const MatmulPlan& plan : kernels_.products.candidates(
                 {.n = s.n, .k = s.k, .type = type_, .rows = rows, .result = gpu::ProductResult::kResidual})) {
            const auto n_turns = static_cast<uint32_t>(std::clamp(kSweepUs / (bytes(s) / 3e6 + 3), 5.0, 100.0));
            const double us =
                summarize(measure_chains(n_turns, [&](gpu::Recorder& recorder) { record(recorder, plan); })).median;
            pool_.rewind();
            gpu::Recorder recorder = must(gpu::Recorder::begin(device_));
            recorder.fill(y_, 0, y_.size(), 0);
            recorder.barrier();
            record(recorder, plan);
            for (uint32_t i = 0; i < kSamples; i++)
                recorder.copy(y_, (uint64_t{sample(s, rows, i).t} * stride + sample(s, rows, i).n) * 4, y_host_, i * 4,
                              4);
            recorder.barrier();
            stop_on_error(kernels_.status());
            run_and_wait(device_, must(std::move(recorder).end()));
            std::array<double, kSamples> have{};
            std::copy_n(got(), kSamples, have.begin());
            timed.push_back({us, sampled_error(s, rows, plan, have), plan});
        }
        std::ranges::sort(timed, {}, &Timed::us);
        const std::optional<MatmulPlan> taken = kernels_.products.plan(
            {.n = s.n, .k = s.k, .type = type_, .rows = rows, .result = gpu::ProductResult::kResidual});
        for (const Timed& t : timed) {
            std::printf("%-8s rows %4u  %8.2f us  %5.2f TB/s  error %.0e  %s%s\n", s.name, rows, t.us,
                        bytes(s) / t.us * 1e-6, t.error, gpu::describe(t.plan).c_str(),
                        t.plan == taken ? " <- what the engine takes" : "");
        }
        std::fflush(stdout);
    }

    // The products of a layer one after the other, as a step has them where gate and up do not end in the activation.
    void print_layer(uint32_t rows) {
        std::vector<Planned> layer;
        for (const Shape& s : products_of(kModelShapes.at(options_.shape))) {
            if (max_splits(s) > 1) layer.push_back({s, engine_plan(s, rows)});
        }
        Row row("layer_products");
        row.field("shape", options_.shape)
            .field("type", options_.type)
            .field("rows", rows)
            .samples("us", measure(layer, rows, kWantedUs));
        const Summary us = row.summary();
        results_.add(std::move(row), lorad::format("rows {:4}: those of a layer in turns {:.2f} us ({:.2f}..{:.2f})",
                                                   rows, us.median, us.p10, us.p90));
    }

    double print(const Shape& s, uint32_t rows) {
        const MatmulPlan plan = engine_plan(s, rows);
        const double error = type_ == ScalarType::kF32 ? 0 : check(s, rows, plan);
        // Short sums round as often as activations in 16 bits do, and a few times more.
        if (!(error < (plan.short_sum != 0 ? 5e-3 : 1e-4))) {
            std::fprintf(stderr, "lorad-bench stopped: %s %s rows %u is wrong, error %.1e\n", variant_name(plan),
                         s.name, rows, error);
            std::exit(1);
        }
        Row row("kernel");
        row.field("kernel", variant_name(plan))
            .field("product", s.name)
            .field("shape", options_.shape)
            .field("type", options_.type);
        row.field("n", s.n)
            .field("k", s.k)
            .field("rows", rows)
            .field("splits", plan.n_splits)
            .field("whole_rows", plan.whole_rows)
            .field("row_tile", plan.row_tile);
        row.field("timed", "chain")
            .field("column_tile", plan.column_tile)
            .field("x_in_blocks", plan.x_in_fragments)
            .samples("us", measure({{s, plan}}, rows, kWantedUs));
        const Summary us = row.summary();
        const double tb_s = bytes(s) / us.median * 1e-6, tflop_s = 2e-6 * s.n * s.k * rows / us.median;
        row.field("bytes", bytes(s))
            .field("gb_s", tb_s * 1e3)
            .field("tflop_s", tflop_s)
            .field("of_ceiling", tb_s / ceiling_);
        row.field("error", error);
        results_.add(std::move(row),
                     lorad::format("{:<8} rows {:4}  {:<21} tile {:3}x{:<3} splits {:2}{} {:8.2f} us ({:.2f}..{:.2f})  "
                                   "{:5.2f} TB/s {:3.0f} %  {:6.1f} TFLOP/s  error {:.0e}",
                                   s.name, rows, variant_name(plan), plan.row_tile, plan.column_tile, plan.n_splits,
                                   plan.x_in_fragments ? " x in blocks" : "", us.median, us.p10, us.p90, tb_s,
                                   100 * tb_s / ceiling_, tflop_s, error));
        return us.median;
    }

    gpu::Device& device_;
    gpu::KernelSet& kernels_;
    const KernelsOptions& options_;
    ScalarType type_;
    Results& results_;
    WeightPool pool_;
    Buffer x_, x_device_, y_, y_host_, count_;
    double ceiling_ = 0;
};

}  // namespace

void measure_products(gpu::Device& device, gpu::KernelSet& kernels, const KernelsOptions& options, gpu::ScalarType type,
                      double gib, Results& results) {
    KernelsBench(device, kernels, options, type, gib, results).run();
}

}  // namespace lorad::bench
