// GGUF and MLX adapters: the same bytes come to the device as from the PEFT adapter that they were made from.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "adapters/plan/check.h"
#include "adapters/plan/pack.h"
#include "tests/adapters/foreign_files.h"
#include "tests/support/source_dir.h"

namespace lorad::adapters::foreign_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace lorad::testing;

const std::filesystem::path kGoldens = lorad::testing::source_dir() / "tests/goldens";

SourceFile file(std::string name, const std::string& text) {
    return {std::move(name), FileBytes::copy_of(std::as_bytes(std::span(text)))};
}
Result<std::unique_ptr<CheckedAdapter>> check_gguf(const std::string& bytes, const BaseModel& base) {
    std::vector<SourceFile> files;
    files.push_back(file("x.gguf", bytes));
    TRY_ASSIGN(AdapterSource source, make_adapter_source(std::move(files)));
    return check_adapter(std::move(source), base);
}
Result<std::unique_ptr<CheckedAdapter>> check_mlx(const std::string& config, const TestTensors& tensors,
                                                  const BaseModel& base) {
    std::vector<SourceFile> files;
    files.push_back(file("adapter_config.json", config));
    files.push_back(file("adapters.safetensors", safetensors_bytes(tensors)));
    TRY_ASSIGN(AdapterSource source, make_adapter_source(std::move(files)));
    return check_adapter(std::move(source), base);
}
template <typename T>
std::string refusal(const Result<T>& result) {
    EXPECT_FALSE(result.ok());
    return result.ok() ? "" : result.error().message;
}

// Everything the device gets, pointers as offsets.
std::string packed(const CheckedAdapter& adapter) {
    const auto image = pack(adapter);
    EXPECT_TRUE(image.ok());
    std::string text(reinterpret_cast<const char*>(image->bytes.get()), image->n_bytes);
    for (const model::LoraModuleView& view : image->view.modules) {
        text += format(" {} {} {} {} {} {} {}", view.a, view.b, view.rank, view.scale, view.weight_type, view.gain,
                       view.bias);
    }
    const model::AdapterExtrasView& extras = image->view.extras;
    text += format(" {} {} {} {} {} {} {} {}", extras.embed_a, extras.embed_b, extras.embed_rank, extras.embed_scale,
                   extras.head_a, extras.head_b, extras.head_rank, extras.head_scale);
    return text;
}

struct GoldenAdapter {
    const char *model, *name;
};
// One alpha for all modules and nothing but A and B: what these formats can say.
constexpr GoldenAdapter kPlainGoldens[] = {
    {"llama-scaled", "all-linear-r16"},
    {"llama-scaled", "r3"},
    {"llama-scaled", "lm-head-lora"},
    {"llama-scaled", "embed-lora"},
    {"mistral-window", "plain-r4"},
    {"phi3-sharded", "all-linear-r16"},
    {"phi3-sharded", "r3"},
    {"qwen2-tied", "all-linear-r3"},
    {"qwen2-tied", "layers-subset"},
    {"qwen3", "all-linear-r16"},
};

TEST(GgufAdapters, GiveTheBytesOfThePeftAdapterTheyWereMadeFrom) {
    for (const auto& [model, name] : kPlainGoldens) {
        SCOPED_TRACE(format("{}/{}", model, name));
        const auto base = BaseModel::load(kGoldens / "models" / model);
        ASSERT_TRUE(base.ok());
        const auto folder = kGoldens / "adapters" / model / name;
        const auto peft = check_adapter(folder, *base);
        ASSERT_TRUE(peft.ok());
        const auto tensors = read_peft(folder / "adapter_model.safetensors");
        const auto gguf = check_gguf(as_gguf(tensors, base->config, static_cast<float>((*peft)->peft.alpha)), *base);
        ASSERT_TRUE(gguf.ok()) << gguf.error().message;
        EXPECT_EQ((*gguf)->source.kind, AdapterKind::kGguf);
        EXPECT_EQ((*gguf)->n_modules, (*peft)->n_modules);
        EXPECT_TRUE(packed(**gguf) == packed(**peft));
    }
}

TEST(MlxAdapters, GiveTheBytesOfThePeftAdapterTheyWereMadeFrom) {
    for (const auto& [model, name] : kPlainGoldens) {
        if (std::string(name) == "embed-lora") continue;  // see below
        SCOPED_TRACE(format("{}/{}", model, name));
        const auto base = BaseModel::load(kGoldens / "models" / model);
        ASSERT_TRUE(base.ok());
        const auto folder = kGoldens / "adapters" / model / name;
        const auto peft = check_adapter(folder, *base);
        ASSERT_TRUE(peft.ok());
        const std::string config = format(
            R"({{"fine_tune_type":"lora","num_layers":2,"lora_parameters":{{"rank":{},"scale":{},"dropout":0.0}}}})",
            (*peft)->peft.rank, (*peft)->peft.alpha / (*peft)->peft.rank);
        const auto mlx = check_mlx(config, as_mlx(read_peft(folder / "adapter_model.safetensors")), *base);
        ASSERT_TRUE(mlx.ok()) << mlx.error().message;
        EXPECT_TRUE(packed(**mlx) == packed(**peft));
    }
}

TEST(MlxAdapters, DoraHasItsMagnitudesUnderM) {
    const auto base = BaseModel::load(kGoldens / "models/qwen3");
    const auto folder = kGoldens / "adapters/qwen3/dora";
    const auto peft = check_adapter(folder, *base);
    ASSERT_TRUE(peft.ok());
    const std::string parameters = R"("lora_parameters":{"rank":8,"scale":2.0,"dropout":0.0})";
    const TestTensors tensors = as_mlx(read_peft(folder / "adapter_model.safetensors"));
    const auto mlx = check_mlx(R"({"fine_tune_type":"dora",)" + parameters + "}", tensors, *base);
    ASSERT_TRUE(mlx.ok()) << mlx.error().message;
    EXPECT_TRUE(packed(**mlx) == packed(**peft));
    EXPECT_THAT(refusal(check_mlx("{" + parameters + "}", tensors, *base)),
                HasSubstr(".self_attn.q_proj.m: expected use_dora"));
}

TEST(MlxAdapters, LoraOnATiedEmbeddingActsOnTheOutputLayerToo) {
    TestTensors tensors;
    tensors["model.embed_tokens.lora_a"] = matrix(100, 4, 1);
    tensors["model.embed_tokens.lora_b"] = matrix(4, 40, 2);
    const std::string config = R"({"lora_parameters":{"rank":4,"scale":3.0}})";
    for (const bool tied : {false, true}) {
        BaseModel base(small_config());
        base.config.tied_embeddings = tied;
        const auto adapter = check_mlx(config, tensors, base);
        ASSERT_TRUE(adapter.ok()) << adapter.error().message;
        const ExtrasPlan& extras = (*adapter)->plan.extras;
        EXPECT_THAT(extras.embed.a->shape, ElementsAre(4u, 100u));
        EXPECT_EQ(extras.embed.scale, 3.0f);
        ASSERT_EQ(extras.head.a != nullptr, tied);
        if (!tied) continue;
        EXPECT_THAT(extras.head.a->shape, ElementsAre(4u, 40u));
        EXPECT_THAT(extras.head.b->shape, ElementsAre(100u, 4u));
        EXPECT_EQ(extras.head.scale, 3.0f);
    }
}

TEST(MlxAdapters, ConfigsAndTensorsThatAreNoneAreRefusedByName) {
    const BaseModel base(small_config());
    const TestTensors none;
    EXPECT_THAT(refusal(check_mlx(R"({"fine_tune_type":"full"})", none, base)),
                HasSubstr("(all weights of the model)"));
    EXPECT_THAT(refusal(check_mlx("{}", none, base)), HasSubstr("lora_parameters: required"));
    EXPECT_THAT(refusal(check_mlx(R"({"lora_parameters":{"rank":8}})", none, base)), HasSubstr("scale: required"));
    EXPECT_THAT(refusal(check_mlx(R"({"lora_parameters":{"rank":0,"scale":1}})", none, base)),
                HasSubstr("a rank of 1 to 512, found 0"));
    EXPECT_THAT(refusal(check_mlx(R"({"lora_parameters":{"rank":8,"scale":1e300}})", none, base)),
                HasSubstr("within float32"));
    EXPECT_THAT(refusal(check_mlx(kPlainConfig, none, base)), HasSubstr("a PEFT config beside adapters.safetensors"));
    const std::string config = R"({"lora_parameters":{"rank":4,"scale":1}})";
    EXPECT_THAT(refusal(check_mlx(config, none, base)), HasSubstr("found none"));
    TestTensors tensors;
    tensors["model.layers.0.self_attn.q_proj.lora_a"] = matrix(40, 8, 1);
    tensors["model.layers.0.self_attn.k_proj.lora_a_scales"] = matrix(4, 4, 1);
    tensors["model.layers.1.self_attn.q_proj.weight"] = matrix(4, 4, 1);
    const std::string message = refusal(check_mlx(config, tensors, base));
    EXPECT_THAT(message,
                AllOf(HasSubstr("4 problems"),
                      HasSubstr("model.layers.0.self_attn.q_proj.lora_a: expected [4, 40], found [8, 40]"),
                      HasSubstr("quantized adapter"), HasSubstr("q_proj.weight: expected a name ending in .lora_a")));
}

// A file of one pair for q of each layer, as llama.cpp would store it.
GgufWriter small_gguf(float alpha = 8) {
    GgufWriter writer = gguf_header("llama", alpha);
    for (int layer = 0; layer < 2; ++layer) {
        writer.tensor(format("blk.{}.attn_v.weight.lora_a", layer), 0, {4, 40}, bytes_of(matrix(4, 40, 1)));
        writer.tensor(format("blk.{}.attn_v.weight.lora_b", layer), 0, {32, 4}, bytes_of(matrix(32, 4, 2)));
    }
    return writer;
}

TEST(GgufAdapters, TheScaleIsAlphaOverTheRankOfEachMatrixOrOne) {
    const BaseModel base(small_config());
    const auto v = static_cast<size_t>(model::LinearModule::kV);
    EXPECT_EQ((*check_gguf(small_gguf(8).file(), base))->plan.layers[0][v].scale, 2.0f);
    EXPECT_EQ((*check_gguf(small_gguf(0).file(), base))->plan.layers[0][v].scale, 1.0f);
    GgufWriter writer = small_gguf(8);
    writer.tensor("blk.0.ffn_down.weight.lora_a", 1, {2, 96}, bytes_of(matrix(2, 96, 1, "F16")));
    writer.tensor("blk.0.ffn_down.weight.lora_b", 30, {40, 2}, bytes_of(matrix(40, 2, 1, "BF16")));
    const auto mixed = check_gguf(writer.file(), base);
    ASSERT_TRUE(mixed.ok()) << mixed.error().message;
    EXPECT_EQ((*mixed)->plan.layers[0][static_cast<size_t>(model::LinearModule::kDown)].scale, 4.0f);
}

TEST(GgufAdapters, Q8IsWidenedExactly) {
    model::ModelConfig config = small_config();
    config.hidden_size = 64;
    GgufWriter writer = gguf_header("llama", 4);
    std::string blocks;
    for (int row = 0; row < 4; ++row) {
        for (int block = 0; block < 2; ++block) {
            // 0.1, also a subnormal
            GgufWriter::put<uint16_t>(blocks, row == 3 ? 0x8001 : static_cast<uint16_t>(0x2e66 + row));
            for (int i = 0; i < 32; ++i) GgufWriter::put<int8_t>(blocks, static_cast<int8_t>(i * 8 - 128 + row));
        }
    }
    writer.tensor("blk.0.attn_v.weight.lora_a", 8, {4, 64}, blocks);
    writer.tensor("blk.0.attn_v.weight.lora_b", 0, {32, 4}, bytes_of(matrix(32, 4, 2)));
    const auto adapter = check_gguf(writer.file(), config);
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    const model::Tensor& a = *(*adapter)->plan.layers[0][static_cast<size_t>(model::LinearModule::kV)].a;
    ASSERT_EQ(a.dtype, model::DType::kF32);
    for (int row = 0; row < 4; ++row) {
        const double factor = row == 3 ? -std::ldexp(1.0, -24) : std::ldexp(1024 + 0x266 + row, -10 - 4);
        for (int column = 0; column < 64; ++column) {
            EXPECT_EQ(model::widen(a.dtype, a.data.data() + (row * 64 + column) * 4),
                      factor * (column % 32 * 8 - 128 + row));
        }
    }
}

TEST(GgufAdapters, ActivatedLoraAndNormsAreRead) {
    GgufWriter writer = small_gguf();
    writer.array("adapter.alora.invocation_tokens", {7, 8});
    const auto alora = check_gguf(writer.file(), BaseModel(small_config()));
    ASSERT_TRUE(alora.ok()) << alora.error().message;
    EXPECT_THAT((*alora)->plan.invocation_tokens, ElementsAre(7, 8));
    GgufWriter norms = small_gguf();
    norms.text("adapter.lora.prompt_prefix", "hello");
    TestTensor values = matrix(1, 40, 5);
    norms.tensor("blk.1.ffn_norm.weight", 0, {40}, bytes_of(values))
        .tensor("output_norm.weight", 0, {40}, bytes_of(values));
    const auto with_norms = check_gguf(norms.file(), BaseModel(small_config()));
    ASSERT_TRUE(with_norms.ok()) << with_norms.error().message;
    EXPECT_NE((*with_norms)->plan.extras.norms[1].ffn, nullptr);
    EXPECT_NE((*with_norms)->plan.extras.final_norm, nullptr);
    EXPECT_THAT((*with_norms)->warnings, ElementsAre(HasSubstr("prompt_prefix")));
}

// Files that the gguf package of Python wrote, with its own padding and order.
TEST(GgufAdapters, FilesOfTheFormatsOwnWriterAreRead) {
    model::ModelConfig config = small_config();
    config.vocab_size = 16;
    config.hidden_size = 8;
    config.intermediate_size = 16;
    config.n_heads = 2;
    config.n_kv_heads = 1;
    config.head_dim = 4;
    const auto folder = lorad::testing::source_dir() / "tests/fuzz/corpus/gguf";
    const auto plain = check_adapter(folder / "plain.gguf", config);
    ASSERT_TRUE(plain.ok()) << plain.error().message;
    EXPECT_EQ((*plain)->n_modules, 4u);
    EXPECT_EQ((*plain)->plan.layers[1][0].scale, 2.0f);
    const auto alora = check_adapter(folder / "alora.gguf", config);
    ASSERT_TRUE(alora.ok()) << alora.error().message;
    EXPECT_THAT((*alora)->plan.invocation_tokens, ElementsAre(3, 4));
    const auto embedding = check_adapter(folder / "embedding.gguf", config);
    ASSERT_TRUE(embedding.ok()) << embedding.error().message;
    EXPECT_EQ((*embedding)->plan.extras.embed.rank, 2u);
    EXPECT_EQ((*embedding)->plan.extras.head.rank, 2u);
    EXPECT_TRUE((*embedding)->has_replaced_parts());
}

TEST(GgufAdapters, WhatDoesNotFitIsNamedAsInTheFile) {
    const BaseModel base(small_config());
    GgufWriter writer = small_gguf();
    writer.tensor("blk.0.attn_q.weight.lora_a", 0, {4, 40}, bytes_of(matrix(4, 40, 1)));
    writer.tensor("blk.9.attn_v.weight.lora_a", 0, {4, 40}, bytes_of(matrix(4, 40, 1)));
    writer.tensor("blk.0.ffn_gate_exps.weight.lora_a", 0, {4, 40}, bytes_of(matrix(4, 40, 1)));
    writer.tensor("blk.0.attn_v.weight", 0, {4, 40}, bytes_of(matrix(4, 40, 1)));
    writer.tensor("blk.1.attn_k.weight.lora_a", 0, {4, 41}, bytes_of(matrix(4, 41, 1)));
    writer.tensor("blk.1.attn_k.weight.lora_b", 0, {33, 4}, bytes_of(matrix(33, 4, 1)));
    writer.tensor("rope", 0, {4}, bytes_of(matrix(1, 4, 1)));
    const std::string message = refusal(check_gguf(writer.file(), base));
    EXPECT_THAT(message, AllOf(HasSubstr("blk.0.attn_q.weight.lora_b: expected [64, 4], found none"),
                               HasSubstr("blk.9.attn_v.weight.lora_a: expected layers 0 to 1"),
                               HasSubstr("blk.0.ffn_gate_exps.weight.lora_a: expected a matrix of the base"),
                               HasSubstr("blk.0.attn_v.weight: expected LoRA or a norm"),
                               HasSubstr("blk.1.attn_k.weight.lora_a: expected [4, 40], found [4, 41]"),
                               HasSubstr("blk.1.attn_k.weight.lora_b: expected rows of 2 heads"),
                               HasSubstr("rope: expected a name ending in")));
    EXPECT_THAT(refusal(check_gguf(gguf_header("qwen2", 1).file(), base)),
                HasSubstr("general.architecture: expected \"llama\""));
    EXPECT_THAT(refusal(check_gguf(GgufWriter().text("general.type", "model").file(), base)),
                HasSubstr("expected \"adapter\", found \"model\""));
    // Also where its tensors have types that no adapter has, and where it is too old to say what it is.
    GgufWriter whole, old;
    whole.text("general.architecture", "llama")
        .text("general.type", "model")
        .tensor("blk.0.attn_q.weight", 12, {256}, std::string(144, 0));
    old.text("general.architecture", "llama").tensor("blk.0.attn_q.weight", 12, {256}, std::string(144, 0));
    for (const GgufWriter& model : {whole, old})
        EXPECT_THAT(refusal(check_gguf(model.file(), base)),
                    HasSubstr("a whole model in GGUF, and no LoRA adapter; give it as --model"));
    GgufWriter control;
    control.text("general.type", "adapter").text("adapter.type", "controlvector");
    EXPECT_THAT(refusal(check_gguf(control.file(), base)), HasSubstr("\"controlvector\" is not supported"));
    EXPECT_THAT(refusal(check_gguf(small_gguf(INFINITY).file(), base)),
                HasSubstr("adapter.lora.alpha: expected a finite number"));
    GgufWriter wide = gguf_header("llama", 1);
    wide.tensor("blk.0.attn_v.weight.lora_a", 0, {513, 40}, bytes_of(matrix(513, 40, 1)));
    EXPECT_THAT(refusal(check_gguf(wide.file(), base)), HasSubstr("a rank of at most 512"));
}

TEST(GgufAdapters, MatricesOfFewBitsAreRefusedByName) {
    GgufWriter writer = gguf_header("llama", 1);
    writer.tensor("blk.0.attn_v.weight.lora_a", 2, {4, 32}, std::string(4 * 18, 0));
    EXPECT_THAT(refusal(check_gguf(writer.file(), BaseModel(small_config()))),
                HasSubstr("\"blk.0.attn_v.weight.lora_a\": Q4_0 is not supported in adapters"));
}

}  // namespace
}  // namespace lorad::adapters::foreign_test
