// What holds of a trainer whatever PEFT says: bits, pieces, memory, gradients of parts that no reference has, refusals,
// and the files it ends in.
#include <cmath>
#include <tuple>

#include "tests/support/planned_devices.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training_goldens.h"

namespace lorad::adapters {
namespace {

using lorad::testing::difference;
using lorad::testing::TrainingGolden;
using model::TrainableAdapter;
using model::TrainedTensor;

std::vector<std::vector<float>> values_of(const model::Trainer& trainer) {
    std::vector<std::vector<float>> values;
    const auto adapter = trainer.adapter();
    EXPECT_TRUE(adapter.ok());
    for (const TrainedTensor* tensor : std::as_const(*adapter).tensors()) values.push_back(tensor->values);
    return values;
}

std::string refusal(const auto& result) { return result.ok() ? "accepted" : result.error().message; }

const TrainingGolden& llama() {
    static const auto golden = TrainingGolden::load("llama-tied-plain");
    return *golden;
}
const TrainingGolden& qwen3() {
    static const auto golden = TrainingGolden::load("qwen3-plain");
    return *golden;
}

TEST(Trainer, AStepInPiecesHasTheBitsOfAWholeOne) {
    const auto whole = llama().trainer(llama().options(30)), pieces = llama().trainer(llama().options(30));
    const auto report = whole->step(llama().examples(0), 1e-3);
    ASSERT_TRUE(report.ok());
    EXPECT_GT(report->n_micro_batches, 1u);
    ASSERT_TRUE(pieces->begin_step(llama().examples(0), 1e-3).ok());
    int n_pieces = 0;
    while (true) {
        const auto done = pieces->run_piece(std::chrono::microseconds(1));
        ASSERT_TRUE(done.ok()) << done.error().message;
        ++n_pieces;
        if (*done) break;
    }
    EXPECT_GT(n_pieces, 100) << "layers are cut as well";
    const auto of_pieces = pieces->finish();
    ASSERT_TRUE(of_pieces.ok());
    EXPECT_EQ(of_pieces->loss, report->loss);
    EXPECT_EQ(of_pieces->grad_norm, report->grad_norm);
    EXPECT_EQ(values_of(*pieces), values_of(*whole));
}

TEST(Trainer, PiecesThatAreNotWaitedForHaveTheBitsOfAWholeStep) {
    const auto whole = llama().trainer(llama().options(30)), started = llama().trainer(llama().options(30));
    ASSERT_TRUE(whole->step(llama().examples(0), 1e-3).ok());
    ASSERT_TRUE(started->begin_step(llama().examples(1), 1e-3).ok());
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(started->start_piece(std::chrono::microseconds(500)).ok());
    started->abandon();  // with one that is not waited for
    ASSERT_TRUE(started->begin_step(llama().examples(0), 1e-3).ok());
    while (true) {
        const auto done = started->start_piece(std::chrono::microseconds(500));
        ASSERT_TRUE(done.ok()) << done.error().message;
        if (*done) break;
    }
    ASSERT_TRUE(started->finish().ok());
    EXPECT_GT(started->device_seconds(), 0);
    EXPECT_EQ(values_of(*started), values_of(*whole));
}

TEST(Trainer, WhatIsComputedAgainHasTheBitsOfWhatIsKept) {
    const auto kept = llama().trainer(llama().options(128));
    ASSERT_EQ(kept->memory().n_kept_layers, llama().base->config.n_layers);
    model::TrainerOptions options = llama().options(128);
    options.memory_bytes = kept->memory().sum() - 1;
    const auto again = llama().trainer(options);
    ASSERT_LT(again->memory().n_kept_layers, kept->memory().n_kept_layers);
    EXPECT_LT(again->memory().sum(), kept->memory().sum());
    ASSERT_TRUE(kept->step(llama().examples(0), 1e-3).ok());
    ASSERT_TRUE(again->step(llama().examples(0), 1e-3).ok());
    EXPECT_EQ(values_of(*again), values_of(*kept));
}

class TrainerIn16Bits : public ::testing::TestWithParam<std::tuple<const char*, gpu::ScalarType>> {};

// Beside f32 on the same weights.
TEST_P(TrainerIn16Bits, LossesAndGradientsAreNearThoseInF32AndHaveTheSameBitsAgain) {
    const auto golden = TrainingGolden::load(std::get<0>(GetParam()), {.weights = {.type = std::get<1>(GetParam())}});
    model::TrainerOptions options = golden->options(128), in_16_bits = options;
    options.in_f32 = in_16_bits.keeps_16_bits = true;
    in_16_bits.in_f32 = false;
    const auto plain = golden->trainer(options), kept = golden->trainer(in_16_bits);
    EXPECT_LT(kept->memory().activations, plain->memory().activations);
    in_16_bits.memory_bytes = kept->memory().sum() - 1;
    const auto again = golden->trainer(in_16_bits);
    ASSERT_LT(again->memory().n_kept_layers, kept->memory().n_kept_layers);
    const auto want = plain->step(golden->examples(0), 1e-3), got = kept->step(golden->examples(0), 1e-3);
    ASSERT_TRUE(want.ok() && got.ok() && again->step(golden->examples(0), 1e-3).ok());
    EXPECT_NE(got->loss, want->loss) << "nothing was rounded";
    EXPECT_NEAR(got->loss, want->loss, 1e-2 * want->loss);
    const auto gradients = kept->gradients(), wanted = plain->gradients();
    ASSERT_TRUE(gradients.ok() && wanted.ok());
    EXPECT_LT(difference(*gradients, *wanted), 2e-2);
    EXPECT_TRUE(values_of(*again) == values_of(*kept)) << "computed again";
    // The next step's pairs are rounded anew.
    const auto next = plain->step(golden->examples(1), 1e-3), next_got = kept->step(golden->examples(1), 1e-3);
    ASSERT_TRUE(next.ok() && next_got.ok());
    EXPECT_NEAR(next_got->loss, next->loss, 1e-2 * next->loss);
}

INSTANTIATE_TEST_SUITE_P(Runs, TrainerIn16Bits,
                         // whose feed-forward widths four divides
                         ::testing::Combine(::testing::Values("qwen3-plain", "qwen3-dora", "mistral-window-rslora",
                                                              "phi3-sharded-saved"),
                                            ::testing::Values(gpu::ScalarType::kBf16, gpu::ScalarType::kF16)));

// The same examples with their targets beside their tokens; the last token predicts nothing.
std::vector<model::TrainExample> with_targets(std::vector<model::TrainExample> examples) {
    for (model::TrainExample& example : examples) {
        example.targets.assign(example.tokens.begin() + 1, example.tokens.end());
        example.weights.erase(example.weights.begin());
        example.tokens.pop_back();
    }
    return examples;
}

model::TrainReport ran(model::Trainer& trainer, const Status& begun) {
    EXPECT_TRUE(begun.ok()) << begun.error().message;
    while (true) {
        const auto done = trainer.run_piece(std::chrono::hours(1));
        if (!done.ok()) ADD_FAILURE() << done.error().message;
        if (!done.ok() || *done) break;
    }
    return *trainer.finish();
}

TEST(Trainer, GradientsAddUpOverCallsToThoseOfOneStep) {
    const auto step = llama().trainer(llama().options(128)), calls = llama().trainer(llama().options(128));
    const auto examples = llama().examples(0);
    ASSERT_GT(examples.size(), 1u);
    const auto want = step->step(examples, 1e-3);
    ASSERT_TRUE(want.ok());
    double loss = 0;
    EXPECT_FALSE(calls->has_gradients());
    for (const auto& example : with_targets(examples)) {
        const auto report = ran(*calls, calls->begin_gradients({example}));
        ASSERT_EQ(report.examples[0].log_probabilities.size(), example.tokens.size());
        double sum = 0;
        for (size_t t = 0; t < example.tokens.size(); ++t)
            sum -= double{example.weights[t]} * report.examples[0].log_probabilities[t];
        EXPECT_NEAR(report.loss, sum, 1e-5 * std::abs(sum));
        EXPECT_FALSE(report.is_applied);
        loss += report.loss;
    }
    const auto n = static_cast<double>(want->n_trained_tokens);
    EXPECT_NEAR(loss / n, want->loss, 1e-5 * want->loss);
    auto got = calls->gradients();
    const auto wanted = step->gradients();
    ASSERT_TRUE(got.ok() && wanted.ok());
    for (TrainedTensor& tensor : *got) {
        for (float& value : tensor.values) value = static_cast<float>(value / n);
    }
    // Sums of some hundred rows in f32, cut at other places.
    EXPECT_LT(difference(*got, *wanted), 1e-5);
    EXPECT_TRUE(calls->has_gradients());
    const auto update = ran(*calls, calls->begin_update({}, 1e-3));
    EXPECT_TRUE(update.is_applied);
    EXPECT_NEAR(update.grad_norm, n * want->grad_norm, 1e-5 * n * want->grad_norm);
    EXPECT_FALSE(calls->has_gradients());
    EXPECT_EQ(calls->n_steps(), 1u);
    // What an update has used is gone: the next call's gradients are its own.
    const auto alone = llama().trainer(llama().options(128));
    ASSERT_TRUE(alone->restore(*calls->checkpoint()).ok());
    ran(*calls, calls->begin_gradients(with_targets(llama().examples(1))));
    ran(*alone, alone->begin_gradients(with_targets(llama().examples(1))));
    EXPECT_EQ(difference(*calls->gradients(), *alone->gradients()), 0.0);
}

TEST(Trainer, ImportanceSamplingWeighsEachTokenByItsRatio) {
    const auto sampled = llama().trainer(llama().options(128)), weighed = llama().trainer(llama().options(128));
    auto examples = with_targets(llama().examples(0));
    const auto forward = ran(*sampled, sampled->begin_evaluation(examples));
    EXPECT_FALSE(sampled->has_gradients());
    auto by_hand = examples;
    double loss = 0;
    for (size_t i = 0; i < examples.size(); ++i) {
        for (size_t t = 0; t < examples[i].tokens.size(); ++t) {
            const float now = forward.examples[i].log_probabilities[t];
            examples[i].sampled.push_back(now + 0.5f * std::sin(static_cast<float>(t)));
            examples[i].weights[t] = std::cos(static_cast<float>(3 * t + i));  // advantages of both signs
            by_hand[i].weights[t] = static_cast<float>(double{examples[i].weights[t]} *
                                                       std::exp(double{now} - double{examples[i].sampled[t]}));
            loss -= by_hand[i].weights[t];
        }
    }
    const auto report = ran(*sampled, sampled->begin_gradients(examples));
    EXPECT_NEAR(report.loss, loss, 1e-4);
    ran(*weighed, weighed->begin_gradients(by_hand));
    EXPECT_LT(difference(*sampled->gradients(), *weighed->gradients()), 1e-5);
}

TEST(Trainer, AnUpdateWithoutFiniteGradientsChangesNothing) {
    const auto trainer = llama().trainer(llama().options(128));
    const auto before = values_of(*trainer);
    auto examples = with_targets(llama().examples(0));
    for (auto& example : examples) example.sampled.assign(example.tokens.size(), -1e4f);  // e^10000
    EXPECT_FALSE(std::isfinite(ran(*trainer, trainer->begin_gradients(examples)).loss));
    EXPECT_FALSE(trainer->has_gradients());
    const auto update = ran(*trainer, trainer->begin_update({}, 1e-3));
    EXPECT_TRUE(update.is_applied);
    EXPECT_EQ(update.grad_norm, 0.0);
    EXPECT_EQ(values_of(*trainer), before);
    examples[0].sampled.pop_back();
    EXPECT_NE(refusal(trainer->begin_gradients(examples)).find("sampled log-probabilities: expected"),
              std::string::npos);
    EXPECT_NE(refusal(trainer->begin_update({.beta1 = 1.0}, 1e-3)).find("betas"), std::string::npos);
}

// Masks are the same whatever type the inputs have, so that the steps differ by rounding alone.
TEST(Trainer, DropoutOf16BitsLeavesWhatItLeavesOfF32) {
    for (const gpu::ScalarType type : {gpu::ScalarType::kBf16, gpu::ScalarType::kF16}) {
        const auto golden = TrainingGolden::load("qwen3-plain", {.weights = {.type = type}});
        model::TrainerOptions options = golden->options(128);
        options.lora_dropout = 0.3f;
        options.seed = 9;
        options.keeps_16_bits = true;
        model::TrainerOptions in_f32 = options, undropped = options, in_parts = options;
        in_f32.in_f32 = true;
        undropped.lora_dropout = 0;
        in_parts.n_rows = 1;
        const auto examples = golden->examples(0);
        const auto got = golden->trainer(options), want = golden->trainer(in_f32), all = golden->trainer(undropped),
                   apart = golden->trainer(in_parts);
        EXPECT_LT(got->memory().activations, want->memory().activations);
        EXPECT_EQ(got->evaluate(examples)->loss, all->evaluate(examples)->loss) << "evaluations drop nothing";
        const auto of_got = got->step(examples, 1e-3), of_want = want->step(examples, 1e-3),
                   of_all = all->step(examples, 1e-3), of_apart = apart->step(examples, 1e-3);
        ASSERT_TRUE(of_got.ok() && of_want.ok() && of_all.ok() && of_apart.ok());
        EXPECT_NEAR(of_got->loss, of_want->loss, 1e-2 * of_want->loss);
        EXPECT_NEAR(of_apart->loss, of_got->loss, 1e-2 * of_got->loss);
        const auto gradients = got->gradients(), wanted = want->gradients(), others = all->gradients(),
                   in_pieces = apart->gradients();
        EXPECT_LT(difference(*gradients, *wanted), 2e-2);
        EXPECT_LT(difference(*in_pieces, *wanted), 2e-2);
        EXPECT_GT(difference(*others, *wanted), 0.1) << "what is dropped is seen";
    }
}

TEST(Trainer, GoesOnFromACheckpointWithTheSameBits) {
    const auto first = llama().trainer(llama().options(128));
    for (size_t step = 0; step < 2; ++step) ASSERT_TRUE(first->step(llama().examples(step), 1e-3).ok());
    const auto checkpoint = first->checkpoint();
    ASSERT_TRUE(checkpoint.ok());
    ASSERT_TRUE(first->step(llama().examples(2), 1e-3).ok());
    const auto second = llama().trainer(llama().options(128));
    ASSERT_TRUE(second->restore(*checkpoint).ok());
    EXPECT_EQ(second->n_steps(), 2u);
    ASSERT_TRUE(second->step(llama().examples(2), 1e-3).ok());
    EXPECT_EQ(values_of(*second), values_of(*first));
}

TEST(Trainer, ARefusedCheckpointChangesNothing) {
    const auto trainer = llama().trainer(llama().options(128));
    const auto before = values_of(*trainer);
    auto checkpoint = std::move(trainer->checkpoint()).value();
    auto damaged = checkpoint;
    damaged[damaged.size() - 5] ^= std::byte{1};
    EXPECT_EQ(refusal(trainer->restore(damaged)), "the training checkpoint is damaged: its content has another digest");
    EXPECT_NE(refusal(trainer->restore(std::span(checkpoint).first(checkpoint.size() - 4))), "accepted");
    EXPECT_NE(refusal(trainer->restore(std::span(checkpoint).first(3))), "accepted");
    const auto other = qwen3().trainer(qwen3().options(128));
    EXPECT_EQ(refusal(other->restore(checkpoint)),
              "the training checkpoint is of an adapter with other tensors or scales");
    EXPECT_EQ(values_of(*trainer), before);
}

// One division by all tokens of a step: rounding alone tells micro-batches apart, in sums of some tens of numbers.
TEST(Trainer, MicroBatchesChangeNothingButRounding) {
    const auto together = llama().trainer(llama().options(128)), apart = llama().trainer(llama().options(1));
    const auto one = together->step(llama().examples(0), 1e-3), many = apart->step(llama().examples(0), 1e-3);
    ASSERT_TRUE(one.ok() && many.ok());
    EXPECT_EQ(one->n_micro_batches, 1u);
    EXPECT_EQ(many->n_micro_batches, 4u);
    EXPECT_NEAR(one->loss, many->loss, 1e-6 * one->loss);
    const auto gradients = together->gradients(), others = apart->gradients();
    ASSERT_TRUE(gradients.ok() && others.ok());
    for (size_t i = 0; i < gradients->size(); ++i) {
        const TrainedTensor& tensor = (*gradients)[i];
        EXPECT_LT(
            lorad::testing::relative_error(tensor.values.data(), (*others)[i].values.data(), tensor.values.size()),
            1e-5)
            << tensor.name;
    }
}

TEST(Trainer, DropoutGoesByExampleAndPositionWhereverTheRowsLie) {
    model::TrainerOptions options = llama().options(128), in_parts = llama().options(1);
    options.lora_dropout = in_parts.lora_dropout = 0.3f;
    options.seed = in_parts.seed = 9;
    const auto plain = llama().trainer(llama().options(128)), together = llama().trainer(options),
               apart = llama().trainer(in_parts);
    options.seed = 10;
    const auto other = llama().trainer(options);
    const auto examples = llama().examples(0);
    EXPECT_EQ(together->evaluate(examples)->loss, plain->evaluate(examples)->loss) << "evaluations drop nothing";
    const auto of_plain = plain->step(examples, 0.0), one = together->step(examples, 0.0),
               many = apart->step(examples, 0.0), of_other = other->step(examples, 0.0);
    ASSERT_TRUE(one.ok() && many.ok());
    EXPECT_NE(one->loss, of_plain->loss);
    EXPECT_NE(one->loss, of_other->loss);
    EXPECT_NEAR(one->loss, many->loss, 1e-6 * one->loss);
    EXPECT_NEAR(one->grad_norm, many->grad_norm, 1e-5 * one->grad_norm);
    const double first = one->loss;
    EXPECT_NE(together->step(examples, 0.0)->loss, first) << "each step drops others";
    options.lora_dropout = 1.0f;
    EXPECT_EQ(refusal(model::Trainer::create(lorad::testing::test_device(), llama().base->config, *llama().weights,
                                             llama().initial, options)),
              "lora_dropout 1: expected from 0 to below 1");
}

TEST(Trainer, WeightsMultiplyLosses) {
    auto examples = llama().examples(0);
    const auto trainer = llama().trainer(llama().options(128));
    const auto plain = trainer->evaluate(examples);
    for (auto& example : examples) {
        for (float& weight : example.weights) weight *= 0.5f;
    }
    const auto half = trainer->evaluate(examples);
    ASSERT_TRUE(plain.ok() && half.ok());
    EXPECT_EQ(half->n_trained_tokens, plain->n_trained_tokens);
    EXPECT_NEAR(half->loss, plain->loss / 2, 1e-6 * plain->loss);
}

TEST(Trainer, RefusesWhatItCannotTrainByName) {
    const auto trainer = llama().trainer(llama().options(128));
    const auto with = [&](model::TrainExample example) {
        return refusal(trainer->step(std::vector{std::move(example)}, 1e-3));
    };
    EXPECT_EQ(with({{1, 2}, {0, 0}}), "no token of the examples is trained: every weight is 0");
    EXPECT_EQ(with({{}, {}}), "example 0: no tokens");
    EXPECT_EQ(with({{1, 777}, {0, 1}}), "example 0: token 777: the vocabulary has 777");
    EXPECT_EQ(with({{1, -1}, {0, 1}}), "example 0: token -1: the vocabulary has 777");
    EXPECT_EQ(with({{1, 2}, {0}}), "example 0: 1 weights: expected 2, one for each token");
    EXPECT_EQ(with({{1, 2}, {0, NAN}}), "example 0: a weight that is not finite");
    EXPECT_EQ(with({std::vector<TokenId>(129, 1), std::vector<float>(129, 1.0f)}), "example 0: 129 tokens: at most 64");
    EXPECT_FALSE(trainer->is_busy());

    model::TrainerOptions options = llama().options(128);
    options.memory_bytes = 1 << 16;
    const auto create = [&](const TrainableAdapter& adapter, const model::TrainerOptions& with_options) {
        return refusal(model::Trainer::create(lorad::testing::test_device(), llama().base->config, *llama().weights,
                                              adapter, with_options));
    };
    EXPECT_EQ(create(llama().initial, options).find("training needs "), 0u);
    TrainableAdapter adapter = llama().initial;
    adapter.linears[0].pair.b.shape[0] += 1;
    EXPECT_NE(create(adapter, llama().options(128)).find("expected [96, 8] of this model"), std::string::npos);
    adapter = llama().initial;
    adapter.linears.push_back(adapter.linears[0]);
    EXPECT_NE(create(adapter, llama().options(128)).find("a module that another pair adapts"), std::string::npos);
    EXPECT_EQ(create({}, llama().options(128)), "the adapter has no tensor to train");
}

TEST(Trainer, ANumberThatIsNotFiniteChangesNothing) {
    TrainableAdapter adapter = llama().initial;
    for (auto& linear : adapter.linears) linear.pair.scale = 3e38f;
    auto trainer = model::Trainer::create(lorad::testing::test_device(), llama().base->config, *llama().weights,
                                          adapter, llama().options(128));
    ASSERT_TRUE(trainer.ok());
    const auto before = values_of(**trainer);
    const auto report = (*trainer)->step(llama().examples(0), 1e-3);
    ASSERT_TRUE(report.ok());
    EXPECT_FALSE(report->is_applied);
    EXPECT_EQ((*trainer)->n_steps(), 0u);
    EXPECT_EQ(values_of(**trainer), before);
}

// Pairs on embedding and output layer, and all norms of a model that has them on heads too.
LoraRecipe wide_recipe() {
    LoraRecipe recipe;
    recipe.r = 4;
    recipe.lora_alpha = 6;
    recipe.target_modules = {"q_proj", "down_proj", "embed_tokens", "lm_head"};
    recipe.layers_to_transform = std::nullopt;
    recipe.modules_to_save = {"input_layernorm", "post_attention_layernorm", "q_norm", "k_norm", "model.norm"};
    recipe.seed = 5;
    return recipe;
}
TrainableAdapter wide_adapter() {
    auto made = make_trainable(wide_recipe(), *qwen3().base);
    EXPECT_TRUE(made.ok()) << refusal(made);
    // Off the start, where gradients of A are zero.
    uint32_t i = 0;
    for (TrainedTensor* tensor : made->tensors()) {
        for (float& value : tensor->values) value += 0.02f * std::sin(static_cast<float>(++i));
    }
    return std::move(made).value();
}

// The loss along a tensor's gradient rises by the gradient's norm. Losses in f32 are right to about 1e-6 and differ by
// 0.02 or 0.04 norm; over larger steps the curve is not straight.
TEST(Trainer, LossesRiseAlongEachTensorsGradientByItsNorm) {
    const TrainableAdapter adapter = wide_adapter();
    model::TrainerOptions options = qwen3().options(128);
    options.in_f32 = true;  // differences of losses are small
    const auto examples = std::vector{qwen3().examples(0)[1]};
    const auto loss_of = [&](const TrainableAdapter& of) {
        auto trainer =
            model::Trainer::create(lorad::testing::test_device(), qwen3().base->config, *qwen3().weights, of, options);
        EXPECT_TRUE(trainer.ok()) << refusal(trainer);
        return (*trainer)->evaluate(examples)->loss;
    };
    auto trainer =
        model::Trainer::create(lorad::testing::test_device(), qwen3().base->config, *qwen3().weights, adapter, options);
    ASSERT_TRUE(trainer.ok()) << refusal(trainer);
    ASSERT_TRUE((*trainer)->step(examples, 0.0).ok());
    const auto gradients = (*trainer)->gradients();
    ASSERT_TRUE(gradients.ok());
    std::map<std::string, int> n_of_kind;
    for (size_t i = 0; i < gradients->size(); ++i) {
        const TrainedTensor& gradient = (*gradients)[i];
        // Of each kind the first: in layers all go the same way.
        std::string kind = gradient.name;
        if (const size_t at = kind.find("layers."); at != std::string::npos) kind = kind.substr(at + 9);
        if (n_of_kind[kind]++ != 0) continue;
        double norm = 0;
        for (const float value : gradient.values) norm += double{value} * value;
        norm = std::sqrt(norm);
        ASSERT_GT(norm, 1e-4) << gradient.name;
        const double step = std::min(0.02, 0.01 / norm);
        double losses[2];
        for (const int side : {0, 1}) {
            TrainableAdapter moved = adapter;
            std::vector<float>& values = moved.tensors()[i]->values;
            for (size_t j = 0; j < values.size(); ++j)
                values[j] += static_cast<float>((side == 0 ? step : -step) * gradient.values[j] / norm);
            losses[side] = loss_of(moved);
        }
        EXPECT_NEAR((losses[0] - losses[1]) / (2 * step), norm, 0.01 * norm + 2e-4) << gradient.name;
    }
    EXPECT_EQ(n_of_kind.size(), 13u);
}

TEST(TrainStart, IsPeftsAndDependsOnTheSeedAlone) {
    LoraRecipe recipe;
    recipe.r = 8;
    recipe.lora_alpha = 12;
    recipe.use_dora = true;
    recipe.rank_pattern = {{"k_proj", 2}};
    recipe.alpha_pattern = {{"layers.1.mlp.down_proj", 3}};
    recipe.seed = 1;
    const auto made = make_trainable(recipe, *llama().base), again = make_trainable(recipe, *llama().base);
    ASSERT_TRUE(made.ok()) << refusal(made);
    EXPECT_EQ(made->linears.size(), 14u);
    recipe.seed = 2;
    const auto other = make_trainable(recipe, *llama().base);
    for (size_t i = 0; i < made->linears.size(); ++i) {
        const model::TrainedPair& pair = made->linears[i].pair;
        EXPECT_EQ(pair.a.values, again->linears[i].pair.a.values);
        EXPECT_NE(pair.a.values, other->linears[i].pair.a.values);
        EXPECT_EQ(std::ranges::count(pair.b.values, 0.0f), std::ssize(pair.b.values));
        const float bound = 1.0f / std::sqrt(static_cast<float>(pair.a.shape[1]));
        double squares = 0;
        for (const float value : pair.a.values) {
            ASSERT_LE(std::abs(value), bound);
            squares += double{value} * value;
        }
        // A uniform number's square is a third of its bound's; of a hundred and more numbers within a third.
        EXPECT_NEAR(squares / static_cast<double>(pair.a.values.size()), bound * bound / 3, bound * bound / 9)
            << pair.a.name;
        EXPECT_EQ(pair.rank(), pair.a.name.find("k_proj") != std::string::npos ? 2u : 8u);
        const bool has_own_alpha = pair.a.name.find("layers.1.mlp.down_proj") != std::string::npos;
        EXPECT_FLOAT_EQ(pair.scale, (has_own_alpha ? 3.0f : 12.0f) / static_cast<float>(pair.rank()));
        ASSERT_TRUE(pair.magnitude.has_value());
    }
}

TEST(TrainStart, RefusesModulesThatAreNotThere) {
    LoraRecipe recipe;
    // What names nothing is refused of a run that goes on as well; what is of no effect, of new recipes alone.
    const auto always_refused = [&] {
        const std::string of_shape = refusal(trainable_shape(recipe, *llama().base));
        EXPECT_EQ(refusal(make_trainable(recipe, *llama().base)), of_shape);
        return of_shape;
    };
    const auto refused = [&] {
        EXPECT_EQ(refusal(make_trainable(recipe, *llama().base)), "accepted");
        return refusal(trainable_shape(recipe, *llama().base));
    };
    const std::string targets =
        "expected all-linear, q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, embed_tokens, lm_head";
    recipe.target_modules = {"q_proj", "wq"};
    EXPECT_EQ(always_refused(), "target_modules: \"wq\": not a module of the model that is trained: " + targets);
    recipe.target_modules = {"q_proj", "w.*"};  // names, of several
    EXPECT_EQ(refused(), "target_modules: \"w.*\": not a module of the model that is trained: " + targets);
    recipe.target_modules = {"all-linear", "lm_head"};  // it stands alone
    EXPECT_EQ(refused(), "target_modules: \"all-linear\": not a module of the model that is trained: " + targets);
    recipe.target_modules = {".*q_proj("};
    EXPECT_EQ(always_refused(),
              "target_modules: not a regular expression: missing ), unterminated subpattern at position 9");
    recipe.target_modules = {R"(model\.layers\.9\..*)"};
    EXPECT_EQ(always_refused(), "target_modules: none of them is a module of the model: " + targets);
    recipe.modules_to_save = {"norm"};  // beside which it is as wrong
    EXPECT_EQ(refused(), "target_modules: none of them is a module of the model: " + targets);
    recipe.target_modules = {"q_proj"};
    recipe.modules_to_save = {"classifier"};
    EXPECT_EQ(always_refused(),
              "modules_to_save: \"classifier\": not a module of the model that is trained: expected input_layernorm, "
              "post_attention_layernorm, norm, embed_tokens, lm_head");
    recipe.modules_to_save = {};
    recipe.rank_pattern = {{"q_proj", 2}, {"k_proj", 2}};
    EXPECT_EQ(refused(), "rank_pattern: \"k_proj\": no module that is trained has such a name");
    recipe.rank_pattern = {{"layers.1.self_attn.q_proj", 2}};
    recipe.alpha_pattern = {{"layers.1.mlp.up_proj", 2}};
    EXPECT_EQ(refused(), "alpha_pattern: \"layers.1.mlp.up_proj\": no module that is trained has such a name");
    recipe.alpha_pattern = {};
    EXPECT_EQ(refused(), "accepted");
    recipe.layers_to_transform = {{0, 77}};
    EXPECT_EQ(refused(), "layers_to_transform: 77: the model has the layers 0 to 1");
    recipe.layers_to_transform = {{0}};
    EXPECT_EQ(refused(), "rank_pattern: \"layers.1.self_attn.q_proj\": no module that is trained has such a name");
    recipe.rank_pattern = {};
    recipe.exclude_modules = {"wq"};
    EXPECT_EQ(refused(), "exclude_modules: \"wq\": not a module of the model: " + targets);
    recipe.exclude_modules = {"q_proj"};
    EXPECT_EQ(always_refused(), "target_modules: none of them is a module of the model: " + targets);
    recipe.exclude_modules = {"layers.0.self_attn.q_proj", "k_proj"};
    recipe.layers_to_transform = std::nullopt;
    EXPECT_EQ(make_trainable(recipe, *llama().base)->linears.size(), 1u);
    recipe.exclude_modules = {};
    recipe.r = 0;
    EXPECT_NE(always_refused(), "accepted");
}

// What needs no numbers is known before they are read and drawn.
void expect_shape_of_whole(const TrainingGolden& golden, const LoraRecipe& recipe) {
    const auto whole = make_trainable(recipe, *golden.base), shape = trainable_shape(recipe, *golden.base);
    ASSERT_TRUE(whole.ok() && shape.ok()) << refusal(whole) << refusal(shape);
    EXPECT_EQ(shape->n_parameters(), whole->n_parameters());
    const auto of_shape = shape->tensors(), of_whole = whole->tensors();
    ASSERT_EQ(of_shape.size(), of_whole.size());
    for (size_t i = 0; i < of_shape.size(); ++i) {
        EXPECT_EQ(of_shape[i]->name, of_whole[i]->name);
        EXPECT_EQ(of_shape[i]->shape, of_whole[i]->shape);
        EXPECT_TRUE(of_shape[i]->values.empty());
    }
    const auto& device = lorad::testing::test_device();
    const auto plan = [&](const TrainableAdapter& adapter) {
        return model::Trainer::plan_memory(device.capabilities(), golden.base->config, *golden.weights, adapter,
                                           golden.options(128), uint64_t{1} << 32);
    };
    EXPECT_EQ(plan(*shape)->sum(), plan(*whole)->sum());
}

TEST(TrainStart, ShapesAloneAreThoseOfTheWhole) {
    LoraRecipe recipe = wide_recipe();
    expect_shape_of_whole(qwen3(), recipe);
    recipe.target_modules = {"all-linear"};
    recipe.use_dora = true;
    expect_shape_of_whole(qwen3(), recipe);
    LoraRecipe biased;
    biased.target_modules = {"q_proj", "down_proj"};
    biased.bias = BiasKind::kAll;
    biased.lora_bias = true;
    const auto qwen2 = TrainingGolden::load("qwen2-tied-patterns");
    expect_shape_of_whole(*qwen2, biased);
    EXPECT_EQ(trainable_shape(biased, *qwen2->base)->biases.size(), 3u * qwen2->base->config.n_layers);
}

// What a trainer of a large device would do, where it is only asked whether it could.
TEST(TrainStart, APlanHasFewerRowsWhereThereIsLessRoomAndNobodyAskedForMore) {
    const auto golden = TrainingGolden::load("llama-tied-plain", {.weights = {.type = gpu::ScalarType::kF16}});
    const auto plan = [&](uint32_t n_rows, uint64_t n_bytes) {
        return model::Trainer::plan_memory(
            lorad::testing::h200(), golden->base->config, *golden->weights, golden->initial,
            {.n_rows = n_rows, .n_positions_max = 64, .memory_bytes = n_bytes}, uint64_t{1} << 40);
    };
    constexpr uint32_t kFew = 2048, kMany = 8192;
    const uint64_t much = uint64_t{1} << 36, between = plan(kFew, much)->sum();
    EXPECT_EQ(plan(0, much)->sum(), plan(kMany, much)->sum());
    ASSERT_FALSE(plan(kMany, between).ok());
    const auto fewer = plan(0, between);
    ASSERT_TRUE(fewer.ok()) << refusal(fewer);
    EXPECT_EQ(fewer->sum(), between);
    EXPECT_FALSE(plan(0, between / 4).ok());
    EXPECT_FALSE(model::Trainer::plan_memory(lorad::testing::h200(), golden->base->config, *golden->weights,
                                             golden->initial, {.n_positions_max = 64, .memory_bytes = much},
                                             between / 4)
                     .ok())
        << "a limit beyond the device's memory";
}

void expect_same(const TrainableAdapter& a, const TrainableAdapter& b) {
    const auto of_a = a.tensors(), of_b = b.tensors();
    ASSERT_EQ(of_a.size(), of_b.size());
    for (size_t i = 0; i < of_a.size(); ++i) {
        EXPECT_EQ(of_a[i]->name, of_b[i]->name);
        EXPECT_EQ(of_a[i]->shape, of_b[i]->shape);
        EXPECT_EQ(of_a[i]->values, of_b[i]->values) << of_a[i]->name;
    }
    for (size_t i = 0; i < a.linears.size(); ++i)
        EXPECT_EQ(a.linears[i].pair.scale, b.linears[i].pair.scale) << a.linears[i].pair.a.name;
}

TEST(PeftFolder, ReadsBackAsWhatWasTrained) {
    const lorad::testing::TempDir folder;
    LoraRecipe in_layers;
    in_layers.r = 6;
    in_layers.lora_alpha = 7;
    in_layers.use_rslora = true;
    in_layers.use_dora = true;
    in_layers.layers_to_transform = {{0, 2}};
    in_layers.target_modules = {"q_proj", "up_proj"};
    in_layers.rank_pattern = {{"up_proj", 3}, {"layers.2.self_attn.q_proj", 5}};
    auto made = make_trainable(in_layers, *qwen3().base);
    ASSERT_TRUE(made.ok()) << refusal(made);
    for (const bool use_rslora : {false, true}) {
        ASSERT_TRUE(
            write_peft_folder(peft_files(*made, *qwen3().base, {.base_name = "qwen3", .use_rslora = use_rslora}),
                              folder.path())
                .ok());
        expect_same(qwen3().read_adapter(folder.path()), *made);
    }
    const TrainableAdapter wide = wide_adapter();
    ASSERT_TRUE(write_peft_folder(peft_files(wide, *qwen3().base, {.base_name = "qwen3"}), folder.path()).ok());
    // Sorted by place the norms come in another order; as sets they are the same.
    TrainableAdapter read = qwen3().read_adapter(folder.path()), sorted = wide;
    const auto by_name = [](const model::TrainedWhole& whole) { return whole.weight.name; };
    std::ranges::sort(read.wholes, {}, by_name);
    std::ranges::sort(sorted.wholes, {}, by_name);
    expect_same(read, sorted);
}

}  // namespace
}  // namespace lorad::adapters
