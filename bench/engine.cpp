// lorad-bench engine: decode, prefill and mixed speed of the engine's own step (Executor::submit and finish), without
// HTTP: what a batch of that size costs, wall clock, host work included.
//
// Sequences are filled with random tokens by real prefill steps, once for each context. --in-flight 2 is how the engine
// runs requests: two steps in flight, the sampled token going straight into the next step on the device; 1 waits for
// each. With a temperature the device draws.
// The floor of a decode step is what it must read (weights, keys and values, adapters) at the bandwidth that reading
// alone reaches on the same device right before. Of a software device, which computes on the processors, their time is
// told as well: others on the machine change it less than the clock's.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/adapter_folders.h"
#include "bench/adapter_mix.h"
#include "bench/commands.h"
#include "bench/results.h"
#include "bench/weight_pool.h"
#include "model/exec/executor.h"
#include "model/exec/kv_cache.h"
#include "model/exec/runner.h"
#include "model/exec/state_cache.h"
#include "model/output/sampler.h"
#include "proto/base/format.h"
#include "proto/base/rounding.h"
#include "server/loaded_model.h"

namespace lorad::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Milliseconds of processors that this process has taken.
double processor_ms() { return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Options {
    std::string model, label;
    std::vector<uint32_t> batch = {1, 8, 32, 64};
    std::vector<uint32_t> context = {160};
    std::vector<uint32_t> prefill;
    std::vector<uint32_t> chunk = {0};
    std::vector<uint32_t> in_flight = {1};
    std::vector<uint32_t> adapters = {0};
    std::vector<std::string> mix = {"distinct"};
    std::vector<std::string> adapter_folders;
    uint32_t steps = 64;
    uint32_t prefill_runs = 20;
    uint32_t rows_max = 2048;
    uint32_t one_dispatch_context_max = model::kOneDispatchContextMax;
    bool vector_lora = false;
    uint32_t expand_rows = 8;
    std::string dtype = "auto";
    std::string kv_cache_dtype = "auto";
    std::string quantized_weights = "keep";
    std::string persistent_decode = "auto";
    proto::SamplingParams sampling{.temperature = 0.0f};
};

struct Sequence {
    std::vector<BlockId> blocks;
    TokenId next = 0;
    uint32_t state_slot = 0;
};

// One cell of the grid.
struct Case {
    uint32_t batch = 1, context = 0, chunk = 0, adapters = 0, in_flight = 1;
    std::string mix = "none";
};

class EngineBench {
  public:
    EngineBench(model::Executor& executor, const Options& options, std::vector<uint32_t> slots,
                std::vector<uint64_t> adapter_bytes, double ceiling, bool is_software, Results& results)
        : executor_(executor),
          options_(options),
          slots_(std::move(slots)),
          adapter_bytes_(std::move(adapter_bytes)),
          ceiling_(ceiling),
          is_software_(is_software),
          results_(results),
          pool_(executor.n_kv_blocks()) {}

    void run() {
        for (const uint32_t n_tokens : options_.prefill) {
            if (n_tokens == 0) continue;
            for (const uint32_t n_adapters : options_.adapters) prefill_case(n_tokens, n_adapters);
        }
        for (const uint32_t context : options_.context) {
            for (const uint32_t batch : options_.batch) {
                if (!make_sequences(batch, context)) continue;
                for (const Case& c : cases(batch, context)) decode_case(c);
            }
            for (const Sequence& sequence : sequences_) pool_.release(sequence.blocks);
            sequences_.clear();
        }
    }

  private:
    uint32_t room() const { return n_steps() + 2; }
    uint32_t n_steps() const { return n_warm() + options_.steps; }
    uint32_t n_warm() const { return std::max(8u, options_.steps / 4); }

    std::vector<Case> cases(uint32_t batch, uint32_t context) const {
        std::vector<Case> all;
        for (const uint32_t chunk : options_.chunk) {
            for (const uint32_t in_flight : options_.in_flight) {
                for (const uint32_t n : options_.adapters) {
                    for (const std::string& mix : options_.mix) {
                        all.push_back({batch, context, chunk, n, in_flight, n == 0 ? "none" : mix});
                        if (n == 0) break;
                    }
                }
            }
        }
        return all;
    }

    std::vector<TokenId> random_tokens(uint32_t n) {
        std::uniform_int_distribution<TokenId> token(3, static_cast<TokenId>(executor_.config().vocab_size) - 1);
        std::vector<TokenId> tokens(n);
        for (TokenId& id : tokens) id = token(rng_);
        return tokens;
    }

    // What a sequence's rows run with, valid until the next call.
    model::RowAdapters rows_with(uint32_t slot, uint32_t state_slot) {
        uses_ = model::uses_of(slot);
        return {.uses = uses_, .state_slot = state_slot};
    }

    // Runs a prompt in as few steps as possible, two of them under way as in the server; returns the token that
    // follows.
    TokenId prefill(std::span<const TokenId> tokens, const Sequence& sequence, uint32_t slot) {
        const auto n = static_cast<uint32_t>(tokens.size());
        for (uint32_t begin = 0; begin < n; begin += executor_.options().n_rows_max) {
            const uint32_t count = std::min(executor_.options().n_rows_max, n - begin);
            batch_.clear();
            const uint32_t row = batch_.add_rows(tokens.subspan(begin, count), begin, sequence.blocks,
                                                 rows_with(slot, sequence.state_slot));
            if (begin + count == n) batch_.add_output(row + count - 1, false);
            must(executor_.submit(batch_));
            if (executor_.n_in_flight() == 2) must(executor_.finish());
        }
        return must(executor_.finish()).sampled[0];
    }

    bool make_sequences(uint32_t n, uint32_t context) {
        while (sequences_.size() < n) {
            Sequence sequence{.state_slot = static_cast<uint32_t>(sequences_.size())};
            const uint32_t n_blocks = model::blocks_for_tokens(context + room());
            if (!pool_.allocate(n_blocks, sequence.blocks)) {
                Row row("decode");
                row.field("model", options_.label).field("batch", n).field("context", context);
                row.field("skipped", lorad::format("{} blocks of keys and values for each sequence, {} in all",
                                                   n_blocks, pool_.n_blocks()));
                results_.add(
                    std::move(row),
                    lorad::format("decode {:4} context {:6}  skipped: its keys and values do not fit", n, context));
                return false;
            }
            sequence.next = prefill(random_tokens(context), sequence, kNoAdapterSlot);
            sequences_.push_back(std::move(sequence));
        }
        return true;
    }

    void prefill_case(uint32_t n_tokens, uint32_t n_adapters) {
        Sequence sequence;
        CHECK(pool_.allocate(model::blocks_for_tokens(n_tokens), sequence.blocks));
        std::vector<double> milliseconds;
        double processors_begin = 0;
        for (uint32_t i = 0; i < options_.prefill_runs + 3; ++i) {
            if (i == 3) processors_begin = processor_ms();
            const auto tokens = random_tokens(n_tokens);
            const auto start = Clock::now();
            prefill(tokens, sequence, n_adapters == 0 ? kNoAdapterSlot : slots_[i % n_adapters]);
            if (i >= 3) milliseconds.push_back(ms_since(start));
        }
        const double processors = (processor_ms() - processors_begin) / options_.prefill_runs;
        pool_.release(sequence.blocks);
        Row row("prefill");
        row.field("model", options_.label)
            .field("tokens", n_tokens)
            .field("adapters", n_adapters)
            .field("rows_max", executor_.options().n_rows_max)
            .field("processor_ms", processors)
            .samples("ms", milliseconds);
        const Summary ms = row.summary();
        const double flops = 2.0 * static_cast<double>(layer_elements()) * n_tokens;
        row.field("tokens_per_s", 1e3 * n_tokens / ms.median).field("tflop_s", flops / ms.median * 1e-9);
        results_.add(std::move(row),
                     lorad::format("prefill {:5} tokens, adapters {:2}  {:9.3f} ms ({:.3f}..{:.3f})  "
                                   "{:10.1f} tok/s  {:6.1f} TFLOP/s of products{}",
                                   n_tokens, n_adapters, ms.median, ms.p10, ms.p90, 1e3 * n_tokens / ms.median,
                                   flops / ms.median * 1e-9, of_processors(processors)));
    }

    void decode_case(const Case& c) {
        row_slots_.assign(c.batch, kNoAdapterSlot);
        std::set<uint32_t> distinct;
        if (c.adapters > 0) {
            const auto drawn = row_adapters(must(mix_named(c.mix)), c.batch, c.adapters, 11);
            distinct.insert(drawn.begin(), drawn.end());
            for (uint32_t i = 0; i < c.batch; ++i) row_slots_[i] = slots_[drawn[i]];
            std::ranges::sort(row_slots_);
        }
        chunk_blocks_.clear();
        if (c.chunk > 0) CHECK(pool_.allocate(model::blocks_for_tokens(c.chunk), chunk_blocks_));
        const auto times = c.in_flight == 2 ? fed_back_steps(c) : plain_steps(c);
        const double processors = (processors_end_ - processors_begin_) / options_.steps;
        pool_.release(chunk_blocks_);

        uint64_t bytes = weight_bytes(c.batch) + kv_bytes(c) + state_bytes(c);
        for (const uint32_t adapter : distinct) bytes += adapter_bytes_[adapter];
        const double floor_ms = static_cast<double>(bytes) / ceiling_ * 1e-6;
        const std::string name = std::string(c.chunk == 0 ? "decode" : "mixed") +
                                 (options_.sampling.greedy() ? "" : "-drawn") +
                                 (executor_.options().kv_type == gpu::KvType::kInt8 ? "-int8kv" : "");
        Row row(name);
        row.field("model", options_.label).field("batch", c.batch).field("context", c.context).field("chunk", c.chunk);
        if (!options_.sampling.greedy()) {
            row.field("temperature", options_.sampling.temperature)
                .field("top_p", options_.sampling.top_p)
                .field("top_k", options_.sampling.top_k);
        }
        row.field("adapters", c.adapters)
            .field("mix", c.mix)
            .field("distinct", distinct.size())
            .field("in_flight", c.in_flight);
        row.samples("ms", times);
        const Summary ms = row.summary();
        const double tokens_per_s = 1e3 * c.batch / ms.median;
        row.field("tokens_per_s", tokens_per_s).field("bytes", bytes).field("processor_ms", processors);
        if (ceiling_ > 0)
            row.field("floor_ms", floor_ms).field("of_floor", floor_ms / ms.median).field("ceiling_gb_s", ceiling_);
        std::string line = lorad::format("{:<6} {:4} context {:6} in flight {}", name, c.batch, c.context, c.in_flight);
        if (c.chunk > 0) line += lorad::format(" beside {} prompt rows", c.chunk);
        if (c.adapters > 0)
            line += lorad::format(" {} adapters {} ({} in the step)", c.adapters, c.mix, distinct.size());
        line += lorad::format("  {:9.3f} ms ({:.3f}..{:.3f})  {:10.1f} tok/s", ms.median, ms.p10, ms.p90, tokens_per_s);
        if (ceiling_ > 0 && c.chunk == 0)
            line += lorad::format("  {:.2f} of the floor's rate ({:.3f} ms)", floor_ms / ms.median, floor_ms);
        results_.add(std::move(row), line + of_processors(processors));
    }

    // What a line adds about a software device.
    std::string of_processors(double ms) const {
        return is_software_ ? lorad::format(", {:.1f} ms of processors", ms) : std::string();
    }

    void add_output(uint32_t row, uint32_t position) {
        if (options_.sampling.greedy())
            batch_.add_output(row, false);
        else
            batch_.add_output(row, model::choice_rule(options_.sampling, position + 1));
    }

    // The prompt rows that a mixed step has beside its decodes: always the first ones of a prompt, which has the last
    // decode's adapter.
    void add_chunk(const Case& c) {
        if (c.chunk > 0)
            batch_.add_rows(random_tokens(c.chunk), 0, chunk_blocks_, rows_with(row_slots_.back(), c.batch));
    }

    std::vector<double> plain_steps(const Case& c) {
        std::vector<double> milliseconds;
        std::vector<TokenId> tokens;
        for (uint32_t i = 0; i < c.batch; ++i) tokens.push_back(sequences_[i].next);
        for (uint32_t step = 0; step < n_steps(); ++step) {
            if (step == n_warm()) processors_begin_ = processor_ms();
            const auto start = Clock::now();
            batch_.clear();
            for (uint32_t i = 0; i < c.batch; ++i) {
                add_output(batch_.add_rows(std::span(&tokens[i], 1), c.context + step, sequences_[i].blocks,
                                           rows_with(row_slots_[i], sequences_[i].state_slot)),
                           c.context + step);
            }
            add_chunk(c);
            must(executor_.submit(batch_));
            const auto output = must(executor_.finish());
            std::copy_n(output.sampled.begin(), c.batch, tokens.begin());
            if (step >= n_warm()) milliseconds.push_back(ms_since(start));
        }
        processors_end_ = processor_ms();
        return milliseconds;
    }

    std::vector<double> fed_back_steps(const Case& c) {
        std::vector<double> milliseconds;
        auto last = Clock::now();
        for (uint32_t step = 0; step < n_steps(); ++step) {
            if (step == n_warm()) processors_begin_ = processor_ms();
            batch_.clear();
            for (uint32_t i = 0; i < c.batch; ++i) {
                const Sequence& sequence = sequences_[i];
                const model::RowAdapters rows = rows_with(row_slots_[i], sequence.state_slot);
                const uint32_t row =
                    step == 0 ? batch_.add_rows(std::span(&sequence.next, 1), c.context, sequence.blocks, rows)
                              : batch_.add_fed_back_row(i, c.context + step, sequence.blocks, rows);
                add_output(row, c.context + step);
            }
            add_chunk(c);
            must(executor_.submit(batch_));
            if (executor_.n_in_flight() == 2) must(executor_.finish());
            if (step >= n_warm()) milliseconds.push_back(ms_since(last));
            last = Clock::now();
        }
        processors_end_ = processor_ms();
        while (executor_.n_in_flight() > 0) must(executor_.finish());
        return milliseconds;
    }

    static double ms_since(Clock::time_point start) {
        return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    }

    // What a prompt's row is multiplied by; of experts those that it has.
    uint64_t layer_elements() const {
        const model::ModelConfig& config = executor_.config();
        uint64_t elements = 0;
        for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
            for (uint32_t m = 0; m < model::kModuleKinds; ++m) {
                const auto module = static_cast<model::LinearModule>(m);
                const auto shape = config.shape(layer, module);
                const bool is_expert =
                    module == model::LinearModule::kExpertGateUp || module == model::LinearModule::kExpertDown;
                elements += uint64_t{shape.n} * shape.k * (is_expert ? config.layer(layer).ffn.experts.top_k : 1);
            }
        }
        return elements;
    }
    static uint64_t bytes_of(const model::Matrix& matrix) {
        return matrix.is_packed() ? matrix.device_bytes() : uint64_t{matrix.n} * matrix.k * gpu::bytes_of(matrix.type);
    }
    // Of a step of so many rows; of experts as many as the rows have together where routing is even.
    uint64_t weight_bytes(uint32_t rows) const {
        uint64_t bytes = bytes_of(executor_.weights().output()) + bytes_of(executor_.weights().ple_model);
        for (uint32_t index = 0; index < executor_.config().n_layers; ++index) {
            const model::LayerWeights& layer = executor_.weights().layers[index];
            for (const model::Matrix* matrix : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down, &layer.router,
                                                &layer.shared_gate, &layer.ple_gate, &layer.ple_projection})
                bytes += bytes_of(*matrix);
            const model::ExpertFacts experts = executor_.config().layer(index).ffn.experts;
            if (experts.n == 0) continue;
            const double share = 1 - std::pow(1 - static_cast<double>(experts.top_k) / experts.n, rows);
            bytes += static_cast<uint64_t>(
                share * static_cast<double>(bytes_of(layer.expert_gate_up) + bytes_of(layer.expert_down)));
        }
        return bytes;
    }
    // Recurrent states, which a step reads and writes.
    uint64_t state_bytes(const Case& c) const {
        return 2 * uint64_t{c.batch} * model::state_slot_bytes(executor_.config());
    }
    uint64_t kv_bytes(const Case& c) const {
        return uint64_t{c.batch} * (c.context + n_warm() + options_.steps / 2) *
               model::kv_block_bytes(executor_.config(), executor_.memory_plan().kv) / model::kBlockTokens;
    }

    model::Executor& executor_;
    const Options& options_;
    std::vector<uint32_t> slots_;
    std::vector<uint64_t> adapter_bytes_;
    double ceiling_;
    bool is_software_;
    double processors_begin_ = 0, processors_end_ = 0;  // of the timed steps, with as many in flight
    Results& results_;
    model::BlockPool pool_;
    model::StepBatch batch_;
    std::vector<Sequence> sequences_;
    std::vector<uint32_t> row_slots_;
    std::vector<LoraUse> uses_;
    std::vector<BlockId> chunk_blocks_;
    std::mt19937 rng_{1};
};

uint32_t largest(const std::vector<uint32_t>& values) { return values.empty() ? 0 : *std::ranges::max_element(values); }

void run_engine(const CommonOptions& common, Options options) {
    if (options.label.empty()) options.label = std::filesystem::path(options.model).filename().string();
    const uint32_t n_adapters = largest(options.adapters);
    const auto folders = adapter_folders(options.adapter_folders, n_adapters);
    server::LoadArguments arguments;
    arguments.device = device_arguments(common);
    arguments.folder = options.model;
    arguments.base_name = "base";
    arguments.kernel_path = common.kernel_path;
    arguments.n_adapters_max = std::max(n_adapters, 1u);
    const uint32_t context = std::max({largest(options.context), largest(options.prefill), largest(options.chunk)});
    arguments.executor.n_positions_max = round_up(context + 2 * options.steps + 16, 64u);
    arguments.executor.n_rows_max = std::max(options.rows_max, largest(options.chunk) + largest(options.batch));
    arguments.dtype = options.dtype;
    arguments.kv_cache_dtype = options.kv_cache_dtype;
    arguments.quantized_weights = options.quantized_weights;
    arguments.executor.lora_on_matrices = !options.vector_lora;
    arguments.executor.expand_rows = options.expand_rows;
    arguments.persistent_decode = options.persistent_decode;
    arguments.executor.one_dispatch_context_max = options.one_dispatch_context_max;
    arguments.executor.n_sequences_max = std::max(64u, largest(options.batch) + (largest(options.chunk) > 0 ? 1 : 0));

    std::unique_ptr<Results> results;
    {
        const auto device = open_device(common);
        results = std::make_unique<Results>(common.json, device->capabilities());
    }
    const double ceiling = measure_ceiling(common, *results);
    const auto start = Clock::now();
    auto loaded = must(server::LoadedModel::load(arguments));
    Results::say(lorad::format("{} on {}, ready in {:.2f} s", options.label, loaded.device->capabilities().name,
                               std::chrono::duration<double>(Clock::now() - start).count()));
    const LoadedAdapters loaded_adapters = load_adapters(loaded, folders);
    wait_for_clock(*loaded.device);
    EngineBench(*loaded.executor, options, loaded_adapters.slots, loaded_adapters.bytes, ceiling,
                loaded.device->capabilities().is_cpu, *results)
        .run();
}

}  // namespace

void add_engine_command(CLI::App& app, CommonOptions& common) {
    auto options = std::make_shared<Options>();
    CLI::App* command = app.add_subcommand("engine", "decode, prefill and mixed steps of a model, without HTTP");
    command->add_option("--model", options->model, "model folder")->required();
    command->add_option("--label", options->label, "the model's name in results; default: the folder's");
    command->add_option("--batch", options->batch, "numbers of sequences in a decode step; 0: none")->delimiter(',');
    command->add_option("--context", options->context, "tokens in each sequence before the first step")->delimiter(',');
    command->add_option("--prefill", options->prefill, "prompt lengths; 0: none")->delimiter(',');
    command->add_option("--chunk", options->chunk, "prompt rows beside the decodes")->delimiter(',');
    command->add_option("--in-flight", options->in_flight, "steps in flight")
        ->delimiter(',')
        ->check(CLI::Range(1u, 2u));
    command->add_option("--adapter", options->adapter_folders,
                        "adapter folders, or a pattern DIR{} for DIR1, DIR2, ...");
    command->add_option("--adapters", options->adapters, "numbers of adapters; 0: the base alone")->delimiter(',');
    command->add_option("--mix", options->mix, "which rows have which")
        ->delimiter(',')
        ->check(CLI::IsMember({"identical", "distinct", "uniform", "zipf"}));
    command->add_option("--steps", options->steps, "timed steps, after a quarter as many untimed ones")
        ->check(CLI::Range(1u, 100000u));
    command->add_option("--rows-max", options->rows_max, "of a step: what --max-num-batched-tokens is to the server")
        ->check(CLI::Range(64u, 65536u));
    command->add_option("--prefill-runs", options->prefill_runs, "timed prompts")->check(CLI::Range(1u, 1000u));
    command->add_option("--temperature", options->sampling.temperature, "of drawn tokens; 0: the most probable one");
    command->add_option("--top-p", options->sampling.top_p, "of drawn tokens");
    command->add_option("--top-k", options->sampling.top_k, "of drawn tokens");
    command->add_option("--dtype", options->dtype, "auto, float16, bfloat16 or float32");
    command->add_option("--quantized-weights", options->quantized_weights, "keep or decode");
    command->add_option("--kv-cache-dtype", options->kv_cache_dtype, "auto, float16 or int8");
    command
        ->add_option("--persistent-decode", options->persistent_decode,
                     "the layers of a one-row step in one dispatch, or in one each of a few rows and behind a longer "
                     "context than --one-dispatch-context")
        ->check(CLI::IsMember({"auto", "on", "off"}));
    command->add_option("--one-dispatch-context", options->one_dispatch_context_max,
                        "tokens up to which one dispatch has attention, too");
    command->add_flag("--vector-lora", options->vector_lora, "LoRA without cooperative matrices, to compare");
    command
        ->add_option("--expand-rows", options->expand_rows,
                     "rows of gated_act in a workgroup where rows are many, to compare")
        ->check(CLI::IsMember({1u, 2u, 4u, 8u, 16u}));
    command->callback([options, &common] {
        std::erase(options->batch, 0u);
        run_engine(common, *options);
    });
}

}  // namespace lorad::bench
