#include "bench/weight_pool.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

#include "bench/commands.h"
#include "bench/results.h"
#include "gpu/profiler.h"
#include "gpu/queue.h"
#include "gpu/upload.h"
#include "proto/base/format.h"
#include "proto/base/rounding.h"

namespace lorad::bench {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSlabMax = 3072 * kMiB;
constexpr int kCeilingSamples = 20;
constexpr double kSustainedMs = 20;
constexpr uint32_t kSustainedLoads = 4;

}  // namespace

WeightPool::WeightPool(gpu::Device& device, gpu::ScalarType type, double gib) : type_(type) {
    std::mt19937 random(7);
    const auto wanted = static_cast<uint64_t>(gib * 1024.0 * static_cast<double>(kMiB));
    const uint64_t block_bytes = wanted < 512 * kMiB ? 4 * kMiB : 64 * kMiB;
    block_.resize(block_bytes / 2);
    for (uint16_t& value : block_) value = random_value(static_cast<uint32_t>(random()));
    const uint64_t room = std::min({device.capabilities().max_allocation_bytes, kSlabMax, wanted});
    const uint64_t slab = std::max(room / block_bytes, uint64_t{1}) * block_bytes;
    for (uint64_t have = 0; have < wanted; have += slab) {
        slabs_.push_back(must(device.create_buffer(slab, gpu::MemoryKind::kDeviceLocal, "weights")));
        for (uint64_t at = 0; at < slab; at += block_bytes) {
            stop_on_error(device.uploader().upload(slabs_.back(), at, std::as_bytes(std::span(block_))));
        }
    }
    stop_on_error(device.uploader().finish());
}

uint16_t WeightPool::random_value(uint32_t bits) const {
    const uint32_t exponent = type_ == gpu::ScalarType::kF16 ? 10 + (bits >> 16) % 3 : 122 + (bits >> 16) % 3;
    const uint32_t mantissa_bits = type_ == gpu::ScalarType::kF16 ? 10 : 7;
    return static_cast<uint16_t>((bits & 0x8000u) | (exponent << mantissa_bits) | (bits & ((1u << mantissa_bits) - 1)));
}

uint64_t WeightPool::next(uint64_t bytes) {
    if (at_ + bytes > slabs_[slab_].size()) {
        slab_ = (slab_ + 1) % slabs_.size();
        at_ = 0;
    }
    CHECK(bytes <= slabs_[slab_].size());
    const uint64_t address = slabs_[slab_].address() + at_;
    at_ += round_up(bytes, 256);
    return address;
}

void WeightPool::copy_to(gpu::Device& device, const gpu::Buffer& to) const {
    const auto bytes = std::as_bytes(std::span(block_));
    for (uint64_t at = 0; at < to.size(); at += bytes.size()) {
        stop_on_error(device.uploader().upload(to, at, bytes.first(std::min<uint64_t>(bytes.size(), to.size() - at))));
    }
}

float WeightPool::value(uint64_t element) const { return gpu::decode16(block_[element % block_.size()], type_); }

void run_and_wait(gpu::Device& device, const gpu::CommandBuffer& recording) {
    const gpu::CommandBuffer* const list[] = {&recording};
    stop_on_error(device.compute_queue().wait(must(device.compute_queue().submit(list))));
}

double run_span_us(gpu::Device& device, const gpu::CommandBuffer& recording) {
    run_and_wait(device, recording);
    const auto times = must(gpu::read_dispatch_times(device, recording));
    CHECK(times.size() == 1);
    return times[0].us;
}

namespace {

// Rates of reading one slab after another, n_slabs in each sample, in GB/s; `record` records the kernel that reads
// `bytes` at an address.
std::vector<double> read_rates(gpu::Device& device, gpu::KernelSet& kernels, WeightPool& pool, uint64_t bytes,
                               uint32_t n_slabs, const std::function<void(gpu::Recorder&, uint64_t)>& record) {
    std::vector<double> gb_per_s;
    for (int i = 0; i < kCeilingSamples + 3; i++) {
        gpu::Recorder recorder = must(gpu::Recorder::begin(device, {.span_timestamps = true}));
        for (uint32_t j = 0; j < n_slabs; j++) record(recorder, pool.next(bytes));
        stop_on_error(kernels.status());
        const double us = run_span_us(device, must(std::move(recorder).end()));
        if (i >= 3) gb_per_s.push_back(static_cast<double>(bytes) * n_slabs / us * 1e-3);
    }
    return gb_per_s;
}

// All of a slab as one matrix times one row.
std::vector<double> product_rates(gpu::Device& device, gpu::KernelSet& kernels, WeightPool& pool, uint64_t& bytes) {
    constexpr uint32_t kWidth = 4096;
    const auto n = static_cast<uint32_t>(pool.slab_bytes() / (kWidth * 2) / gpu::kWeightAlign * gpu::kWeightAlign);
    bytes = uint64_t{n} * kWidth * 2;
    const gpu::MatmulPlan plan =
        *kernels.products.plan({.n = n, .k = kWidth, .type = gpu::ScalarType::kF16, .rows = 1});
    const gpu::Buffer x =
        must(device.create_buffer(uint64_t{gpu::kSlackRows + 1} * kWidth * 4, gpu::MemoryKind::kDeviceLocal, "row"));
    const gpu::Buffer y =
        must(device.create_buffer(uint64_t{gpu::kSlackRows + 1} * n * 4, gpu::MemoryKind::kDeviceLocal, "products"));
    const gpu::Buffer count = must(device.create_buffer(16, gpu::MemoryKind::kHostUpload, "row count"));
    pool.copy_to(device, x);
    stop_on_error(device.uploader().finish());
    const uint32_t one = 1;
    std::memcpy(count.mapped().data(), &one, 4);
    return read_rates(device, kernels, pool, bytes, 1, [&](gpu::Recorder& recorder, uint64_t from) {
        gpu::MatmulParams p{};
        p.n_rows = count.address();
        p.w = from;
        p.x = x.address();
        p.y = y.address();
        p.n = p.y_stride = n;
        p.k = p.w_stride = p.x_stride = kWidth;
        p.split_stride = round_up(plan.rows, plan.row_tile) * n;
        kernels.products.record(recorder, plan, {.product = p});
    });
}

}  // namespace

void wait_for_clock(gpu::Device& device, gpu::KernelSet& kernels, WeightPool& pool) {
    constexpr double kWindowS = 0.5, kLongestS = 20, kFaster = 1.005;
    constexpr int kWindowsAlike = 3;
    if (device.capabilities().is_cpu) return;
    const gpu::Buffer found = must(device.create_buffer(16, gpu::MemoryKind::kDeviceLocal, "found"));
    const auto slab = static_cast<uint32_t>(pool.slab_bytes() / 16);
    double best = 0, passed_s = 0;
    for (int alike = 0; alike < kWindowsAlike && passed_s < kLongestS;) {
        double us = 0, n_bytes = 0;
        for (; us < kWindowS * 1e6; n_bytes += 16.0 * slab) {
            gpu::Recorder recorder = must(gpu::Recorder::begin(device, {.span_timestamps = true}));
            kernels.rows.read_stream(recorder, {pool.next(uint64_t{slab} * 16), found.address(), slab, 0xffffffffu}, 8);
            stop_on_error(kernels.status());
            us += run_span_us(device, must(std::move(recorder).end()));
        }
        passed_s += us * 1e-6;
        const double rate = n_bytes / us;
        alike = rate > best * kFaster ? 0 : alike + 1;
        best = std::max(best, rate);
    }
}

double measure_ceiling(gpu::Device& device, gpu::KernelSet& kernels, WeightPool& pool, Results& results) {
    const gpu::Buffer found = must(device.create_buffer(16, gpu::MemoryKind::kDeviceLocal, "found"));
    const uint64_t slab = pool.slab_bytes() / 16 * 16;
    wait_for_clock(device, kernels, pool);
    std::vector<double> best;
    std::string best_name;
    uint64_t best_bytes = 0;
    const auto take = [&](const std::string& name, uint64_t bytes, std::vector<double> values) {
        if (!best.empty() && summarize(values).median <= summarize(best).median) return;
        best = std::move(values);
        best_name = name;
        best_bytes = bytes;
    };
    const auto reading = [&](uint32_t loads, uint32_t n_slabs) {
        return read_rates(device, kernels, pool, slab, n_slabs, [&](gpu::Recorder& recorder, uint64_t from) {
            kernels.rows.read_stream(recorder, {from, found.address(), static_cast<uint32_t>(slab / 16), 0xffffffffu},
                                     loads);
        });
    };
    for (const uint32_t loads : {4u, 8u, 16u})
        take(lorad::format("reading, {} loads in flight", loads), slab, reading(loads, 1));
    uint64_t bytes = 0;
    auto products = product_rates(device, kernels, pool, bytes);
    take("matrix times one row", bytes, std::move(products));
    Row row("ceiling");
    row.field("bytes", best_bytes).field("kernel", best_name).samples("GB/s", best);
    const Summary s = row.summary();
    // A step reads for longer than a slab takes.
    const auto n_slabs = static_cast<uint32_t>(kSustainedMs * 1e6 * s.median / static_cast<double>(slab)) + 1;
    const Summary sustained = summarize(reading(kSustainedLoads, n_slabs));
    row.field("sustained_gb_s", sustained.median);
    results.add(std::move(row),
                lorad::format(
                    "ceiling: {:.1f} GB/s ({:.1f}..{:.1f}), {} MiB, {}; reading for {:.0f} ms {:.1f} ({:.1f}..{:.1f})",
                    s.median, s.p10, s.p90, best_bytes / kMiB, best_name, kSustainedMs, sustained.median, sustained.p10,
                    sustained.p90));
    return s.median;
}

double pool_gib(const CommonOptions& common, const gpu::Device& device) {
    if (common.pool_gib > 0) return common.pool_gib;
    return device.capabilities().is_cpu ? 1.0 / 16 : 6.0;
}

void wait_for_clock(gpu::Device& device) {
    constexpr double kGib = 1.0;
    if (device.capabilities().is_cpu) return;
    const auto kernels = must(gpu::KernelSet::create(device, {.path = gpu::KernelPath::kPortable}));
    WeightPool pool(device, gpu::ScalarType::kF16, kGib);
    wait_for_clock(device, *kernels, pool);
}

double measure_ceiling(const CommonOptions& common, Results& results) {
    const auto device = open_device(common);
    const auto kernels = must(gpu::KernelSet::create(*device, {.path = gpu::KernelPath::kPortable}));
    WeightPool pool(*device, gpu::ScalarType::kF16, pool_gib(common, *device));
    return measure_ceiling(*device, *kernels, pool, results);
}

}  // namespace lorad::bench
