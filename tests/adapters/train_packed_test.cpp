// Training beside bases whose matrices lie in few bits: what is unpacked for a product is the number that a plain
// matrix would hold, so everything has the bits of training beside plain matrices of the same numbers.
#include <cmath>
#include <optional>
#include <random>

#include <gtest/gtest.h>

#include "tests/support/training_goldens.h"

namespace lorad::adapters {
namespace {

using model::TrainableAdapter;
using model::TrainedTensor;

struct PackedCase {
    const char* name;  // of the goldens' folder
    std::optional<model::QuantizeType> quantize = std::nullopt;
};
void PrintTo(const PackedCase& of, std::ostream* to) { *to << of.name; }

struct Steps {
    std::vector<double> losses, norms;
    std::vector<std::vector<float>> gradients, values;
    model::TrainMemory memory;
    uint32_t n_kept_layers = 0;
    bool operator==(const Steps& other) const {
        return losses == other.losses && norms == other.norms && gradients == other.gradients && values == other.values;
    }
};

class TrainOnPackedWeights : public ::testing::TestWithParam<PackedCase> {
  protected:
    static std::filesystem::path path() { return lorad::testing::goldens_dir() / GetParam().name; }

    void SetUp() override {
        auto loaded = BaseModel::load(path());
        ASSERT_TRUE(loaded.ok()) << loaded.error().message;
        base_ = std::make_unique<BaseModel>(std::move(loaded).value());
        packed_ = load(true);
        plain_ = load(false);
        ASSERT_TRUE(packed_ && plain_);
        ASSERT_NE(model::packed_formats_of(*packed_), 0u);
        ASSERT_EQ(model::packed_formats_of(*plain_), 0u);
    }
    std::unique_ptr<const model::ModelWeights> load(bool keeps_packed) const {
        auto made =
            model::load_base_weights(lorad::testing::test_device(), path(), base_->config,
                                     {.weights = {.keeps_packed = keeps_packed}, .quantize = GetParam().quantize});
        EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
        return made.ok() ? std::move(made).value() : nullptr;
    }

    // Off the start, where gradients of A are zero.
    TrainableAdapter adapter(LoraRecipe recipe) const {
        recipe.r = 4;
        auto made = make_trainable(recipe, *base_);
        EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
        uint32_t i = 0;
        for (TrainedTensor* tensor : made->tensors()) {
            for (float& value : tensor->values) value += 0.01f * std::sin(static_cast<float>(++i));
        }
        return std::move(made).value();
    }

    Steps steps(const model::ModelWeights& weights, const TrainableAdapter& adapter,
                model::TrainerOptions options) const {
        options.n_rows = options.n_positions_max = 64;
        auto trainer = model::Trainer::create(lorad::testing::test_device(), base_->config, weights, adapter, options);
        EXPECT_TRUE(trainer.ok()) << (trainer.ok() ? "" : trainer.error().message);
        Steps made;
        if (!trainer.ok()) return made;
        made.memory = (*trainer)->memory();
        std::mt19937 random(7);
        for (int step = 0; step < 2; ++step) {
            std::vector<model::TrainExample> examples;
            for (const size_t length : {13, 29, 40}) {
                model::TrainExample example{{}, std::vector<float>(length, 1.0f)};
                for (size_t i = 0; i < length; ++i)
                    example.tokens.push_back(static_cast<TokenId>(random() % base_->config.vocab_size));
                examples.push_back(std::move(example));
            }
            const auto report = (*trainer)->step(examples, 1e-2);
            EXPECT_TRUE(report.ok() && report->is_applied);
            if (!report.ok()) return made;
            made.losses.push_back(report->loss);
            made.norms.push_back(report->grad_norm);
        }
        for (const TrainedTensor& gradient : (*trainer)->gradients().value()) made.gradients.push_back(gradient.values);
        const TrainableAdapter trained = (*trainer)->adapter().value();
        for (const TrainedTensor* tensor : trained.tensors()) made.values.push_back(tensor->values);
        return made;
    }

    std::unique_ptr<BaseModel> base_;
    std::unique_ptr<const model::ModelWeights> packed_, plain_;
};

TEST_P(TrainOnPackedWeights, StepsHaveTheBitsOfPlainWeights) {
    const TrainableAdapter of = adapter({});
    const Steps want = steps(*plain_, of, {}), got = steps(*packed_, of, {});
    EXPECT_TRUE(std::isfinite(got.losses.at(0)) && got.norms.at(0) > 0);
    EXPECT_NE(got.losses.at(0), got.losses.at(1));
    EXPECT_TRUE(got == want) << got.losses[0] << " and " << want.losses[0] << ", " << got.losses[1] << " and "
                             << want.losses[1];
    // One matrix as a plain one is all that it takes beside.
    uint64_t largest = 0;
    for (const model::LayerWeights& layer : packed_->layers) {
        for (const model::Matrix* w : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
            if (w->is_packed()) largest = std::max(largest, w->plain_bytes());
        }
    }
    if (packed_->output().is_packed()) largest = std::max(largest, packed_->output().plain_bytes());
    EXPECT_NEAR(static_cast<double>(got.memory.scratch), static_cast<double>(want.memory.scratch + largest), 256);
}

// Of fewer bases: what differs between them is above.
class FormsOnPackedWeights : public TrainOnPackedWeights {};

TEST_P(FormsOnPackedWeights, StepsIn16BitsHaveTheBitsOfPlainWeights) {
    const TrainableAdapter of = adapter({});
    model::TrainerOptions options{.keeps_16_bits = true};
    const Steps want = steps(*plain_, of, options), got = steps(*packed_, of, options);
    EXPECT_TRUE(got == want) << got.losses.at(0) << " and " << want.losses.at(0);
    // Layers are computed again, and their matrices unpacked once more.
    options.memory_bytes = got.memory.sum() - 1;
    const Steps again = steps(*packed_, of, options);
    EXPECT_LT(again.memory.n_kept_layers, got.memory.n_kept_layers);
    EXPECT_TRUE(again == got);
}

TEST_P(FormsOnPackedWeights, DoraAndNormsHaveTheBitsOfPlainWeights) {
    LoraRecipe recipe;
    recipe.use_dora = true;
    recipe.modules_to_save = {"norm"};
    const TrainableAdapter of = adapter(recipe);
    const Steps want = steps(*plain_, of, {}), got = steps(*packed_, of, {});
    EXPECT_TRUE(got == want) << got.losses.at(0) << " and " << want.losses.at(0);
    // With dropout a matrix is multiplied by what is left of its input, and by the rest.
    for (const bool keeps_16_bits : {false, true}) {
        const model::TrainerOptions dropping{.lora_dropout = 0.2f, .keeps_16_bits = keeps_16_bits};
        const Steps want_left = steps(*plain_, of, dropping), got_left = steps(*packed_, of, dropping);
        EXPECT_NE(got_left.losses.at(0), got.losses.at(0));
        EXPECT_TRUE(got_left == want_left) << got_left.losses.at(0) << " and " << want_left.losses.at(0);
    }
}

std::string name_of_case(const ::testing::TestParamInfo<PackedCase>& one) {
    std::string name = std::filesystem::path(one.param.name).filename();
    if (one.param.quantize) name += *one.param.quantize == model::QuantizeType::kNf4 ? "_as_nf4" : "_as_q8_0";
    std::ranges::replace_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
    return name;
}

INSTANTIATE_TEST_SUITE_P(
    Bases, TrainOnPackedWeights,
    ::testing::Values(PackedCase{"quantized/gguf/llama-Q4_K_M.gguf"}, PackedCase{"quantized/gguf/llama-mid-Q8_0.gguf"},
                      PackedCase{"quantized/gguf/qwen3-Q5_K_M.gguf"}, PackedCase{"quantized/gguf/llama-IQ4_XS.gguf"},
                      PackedCase{"quantized/hf/llama-bnb-nf4-double"}, PackedCase{"quantized/hf/llama-gptq-asym"},
                      PackedCase{"quantized/hf/qwen3-awq-g32"}, PackedCase{"quantized/hf/llama-fp8-block"},
                      PackedCase{"models/llama-scaled", model::QuantizeType::kQ8_0},
                      PackedCase{"models/llama-scaled", model::QuantizeType::kNf4}),
    name_of_case);
INSTANTIATE_TEST_SUITE_P(Bases, FormsOnPackedWeights,
                         ::testing::Values(PackedCase{"quantized/gguf/llama-mid-Q8_0.gguf"},
                                           PackedCase{"quantized/hf/llama-bnb-nf4-double"},
                                           PackedCase{"quantized/hf/llama-gptq-asym"}),
                         name_of_case);

// The refusal says what of the passes' memory is a matrix that is unpacked.
TEST(TrainOnPackedBase, ARefusalForMemoryNamesTheMatrix) {
    const std::filesystem::path path = lorad::testing::goldens_dir() / "quantized/gguf/llama-Q4_K_M.gguf";
    const BaseModel base = BaseModel::load(path).value();
    const auto weights = model::load_base_weights(lorad::testing::test_device(), path, base.config);
    ASSERT_TRUE(weights.ok());
    const TrainableAdapter adapter = make_trainable({}, base).value();
    const auto refused = model::Trainer::create(lorad::testing::test_device(), base.config, **weights, adapter,
                                                {.n_rows = 64, .n_positions_max = 64, .memory_bytes = 1 << 16});
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("for one matrix that is unpacked"), std::string::npos)
        << refused.error().message;
}

}  // namespace
}  // namespace lorad::adapters
