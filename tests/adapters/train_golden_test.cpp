// Training as PEFT and torch do it, step by step.
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
    for (size_t step = 0; step < golden->n_steps(); ++step) {
        const auto report = trainer->step(golden->examples(step), model::learning_rate(golden->schedule(), step));
        ASSERT_TRUE(report.ok()) << report.error().message;
        EXPECT_NEAR(report->loss, golden->expected.at("steps").at(step).at("loss").get<double>(), 1e-2 * report->loss)
            << "step " << step;
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
