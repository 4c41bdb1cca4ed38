// Speed of the matrix products alone, as the engine plans them: microseconds, GB/s, TFLOP/s and the share of the bandwidth
// that a long read-only stream reaches in the same run. Each dispatch is followed by a barrier, as in a step, and takes
// another set of weights, so that no cache is measured. Sampled results are compared with fp64 on the CPU.
//
//   kernels_bench [--shape 7b|1.5b|0.5b] [--rows 1,2,4,8,16,32,64,128,512,2048] [--type f16|bf16|f32] [--json]
//                 [--kernel-path auto|portable|coopmat|coopmat2] [--pool-gib 15] [--sweep]   --sweep: all candidates, not only the plans taken
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bench/bench_util.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/profiler.h"
#include "gpu/queue.h"
#include "gpu/upload.h"

namespace lorad::bench {
namespace {

using Clock = std::chrono::steady_clock;
using gpu::Buffer;
using gpu::MatmulPlan;
using gpu::MemoryKind;
using gpu::ScalarType;

struct Shape {
    const char* name;
    uint32_t n, k, n_per_model;
};
const std::map<std::string, std::vector<Shape>> kModels = {
    {"7b", {{"qkv", 4608, 3584, 28}, {"o", 3584, 3584, 28}, {"gate_up", 37888, 3584, 28}, {"down", 3584, 18944, 28}, {"lm_head", 152064, 3584, 1}}},
    {"1.5b", {{"qkv", 2048, 1536, 28}, {"o", 1536, 1536, 28}, {"gate_up", 17920, 1536, 28}, {"down", 1536, 8960, 28}, {"lm_head", 151936, 1536, 1}}},
    {"0.5b", {{"qkv", 1152, 896, 24}, {"o", 896, 896, 24}, {"gate_up", 9728, 896, 24}, {"down", 896, 4864, 24}, {"lm_head", 151936, 896, 1}}},
};

struct Options {
    std::string shape = "7b", type = "f16", kernel_path = "auto";
    std::vector<uint32_t> rows = {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048};
    double pool_gib = 15;
    bool json = false;
    bool sweep = false;
};

void stop_on_error(const Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "kernels_bench stopped: %s\n", status.error().message.c_str());
    std::exit(1);
}

float decode(uint16_t bits, ScalarType type) {
    if (type == ScalarType::kBf16) {
        const uint32_t word = uint32_t{bits} << 16;
        float value;
        std::memcpy(&value, &word, 4);
        return value;
    }
    const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
    const float value = std::ldexp(static_cast<float>(mantissa + (exponent != 0 ? 1024 : 0)), std::max(exponent, 1) - 25);
    return (bits & 0x8000) != 0 ? -value : value;
}

// Weights of all products: one block of random values, repeated over slabs that together are far larger than any cache.
class WeightPool {
  public:
    WeightPool(gpu::Device& device, ScalarType type, double gib) : type_(type) {
        std::mt19937 random(7);
        block_.resize(kBlockBytes / 2);
        for (uint16_t& value : block_) value = random_value(static_cast<uint32_t>(random()));
        const uint64_t wanted = static_cast<uint64_t>(gib * double{1u << 30});
        const uint64_t slab = std::min<uint64_t>(device.capabilities().max_allocation_bytes, uint64_t{3} << 30) / kBlockBytes * kBlockBytes;
        for (uint64_t have = 0; have < wanted; have += slab) {
            slabs_.push_back(must(device.create_buffer(slab, MemoryKind::kDeviceLocal, "weights")));
            for (uint64_t at = 0; at < slab; at += kBlockBytes) {
                stop_on_error(device.uploader().upload(slabs_.back(), at, std::as_bytes(std::span(block_))));
            }
        }
        stop_on_error(device.uploader().finish());
    }

    // 16-bit values of magnitude 1/32 to 1/4; as f32 words they are small numbers too, which is all that timing needs.
    uint16_t random_value(uint32_t bits) const {
        const uint32_t exponent = type_ == ScalarType::kF16 ? 10 + (bits >> 16) % 3 : 122 + (bits >> 16) % 3;
        const uint32_t mantissa_bits = type_ == ScalarType::kF16 ? 10 : 7;
        return static_cast<uint16_t>((bits & 0x8000u) | (exponent << mantissa_bits) | (bits & ((1u << mantissa_bits) - 1)));
    }

    uint64_t next(uint64_t bytes) {
        if (at_ + bytes > slabs_[slab_].size()) {
            slab_ = (slab_ + 1) % slabs_.size();
            at_ = 0;
        }
        CHECK(bytes <= slabs_[slab_].size());
        const uint64_t address = slabs_[slab_].address() + at_;
        at_ += (bytes + 255) / 256 * 256;
        return address;
    }
    void rewind() { slab_ = at_ = 0; }
    uint64_t first() const { return slabs_[0].address(); }
    // Of the first matrix after rewind().
    float value(uint64_t element) const { return decode(block_[element % block_.size()], type_); }

  private:
    static constexpr uint64_t kBlockBytes = uint64_t{64} << 20;
    ScalarType type_;
    std::vector<uint16_t> block_;
    std::vector<Buffer> slabs_;
    size_t slab_ = 0;
    uint64_t at_ = 0;
};

class KernelsBench {
  public:
    KernelsBench(gpu::Device& device, gpu::KernelSet& kernels, const Options& options, ScalarType type)
        : device_(device), kernels_(kernels), options_(options), type_(type), pool_(device, type, options.pool_gib) {
        uint64_t x_elements = 0, y_elements = 0;
        for (const Shape& s : kModels.at(options.shape)) {
            for (const uint32_t rows : options.rows) {
                const MatmulPlan plan = kernels.plan_matmul(s.n, s.k, type, rows, max_splits(s));
                const uint64_t tall = gpu::round_up(rows, plan.row_tile) + gpu::kSlackRows;
                x_elements = std::max(x_elements, tall * gpu::padded(s.k));
                if (!skipped(s, rows)) y_elements = std::max(y_elements, ((options.sweep && rows <= 128 ? 16 : plan.n_splits) * tall) * gpu::padded(s.n));
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
                reinterpret_cast<float*>(x_.mapped().data())[i] = decode(value, type);
            } else {
                reinterpret_cast<uint16_t*>(x_.mapped().data())[i] = value;
            }
        }
        stop_on_error(device.uploader().upload(x_device_, 0, x_.mapped()));
        stop_on_error(device.uploader().finish());
    }

    void run() {
        const Shape& largest = kModels.at(options_.shape).back();
        for (int warm = 0; warm < 20; warm++) measure(largest, 1);
        const double us = measure(largest, 1).median;
        ceiling_ = bytes(largest) / us * 1e-6;
        std::printf("stream ceiling: %.3f TB/s (%u x %u, one row, dispatch and barrier included)\n", ceiling_, largest.n, largest.k);
        if (options_.sweep) return sweep();
        for (const uint32_t rows : options_.rows) {
            double step_ms = 0;
            for (const Shape& s : kModels.at(options_.shape)) {
                if (skipped(s, rows)) continue;
                step_ms += print(s, rows) * s.n_per_model * 1e-3;
            }
            std::printf("rows %4u: all products of a step %.3f ms\n", rows, step_ms);
        }
    }

  private:
    static constexpr uint32_t kSamples = 64;
    static constexpr double kSweepUs = 800;     // of each candidate's chain
    static constexpr size_t kSweepChecked = 12;  // the fastest ones

    static uint32_t max_splits(const Shape& s) { return std::strcmp(s.name, "lm_head") == 0 ? 1 : 16; }
    static bool skipped(const Shape& s, uint32_t rows) { return max_splits(s) == 1 && rows > 256; }  // prefill needs few logits
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
        p.split_stride = gpu::round_up(plan.rows, plan.row_tile) * p.y_stride;
        return p;
    }

    double wall_us(const gpu::CommandBuffer& recording) {
        const gpu::CommandBuffer* const list[] = {&recording};
        const auto begin = Clock::now();
        stop_on_error(device_.compute_queue().wait(must(device_.compute_queue().submit(list))));
        return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    }

    // Microseconds from the beginning of one dispatch to that of the next, on the device's clock, in chains of them with barriers.
    Summary measure(const Shape& s, uint32_t rows) {
        return measure(s, rows, kernels_.plan_matmul(s.n, s.k, type_, rows, max_splits(s)), 6000);
    }
    Summary measure(const Shape& s, uint32_t rows, const MatmulPlan& plan, double wanted_us) {
        std::memcpy(count_.mapped().data(), &rows, 4);
        const double guess_us = bytes(s) / 3e6 + 2.0 * s.n * s.k * rows / 150e6 + 3;
        const auto n_dispatches = static_cast<uint32_t>(std::clamp(wanted_us / guess_us, 5.0, 100.0));
        pool_.rewind();
        gpu::Recorder recorder = must(gpu::Recorder::begin(device_, {.timestamps = true}));
        for (uint32_t i = 0; i < n_dispatches; i++) {
            kernels_.matmul(recorder, params(s, plan, pool_.next(uint64_t{gpu::padded(s.n)} * gpu::padded(s.k) * gpu::bytes_of(type_))), plan);
            recorder.barrier();
        }
        stop_on_error(kernels_.status());
        const gpu::CommandBuffer chain = must(std::move(recorder).end());
        std::vector<double> us;
        for (int i = 0; i < 3; i++) {
            wall_us(chain);
            const auto times = must(gpu::read_dispatch_times(device_, chain));
            for (size_t j = 2; i > 0 && j < times.size(); j++) us.push_back(times[j].begin_us - times[j - 1].begin_us);
        }
        return summarize(us);
    }

    // Largest error of sampled results, in units of the result's typical size.
    double check(const Shape& s, uint32_t rows) { return check(s, rows, kernels_.plan_matmul(s.n, s.k, type_, rows, max_splits(s))); }
    double check(const Shape& s, uint32_t rows, const MatmulPlan& plan) {
        std::memcpy(count_.mapped().data(), &rows, 4);
        pool_.rewind();
        const uint64_t w = pool_.next(uint64_t{gpu::padded(s.n)} * gpu::padded(s.k) * gpu::bytes_of(type_));
        const gpu::MatmulParams p = params(s, plan, w);
        gpu::Recorder recorder = must(gpu::Recorder::begin(device_));
        recorder.fill(y_, 0, y_.size(), 0xffffffffu);
        recorder.barrier();
        kernels_.matmul(recorder, p, plan);
        recorder.barrier();
        const auto sample = [&](uint32_t i) {
            return std::pair<uint32_t, uint32_t>{i * 7919u % rows, static_cast<uint32_t>(uint64_t{i} * 2654435761u % s.n)};
        };
        for (uint32_t i = 0; i < kSamples; i++) {
            const auto [t, n] = sample(i);
            for (uint32_t split = 0; split < plan.n_splits; split++) {
                const uint64_t element = uint64_t{split} * p.split_stride + uint64_t{t} * p.y_stride + n;
                recorder.copy(y_, element * 4, y_host_, (uint64_t{i} * 16 + split) * 4, 4);
            }
        }
        recorder.barrier();
        const gpu::CommandBuffer recording = must(std::move(recorder).end());
        wall_us(recording);
        const auto* got = reinterpret_cast<const float*>(y_host_.mapped().data());
        const auto x = [&](uint64_t element) {
            if (plan.act_type == ScalarType::kF32) return reinterpret_cast<const float*>(x_.mapped().data())[element];
            return decode(reinterpret_cast<const uint16_t*>(x_.mapped().data())[element], type_);
        };
        double worst = 0, norm = 0;
        for (uint32_t i = 0; i < kSamples; i++) {
            const auto [t, n] = sample(i);
            double want = 0, have = 0;
            for (uint32_t k = 0; k < s.k; k++) {
                want += double{pool_.value(uint64_t{n} * p.w_stride + k)} * x(uint64_t{t} * p.x_stride + k);
            }
            for (uint32_t split = 0; split < plan.n_splits; split++) have += got[size_t{i} * 16 + split];
            worst = std::isfinite(have) ? std::max(worst, std::fabs(have - want)) : INFINITY;
            norm += want * want;
        }
        return worst / std::sqrt(norm / kSamples);
    }

    // Times every candidate plan; the pipelines are made side by side before.
    void sweep() {
        for (const uint32_t rows : options_.rows) {
            for (const Shape& s : kModels.at(options_.shape)) {
                if (max_splits(s) == 1) continue;
                std::vector<MatmulPlan> plans = kernels_.matmul_candidates(s.n, s.k, type_, rows, max_splits(s));
                std::erase_if(plans, [&](const MatmulPlan& p) {
                    const uint64_t tall = gpu::round_up(rows, p.row_tile) + gpu::kSlackRows;
                    return p.n_splits * tall * gpu::padded(s.n) * 4 > y_.size();
                });
                plans.push_back(kernels_.plan_matmul(s.n, s.k, type_, rows, max_splits(s)));
                std::atomic<size_t> next{0};
                std::vector<std::thread> threads;
                for (unsigned i = 0; i < std::thread::hardware_concurrency(); i++) {
                    threads.emplace_back([&] {
                        for (size_t j = next++; j < plans.size(); j = next++) {
                            gpu::Recorder recorder = must(gpu::Recorder::begin(device_));
                            kernels_.matmul(recorder, params(s, plans[j], pool_.first()), plans[j]);
                            (void)must(std::move(recorder).end());
                        }
                    });
                }
                for (std::thread& t : threads) t.join();
                stop_on_error(kernels_.status());
                struct Timed {
                    double us;
                    size_t plan;
                };
                std::vector<Timed> timed;
                for (size_t i = 0; i < plans.size(); i++) timed.push_back({measure(s, rows, plans[i], kSweepUs).median, i});
                std::ranges::sort(timed, {}, &Timed::us);
                for (size_t i = 0; i < timed.size(); i++) {
                    const MatmulPlan& plan = plans[timed[i].plan];
                    const bool present = timed[i].plan + 1 == plans.size();
                    const double error = i < kSweepChecked || present ? check(s, rows, plan) : 0;
                    std::printf("%-8s rows %4u  %8.2f us  %5.2f TB/s  %6.1f TFLOP/s  error %.0e  %s splits %u%s\n", s.name, rows, timed[i].us,
                                bytes(s) / timed[i].us * 1e-6, 2e-6 * s.n * s.k * rows / timed[i].us, error, gpu::describe(plan).c_str(),
                                plan.n_splits, present ? " <- what the engine takes" : "");
                }
                std::fflush(stdout);
            }
        }
    }

    double print(const Shape& s, uint32_t rows) {
        const MatmulPlan plan = kernels_.plan_matmul(s.n, s.k, type_, rows, max_splits(s));
        const double error = type_ == ScalarType::kF32 ? 0 : check(s, rows);
        if (!(error < 1e-4)) {
            std::fprintf(stderr, "kernels_bench stopped: %s %s rows %u is wrong, error %.1e\n", variant_name(plan), s.name, rows, error);
            std::exit(1);
        }
        const Summary us = measure(s, rows);
        const double tb_s = bytes(s) / us.median * 1e-6, tflop_s = 2e-6 * s.n * s.k * rows / us.median;
        if (options_.json) {
            std::printf("{\"device\":\"%s\",\"driver\":\"%s\",\"kernel\":\"%s\",\"product\":\"%s\",\"n\":%u,\"k\":%u,\"rows\":%u,\"splits\":%u,"
                        "\"row_tile\":%u,\"column_tile\":%u,\"us\":%.2f,\"us_p10\":%.2f,\"us_p90\":%.2f,\"gb_s\":%.0f,\"tflop_s\":%.1f,"
                        "\"of_ceiling\":%.3f,\"error\":%.1e}\n",
                        device_.capabilities().name.c_str(), device_.capabilities().driver.c_str(), variant_name(plan), s.name, s.n, s.k,
                        rows, plan.n_splits, plan.row_tile, plan.column_tile, us.median, us.p10, us.p90, tb_s * 1e3, tflop_s,
                        tb_s / ceiling_, error);
        } else {
            std::printf("%-8s rows %4u  %-21s tile %3ux%-3u splits %2u  %8.2f us (%.2f..%.2f)  %5.2f TB/s %3.0f %%  %6.1f TFLOP/s  error %.0e\n",
                        s.name, rows, variant_name(plan), plan.row_tile, plan.column_tile, plan.n_splits, us.median, us.p10, us.p90, tb_s,
                        100 * tb_s / ceiling_, tflop_s, error);
        }
        std::fflush(stdout);
        return us.median;
    }

    gpu::Device& device_;
    gpu::KernelSet& kernels_;
    const Options& options_;
    ScalarType type_;
    WeightPool pool_;
    Buffer x_, x_device_, y_, y_host_, count_;
    double ceiling_ = 0;
};

}  // namespace
}  // namespace lorad::bench

int main(int argc, char** argv) {
    using namespace lorad;
    bench::Options options;
    CLI::App app("Speed of the matrix products on this device");
    app.add_option("--shape", options.shape)->check(CLI::IsMember({"7b", "1.5b", "0.5b"}));
    app.add_option("--rows", options.rows)->delimiter(',');
    app.add_option("--type", options.type)->check(CLI::IsMember({"f16", "bf16", "f32"}));
    app.add_option("--kernel-path", options.kernel_path)->check(CLI::IsMember({"auto", "portable", "coopmat", "coopmat2"}));
    app.add_option("--pool-gib", options.pool_gib);
    app.add_flag("--json", options.json);
    app.add_flag("--sweep", options.sweep, "time every plan that could serve");
    CLI11_PARSE(app, argc, argv);
    const std::map<std::string, gpu::KernelPath> paths = {{"auto", gpu::KernelPath::kAuto},
                                                          {"portable", gpu::KernelPath::kPortable},
                                                          {"coopmat", gpu::KernelPath::kCoopmat},
                                                          {"coopmat2", gpu::KernelPath::kCoopmat2}};
    const gpu::ScalarType type = options.type == "f16"    ? gpu::ScalarType::kF16
                                 : options.type == "bf16" ? gpu::ScalarType::kBf16
                                                          : gpu::ScalarType::kF32;
    auto device = bench::must(gpu::Device::create({}));
    const auto begin = std::chrono::steady_clock::now();
    auto kernels = bench::must(gpu::KernelSet::create(*device, {.path = paths.at(options.kernel_path)}));
    std::printf("%s, %s, %u multiprocessors; kernels chosen and tested in %.2f s\n", device->capabilities().name.c_str(),
                device->capabilities().driver.c_str(), device->capabilities().n_compute_units_hint,
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    bench::KernelsBench(*device, *kernels, options, type).run();
    return 0;
}
