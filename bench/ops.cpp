// lorad-bench ops: single operations as dependent chains inside one recording, GPU time for each: what the result of
// one costs when the next one needs it. One row (LoRA) or [64][1024] (normalisations), f32 and f16, 200 in a chain.
//
// The first line is the smallest dispatch with a barrier: what any operation costs at least here. Weights are random;
// with
// --weight-sets 1 (the default, and how other implementations of these measurements do it) a chain uses the same ones
// throughout, so that they may lie in a cache; more sets take turns.
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/commands.h"
#include "bench/results.h"
#include "bench/weight_pool.h"
#include "gpu/kernels/kernels.h"
#include "gpu/queue.h"
#include "gpu/upload.h"
#include "proto/base/format.h"

namespace lorad::bench {
namespace {

using gpu::Buffer;
using gpu::ScalarType;

struct OpsOptions {
    std::vector<uint32_t> sizes = {512, 1024, 2048}, ranks = {4, 8, 16, 32, 64};
    uint32_t base_rank = 8, chain = 200, samples = 30, weight_sets = 1;
    std::vector<std::string> sharing = {"auto"};
    std::vector<uint32_t> threads = {0}, group_rows = {0}, slices = {0}, at_once = {0}, row_threads = {0};
};

uint16_t half_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint32_t sign = bits >> 16 & 0x8000;
    const int exponent = static_cast<int>(bits >> 23 & 255) - 127 + 15;
    if (exponent <= 0) return static_cast<uint16_t>(sign);  // so small a weight does not matter here
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(exponent) << 10 | (bits >> 13 & 1023));
}

class OpsBench {
  public:
    OpsBench(gpu::Device& device, gpu::KernelSet& kernels, const OpsOptions& options, Results& results)
        : device_(device), kernels_(kernels), options_(options), results_(results) {}

    // All chains are recorded before any is measured: a device that waits for the host meanwhile loses its clock.
    void run() {
        dispatch_alone();
        for (const ScalarType type : {ScalarType::kF32, ScalarType::kF16}) {
            for (const uint32_t n : options_.sizes) {
                if (options_.base_rank != 0) lora(type, n, options_.base_rank, true);
            }
        }
        for (const ScalarType type : {ScalarType::kF32, ScalarType::kF16}) {
            for (const uint32_t n : options_.sizes) {
                for (const uint32_t rank : options_.ranks) {
                    if (rank != 0) lora(type, n, rank, false);
                }
            }
        }
        for (const ScalarType type : {ScalarType::kF32, ScalarType::kF16}) {
            normalize(type, gpu::RowOperation::kSoftmax, "softmax");
            normalize(type, gpu::RowOperation::kLayerNorm, "layer_norm");
            normalize(type, gpu::RowOperation::kRmsNorm, "rms_norm");
        }
        wait_for_clock(device_);
        measure();
        for (Chain& chain : chains_) report(chain);
    }

  private:
    static constexpr uint32_t kRows = 64, kColumns = 1024;

    std::vector<float> random_values(size_t n, double deviation, double mean = 0) {
        std::normal_distribution<float> normal(static_cast<float>(mean), static_cast<float>(deviation));
        std::vector<float> values(n);
        for (float& value : values) value = normal(random_);
        return values;
    }

    Buffer upload(const std::vector<float>& values, ScalarType type, float factor = 1) {
        std::vector<std::byte> bytes(values.size() * gpu::bytes_of(type));
        for (size_t i = 0; i < values.size(); i++) {
            const float value = values[i] * factor;
            const uint16_t half = half_of(value);
            if (type == ScalarType::kF32)
                std::memcpy(&bytes[i * 4], &value, 4);
            else
                std::memcpy(&bytes[i * 2], &half, 2);
        }
        Buffer buffer = must(device_.create_buffer(bytes.size(), gpu::MemoryKind::kDeviceLocal, "operation"));
        stop_on_error(device_.uploader().upload(buffer, 0, bytes));
        stop_on_error(device_.uploader().finish());
        return buffer;
    }

    // What the links of a chain read and write: x[0], x[1], x[0], ...; x[0] is `start` before each run.
    struct Data {
        struct Set {
            Buffer w, a, b;
        };
        std::vector<Set> sets;
        Buffer x[2], start, low, gamma, beta;
        std::optional<gpu::CommandBuffer> restart;  // start -> x[0]
    };

    struct Chain {
        std::string name;
        Row row{"op"};
        double bytes = 0;  // of a link
        size_t n_elements = 0;
        ScalarType type = ScalarType::kF32;
        std::shared_ptr<const Data> data;
        std::optional<gpu::CommandBuffer> recording;
        std::vector<double> us;  // of a link, in each run
    };

    void make_rows(Data& data, size_t n_elements, ScalarType type) {
        for (Buffer& x : data.x) x = upload(random_values(n_elements, 1), type);
        data.start = must(device_.create_buffer(data.x[0].size(), gpu::MemoryKind::kDeviceLocal, "start"));
        run_and_wait(device_, copy(data.x[0], data.start));
        data.restart = copy(data.start, data.x[0]);
    }

    // `record` records link i.
    void add(Chain&& chain, const std::function<void(gpu::Recorder&, uint32_t)>& record) {
        gpu::Recorder recorder = must(gpu::Recorder::begin(device_, {.span_timestamps = true}));
        for (uint32_t i = 0; i < options_.chain; i++) {
            record(recorder, i);
            recorder.barrier();
        }
        stop_on_error(kernels_.status());
        chain.recording = must(std::move(recorder).end());
        chains_.push_back(std::move(chain));
    }

    // In turns, so that all chains meet the same clock.
    void measure() {
        constexpr uint32_t kWarm = 3;
        for (uint32_t i = 0; i < options_.samples + kWarm; i++) {
            for (Chain& chain : chains_) {
                run_and_wait(device_, *chain.data->restart);
                const double us = run_span_us(device_, *chain.recording) / options_.chain;
                if (i >= kWarm)
                    chain.us.push_back(us);
                else if (i == 0)
                    expect_alive(chain);
            }
        }
    }

    gpu::CommandBuffer copy(const Buffer& from, const Buffer& to) {
        gpu::Recorder recorder = must(gpu::Recorder::begin(device_));
        recorder.copy(from, 0, to, 0, to.size());
        return must(std::move(recorder).end());
    }

    void report(Chain& chain) {
        chain.row.field("chain", options_.chain).samples("us", chain.us);
        const Summary us = chain.row.summary();
        if (alone_us_ == 0) alone_us_ = us.median;
        chain.row.field("bytes", chain.bytes).field("dispatch_alone_us", alone_us_);
        results_.add(std::move(chain.row),
                     lorad::format("{:<44} {:8.2f} us ({:.2f}..{:.2f})  {:6.2f} above a dispatch alone  {:8.1f} GB/s",
                                   chain.name, us.median, us.p10, us.p90, us.median - alone_us_,
                                   chain.bytes / us.median * 1e-3));
    }

    void dispatch_alone() {
        const auto data = std::make_shared<Data>();
        make_rows(*data, 16, ScalarType::kF32);
        Chain chain{.name = "smallest dispatch and barrier", .bytes = 16, .n_elements = 16, .data = data};
        chain.row.field("op", "dispatch_alone");
        add(std::move(chain), [&](gpu::Recorder& recorder, uint32_t) {
            const uint64_t from = data->x[0].address();
            kernels_.rows.read_stream(recorder, {from, from + 32, 1, 0xffffffffu}, 4);
        });
    }

    // A chain's values must neither vanish nor overflow: such data could be faster.
    void expect_alive(const Chain& chain) {
        const Buffer& result = chain.data->x[options_.chain % 2];
        const uint64_t bytes = chain.n_elements * gpu::bytes_of(chain.type);
        const Buffer host = must(device_.create_buffer(bytes, gpu::MemoryKind::kHostReadback, "result"));
        run_and_wait(device_, copy(result, host));
        size_t n_good = 0;
        for (size_t i = 0; i < chain.n_elements; i++) {
            float value;
            if (chain.type == ScalarType::kF32) {
                std::memcpy(&value, host.mapped().data() + i * 4, 4);
            } else {
                uint16_t half;
                std::memcpy(&half, host.mapped().data() + i * 2, 2);
                value = (half & 0x7c00) == 0x7c00 ? INFINITY : gpu::decode16(half, ScalarType::kF16);
            }
            n_good += std::isfinite(value) && value != 0;
        }
        if (n_good * 10 < chain.n_elements * 9)
            stop_on_error(
                make_error(ErrorCode::kInternal, chain.name + ": the chain's result has infinite or zero values"));
    }

    struct Weights {
        std::vector<float> w, a, b;  // [n][n] or nothing, [rank][n], [n][rank8]
    };

    // How much one link makes a vector longer, on the average of some links.
    static double growth(const std::vector<Weights>& sets, std::vector<float> x, uint32_t rank, uint32_t rank8,
                         float scale) {
        constexpr int kWarm = 20, kCounted = 60;
        const size_t n = x.size();
        double log_growth = 0;
        std::vector<float> y(n), low(rank);
        for (int link = 0; link < kWarm + kCounted; link++) {
            const Weights& s = sets[static_cast<size_t>(link) % sets.size()];
            for (uint32_t r = 0; r < rank; r++) low[r] = std::inner_product(x.begin(), x.end(), &s.a[r * n], 0.0f);
            double squares = 0;
            for (size_t i = 0; i < n; i++) {
                y[i] = scale * std::inner_product(low.begin(), low.end(), &s.b[i * rank8], 0.0f);
                if (!s.w.empty()) y[i] = std::inner_product(x.begin(), x.end(), &s.w[i * n], y[i]);
                squares += double{y[i]} * y[i];
            }
            const double length = std::sqrt(squares / static_cast<double>(n));
            for (size_t i = 0; i < n; i++) x[i] = static_cast<float>(y[i] / length);
            if (link >= kWarm) log_growth += std::log(length) / kCounted;
        }
        return std::exp(log_growth);
    }

    void lora(ScalarType type, uint32_t n, uint32_t rank, bool with_base) {
        const uint32_t rank8 = round_up(rank, 8);
        const float scale = with_base ? 0.1f : 1.0f;
        std::vector<Weights> weights;
        for (uint32_t i = 0; i < options_.weight_sets; i++) {
            weights.push_back({random_values(with_base ? size_t{n} * n : 0, 1 / std::sqrt(n)),
                               random_values(size_t{rank} * n, 1 / std::sqrt(n)),
                               random_values(size_t{n} * rank8, 1 / std::sqrt(rank))});
        }
        // After 200 links x is about as long as before, neither zero nor infinite.
        const auto factor = static_cast<float>(1 / growth(weights, random_values(n, 1), rank, rank8, scale));
        const auto data = std::make_shared<Data>();
        for (const Weights& s : weights) {
            data->sets.push_back(
                {with_base ? upload(s.w, type, factor) : Buffer(), upload(s.a, type), upload(s.b, type, factor)});
        }
        make_rows(*data, n, type);
        data->low = must(device_.create_buffer(gpu::kLoraVectorScratchBytes, gpu::MemoryKind::kDeviceLocal, "low"));
        stop_on_error(device_.uploader().fill_zero(data->low, 0, gpu::kLoraVectorScratchBytes));
        stop_on_error(device_.uploader().finish());
        const double elements = static_cast<double>(rank) * 2 * n + (with_base ? static_cast<double>(n) * n : 0);
        for_lora_options([&](const gpu::LoraVectorOptions& how, const std::string& said, Row&& row) {
            const std::string name = lorad::format(
                "{} {} rank {} {}{}", with_base ? "base and LoRA in one" : "LoRA alone", n, rank, gpu_type(type), said);
            row.field("op", with_base ? "base_lora" : "lora")
                .field("n", n)
                .field("rank", rank)
                .field("type", gpu_type(type));
            row.field("weight_sets", options_.weight_sets);
            Chain chain{.name = name,
                        .row = std::move(row),
                        .bytes = elements * gpu::bytes_of(type),
                        .n_elements = n,
                        .type = type,
                        .data = data};
            add(std::move(chain), [&](gpu::Recorder& recorder, uint32_t i) {
                const Data::Set& set = data->sets[i % data->sets.size()];
                kernels_.lora.lora_vector(
                    recorder,
                    {data->x[i % 2].address(), with_base ? set.w.address() : 0, set.a.address(), set.b.address(),
                     data->x[(i + 1) % 2].address(), data->low.address(), n, n, rank, scale},
                    type, type, how);
            });
        });
    }

    using LoraMeasurement = std::function<void(const gpu::LoraVectorOptions& how, const std::string& said, Row&& row)>;

    // Every combination of what LoRA's options list.
    void for_lora_options(const LoraMeasurement& measure) {
        for (const std::string& sharing : options_.sharing) {
            for (const uint32_t threads : options_.threads) {
                for (const uint32_t group_rows : options_.group_rows) {
                    for (const uint32_t slices : options_.slices) {
                        for (const uint32_t at_once : options_.at_once) {
                            with_lora_options(sharing, {gpu::LowSharing::kAuto, threads, group_rows, slices, at_once},
                                              measure);
                        }
                    }
                }
            }
        }
    }

    // What is automatic is neither said nor a field.
    static void with_lora_options(const std::string& sharing, gpu::LoraVectorOptions how,
                                  const LoraMeasurement& measure) {
        std::string said;
        Row row("op");
        if (sharing != "auto") {
            how.sharing = sharing == "always" ? gpu::LowSharing::kAlways : gpu::LowSharing::kNever;
            said += " sharing " + sharing;
            row.field("sharing", sharing);
        }
        say(how.threads, "threads", said, row);
        say(how.group_rows, "group_rows", said, row);
        say(how.slices, "slices", said, row);
        say(how.at_once, "at_once", said, row);
        measure(how, said, std::move(row));
    }

    static void say(uint32_t value, const char* name, std::string& said, Row& row) {
        if (value == 0) return;
        said += lorad::format(" {} {}", name, value);
        row.field(name, value);
    }

    void normalize(ScalarType type, gpu::RowOperation operation, const std::string& name) {
        const auto data = std::make_shared<Data>();
        make_rows(*data, kRows * kColumns, type);
        // Near 1, because a chain takes its 200th power.
        data->gamma = upload(random_values(kColumns, 1e-3, 1), ScalarType::kF32);
        data->beta = upload(random_values(kColumns, 1e-3), ScalarType::kF32);
        const float value = operation == gpu::RowOperation::kSoftmax ? 1.0f : 1e-5f;
        for (const uint32_t threads : options_.row_threads) {
            Chain chain{.bytes = 2.0 * kRows * kColumns * gpu::bytes_of(type),
                        .n_elements = kRows * kColumns,
                        .type = type,
                        .data = data};
            chain.row.field("op", name).field("rows", kRows).field("n", kColumns).field("type", gpu_type(type));
            std::string said;
            say(threads, "row_threads", said, chain.row);
            chain.name = lorad::format("{} [{}][{}] {}{}", name, kRows, kColumns, gpu_type(type), said);
            add(std::move(chain), [&](gpu::Recorder& recorder, uint32_t i) {
                kernels_.rows.row_normalize(
                    recorder, operation,
                    {data->x[i % 2].address(), data->x[(i + 1) % 2].address(), data->gamma.address(),
                     data->beta.address(), kColumns, kColumns, kColumns, value},
                    type, kRows, threads);
            });
        }
    }

    static const char* gpu_type(ScalarType type) { return type == ScalarType::kF32 ? "f32" : "f16"; }

    gpu::Device& device_;
    gpu::KernelSet& kernels_;
    const OpsOptions& options_;
    Results& results_;
    std::mt19937 random_{5};
    std::vector<Chain> chains_;
    double alone_us_ = 0;
};

}  // namespace

void add_ops_command(CLI::App& app, CommonOptions& common) {
    auto options = std::make_shared<OpsOptions>();
    CLI::App* command = app.add_subcommand("ops", "single operations in dependent chains");
    command->add_option("--sizes", options->sizes)->delimiter(',')->check(CLI::Range(8u, 16384u));
    command->add_option("--ranks", options->ranks, "of LoRA alone; 0: none")
        ->delimiter(',')
        ->check(CLI::Range(0u, 512u));
    command->add_option("--base-rank", options->base_rank, "of LoRA with its base; 0: none")
        ->check(CLI::Range(0u, 512u));
    command->add_option("--chain", options->chain)->check(CLI::Range(1u, 100000u));
    command->add_option("--samples", options->samples)->check(CLI::Range(1u, 100000u));
    command->add_option("--weight-sets", options->weight_sets)->check(CLI::Range(1u, 64u));
    command
        ->add_option("--sharing", options->sharing,
                     "who computes A x: workgroups together, each by itself, or what is faster")
        ->delimiter(',')
        ->check(CLI::IsMember({"auto", "always", "never"}));
    // Lists, a line for each value; 0: what is best for the size.
    const auto power_of_two = CLI::Validator(
        [](const std::string& text) {
            uint32_t value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            const bool is_one =
                error == std::errc() && end == text.data() + text.size() && value <= 1024 && (value & (value - 1)) == 0;
            return is_one ? std::string() : text + " is not 0 or a power of two up to 1024";
        },
        "POWER_OF_TWO");
    command->add_option("--threads", options->threads, "of a workgroup of LoRA, with or without its base")
        ->delimiter(',')
        ->check(power_of_two);
    command->add_option("--group-rows", options->group_rows, "elements that such a workgroup computes")
        ->delimiter(',')
        ->check(power_of_two);
    command->add_option("--slices", options->slices, "of k, joined through shared memory")
        ->delimiter(',')
        ->check(power_of_two);
    command->add_option("--at-once", options->at_once, "chunks of rows that a subgroup asks for before it uses them")
        ->delimiter(',')
        ->check(power_of_two);
    command->add_option("--row-threads", options->row_threads, "of a row of softmax and the norms")
        ->delimiter(',')
        ->check(power_of_two);
    command->callback([options, &common] {
        const auto device = open_device(common);
        Results results(common.json, device->capabilities());
        const auto kernels = must(gpu::KernelSet::create(*device, {.path = gpu::KernelPath::kPortable}));
        OpsBench(*device, *kernels, *options, results).run();
    });
}

}  // namespace lorad::bench
