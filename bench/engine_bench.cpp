// Decode and prefill speed of the engine's own step (Executor::submit and finish), without HTTP: what a batch of that size
// costs, wall clock, host work included. Prints one line per case, JSON lines with --json.
//
//   engine_bench --model DIR [--decode 1,8,32,64] [--prefill 512,2048] [--context 200] [--steps 64]
//                [--adapter DIR ...] [--kernel-path auto|portable|coopmat|coopmat2] [--vector-shrink] [--expand-rows 8]
//                [--device D] [--fed-back] [--json]
//                [--temperature 0.8] [--top-p 0.95] [--top-k 50]
//
// Sequences are filled with random tokens by real prefill steps; rows take turns in the adapters. --fed-back keeps two
// steps in flight, the sampled token going straight into the next step on the device. With a temperature the device draws.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/bench_util.h"
#include "model/executor.h"
#include "model/kv_cache.h"
#include "model/sampler.h"
#include "proto/base/format.h"
#include "server/loaded_model.h"

namespace lorad::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
    std::string model;
    std::vector<uint32_t> decode = {1, 8, 32, 64};
    std::vector<uint32_t> prefill = {512, 2048};
    std::vector<std::string> adapters;
    uint32_t context = 200;
    uint32_t steps = 64;
    std::string kernel_path = "auto";
    bool vector_shrink = false;
    uint32_t expand_rows = 8;
    uint32_t positions_max = 4096;
    std::string device;
    bool fed_back = false;
    proto::SamplingParams sampling{.temperature = 0.0f};
    bool json = false;
};

struct Sequence {
    std::vector<BlockId> blocks;
    std::vector<TokenId> tokens;
    uint32_t adapter_slot = kNoAdapterSlot;
};

class EngineBench {
  public:
    EngineBench(model::Executor& executor, const Options& options, std::vector<uint32_t> slots)
        : executor_(executor), options_(options), slots_(std::move(slots)), pool_(executor.n_kv_blocks()) {}

    void run() {
        for (uint32_t n_tokens : options_.prefill) prefill_case(n_tokens);
        for (uint32_t n_sequences : options_.decode) decode_case(n_sequences);
    }

  private:
    Sequence make_sequence(uint32_t n_tokens, uint32_t n_room, uint32_t index) {
        Sequence sequence;
        CHECK(pool_.allocate(model::blocks_for_tokens(n_tokens + n_room), sequence.blocks));
        std::uniform_int_distribution<TokenId> token(3, static_cast<TokenId>(executor_.config().vocab_size) - 1);
        for (uint32_t i = 0; i < n_tokens; ++i) sequence.tokens.push_back(token(rng_));
        if (!slots_.empty()) sequence.adapter_slot = slots_[index % slots_.size()];
        return sequence;
    }

    // Runs all tokens of a sequence in as few steps as possible; returns the token that follows.
    TokenId prefill(const Sequence& sequence) {
        const auto n = static_cast<uint32_t>(sequence.tokens.size());
        TokenId next = 0;
        for (uint32_t begin = 0; begin < n; begin += executor_.options().n_rows_max) {
            const uint32_t count = std::min(executor_.options().n_rows_max, n - begin);
            batch_.clear();
            const uint32_t row = batch_.add_rows(std::span(sequence.tokens).subspan(begin, count), begin, sequence.blocks,
                                                 sequence.adapter_slot);
            if (begin + count == n) batch_.add_output(row + count - 1, false);
            must(executor_.submit(batch_));
            const auto output = must(executor_.finish());
            if (begin + count == n) next = output.sampled[0];
        }
        return next;
    }

    void prefill_case(uint32_t n_tokens) {
        std::vector<double> milliseconds;
        for (uint32_t i = 0; i < 7; ++i) {
            const Sequence sequence = make_sequence(n_tokens, 0, i);
            const auto start = Clock::now();
            prefill(sequence);
            if (i >= 2) milliseconds.push_back(ms_since(start));
            pool_.release(sequence.blocks);
        }
        report("prefill", n_tokens, n_tokens, summarize(milliseconds));
    }

    void add_output(uint32_t row, uint32_t position) {
        if (options_.sampling.greedy()) batch_.add_output(row, false);
        else batch_.add_output(row, model::choice_rule(options_.sampling, position + 1));
    }

    void decode_case(uint32_t n_sequences) {
        std::vector<Sequence> sequences;
        for (uint32_t i = 0; i < n_sequences; ++i) {
            sequences.push_back(make_sequence(options_.context, 2 * options_.steps + 2, i));
            sequences.back().tokens.push_back(prefill(sequences.back()));
        }
        std::stable_sort(sequences.begin(), sequences.end(),
                         [](const Sequence& a, const Sequence& b) { return a.adapter_slot < b.adapter_slot; });
        const auto times = options_.fed_back ? fed_back_steps(sequences) : plain_steps(sequences);
        report(options_.fed_back ? "decode-fed-back" : "decode", n_sequences, n_sequences, summarize(times));
        for (const Sequence& sequence : sequences) pool_.release(sequence.blocks);
    }

    std::vector<double> plain_steps(std::vector<Sequence>& sequences) {
        std::vector<double> milliseconds;
        for (uint32_t step = 0; step < 2 * options_.steps; ++step) {
            const auto start = Clock::now();
            batch_.clear();
            for (const Sequence& sequence : sequences) {
                const auto position = static_cast<uint32_t>(sequence.tokens.size()) - 1;
                add_output(batch_.add_rows(std::span(sequence.tokens).last(1), position, sequence.blocks, sequence.adapter_slot),
                           position);
            }
            must(executor_.submit(batch_));
            const auto output = must(executor_.finish());
            for (size_t i = 0; i < sequences.size(); ++i) sequences[i].tokens.push_back(output.sampled[i]);
            if (step >= options_.steps) milliseconds.push_back(ms_since(start));
        }
        return milliseconds;
    }

    std::vector<double> fed_back_steps(std::vector<Sequence>& sequences) {
        std::vector<double> milliseconds;
        auto last = Clock::now();
        for (uint32_t step = 0; step < 2 * options_.steps; ++step) {
            batch_.clear();
            for (uint32_t i = 0; i < sequences.size(); ++i) {
                const Sequence& sequence = sequences[i];
                const auto position = static_cast<uint32_t>(sequence.tokens.size()) - 1 + step;
                const uint32_t row = step == 0
                                         ? batch_.add_rows(std::span(sequence.tokens).last(1), position,
                                                           sequence.blocks, sequence.adapter_slot)
                                         : batch_.add_fed_back_row(i, position, sequence.blocks, sequence.adapter_slot);
                add_output(row, position);
            }
            must(executor_.submit(batch_));
            if (executor_.n_in_flight() == 2) must(executor_.finish());
            if (step >= options_.steps) milliseconds.push_back(ms_since(last));
            last = Clock::now();
        }
        while (executor_.n_in_flight() > 0) must(executor_.finish());
        return milliseconds;
    }

    static double ms_since(Clock::time_point start) {
        return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    }

    void report(const char* name, uint32_t size, uint32_t tokens, const Summary& ms) const {
        const double tokens_per_s = 1e3 * tokens / ms.median;
        if (options_.json) {
            std::printf("%s\n", lorad::format("{{\"bench\":\"{}\",\"size\":{},\"context\":{},\"adapters\":{},\"ms_median\":{:.4f},"
                                       "\"ms_p10\":{:.4f},\"ms_p90\":{:.4f},\"tokens_per_s\":{:.1f},\"kernel_path\":\"{}\"}}",
                                       name, size, options_.context, slots_.size(), ms.median, ms.p10, ms.p90,
                                       tokens_per_s, options_.kernel_path).c_str());
        } else {
            std::printf("%s\n", lorad::format("{:<16} {:>6}  {:9.3f} ms  (p10 {:.3f}, p90 {:.3f})  {:10.1f} tok/s", name, size,
                                       ms.median, ms.p10, ms.p90, tokens_per_s).c_str());
        }
        std::fflush(stdout);
    }

    model::Executor& executor_;
    const Options& options_;
    std::vector<uint32_t> slots_;
    model::BlockPool pool_;
    model::StepBatch batch_;
    std::mt19937 rng_{1};
};

int run_bench(const Options& options) {
    server::LoadArguments arguments;
    arguments.device.device = options.device;
    arguments.folder = options.model;
    arguments.base_name = "base";
    arguments.kernel_path = options.kernel_path;
    arguments.executor.n_positions_max = options.positions_max;
    arguments.executor.n_rows_max = 2048;
    arguments.executor.matrix_shrink = !options.vector_shrink;
    arguments.executor.expand_rows = options.expand_rows;
    arguments.executor.n_sequences_max = std::max(64u, *std::max_element(options.decode.begin(), options.decode.end()));
    const auto start = Clock::now();
    auto loaded = must(server::LoadedModel::load(arguments));
    const double load_s = std::chrono::duration<double>(Clock::now() - start).count();
    std::printf("# %s, ready in %.2f s\n", loaded.device->capabilities().name.c_str(), load_s);

    std::vector<adapters::MixLease> leases;
    std::vector<uint32_t> slots;
    for (size_t i = 0; i < options.adapters.size(); ++i) {
        const std::string name = lorad::format("a{}", i);
        must(loaded.registry->load(name, options.adapters[i]));
        leases.push_back(must(loaded.registry->acquire(name)));
        slots.push_back(leases.back().slot());
    }
    EngineBench(*loaded.executor, options, slots).run();
    return 0;
}

}  // namespace
}  // namespace lorad::bench

int main(int argc, char** argv) {
    lorad::bench::Options options;
    CLI::App app("Decode and prefill speed of the engine's own step");
    app.add_option("--model", options.model, "model folder")->required();
    app.add_option("--decode", options.decode, "numbers of sequences")->delimiter(',');
    app.add_option("--prefill", options.prefill, "prompt lengths")->delimiter(',');
    app.add_option("--adapter", options.adapters, "adapter folders; the rows take turns in them");
    app.add_option("--context", options.context, "tokens in each sequence before the first timed step");
    app.add_option("--steps", options.steps, "timed steps, after as many untimed ones");
    app.add_option("--kernel-path", options.kernel_path, "auto, portable, coopmat, coopmat2");
    app.add_flag("--vector-shrink", options.vector_shrink, "shrink without cooperative matrices, to compare");
    app.add_option("--expand-rows", options.expand_rows, "rows of gated_act in a workgroup where rows are many, to compare")
        ->check(CLI::IsMember({1u, 2u, 4u, 8u, 16u}));
    app.add_option("--device", options.device, "index or part of the name, as `lorad devices` prints it");
    app.add_option("--positions", options.positions_max, "context the KV cache is made for");
    app.add_flag("--fed-back", options.fed_back, "two steps in flight, tokens fed back on the device");
    app.add_option("--temperature", options.sampling.temperature, "of drawn tokens; 0: the most probable one");
    app.add_option("--top-p", options.sampling.top_p, "of drawn tokens");
    app.add_option("--top-k", options.sampling.top_k, "of drawn tokens");
    app.add_flag("--json", options.json, "JSON lines");
    CLI11_PARSE(app, argc, argv);
    return lorad::bench::run_bench(options);
}
