// Jobs beside each other: each has the bits that it has alone, whoever comes, goes or is given up.
#include <algorithm>
#include <functional>

#include "model/train/micro_batch.h"
#include "tests/support/training_goldens.h"

namespace lorad::adapters {
namespace {

using lorad::testing::TrainingGolden;
using model::TrainableAdapter;
using model::TrainedTensor;
using model::Trainer;
using model::TrainExample;

struct Step {
    std::vector<TrainExample> examples;
    double learning_rate = 1e-3;
    bool is_evaluation = false;
};

struct Job {
    TrainableAdapter adapter;
    model::TrainerOptions options;
    std::vector<Step> steps;
};

struct Course {
    std::vector<double> losses, norms;
    std::vector<std::vector<float>> values;
    uint32_t n_shared = 0;  // micro-batches
    bool operator==(const Course& other) const {
        return losses == other.losses && norms == other.norms && values == other.values;
    }
};

class TrainTogether : public ::testing::TestWithParam<bool> {
  protected:
    const TrainingGolden& golden() const {
        static const auto plain = TrainingGolden::load("qwen3-plain"),
                          bf16 = TrainingGolden::load("qwen3-plain", {.weights = {.type = gpu::ScalarType::kBf16}});
        return GetParam() ? *bf16 : *plain;
    }
    model::TrainerOptions options(uint32_t n_rows = 512) const {
        model::TrainerOptions made = golden().options(n_rows);
        made.keeps_16_bits = GetParam();
        return made;
    }
    TrainableAdapter adapter(const std::function<void(LoraRecipe&)>& change) const {
        LoraRecipe recipe;
        change(recipe);
        auto made = make_trainable(recipe, *golden().base);
        EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
        uint32_t i = 0;  // off the start, where gradients of A are zero
        for (TrainedTensor* tensor : made->tensors()) {
            for (float& value : tensor->values) value += 0.02f * std::sin(static_cast<float>(++i));
        }
        return std::move(made).value();
    }
    // Of the golden's sequences, from the one with this index on.
    std::vector<TrainExample> examples(size_t first, size_t n) const {
        std::vector<TrainExample> made;
        const auto& sequences = golden().data.at("sequences");
        for (size_t i = 0; i < n; ++i)
            made.push_back(TrainingGolden::example_of(sequences.at((first + i) % sequences.size())));
        return made;
    }
    std::unique_ptr<Trainer> trainer(const Job& job, const Trainer* beside = nullptr) const {
        auto made = beside != nullptr ? Trainer::create_beside(*beside, job.adapter, job.options)
                                      : Trainer::create(lorad::testing::test_device(), golden().base->config,
                                                        *golden().weights, job.adapter, job.options);
        EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
        return made.ok() ? std::move(made).value() : nullptr;
    }

    // Different ranks, modules, layers, data, rates; the second has three micro-batches a step and the third ends
    // first.
    std::vector<Job> jobs() const {
        Job first{adapter([](LoraRecipe& recipe) { recipe.r = 4; }), options(), {}};
        Job second{adapter([](LoraRecipe& recipe) {
                       recipe.r = 12;
                       recipe.target_modules = {"q_proj", "v_proj", "down_proj"};
                       recipe.rank_pattern = {{"v_proj", 3}};
                       recipe.use_rslora = true;
                   }),
                   options(40),
                   {}};
        Job third{adapter([](LoraRecipe& recipe) {
                      recipe.r = 8;
                      recipe.target_modules = {"o_proj", "gate_proj"};
                      recipe.layers_to_transform = {{1}};
                  }),
                  options(),
                  {}};
        second.options.n_positions_max = 40;
        second.options.optimizer.max_grad_norm = 0.01;
        third.options.optimizer.weight_decay = 0.1;
        third.options.lora_dropout = 0.25f;
        third.options.seed = 3;
        for (size_t step = 0; step < 4; ++step) {
            first.steps.push_back({examples(step, 2), 1e-3});
            second.steps.push_back({short_examples(step + 3, 4), 2e-3});
            if (step < 2) third.steps.push_back({examples(5 * step, 3), 5e-4});
        }
        first.steps[2].is_evaluation = true;
        return {std::move(first), std::move(second), std::move(third)};
    }
    std::vector<TrainExample> short_examples(size_t first, size_t n) const {
        std::vector<TrainExample> made = examples(first, n);
        for (TrainExample& example : made) {
            example.tokens.resize(std::min<size_t>(example.tokens.size(), 30));
            example.weights.resize(example.tokens.size());
            example.weights.back() = 1.0f;
        }
        return made;
    }

    static void begin(Trainer& trainer, const Step& step) {
        const Status begun = step.is_evaluation ? trainer.begin_evaluation(step.examples)
                                                : trainer.begin_step(step.examples, step.learning_rate);
        ASSERT_TRUE(begun.ok()) << begun.error().message;
    }
    static void take(Course& course, Trainer& trainer) {
        const auto report = trainer.finish();
        ASSERT_TRUE(report.ok());
        course.losses.push_back(report->loss);
        course.norms.push_back(report->grad_norm);
        course.n_shared += report->n_shared;
    }
    static void end(Course& course, const Trainer& trainer) {
        const auto adapter = trainer.adapter();
        ASSERT_TRUE(adapter.ok());
        for (const TrainedTensor* tensor : std::as_const(*adapter).tensors()) course.values.push_back(tensor->values);
    }

    Course alone(const Job& job) const {
        Course course;
        const auto made = trainer(job);
        for (const Step& step : job.steps) {
            begin(*made, step);
            while (true) {
                const auto done = made->run_piece(std::chrono::seconds(10));
                EXPECT_TRUE(done.ok());
                if (!done.ok() || *done) break;
            }
            take(course, *made);
        }
        end(course, *made);
        return course;
    }

    // All at once; each ends as its steps do. before_run: with trainers[i] null for those that have ended.
    using Trainers = std::vector<std::unique_ptr<Trainer>>;
    std::vector<Course> together(const std::vector<Job>& of, std::chrono::microseconds budget,
                                 const std::function<void(Trainers&)>& before_run = {}) const {
        std::vector<Course> courses(of.size());
        std::vector<size_t> n_begun(of.size());
        Trainers trainers;
        for (const Job& job : of) trainers.push_back(trainer(job, trainers.empty() ? nullptr : trainers[0].get()));
        while (true) {
            std::vector<Trainer*> running;
            for (size_t i = 0; i < of.size(); ++i) {
                if (trainers[i] && trainers[i]->is_done()) take(courses[i], *trainers[i]);
                if (trainers[i] && !trainers[i]->is_busy()) {
                    if (n_begun[i] < of[i].steps.size()) {
                        begin(*trainers[i], of[i].steps[n_begun[i]++]);
                    } else {
                        end(courses[i], *trainers[i]);
                        trainers[i].reset();
                    }
                }
            }
            if (before_run) before_run(trainers);
            for (const auto& one : trainers) {
                if (one) running.push_back(one.get());
            }
            if (running.empty()) return courses;
            const auto ran = Trainer::run_together(running, budget);
            EXPECT_TRUE(ran.ok()) << (ran.ok() ? "" : ran.error().message);
            if (!ran.ok()) return courses;
        }
    }
};

INSTANTIATE_TEST_SUITE_P(Runs, TrainTogether, ::testing::Bool(),
                         [](const auto& run) { return run.param ? "In16Bits" : "InF32"; });

TEST_P(TrainTogether, EachJobHasTheBitsThatItHasAlone) {
    const std::vector<Job> all = jobs();
    std::vector<Course> wanted;
    for (const Job& job : all) wanted.push_back(alone(job));
    EXPECT_NE(wanted[0].losses[0], wanted[0].losses[1]);
    const std::vector<Course> whole = together(all, std::chrono::seconds(10)),
                              in_pieces = together(all, std::chrono::microseconds(1));
    for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(whole[i].losses, wanted[i].losses) << i;
        EXPECT_EQ(whole[i].norms, wanted[i].norms) << i;
        EXPECT_TRUE(whole[i] == wanted[i]) << i;
        EXPECT_TRUE(in_pieces[i] == wanted[i]) << i;
    }
    EXPECT_EQ(whole[0].n_shared, all[0].steps.size() - 1) << "an evaluation is not computed with steps";
    EXPECT_EQ(whole[2].n_shared, all[2].steps.size());
    const std::vector<Course> two = together({all[2], all[0]}, std::chrono::seconds(10));
    EXPECT_TRUE(two[0] == wanted[2] && two[1] == wanted[0]);
}

// Pairs on the output layer, of different ranks, beside a job without one; whoever comes first.
TEST_P(TrainTogether, PairsOnTheOutputLayerAreBesideOthers) {
    std::vector<Job> all = jobs();
    all[0].adapter = adapter([](LoraRecipe& recipe) {
        recipe.r = 4;
        recipe.target_modules = {"q_proj", "up_proj", "lm_head"};
    });
    all[2].adapter = adapter([](LoraRecipe& recipe) {
        recipe.r = 12;
        recipe.target_modules = {"lm_head"};
    });
    all[2].options.lora_dropout = 0.0f;
    ASSERT_TRUE(all[0].adapter.head && all[2].adapter.head);
    std::vector<Course> wanted;
    for (const Job& job : all) wanted.push_back(alone(job));
    EXPECT_NE(wanted[2].losses[0], wanted[2].losses[1]);
    const std::vector<Course> whole = together(all, std::chrono::seconds(10)),
                              in_pieces = together(all, std::chrono::microseconds(1)),
                              other_first = together({all[2], all[0], all[1]}, std::chrono::seconds(10));
    for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_TRUE(whole[i] == wanted[i]) << i;
        EXPECT_TRUE(in_pieces[i] == wanted[i]) << i;
    }
    EXPECT_TRUE(other_first[0] == wanted[2] && other_first[1] == wanted[0] && other_first[2] == wanted[1]);
    EXPECT_EQ(whole[2].n_shared, all[2].steps.size());
}

TEST(TargetChunks, JobsWhoseGradientsAreSumsOverThemHaveThoseThatTheyHaveAlone) {
    const std::vector<model::MicroBatchPart> parts = {{0, 9, 0, 5}, {9, 9, 5, 0}, {18, 20, 5, 9}, {38, 5, 14, 3}};
    const auto chunks = [&](uint32_t n_rows_max, bool sums_rows) {
        std::vector<std::pair<uint32_t, uint32_t>> all;
        for (const model::TargetChunk& one : model::target_chunks(parts, n_rows_max, sums_rows))
            all.emplace_back(one.first, one.n_rows);
        return all;
    };
    using Pairs = std::vector<std::pair<uint32_t, uint32_t>>;
    EXPECT_EQ(chunks(17, true), (Pairs{{0, 17}})) << "one chunk has all rows of each";
    EXPECT_EQ(chunks(8, false), (Pairs{{0, 8}, {8, 8}, {16, 1}}));
    EXPECT_EQ(chunks(8, true), (Pairs{{0, 5}, {5, 8}, {13, 1}, {14, 3}}));
    EXPECT_TRUE(model::target_chunks({}, 8, true).empty());
}

TEST_P(TrainTogether, ManyRowsTakeTurnsWithThoseOfOthers) {
    std::vector<Job> all = jobs();
    all.resize(2);
    all[0].steps = {{examples(0, 14), 1e-3}, {examples(2, 14), 1e-3}};
    size_t n_rows = 0;
    for (const TrainExample& example : all[0].steps[0].examples) n_rows += example.tokens.size();
    ASSERT_GT(n_rows, 256u);
    const std::vector<Course> both = together(all, std::chrono::microseconds(1));
    EXPECT_TRUE(both[0] == alone(all[0]));
    EXPECT_TRUE(both[1] == alone(all[1]));
    EXPECT_EQ(both[0].n_shared, 0u);
    // Few rows have their pairs beside the base's products, many in them: the same but for rounding.
    all[0].options.n_rows = 128;
    const Course in_parts = alone(all[0]);
    for (size_t step = 0; step < 2; ++step) {
        EXPECT_NEAR(both[0].losses[step], in_parts.losses[step], (GetParam() ? 1e-2 : 1e-5) * in_parts.losses[step]);
        EXPECT_NEAR(both[0].norms[step], in_parts.norms[step], (GetParam() ? 2e-2 : 1e-4) * in_parts.norms[step]);
    }
}

// A step here is one micro-batch that fills the device by itself.
TEST_P(TrainTogether, OwnersTakeTurnsAndThenTheJobsOfEach) {
    std::vector<Job> all(3, jobs().front());
    for (size_t i = 0; i < all.size(); ++i) {
        all[i].steps.assign(i == 2 ? 4 : 3, {examples(0, 14), 1e-3});
        all[i].options.owner = i / 2;
    }
    const Course wanted = alone(all[2]);
    std::vector<uint64_t> n_steps(3);
    uint64_t n_of_first_owner = 0;
    const std::vector<Course> courses = together(all, std::chrono::microseconds(1), [&](Trainers& trainers) {
        for (size_t i = 0; i < trainers.size(); ++i) {
            if (trainers[i]) n_steps[i] = trainers[i]->n_steps();
            if (i == 2 && n_steps[2] < 4) n_of_first_owner = n_steps[0] + n_steps[1];
        }
    });
    EXPECT_GE(n_of_first_owner, 3u);
    EXPECT_LE(n_of_first_owner, 4u) << "three jobs in turn would have made six steps";
    EXPECT_TRUE(courses[2] == wanted);
}

TEST_P(TrainTogether, WhoIsGivenUpInTheMiddleOfAStepChangesNothingForOthers) {
    const std::vector<Job> all = jobs();
    int n_runs = 0;
    const std::vector<Course> courses = together(all, std::chrono::microseconds(1), [&](Trainers& trainers) {
        ++n_runs;
        if (n_runs == 4) trainers[2]->abandon(), trainers[2].reset();  // gone with its memory
        // The one that the passes were made for; it begins the same step again.
        if (n_runs == 9) {
            trainers[0]->abandon();
            begin(*trainers[0], all[0].steps[0]);
        }
    });
    EXPECT_TRUE(courses[0] == alone(all[0]));
    EXPECT_TRUE(courses[1] == alone(all[1]));
    EXPECT_TRUE(courses[2].values.empty());
}

// start_piece() never says that its own pieces are done.
TEST_P(TrainTogether, AnUpdateThatIsSubmittedCountsOnceItIsSettled) {
    Job job = jobs().front();
    job.steps.resize(1);
    const Course wanted = alone(job);
    const auto made = trainer(job);
    begin(*made, job.steps.front());
    while (!made->is_done()) {
        const auto started = made->start_piece(std::chrono::seconds(10));
        ASSERT_TRUE(started.ok() && !*started);
        ASSERT_TRUE(made->settle().ok());
    }
    EXPECT_EQ(made->n_steps(), 1u);
    Course course;
    take(course, *made);
    end(course, *made);
    EXPECT_TRUE(course == wanted);
}

TEST_P(TrainTogether, ACheckpointOfOneGoesOnAloneWithTheSameBits) {
    const std::vector<Job> all = jobs();
    const Course wanted = alone(all[1]);
    std::vector<std::byte> checkpoint;
    together(all, std::chrono::seconds(10), [&](Trainers& trainers) {
        if (!trainers[1] || trainers[1]->n_steps() != 2 || !checkpoint.empty()) return;
        trainers[1]->abandon();
        checkpoint = std::move(trainers[1]->checkpoint()).value();
        trainers[1].reset();
    });
    const auto made = trainer(all[1]);
    ASSERT_TRUE(made->restore(checkpoint).ok());
    Course rest;
    for (size_t step = 2; step < all[1].steps.size(); ++step) {
        const auto report = made->step(all[1].steps[step].examples, all[1].steps[step].learning_rate);
        ASSERT_TRUE(report.ok());
        EXPECT_EQ(report->loss, wanted.losses[step]);
    }
    end(rest, *made);
    EXPECT_TRUE(rest.values == wanted.values);
}

TEST_P(TrainTogether, WhatHasToBeAloneIsToldByName) {
    const std::vector<Job> all = jobs();
    const auto first = trainer(all[0]);
    const uint64_t of_first = first->memory().sum();
    const auto refusal = [&](const Trainer& beside, const TrainableAdapter& of, const model::TrainerOptions& with) {
        const auto made = Trainer::create_beside(beside, of, with);
        return made.ok() ? "accepted" : made.error().message;
    };
    const auto dora = adapter([](LoraRecipe& recipe) { recipe.use_dora = true; });
    EXPECT_EQ(refusal(*first, dora, options()),
              "the job is trained alone (DoRA: magnitudes scale the sums of all rows)");
    const auto saved = adapter([](LoraRecipe& recipe) { recipe.modules_to_save = {"lm_head"}; });
    EXPECT_EQ(refusal(*first, saved, options()),
              "the job is trained alone (base_model.model.lm_head.weight: a tensor of the base as a whole)");
    const auto outer = adapter([](LoraRecipe& recipe) { recipe.target_modules = {"q_proj", "embed_tokens"}; });
    EXPECT_EQ(refusal(*first, outer, options()), "the job is trained alone (a pair on the embedding)");
    EXPECT_EQ(refusal(*first, all[1].adapter, options(600)),
              "its micro-batches have up to 600 rows: the passes of those under way have room for 512");
    model::TrainerOptions longer = options(), dropping = options(), in_f32 = options();
    longer.n_positions_max = 65;
    EXPECT_EQ(refusal(*first, all[1].adapter, longer),
              "its longest example has 65 tokens: the passes of those under way have room for 64");
    dropping.lora_dropout = 0.1f;
    EXPECT_EQ(refusal(*first, all[1].adapter, dropping), "accepted");
    model::TrainerOptions other_width = options();
    other_width.keeps_16_bits = !GetParam();
    EXPECT_EQ(refusal(*first, all[1].adapter, other_width),
              "of the jobs one keeps its activations in 16 bits, the other in f32");
    in_f32.in_f32 = true;
    EXPECT_EQ(refusal(*first, all[1].adapter, in_f32), "one of the jobs is to be trained in f32");
    const auto alone_one = trainer({dora, options(), {}});
    EXPECT_EQ(refusal(*alone_one, all[1].adapter, options()),
              "the job under way is trained alone (DoRA: magnitudes scale the sums of all rows)");

    // Beside it a job takes its own numbers alone, and as many fit as there is memory for.
    Job tight = all[0];
    tight.options.memory_bytes = of_first + 100;
    const auto full = trainer(tight);
    EXPECT_NE(refusal(*full, all[1].adapter, options(40)).find("bytes beside those who are trained: there are 100"),
              std::string::npos);
    tight.options.n_beside = 2;
    tight.options.memory_bytes = of_first;
    const auto spacious = trainer(tight);
    EXPECT_LT(spacious->memory().n_kept_layers, full->memory().n_kept_layers);
    const auto second = trainer(all[0], spacious.get()), third = trainer(all[0], spacious.get());
    EXPECT_LT(second->memory().sum(), of_first / 2);
}

}  // namespace
}  // namespace lorad::adapters
