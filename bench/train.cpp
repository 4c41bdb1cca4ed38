// lorad-bench train: optimizer steps of LoRA on all seven linear modules of a Qwen2.5 shape with random weights: tokens
// a second, device memory, and with --profile where the time goes.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "adapters/plan/trainable.h"
#include "bench/commands.h"
#include "bench/model_shapes.h"
#include "bench/results.h"
#include "bench/train_weights.h"
#include "model/train/trainer.h"
#include "proto/base/format.h"

namespace lorad::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct TrainOptions {
    std::string shape = "0.5b";
    std::vector<std::string> batch = {"4x2048"};
    std::string dtype = "bf16";
    std::string quantize = "none";
    uint32_t rank = 16;
    uint32_t rows = 0;
    uint32_t steps = 4;
    uint64_t memory_mib = 0;
    std::vector<uint32_t> jobs = {1};
    bool profile = false;
    bool check = false;
};

model::ModelConfig config_of(const ModelShape& shape, bool is_tied, uint32_t n_positions) {
    model::ModelConfig config;
    config.architecture = "Qwen2ForCausalLM";
    config.vocab_size = shape.vocab;
    config.hidden_size = shape.hidden;
    config.intermediate_size = shape.ffn;
    config.n_layers = shape.n_layers;
    config.n_heads = shape.q_heads;
    config.n_kv_heads = shape.kv_heads;
    config.head_dim = shape.head_dim;
    config.max_positions = n_positions;
    config.qkv_bias = true;
    config.tied_embeddings = is_tied;
    config.rope.theta = 1e6;
    config.rope.rotary_dim = shape.head_dim;
    config.sliding_windows.assign(shape.n_layers, 0);
    return config;
}

struct BatchSize {
    uint32_t n = 0, length = 0;
};

BatchSize parse_batch(const std::string& text) {
    BatchSize size;
    if (std::sscanf(text.c_str(), "%ux%u", &size.n, &size.length) != 2 || size.n == 0 || size.length < 2) {
        std::fprintf(stderr, "--batch %s: expected examples and tokens, such as 4x2048\n", text.c_str());
        std::exit(1);
    }
    return size;
}

std::vector<model::TrainExample> random_examples(const BatchSize& size, uint32_t vocab, std::mt19937& random) {
    std::uniform_int_distribution<TokenId> token(0, static_cast<TokenId>(vocab) - 1);
    std::vector<model::TrainExample> examples(size.n);
    for (model::TrainExample& example : examples) {
        example.tokens.resize(size.length);
        for (TokenId& id : example.tokens) id = token(random);
        example.weights.assign(size.length, 1.0f);
    }
    return examples;
}

void print_profile(const std::vector<gpu::KernelProfile>& kernels) {
    double us = 0;
    for (const gpu::KernelProfile& kernel : kernels) us += kernel.us;
    for (const gpu::KernelProfile& kernel : kernels) {
        if (kernel.us < us / 200) continue;
        Results::say(lorad::format(
            "  {:<28} {:5} calls {:9.2f} ms {:5.1f} %  {:7.1f} TFLOP/s {:8.1f} GB/s  {:.1f} MB a call", kernel.name,
            kernel.n_calls, kernel.us / 1e3, 100 * kernel.us / us, static_cast<double>(kernel.flops) / kernel.us * 1e-6,
            static_cast<double>(kernel.bytes) / kernel.us * 1e-3,
            static_cast<double>(kernel.bytes) / static_cast<double>(kernel.n_calls) * 1e-6));
    }
}

// Norm of the difference over the norm of the whole.
double difference(const std::vector<model::TrainedTensor>& of, const std::vector<model::TrainedTensor>& to) {
    double apart = 0, norm = 0;
    for (size_t i = 0; i < of.size(); ++i) {
        for (size_t j = 0; j < of[i].values.size(); ++j) {
            apart += std::pow(double{of[i].values[j]} - to[i].values[j], 2);
            norm += std::pow(double{to[i].values[j]}, 2);
        }
    }
    return std::sqrt(apart / norm);
}

// The loss and the gradients of a step with random B, beside those of products in f32.
void check_step(gpu::Device& device, const model::ModelConfig& config, const model::ModelWeights& weights,
                model::TrainableAdapter adapter, const model::TrainerOptions& options,
                const std::vector<model::TrainExample>& examples) {
    std::mt19937 random(9);
    std::normal_distribution<float> value(0.0f, 0.01f);
    for (model::TrainedLinear& linear : adapter.linears) {
        for (float& b : linear.pair.b.values) b = value(random);
    }
    double losses[2];
    std::vector<model::TrainedTensor> gradients[2];
    for (const bool in_f32 : {false, true}) {
        model::TrainerOptions with = options;
        with.in_f32 = in_f32;
        const auto trainer = must(model::Trainer::create(device, config, weights, adapter, with));
        losses[in_f32] = must(trainer->step(examples, 0.0)).loss;
        gradients[in_f32] = must(trainer->gradients());
        if (in_f32) continue;
        must(trainer->step(examples, 0.0));
        const auto again = must(trainer->gradients());
        Results::say(lorad::format("  the same step again: gradients {}",
                                   difference(again, gradients[0]) == 0 ? "of the same bits" : "DIFFER"));
        // As it runs between the steps of those who are served.
        stop_on_error(trainer->begin_step(examples, 0.0));
        uint32_t n_parts = 0;
        const double before_s = trainer->device_seconds();
        while (!must(trainer->start_piece(std::chrono::microseconds(800)))) ++n_parts;
        must(trainer->finish());
        const auto in_parts = must(trainer->gradients());
        Results::say(lorad::format("  the same step in {} parts of up to 0.8 ms, {:.1f} ms of the device: gradients {}",
                                   n_parts, 1e3 * (trainer->device_seconds() - before_s),
                                   difference(in_parts, gradients[0]) == 0 ? "of the same bits" : "DIFFER"));
    }
    Results::say(lorad::format("  beside f32: loss {:.6f} and {:.6f}, {:.1e} apart; gradients {:.1e} apart", losses[0],
                               losses[1], std::abs(losses[0] / losses[1] - 1), difference(gradients[0], gradients[1])));
}

// The same step on the numbers of packed weights in plain matrices: what is unpacked for a product is these.
void check_packed(gpu::Device& device, const model::ModelConfig& config, const model::ModelWeights& packed,
                  const RandomWeightOptions& weight_options, const model::TrainableAdapter& adapter,
                  const model::TrainerOptions& options, const std::vector<model::TrainExample>& examples) {
    RandomWeightOptions plain_options = weight_options;
    plain_options.is_decoded = true;
    model::ModelWeights plain;
    RandomWeights(device, plain_options).fill(plain, config);
    double losses[2];
    std::vector<model::TrainedTensor> gradients[2];
    for (const bool is_plain : {false, true}) {
        const auto trainer = must(model::Trainer::create(device, config, is_plain ? plain : packed, adapter, options));
        losses[is_plain] = must(trainer->step(examples, 1e-3)).loss;
        must(trainer->step(examples, 0.0));
        gradients[is_plain] = must(trainer->gradients());
    }
    const double apart = difference(gradients[0], gradients[1]);
    Results::say(lorad::format("  beside plain weights of the same numbers: loss {} and {}; gradients {}", losses[0],
                               losses[1],
                               losses[0] == losses[1] && apart == 0 ? std::string("of the same bits")
                                                                    : lorad::format("DIFFER, {:.1e} apart", apart)));
}

// Trainers of adapters that differ in rank, beside each other.
struct ManyTrainers {
    std::vector<std::unique_ptr<model::Trainer>> trainers;
    std::vector<double> losses;

    // One step of each, one after the other, or beside each other. In milliseconds.
    double step(const std::vector<std::vector<model::TrainExample>>& examples, bool is_together) {
        losses.assign(trainers.size(), 0);
        std::vector<model::Trainer*> busy;
        const auto begin = Clock::now();
        for (size_t i = 0; i < trainers.size(); ++i) {
            if (is_together) {
                stop_on_error(trainers[i]->begin_step(examples[i], 1e-4));
                busy.push_back(trainers[i].get());
            } else {
                losses[i] = must(trainers[i]->step(examples[i], 1e-4)).loss;
            }
        }
        while (!busy.empty()) {
            must(model::Trainer::run_together(busy, std::chrono::seconds(10)));
            std::erase_if(busy, [&](model::Trainer* trainer) {
                if (!trainer->is_done()) return false;
                const auto is_it = [&](const auto& one) { return one.get() == trainer; };
                losses[std::ranges::find_if(trainers, is_it) - trainers.begin()] = must(trainer->finish()).loss;
                return true;
            });
        }
        return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    }
    std::vector<std::vector<float>> values() const {
        std::vector<std::vector<float>> all;
        for (const auto& trainer : trainers) {
            const auto adapter = must(trainer->adapter());
            for (const model::TrainedTensor* tensor : std::as_const(adapter).tensors()) all.push_back(tensor->values);
        }
        return all;
    }
};

struct BenchModel {
    gpu::Device& device;
    const model::ModelConfig& config;
    const model::ModelWeights& weights;
    const adapters::BaseModel& base;
};

ManyTrainers make_trainers(const BenchModel& on, const TrainOptions& options, const model::TrainerOptions& with,
                           uint32_t n_jobs) {
    ManyTrainers made;
    for (uint32_t i = 0; i < n_jobs; ++i) {
        adapters::LoraRecipe recipe;
        recipe.r = i % 2 == 0 ? options.rank : std::max(options.rank / 2, 1u);
        recipe.seed = i;
        const auto adapter = must(adapters::make_trainable(recipe, on.base));
        made.trainers.push_back(i == 0 ? must(model::Trainer::create(on.device, on.config, on.weights, adapter, with))
                                       : must(model::Trainer::create_beside(*made.trainers[0], adapter, with)));
    }
    return made;
}

void run_jobs(const BenchModel& on, const TrainOptions& options, model::TrainerOptions with, const std::string& batch,
              uint32_t n_jobs, Results& results) {
    const BatchSize size = parse_batch(batch);
    with.n_beside = n_jobs - 1;
    std::mt19937 random(3);
    std::vector<std::vector<std::vector<model::TrainExample>>> steps(options.steps + 1);
    for (auto& step : steps) {
        for (uint32_t i = 0; i < n_jobs; ++i) step.push_back(random_examples(size, on.config.vocab_size, random));
    }
    std::vector<double> ms[2];
    std::vector<double> losses[2];
    std::vector<std::vector<float>> values[2];
    for (const bool is_together : {false, true}) {
        ManyTrainers many = make_trainers(on, options, with, n_jobs);
        for (size_t step = 0; step < steps.size(); ++step) {
            const double took = many.step(steps[step], is_together);
            if (step > 0) ms[is_together].push_back(took);
            losses[is_together].insert(losses[is_together].end(), many.losses.begin(), many.losses.end());
        }
        values[is_together] = many.values();
        if (!options.profile || !is_together) continue;
        print_profile(must(model::Trainer::profile_together(many.trainers, steps[0])));
    }
    Row row("train_jobs");
    row.field("shape", options.shape).field("batch", batch).field("dtype", options.dtype).field("jobs", n_jobs);
    row.samples("ms", ms[1]);
    std::ranges::sort(ms[0]);
    const double apart = ms[0][ms[0].size() / 2], together = row.summary().median;
    const bool is_same = losses[0] == losses[1] && values[0] == values[1];
    row.field("apart_ms", apart).field("ratio", apart / together).field("same_bits", is_same ? 1 : 0);
    results.add(
        std::move(row),
        lorad::format("train {:<5} {:<8} {} jobs {}  {:9.1f} ms together  {:9.1f} ms one after the other  {:5.2f}x "
                      " losses and adapters {}",
                      options.shape, batch, n_jobs, options.dtype, together, apart, apart / together,
                      is_same ? "of the same bits" : "DIFFER"));
}

void run_train(const TrainOptions& options, const CommonOptions& common) {
    const ModelShape& shape = kModelShapes.at(options.shape);
    const auto device = open_device(common);
    Results results(common.json, device->capabilities());
    uint32_t n_positions = 0;
    for (const std::string& batch : options.batch) n_positions = std::max(n_positions, parse_batch(batch).length);
    const model::ModelConfig config = config_of(shape, options.shape == "0.5b" || options.shape == "1.5b", n_positions);
    const gpu::ScalarType type = options.dtype == "f32"   ? gpu::ScalarType::kF32
                                 : options.dtype == "f16" ? gpu::ScalarType::kF16
                                                          : gpu::ScalarType::kBf16;
    RandomWeightOptions weight_options{.type = type};
    if (options.quantize != "none") weight_options.quantize = must(model::parse_quantize_type(options.quantize));
    model::ModelWeights weights;
    uint64_t weight_bytes = 0;
    {
        RandomWeights random_weights(*device, weight_options);
        random_weights.fill(weights, config);
        weight_bytes = random_weights.n_bytes();
    }
    if (weight_options.quantize) Results::say(lorad::format("weights: {}", model::describe_formats(weights)));
    adapters::LoraRecipe recipe;
    recipe.r = options.rank;
    const auto adapter = must(adapters::make_trainable(recipe, adapters::BaseModel(config)));
    const adapters::BaseModel base(config);
    std::mt19937 random(3);
    for (const std::string& batch : options.batch) {
        const BatchSize size = parse_batch(batch);
        model::TrainerOptions trainer_options{
            .n_rows = options.rows, .n_positions_max = n_positions, .memory_bytes = options.memory_mib << 20};
        trainer_options.optimizer.max_grad_norm = 1.0;
        for (const uint32_t n_jobs : options.jobs) {
            if (n_jobs > 1)
                run_jobs({*device, config, weights, base}, options, trainer_options, batch, n_jobs, results);
        }
        if (std::ranges::find(options.jobs, 1u) == options.jobs.end()) continue;
        const auto trainer = must(model::Trainer::create(*device, config, weights, adapter, trainer_options));
        std::vector<double> milliseconds;
        double loss = 0;
        for (uint32_t step = 0; step < options.steps + 1; ++step) {
            const auto examples = random_examples(size, config.vocab_size, random);
            const auto begin = Clock::now();
            loss = must(trainer->step(examples, 1e-4)).loss;
            if (step > 0)
                milliseconds.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
        }
        Row row("train");
        row.field("shape", options.shape)
            .field("batch", batch)
            .field("dtype", options.dtype)
            .field("quantize", options.quantize)
            .field("rank", options.rank)
            .field("rows", trainer->options().n_rows);
        row.samples("ms", milliseconds);
        const double tokens_per_s = 1e3 * size.n * size.length / row.summary().median;
        const double gib = static_cast<double>(weight_bytes + trainer->memory().sum()) / (1 << 30);
        // of what is allocated, with the gaps of it and what tests at the start have taken
        const double gib_taken = static_cast<double>(device->reserved_bytes()) / (1 << 30);
        row.field("tokens_per_s", tokens_per_s)
            .field("gib", gib)
            .field("gib_taken", gib_taken)
            .field("kept_layers", trainer->memory().n_kept_layers)
            .field("loss", loss);
        const double median = row.summary().median;
        results.add(
            std::move(row),
            lorad::format(
                "train {:<5} {:<8} r {:3} {}  {:9.1f} ms a step  {:9.1f} tok/s  {:6.2f} GiB ({:.2f} taken), {} of {} "
                "layers kept",
                options.shape, batch, options.rank, weight_options.quantize ? options.quantize : options.dtype, median,
                tokens_per_s, gib, gib_taken, trainer->memory().n_kept_layers, config.n_layers));
        if (options.check)
            check_step(*device, config, weights, adapter, trainer_options,
                       random_examples(size, config.vocab_size, random));
        if (options.check && weight_options.quantize)
            check_packed(*device, config, weights, weight_options, adapter, trainer_options,
                         random_examples(size, config.vocab_size, random));
        if (options.profile) print_profile(must(trainer->profile(random_examples(size, config.vocab_size, random))));
    }
}

}  // namespace

void add_train_command(CLI::App& app, CommonOptions& common) {
    auto options = std::make_shared<TrainOptions>();
    CLI::App* command = app.add_subcommand("train", "optimizer steps of LoRA on all linear modules, on random weights");
    command->add_option("--shape", options->shape)->check(CLI::IsMember({"tiny", "0.5b", "1.5b", "7b"}));
    command->add_option("--batch", options->batch, "examples x tokens of a step, such as 4x2048")->delimiter(',');
    command->add_option("--dtype", options->dtype, "of the weights")->check(CLI::IsMember({"f32", "f16", "bf16"}));
    command->add_option("--quantize", options->quantize, "the weights in few bits, as `serve --quantize` makes them")
        ->check(CLI::IsMember({"none", "q8_0", "q6_k", "q4_k", "nf4"}));
    command->add_option("--rank", options->rank)->check(CLI::Range(1, 512));
    command->add_option("--rows", options->rows, "tokens of a micro-batch; if it is not given what the trainer chooses")
        ->check(CLI::Range(64, 65536));
    command
        ->add_option("--jobs", options->jobs,
                     "jobs beside each other, with ranks of --rank and half of it, and one after the other")
        ->delimiter(',')
        ->check(CLI::Range(1, 64));
    command->add_option("--steps", options->steps)->check(CLI::Range(1, 1000));
    command->add_option("--memory-mib", options->memory_mib,
                        "what the trainer may take beside the weights; 0: nine tenths of what is free");
    command->add_flag(
        "--check", options->check,
        "loss and gradients of a step beside those of products in f32, and those on packed weights beside "
        "plain ones of the same numbers");
    command->add_flag("--profile", options->profile, "time of each kernel of one step");
    command->callback([options, &common] { run_train(*options, common); });
}

}  // namespace lorad::bench
