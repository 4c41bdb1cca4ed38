// Training as PEFT and torch do it, step by step.
#include <cmath>
#include <utility>

#include "tests/support/source_dir.h"
#include "tests/support/training_goldens.h"

namespace lorad::adapters {
namespace {

using lorad::testing::difference_to;
using lorad::testing::TrainingGolden;

std::vector<const model::TrainedTensor*> pointers(const std::vector<model::TrainedTensor>& tensors) {
    std::vector<const model::TrainedTensor*> made;
    for (const model::TrainedTensor& tensor : tensors) made.push_back(&tensor);
    return made;
}

// The cosine of the angle between what training changed and what the reference's training did.
double agreement(const model::TrainableAdapter& initial, const model::TrainableAdapter& got,
                 const model::TrainableAdapter& want) {
    double both = 0, of_got = 0, of_want = 0;
    const auto begin = initial.tensors(), end = got.tensors(), wanted = want.tensors();
    for (size_t i = 0; i < begin.size(); ++i) {
        for (size_t j = 0; j < begin[i]->values.size(); ++j) {
            const double a = double{end[i]->values[j]} - begin[i]->values[j],
                         b = double{wanted[i]->values[j]} - begin[i]->values[j];
            both += a * b;
            of_got += a * a;
            of_want += b * b;
        }
    }
    return both / std::sqrt(of_got * of_want);
}

class TrainGolden : public ::testing::TestWithParam<const char*> {};

// The references' own f32 differs from their f64 by 1e-6 in the losses; sums over some hundred numbers in another order
// by as much again. AdamW divides by the size of a gradient, so that tiny ones may flip: whole vectors are compared.
TEST_P(TrainGolden, LossesGradientsAndAdaptersAreThoseOfPeft) {
    const auto golden = TrainingGolden::load(GetParam());
    model::TrainerOptions options = golden->options(128);
    options.in_f32 = true;
    const auto trainer = golden->trainer(options);
    ASSERT_TRUE(trainer);
    const auto held_out = std::vector{golden->held_out()};
    const auto before = trainer->evaluate(held_out);
    ASSERT_TRUE(before.ok()) << before.error().message;
    EXPECT_NEAR(before->loss, golden->expected.at("eval_loss_before").get<double>(), 1e-5 * before->loss);
    for (size_t step = 0; step < golden->n_steps(); ++step) {
        const auto& expected = golden->expected.at("steps").at(step);
        const double rate = model::learning_rate(golden->schedule(), step);
        EXPECT_DOUBLE_EQ(rate, expected.at("lr").get<double>()) << "step " << step;
        const auto report = trainer->step(golden->examples(step), rate);
        ASSERT_TRUE(report.ok()) << report.error().message;
        EXPECT_EQ(report->n_trained_tokens, expected.at("trained_tokens").get<uint64_t>());
        EXPECT_NEAR(report->loss, expected.at("loss").get<double>(), 2e-5 * report->loss) << "step " << step;
        EXPECT_NEAR(report->grad_norm, expected.at("grad_norm").get<double>(), 1e-4 * report->grad_norm)
            << "step " << step;
        EXPECT_EQ(report->is_clipped, expected.at("clipped").get<bool>()) << "step " << step;
        for (size_t i = 0; i < report->examples.size(); ++i) {
            const auto& of_example = expected.at("sequence_loss_sums").at(i);
            EXPECT_EQ(report->examples[i].n_trained, of_example.at(2).get<uint32_t>());
            EXPECT_NEAR(report->examples[i].loss_sum, of_example.at(1).get<double>(),
                        2e-5 * of_example.at(1).get<double>());
        }
        if (step == 0) {
            const auto gradients = trainer->gradients();
            ASSERT_TRUE(gradients.ok());
            EXPECT_LT(difference_to(golden->tensors() / "gradients-step1.safetensors", pointers(*gradients)), 1e-4);
        }
        // The last step's everywhere, of one run also those after 1 and 4.
        const std::string file = "adapter-step" + std::to_string(step + 1) + ".safetensors";
        if (step + 1 != golden->n_steps() && !std::filesystem::exists(golden->tensors() / file)) continue;
        const auto adapter = trainer->adapter();
        ASSERT_TRUE(adapter.ok());
        EXPECT_LT(difference_to(golden->tensors() / file, std::as_const(*adapter).tensors()), 2e-4) << file;
    }
    const auto after = trainer->evaluate(held_out);
    ASSERT_TRUE(after.ok());
    EXPECT_NEAR(after->loss, golden->expected.at("eval_loss_after").get<double>(), 2e-5 * after->loss);
}

// The same with inputs of products in the base's 16-bit type, by the best kernels that the device has.
TEST_P(TrainGolden, LossesGradientsAndAdaptersIn16BitsAreNearThoseOfPeft) {
    const auto golden = TrainingGolden::load(GetParam());
    model::TrainerOptions options = golden->options(128);
    options.keeps_16_bits = true;
    const auto trainer = golden->trainer(options);
    ASSERT_TRUE(trainer);
    // Some of the models have weights in f32, or feed-forward widths that four does not divide.
    if (golden->weights->layers.front().qkv.type != gpu::ScalarType::kF32 &&
        golden->base->config.intermediate_size % 4 == 0) {
        model::TrainerOptions in_f32 = options;
        in_f32.in_f32 = true;
        EXPECT_LT(trainer->memory().activations, golden->trainer(in_f32)->memory().activations);
    }
    const auto held_out = std::vector{golden->held_out()};
    const auto before = trainer->evaluate(held_out);
    ASSERT_TRUE(before.ok()) << before.error().message;
    EXPECT_NEAR(before->loss, golden->expected.at("eval_loss_before").get<double>(), 1e-2 * before->loss);
    for (size_t step = 0; step < golden->n_steps(); ++step) {
        const auto& expected = golden->expected.at("steps").at(step);
        const auto report = trainer->step(golden->examples(step), model::learning_rate(golden->schedule(), step));
        ASSERT_TRUE(report.ok()) << report.error().message;
        EXPECT_EQ(report->n_trained_tokens, expected.at("trained_tokens").get<uint64_t>());
        EXPECT_NEAR(report->loss, expected.at("loss").get<double>(), 1e-2 * report->loss) << "step " << step;
        EXPECT_NEAR(report->grad_norm, expected.at("grad_norm").get<double>(), 2e-2 * report->grad_norm)
            << "step " << step;
        for (size_t i = 0; i < report->examples.size(); ++i)
            EXPECT_NEAR(report->examples[i].loss_sum, expected.at("sequence_loss_sums").at(i).at(1).get<double>(),
                        1e-2 * report->examples[i].loss_sum);
        if (step != 0) continue;
        const auto gradients = trainer->gradients();
        ASSERT_TRUE(gradients.ok());
        EXPECT_LT(difference_to(golden->tensors() / "gradients-step1.safetensors", pointers(*gradients)), 2e-2);
    }
    const auto adapter = trainer->adapter();
    ASSERT_TRUE(adapter.ok());
    EXPECT_LT(difference_to(golden->tensors() / ("adapter-step" + std::to_string(golden->n_steps()) + ".safetensors"),
                            std::as_const(*adapter).tensors()),
              2e-2);
    const auto after = trainer->evaluate(held_out);
    ASSERT_TRUE(after.ok());
    EXPECT_NEAR(after->loss, golden->expected.at("eval_loss_after").get<double>(), 1e-2 * after->loss);
    model::TrainableAdapter wanted = golden->initial;
    const auto file = model::TensorFiles::map(
        golden->tensors() / ("adapter-step" + std::to_string(golden->n_steps()) + ".safetensors"), ErrorCode::kIo);
    ASSERT_TRUE(file.ok());
    for (model::TrainedTensor* tensor : wanted.tensors())
        tensor->values = lorad::testing::golden_floats(*file, tensor->name);
    EXPECT_GT(agreement(golden->initial, *adapter, wanted), 0.98);
}

// The chats of the demo model, whose tokens and labels tests/server/training_data_test.cpp compares.
TEST(TrainChats, TheDemoModelsLossesAreTheReferences) {
    const auto folder = lorad::testing::source_dir() / "deploy/demo-model/base";
    auto base = BaseModel::load(folder);
    ASSERT_TRUE(base.ok()) << base.error().message;
    const auto weights = model::load_base_weights(lorad::testing::test_device(), folder, base->config);
    ASSERT_TRUE(weights.ok()) << weights.error().message;
    LoraRecipe recipe;
    recipe.r = 1;
    recipe.target_modules = {"q_proj"};
    const auto adapter = make_trainable(recipe, *base);  // whose B is zero
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    std::ifstream lines(lorad::testing::goldens_dir() / "training-chat/expected.jsonl");
    std::vector<model::TrainExample> chats;
    std::vector<double> wanted;
    for (std::string line; std::getline(lines, line);) {
        const nlohmann::json expected = nlohmann::json::parse(line);
        chats.push_back(TrainingGolden::example_of(expected));
        wanted.push_back(expected.at("loss_sum_base"));
    }
    ASSERT_EQ(chats.size(), 40u);
    for (const bool in_f32 : {true, false}) {
        const model::TrainerOptions options{
            .n_rows = 512, .n_positions_max = 512, .keeps_16_bits = !in_f32, .in_f32 = in_f32};
        const auto trainer =
            model::Trainer::create(lorad::testing::test_device(), base->config, **weights, *adapter, options);
        ASSERT_TRUE(trainer.ok()) << trainer.error().message;
        const auto report = (*trainer)->evaluate(chats);
        ASSERT_TRUE(report.ok()) << report.error().message;
        // Tokens that the model is sure of have losses near 0, whose errors are those of logits of some tens.
        for (size_t i = 0; i < chats.size(); ++i) {
            const double n_trained = report->examples[i].n_trained;
            EXPECT_NEAR(report->examples[i].loss_sum, wanted[i],
                        (in_f32 ? 2e-5 : 1e-2) * wanted[i] + (in_f32 ? 1e-5 : 2e-3) * n_trained)
                << "line " << i + 1;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Runs, TrainGolden,
                         ::testing::Values("llama-tied-plain", "llama-tied-accumulated", "llama-tied-second",
                                           "llama-tied-from-zero-b", "qwen3-plain", "qwen3-dora",
                                           "mistral-window-rslora", "mistral-window-clipped", "qwen2-tied-patterns",
                                           "phi3-sharded-plain", "phi3-sharded-saved"),
                         [](const auto& run) {
                             std::string name = run.param;
                             std::ranges::replace(name, '-', '_');
                             return name;
                         });

}  // namespace
}  // namespace lorad::adapters
