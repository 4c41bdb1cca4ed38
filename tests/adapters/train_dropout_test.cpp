// Steps that drop inputs, beside PEFT's formulas in double precision with the same masks.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "model/files/model_files.h"
#include "tests/reference/trained_model.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training_goldens.h"

namespace lorad::adapters {
namespace {

using lorad::testing::difference;
using lorad::testing::TrainingGolden;
using model::TrainableAdapter;
using model::TrainedTensor;
using reference::TrainedModel;

constexpr double kStep = 1e-4;  // of central differences in double precision, along vectors of norm 1

TrainedModel reference_of(const TrainingGolden& golden) {
    std::map<std::string, std::vector<float>> weights;
    const auto files = model::ModelFiles::open(golden.model);
    EXPECT_TRUE(files.ok());
    const auto tensors = (*files)->tensors();
    EXPECT_TRUE(tensors.ok());
    for (const auto& tensor : tensors->tensors()) weights[tensor.name] = model::numbers_of(tensor);
    return TrainedModel(golden.base->config, std::move(weights));
}

// Off the start, where magnitudes change nothing and gradients of A are zero.
TrainableAdapter moved_adapter(const TrainingGolden& golden, bool use_dora, bool has_biases = false) {
    LoraRecipe recipe;
    recipe.bias = has_biases ? BiasKind::kAll : BiasKind::kNone;
    recipe.lora_bias = has_biases && !use_dora;
    recipe.r = 3;
    recipe.lora_alpha = 4;
    recipe.use_dora = use_dora;
    recipe.seed = 2;
    if (!use_dora) recipe.target_modules = {"q_proj", "up_proj", "down_proj"};
    if (!use_dora && !has_biases) recipe.target_modules.emplace_back("lm_head");
    auto made = make_trainable(recipe, *golden.base);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    uint32_t i = 0;
    for (auto& linear : made->linears) {
        for (float& value : linear.pair.b.values) value += 0.05f * std::sin(static_cast<float>(++i));
        if (linear.pair.b_bias) {
            for (float& value : linear.pair.b_bias->values) value += 0.1f * std::sin(static_cast<float>(++i));
        }
        if (!linear.pair.magnitude) continue;
        for (float& value : linear.pair.magnitude->values) value *= 1.0f + 0.3f * std::sin(static_cast<float>(++i));
    }
    for (auto& bias : made->biases) {
        for (float& value : bias.bias.values) value += 0.1f * std::sin(static_cast<float>(++i));
    }
    if (made->head) {
        for (float& value : made->head->b.values) value += 0.05f * std::sin(static_cast<float>(++i));
    }
    return std::move(made).value();
}

// Two short ones, so that the reference is quick.
std::vector<model::TrainExample> short_examples(const TrainingGolden& golden) {
    std::vector<model::TrainExample> made = golden.examples(0);
    made.resize(2);
    for (size_t i = 0; i < made.size(); ++i) {
        made[i].tokens.resize(std::min<size_t>(made[i].tokens.size(), 9 - 2 * i));
        made[i].weights.assign(made[i].tokens.size(), 1.0f);
        made[i].weights[0] = 0.0f;
    }
    return made;
}

double dot(const std::vector<float>& a, const std::vector<double>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

struct DropoutCase {
    const char* golden;
    bool use_dora, has_biases = false;
};
void PrintTo(const DropoutCase& one, std::ostream* to) {
    *to << one.golden << (one.use_dora ? " DoRA" : "") << (one.has_biases ? " biases" : "");
}

// Biases have no dropout, and are there in both ways.
class TrainDropout : public ::testing::TestWithParam<DropoutCase> {};

// Norms of DoRA are held, as PEFT's gradients hold them.
TEST_P(TrainDropout, LossesAndGradientsAreTheReferences) {
    const auto golden = TrainingGolden::load(GetParam().golden);
    const TrainedModel model = reference_of(*golden);
    const TrainableAdapter adapter = moved_adapter(*golden, GetParam().use_dora, GetParam().has_biases);
    const auto examples = short_examples(*golden);
    model::TrainerOptions options = golden->options(128);
    options.in_f32 = true;
    options.lora_dropout = 0.25f;
    options.seed = uint64_t{5} << 32 | 77;
    options.optimizer.max_grad_norm = 0;
    auto trainer =
        model::Trainer::create(lorad::testing::test_device(), golden->base->config, *golden->weights, adapter, options);
    ASSERT_TRUE(trainer.ok()) << trainer.error().message;
    const std::vector<reference::Vector> norms = model.norms(adapter);
    const auto loss_of = [&](const TrainableAdapter& of, double p) {
        return model.loss(of, norms, examples, {p, options.seed, 0});
    };
    const double want = loss_of(adapter, 0.25), undropped = loss_of(adapter, 0);
    EXPECT_NEAR((*trainer)->evaluate(examples)->loss, undropped, 1e-5 * undropped);
    const auto report = (*trainer)->step(examples, 0.0);
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_NEAR(report->loss, want, 1e-5 * want);
    EXPECT_GT(std::abs(want - undropped), 1e-3 * want) << "nothing is dropped";
    const auto gradients = (*trainer)->gradients();
    ASSERT_TRUE(gradients.ok());
    // One tensor of each kind, in another layer each time, along a random direction and along the gradient.
    std::mt19937 random(4);
    std::normal_distribution<double> normal;
    std::map<std::string, std::vector<size_t>> of_kind;
    for (size_t i = 0; i < gradients->size(); ++i) {
        const std::string& name = (*gradients)[i].name;
        const size_t layer = name.find("layers.");
        of_kind[layer == std::string::npos ? name : name.substr(layer + 9)].push_back(i);
    }
    std::vector<size_t> looked_at;
    for (const auto& [kind, all] : of_kind) looked_at.push_back(all[looked_at.size() % all.size()]);
    EXPECT_GE(looked_at.size(), 8u);
    for (const size_t i : looked_at) {
        const TrainedTensor& gradient = (*gradients)[i];
        double norm = 0, drawn = 0;
        std::vector<double> along(gradient.values.begin(), gradient.values.end()), across(along.size());
        for (const double value : along) norm += value * value;
        for (double& value : across) value = normal(random);
        for (const double value : across) drawn += value * value;
        norm = std::sqrt(norm);
        ASSERT_GT(norm, 1e-5) << gradient.name;
        for (double& value : along) value /= norm;
        for (double& value : across) value /= std::sqrt(drawn);
        for (const auto& direction : {along, across}) {
            double losses[2];
            for (const int side : {0, 1}) {
                TrainableAdapter moved = adapter;
                std::vector<float>& values = moved.tensors()[i]->values;
                double rounded = 0;
                for (size_t j = 0; j < values.size(); ++j) {
                    const double to = double{values[j]} + (side == 0 ? kStep : -kStep) * direction[j];
                    values[j] = static_cast<float>(to);
                    rounded += (values[j] - to) * gradient.values[j];
                }
                losses[side] = loss_of(moved, 0.25) - rounded;  // numbers are f32
            }
            EXPECT_NEAR((losses[0] - losses[1]) / (2 * kStep), dot(gradient.values, direction), 1e-4 * norm)
                << gradient.name;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
    Models, TrainDropout,
    // apart and with norms of heads; with biases; fused
    ::testing::Values(DropoutCase{"qwen3-plain", false}, DropoutCase{"qwen3-plain", true},
                      DropoutCase{"qwen2-tied-patterns", true}, DropoutCase{"phi3-sharded-plain", true},
                      DropoutCase{"qwen2-tied-patterns", false, true}, DropoutCase{"qwen2-tied-patterns", true, true}),
    [](const auto& one) {
        std::string name = one.param.golden;
        std::ranges::replace(name, '-', '_');
        return name + (one.param.use_dora ? "_dora" : "") + (one.param.has_biases ? "_biases" : "");
    });

// What is written is what was trained, and is served: the reader is that of adapters that are served.
TEST(TrainBiases, AreSavedAsPeftSavesThem) {
    const auto golden = TrainingGolden::load("qwen2-tied-patterns");
    for (const bool use_dora : {false, true}) {
        const TrainableAdapter adapter = moved_adapter(*golden, use_dora, true);
        EXPECT_EQ(adapter.biases.size(), 3u * golden->base->config.n_layers);
        const lorad::testing::TempDir folder;
        const PeftFiles files = peft_files(adapter, *golden->base, {.base_name = "qwen2"});
        ASSERT_TRUE(write_peft_folder(files, folder.path()).ok());
        const auto config = nlohmann::json::parse(files.config);
        // Without DoRA keys and values have no pair.
        EXPECT_EQ(config["bias"], use_dora ? "lora_only" : "all");
        EXPECT_EQ(config["lora_bias"], !use_dora);
        const TrainableAdapter read = golden->read_adapter(folder.path());
        const auto of_read = read.tensors(), of_adapter = adapter.tensors();
        ASSERT_EQ(of_read.size(), of_adapter.size());
        std::map<std::string, std::vector<float>> values;
        for (const TrainedTensor* tensor : of_read) values[tensor->name] = tensor->values;
        for (const TrainedTensor* tensor : of_adapter) EXPECT_EQ(values[tensor->name], tensor->values) << tensor->name;
    }
    LoraRecipe recipe;
    recipe.bias = BiasKind::kLoraOnly;
    recipe.target_modules = {"q_proj", "down_proj"};
    EXPECT_EQ(make_trainable(recipe, *golden->base)->biases.size(), golden->base->config.n_layers);
    const auto refused = [&](const BaseModel& base) {
        const auto made = trainable_shape(recipe, base);
        return made.ok() ? "accepted" : made.error().message;
    };
    recipe.target_modules = {"down_proj"};
    EXPECT_EQ(refused(*golden->base), "bias: the model has no biases where they are to be trained; leave it at none");
    recipe.bias = BiasKind::kNone;
    recipe.lora_bias = true;
    recipe.target_modules = {"lm_head"};
    EXPECT_EQ(refused(*golden->base), "lora_bias: a bias on lm_head is not trained");
    recipe.use_dora = true;
    EXPECT_EQ(refused(*golden->base), "lora_bias: with use_dora there is none, as in PEFT");
}

// DoRA of all linears, whose inputs are dropped or not. Masks do not go by the type.
TEST(TrainDropoutIn16Bits, DoraIsNearThatOfF32AndHasTheSameBitsComputedAgain) {
    for (const gpu::ScalarType type : {gpu::ScalarType::kBf16, gpu::ScalarType::kF16}) {
        const auto golden = TrainingGolden::load("qwen3-plain", {.weights = {.type = type}});
        const TrainableAdapter adapter = moved_adapter(*golden, true);
        const auto examples = golden->examples(0);
        const auto trainer = [&](const model::TrainerOptions& options) {
            auto made = model::Trainer::create(lorad::testing::test_device(), golden->base->config, *golden->weights,
                                               adapter, options);
            EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
            return std::move(made).value();
        };
        for (const float p : {0.0f, 0.3f}) {
            model::TrainerOptions options = golden->options(128), in_f32 = options;
            options.lora_dropout = in_f32.lora_dropout = p;
            options.keeps_16_bits = in_f32.in_f32 = true;
            const auto got = trainer(options), want = trainer(in_f32);
            options.memory_bytes = got->memory().sum() - 1;
            const auto again = trainer(options);
            ASSERT_LT(again->memory().n_kept_layers, got->memory().n_kept_layers);
            const auto of_got = got->step(examples, 1e-3), of_want = want->step(examples, 1e-3);
            ASSERT_TRUE(of_got.ok() && of_want.ok() && again->step(examples, 1e-3).ok());
            EXPECT_NEAR(of_got->loss, of_want->loss, 1e-2 * of_want->loss) << "p " << p;
            EXPECT_LT(difference(*got->gradients(), *want->gradients()), 2e-2) << "p " << p;
            EXPECT_EQ(difference(*again->gradients(), *got->gradients()), 0.0) << "p " << p;
        }
    }
}

}  // namespace
}  // namespace lorad::adapters
