// lorad-bench attention: attention alone over a paged cache of random values, several layers' caches in turn so that no
// cache of the device is measured. Rows of one prompt at the end of a context, by each kind of tiles and number of
// splits; and rows of as many sequences (decodes), by splits and query heads of a workgroup. Each result is compared
// with the portable kernel's without splits.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
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
#include "model/exec/kv_cache.h"
#include "proto/base/format.h"

namespace lorad::bench {
namespace {

using gpu::Buffer;
using gpu::KvType;
using gpu::MemoryKind;
using gpu::ScalarType;
using gpu::TileAttention;

struct AttentionOptions {
    uint32_t n_heads = 28, n_kv_heads = 4, head_dim = 128, layers = 6, repeats = 12, tile_rows = 0;
    std::vector<uint32_t> rows = {64, 512, 2048}, context = {2048, 8192}, splits = {1, 2, 4, 8};
    std::vector<uint32_t> decodes = {1, 64}, decode_splits = {1, 16, 32, 64, 128}, heads = {0};
    std::vector<std::string> kinds = {"staged", "workgroup", "registers"};
    std::string kv = "f16";
};

TileAttention kind_of(const std::string& name) {
    return name == "staged"      ? TileAttention::kStaged
           : name == "registers" ? TileAttention::kRegisters
                                 : TileAttention::kWorkgroup;
}

class AttentionBench {
  public:
    static constexpr uint64_t kCacheBytesMax = uint64_t{4} << 30;  // of all layers of a case, but where two need more
    static constexpr uint64_t kFillBlocks = 1024;                  // of random values, again and again

    AttentionBench(gpu::Device& device, const AttentionOptions& options, Results& results)
        : device_(device), options_(options), results_(results) {
        kv_type_ = options.kv == "int8" ? KvType::kInt8 : KvType::kF16;
        portable_ = must(gpu::KernelSet::create(device, {.path = gpu::KernelPath::kPortable, .kv_type = kv_type_}));
        for (const uint32_t n : options.context) n_context_max_ = std::max(n_context_max_, n);
        uint32_t n_decodes_max = 1;
        for (const uint32_t n : options.decodes) n_decodes_max = std::max(n_decodes_max, n);
        n_rows_max_ = n_decodes_max;
        for (const uint32_t n : options.rows) n_rows_max_ = std::max(n_rows_max_, n);
        block_bytes_ =
            uint64_t{options.n_kv_heads} * gpu::kBlockTokens * gpu::kv_token_bytes(kv_type_, options.head_dim);
        // of a layer
        const uint64_t largest_bytes =
            uint64_t{n_decodes_max} * model::blocks_for_tokens(n_context_max_) * block_bytes_;
        cache_bytes_ = std::min(largest_bytes * options.layers,
                                std::max(kCacheBytesMax / block_bytes_ * block_bytes_, 2 * largest_bytes));
        const uint64_t q_bytes = uint64_t{n_rows_max_ + gpu::kSlackRows} * stride() * 4;
        kv_ = must(device.create_buffer(cache_bytes_, MemoryKind::kDeviceLocal, "kv"));
        q_ = must(device.create_buffer(q_bytes, MemoryKind::kDeviceLocal, "q"));
        y_ = must(device.create_buffer(q_bytes, MemoryKind::kDeviceLocal, "y"));
        y_host_ = must(device.create_buffer(q_bytes, MemoryKind::kHostReadback, "y"));
        fill();
    }

    void prompts() {
        wait_for_clock(device_);
        for (const uint32_t context : options_.context) {
            for (const uint32_t rows : options_.rows) {
                if (rows > context) continue;
                const std::vector<float> want = once(*portable_, step_of(*portable_, rows, context, true), 1, false);
                for (const std::string& name : options_.kinds) {
                    const TileAttention kind = kind_of(name);
                    const auto kernels = kernels_of(kind, 0);
                    if (kernels->attention.tile_attention(options_.head_dim) != kind) {
                        results_.say(lorad::format("{}: not there", name));
                        continue;
                    }
                    for (const uint32_t splits : options_.splits) {
                        if (splits > 1 && uint64_t{rows} * splits > 4096) continue;
                        measure(*kernels, name, step_of(*kernels, rows, context, true, splits), splits, true, want);
                    }
                }
            }
        }
    }

    void decodes() {
        wait_for_clock(device_);
        for (const uint32_t context : options_.context) {
            for (const uint32_t rows : options_.decodes) {
                const std::vector<float> want = once(*portable_, step_of(*portable_, rows, context, false), 1, false);
                for (const uint32_t heads : options_.heads) {
                    const auto kernels = kernels_of(TileAttention::kAuto, heads);
                    for (const uint32_t splits : options_.decode_splits) {
                        if (uint64_t{rows} * splits > 4096) continue;
                        measure(*kernels, lorad::format("rows, {} heads", heads),
                                step_of(*kernels, rows, context, false), splits, false, want);
                    }
                }
            }
        }
    }

  private:
    struct Step {
        Buffer state;  // header, rows, table, tiles
        uint64_t table = 0, tiles = 0;
        uint32_t rows = 0, context = 0, n_layers = 0;
        uint64_t layer_bytes = 0;
        double pairs = 0;  // of rows and tokens that they see
    };

    uint32_t stride() const { return gpu::padded(options_.n_heads * options_.head_dim); }

    gpu::KernelSet* kernels_of(TileAttention kind, uint32_t heads) {
        std::unique_ptr<gpu::KernelSet>& set = sets_[{kind, heads}];
        if (!set)
            set = must(gpu::KernelSet::create(device_, {.kv_type = kv_type_,
                                                        .tile_attention = kind,
                                                        .attention_tile_rows = options_.tile_rows,
                                                        .attention_heads = heads}));
        return set.get();
    }

    // Scores of a few units, so that some tokens count more than others.
    void fill() {
        std::mt19937 random(3);
        std::vector<uint16_t> some(std::min(cache_bytes_, kFillBlocks * block_bytes_) / 2);
        const bool bytes = kv_type_ == KvType::kInt8;
        const uint32_t plane = gpu::kBlockTokens * gpu::kv_value_bytes(kv_type_, options_.head_dim) / 2,
                       values = gpu::kBlockTokens * options_.head_dim / 2;
        for (size_t i = 0; i < some.size(); i++) {
            const auto bits = static_cast<uint32_t>(random());
            const auto half = static_cast<uint16_t>((bits & 0x8000u) | (12 + (bits >> 16) % 4) << 10 | (bits & 0x3ffu));
            some[i] = !bytes               ? half
                      : i % plane < values ? static_cast<uint16_t>(bits)
                                           : static_cast<uint16_t>(0x3c00u | (bits & 0x3ffu));
        }
        const auto part = std::as_bytes(std::span(some));
        for (uint64_t at = 0; at < cache_bytes_; at += part.size())
            stop_on_error(
                device_.uploader().upload(kv_, at, part.first(std::min<uint64_t>(part.size(), cache_bytes_ - at))));
        std::normal_distribution<float> normal;
        std::vector<float> q(q_.size() / 4);
        for (float& value : q) value = normal(random) * 2;
        stop_on_error(device_.uploader().upload(q_, 0, std::as_bytes(std::span(q))));
        stop_on_error(device_.uploader().finish());
    }

    // Rows of one sequence at neighbouring positions that end the context, or each at the end of a sequence of its own.
    Step step_of(const gpu::KernelSet& kernels, uint32_t rows, uint32_t context, bool prompt, uint32_t splits = 1) {
        Step step;
        step.rows = rows;
        step.context = context;
        const uint32_t n_row_blocks = model::blocks_for_tokens(context),
                       n_blocks = prompt ? n_row_blocks : rows * n_row_blocks;
        step.layer_bytes = n_blocks * block_bytes_;
        step.n_layers = static_cast<uint32_t>(std::min<uint64_t>(cache_bytes_ / step.layer_bytes, options_.layers));
        const uint32_t tile_rows = kernels.attention.attention_tile_rows(options_.head_dim, rows);
        std::vector<gpu::AttentionTile> tiles;
        for (uint32_t begin = 0; begin < rows; begin += tile_rows)
            tiles.insert(tiles.begin(), {begin, std::min(tile_rows, rows - begin)});
        const uint64_t table_at = sizeof(gpu::StepHeader) + uint64_t{rows} * sizeof(gpu::StepRow),
                       tiles_at = table_at + uint64_t{n_blocks} * 4;
        std::vector<std::byte> bytes(tiles_at + tiles.size() * sizeof(gpu::AttentionTile));
        gpu::StepHeader header{};
        header.n_rows = rows;
        header.tile_grid[0] = options_.n_heads;
        header.tile_grid[1] = static_cast<uint32_t>(tiles.size());
        header.tile_grid[2] = splits;
        std::memcpy(bytes.data(), &header, sizeof(header));
        std::vector<uint32_t> table(n_blocks);
        for (uint32_t i = 0; i < n_blocks; i++) table[i] = i;
        std::shuffle(table.begin(), table.end(), std::mt19937(4));
        for (uint32_t i = 0; i < rows; i++) {
            gpu::StepRow row{};
            row.position = prompt ? context - rows + i : context - 1;
            const uint32_t first_block = prompt ? 0 : i * n_row_blocks;
            row.set_blocks(first_block, &table[first_block], n_row_blocks);
            step.pairs += row.position + 1;
            std::memcpy(bytes.data() + sizeof(header) + i * sizeof(row), &row, sizeof(row));
        }
        std::memcpy(bytes.data() + table_at, table.data(), uint64_t{n_blocks} * 4);
        std::memcpy(bytes.data() + tiles_at, tiles.data(), tiles.size() * sizeof(gpu::AttentionTile));
        // As in the engine: on the device, where a kernel does not wait for the bus to read its row.
        step.state = must(device_.create_buffer(bytes.size(), MemoryKind::kDeviceLocal, "step"));
        stop_on_error(device_.uploader().upload(step.state, 0, bytes));
        stop_on_error(device_.uploader().finish());
        step.table = step.state.address() + table_at;
        step.tiles = step.state.address() + tiles_at;
        return step;
    }

    void record(gpu::Recorder& recorder, gpu::KernelSet& kernels, const Step& step, uint32_t layer, uint32_t splits,
                bool tiles) {
        const gpu::AttentionShape shape{step.rows, options_.n_heads, options_.n_kv_heads, options_.head_dim, splits};
        const uint64_t partial_bytes = gpu::AttentionPlanner::attention_partial_bytes(shape);
        if (partial_bytes > partials_bytes_) {
            partials_ = must(device_.create_buffer(partial_bytes, MemoryKind::kDeviceLocal, "partials"));
            partials_bytes_ = partial_bytes;
        }
        gpu::AttentionParams params{};
        params.step = step.state.address();
        params.block_tables = step.table;
        params.q = q_.address();
        params.kv = kv_.address() + layer * step.layer_bytes;
        params.y = y_.address();
        params.partials = partials_bytes_ > 0 ? partials_.address() : 0;
        params.tiles = step.tiles;
        params.q_stride = params.y_stride = stride();
        params.scale = 1.0f / std::sqrt(static_cast<float>(options_.head_dim));
        if (!tiles) {
            kernels.attention.attention(recorder, params, shape, act_);
        } else {
            kernels.attention.attention_tiles(recorder, params, shape, act_, step.state,
                                              offsetof(gpu::StepHeader, tile_grid));
            if (splits > 1) {
                recorder.barrier();
                kernels.attention.attention_combine(recorder, params, shape, act_);
            }
        }
        recorder.barrier();
        stop_on_error(kernels.status());
    }

    // What one dispatch over the first layer's cache writes, as f32.
    std::vector<float> once(gpu::KernelSet& kernels, const Step& step, uint32_t splits, bool tiles) {
        act_ = ScalarType::kF32;
        gpu::Recorder recorder = must(gpu::Recorder::begin(device_));
        recorder.fill(y_, 0, y_.size(), 0xffffffffu);
        recorder.barrier();
        record(recorder, kernels, step, 0, splits, tiles);
        recorder.copy(y_, 0, y_host_, 0, uint64_t{step.rows} * stride() * 4);
        recorder.barrier();
        run_and_wait(device_, must(std::move(recorder).end()));
        act_ = ScalarType::kF16;
        const auto* values = reinterpret_cast<const float*>(y_host_.mapped().data());
        return {values, values + size_t{step.rows} * stride()};
    }

    void measure(gpu::KernelSet& kernels, const std::string& name, const Step& step, uint32_t splits, bool tiles,
                 const std::vector<float>& want) {
        const std::vector<float> got = once(kernels, step, splits, tiles);
        double difference = 0, norm = 0;
        for (size_t i = 0; i < want.size(); i++) {
            difference += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
            norm += double{want[i]} * want[i];
        }
        const double error = std::sqrt(difference / norm);
        std::vector<double> us;
        gpu::Recorder recorder = must(gpu::Recorder::begin(device_, {.span_timestamps = true}));
        for (uint32_t l = 0; l < step.n_layers; l++) record(recorder, kernels, step, l, splits, tiles);
        const gpu::CommandBuffer chain = must(std::move(recorder).end());
        // What was compiled or compared before has left the device idle, and its clock low.
        constexpr double kWarmUs = 5e4;
        constexpr uint32_t kWarmRunsMax = 10000;
        double passed_us = 0;
        for (uint32_t i = 0; i < kWarmRunsMax && passed_us < kWarmUs; i++) passed_us += run_span_us(device_, chain);
        for (uint32_t i = 0; i < options_.repeats; i++) us.push_back(run_span_us(device_, chain) / step.n_layers);
        Row row("attention");
        row.field("kernel", name)
            .field("kv", options_.kv)
            .field("prompt", tiles)
            .field("rows", step.rows)
            .field("context", step.context);
        row.field("splits", splits).samples("us", us);
        const double median = row.summary().median,
                     tflop_s = 4e-6 * options_.head_dim * options_.n_heads * step.pairs / median;
        // a prompt's context counts once
        const double n_tokens = static_cast<double>(step.context) * (tiles ? 1 : step.rows);
        const double gb_s = static_cast<double>(block_bytes_) * n_tokens / gpu::kBlockTokens / median * 1e-3;
        row.field("tflop_s", tflop_s).field("gb_s", gb_s).field("error", error);
        results_.add(std::move(row), lorad::format("{:<13} rows {:4}  context {:6}  splits {:3}  {:9.2f} us "
                                                   "({:.2f}..{:.2f})  {:6.1f} TFLOP/s  {:7.1f} GB/s  error {:.1e}{}",
                                                   name, step.rows, step.context, splits, median, us.front(), us.back(),
                                                   tflop_s, gb_s, error, error < 2e-3 ? "" : "  WRONG"));
    }

    gpu::Device& device_;
    const AttentionOptions& options_;
    Results& results_;
    KvType kv_type_ = KvType::kF16;
    ScalarType act_ = ScalarType::kF16;
    std::unique_ptr<gpu::KernelSet> portable_;
    std::map<std::pair<TileAttention, uint32_t>, std::unique_ptr<gpu::KernelSet>> sets_;
    uint32_t n_context_max_ = 0, n_rows_max_ = 0;
    uint64_t block_bytes_ = 0, cache_bytes_ = 0, partials_bytes_ = 0;
    Buffer kv_, q_, y_, y_host_, partials_;
};

}  // namespace

void add_attention_command(CLI::App& app, CommonOptions& common) {
    auto options = std::make_shared<AttentionOptions>();
    CLI::App* command = app.add_subcommand("attention", "attention alone, by kind of kernel, splits, rows and context");
    command->add_option("--heads", options->n_heads, "query heads");
    command->add_option("--kv-heads", options->n_kv_heads);
    command->add_option("--head-dim", options->head_dim);
    command->add_option("--layers", options->layers, "caches that take turns, fewer where they are large")
        ->check(CLI::Range(1u, 64u));
    command->add_option("--repeats", options->repeats)->check(CLI::Range(1u, 1000u));
    command->add_option("--rows", options->rows, "of a prompt")->delimiter(',');
    command->add_option("--context", options->context, "tokens, the rows' own among them")
        ->delimiter(',')
        ->check(CLI::PositiveNumber);
    command->add_option("--splits", options->splits, "of a prompt's context")->delimiter(',');
    command->add_option("--decodes", options->decodes, "rows of as many sequences")->delimiter(',');
    command->add_option("--decode-splits", options->decode_splits)->delimiter(',');
    command->add_option("--decode-heads", options->heads, "query heads of a workgroup; 0: as the engine chooses")
        ->delimiter(',');
    command->add_option("--kinds", options->kinds)
        ->delimiter(',')
        ->check(CLI::IsMember({"staged", "workgroup", "registers"}));
    command->add_option("--tile-rows", options->tile_rows, "of kind registers; 0: as the engine chooses")
        ->check(CLI::IsMember({0, 64, 128}));
    command->add_option("--kv", options->kv)->check(CLI::IsMember({"f16", "int8"}));
    command->callback([options, &common] {
        const auto device = open_device(common);
        Results results(common.json, device->capabilities());
        AttentionBench bench(*device, *options, results);
        if (!options->rows.empty() && options->rows.front() > 0) bench.prompts();
        if (!options->decodes.empty() && options->decodes.front() > 0) bench.decodes();
    });
}

}  // namespace lorad::bench
