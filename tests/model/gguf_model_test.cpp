// Base models in GGUF: what the files hold, in the words of a folder; other files by what they are.
#include "model/gguf/gguf_model.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/config/rope.h"
#include "model/files/model_files.h"
#include "model/quant/ggml_blocks.h"
#include "model/quant/matrix_decoder.h"
#include "model/quant/matrix_source.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"

namespace lorad::model::gguf_model_test {
namespace {

using lorad::testing::GgufWriter;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::filesystem::path kQuantized = lorad::testing::source_dir() / "tests/goldens/quantized";

std::string refusal_of(const std::filesystem::path& path) {
    const auto files = ModelFiles::open(path);
    if (!files.ok()) return files.error().message;
    const auto config = (*files)->config();
    if (!config.ok()) return config.error().message;
    const auto tensors = (*files)->tensors();
    if (!tensors.ok()) return tensors.error().message;
    const auto tokenizer = (*files)->tokenizer();
    if (!tokenizer.ok()) return tokenizer.error().message;
    const auto chat = (*files)->chat_template();
    return chat.ok() ? std::string() : chat.error().message;
}

std::vector<float> rows_of(const Tensor& tensor, uint64_t begin, uint64_t n) {
    std::vector<float> rows(n * tensor.shape[1]);
    if (tensor.source) {
        tensor.source->decode(begin, n, rows);
        return rows;
    }
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = number_at(tensor, begin * tensor.shape[1] + i);
    return rows;
}

TEST(GgufModels, MatricesHaveTheBitsOfTheReference) {
    size_t n_compared = 0;
    for (const auto& entry : std::filesystem::directory_iterator(kQuantized / "expected/gguf")) {
        if (entry.path().extension() != ".safetensors") continue;
        const std::string name = entry.path().stem();
        const auto expected = TensorFiles::map(entry.path(), ErrorCode::kIo);
        ASSERT_TRUE(expected.ok());
        const auto files = ModelFiles::open(kQuantized / "gguf" / (name + ".gguf"));
        ASSERT_TRUE(files.ok()) << files.error().message;
        const auto tensors = (*files)->tensors();
        ASSERT_TRUE(tensors.ok()) << tensors.error().message;
        // dequantized.TYPE.TENSOR.first_rows, of matrices whose rows stay where they are
        for (const Tensor& rows : expected->tensors()) {
            constexpr std::string_view kBegin = "dequantized.", kEnd = ".first_rows";
            if (!rows.name.starts_with(kBegin)) continue;
            std::string tensor = rows.name.substr(kBegin.size(), rows.name.size() - kBegin.size() - kEnd.size());
            tensor = tensor.substr(tensor.find('.') + 1);
            const auto ours = name_from_gguf(tensor.substr(0, tensor.rfind('.')), false);
            ASSERT_TRUE(ours.has_value()) << tensor;
            if (ours->ends_with("q_proj") || ours->ends_with("k_proj")) continue;
            const Tensor* found = tensors->find(*ours + ".weight");
            ASSERT_NE(found, nullptr) << *ours;
            const std::vector<float> numbers = rows_of(*found, 0, rows.shape[0]);
            ASSERT_EQ(numbers.size() * sizeof(float), rows.data.size());
            EXPECT_EQ(std::memcmp(numbers.data(), rows.data.data(), rows.data.size()), 0) << name << " " << rows.name;
            ++n_compared;
        }
    }
    EXPECT_GE(n_compared, 30u);
}

TEST(GgufModels, RowsOfQAndKAreInTheOrderOfTheFolderInAnyPieces) {
    const auto files = ModelFiles::open(kQuantized / "gguf/llama-mid-Q4_0.gguf");
    ASSERT_TRUE(files.ok()) << files.error().message;
    const auto tensors = (*files)->tensors();
    ASSERT_TRUE(tensors.ok()) << tensors.error().message;
    const auto bytes = MappedFile::map(kQuantized / "gguf/llama-mid-Q4_0.gguf", ErrorCode::kIo);
    const auto gguf = parse_gguf((*bytes)->bytes(), kGgufModelCodes);
    ASSERT_TRUE(gguf.ok());
    const Tensor* q = tensors->find("model.layers.1.self_attn.q_proj.weight");
    ASSERT_NE(q, nullptr);
    EXPECT_EQ(q->source->format(), "Q4_0");
    const auto in_file = std::ranges::find(gguf->tensors, "blk.1.attn_q.weight", &GgufTensor::name);
    ASSERT_NE(in_file, gguf->tensors.end());
    const std::vector<float> all = rows_of(*q, 0, 96);
    EXPECT_EQ(rows_of(*q, 37, 5), std::vector<float>(all.begin() + 37 * 96, all.begin() + 42 * 96));
    // Heads of 32 rows: row 1 of the file is the second of the first pair, half a head behind in ours.
    const std::span<const std::byte> row = in_file->data.subspan(in_file->data.size() / 96, in_file->data.size() / 96);
    EXPECT_TRUE(std::ranges::equal(q->data, in_file->data));
    std::vector<float> second(96);
    decode_ggml(in_file->type, row, second);
    EXPECT_EQ(rows_of(*q, 16, 1), second);
}

TEST(GgufModels, ConfigsAreThoseOfTheFolders) {
    const auto config_of = [](const char* name) {
        const auto files = ModelFiles::open(kQuantized / "gguf" / name);
        EXPECT_TRUE(files.ok()) << files.error().message;
        return (*files)->config().value();
    };
    const ModelConfig scaled = config_of("llama-small-F32.gguf");
    EXPECT_EQ(scaled.architecture, "LlamaForCausalLM");
    EXPECT_EQ(scaled.vocab_size, 512u);
    EXPECT_EQ(scaled.dtype, DType::kF32);
    EXPECT_FALSE(scaled.tied_embeddings);
    EXPECT_THAT(scaled.generation.eos_token_ids, ElementsAre(2));
    // The file has factors where the folder has llama3's parameters.
    RopeConfig llama3{
        .type = RopeType::kLlama3, .theta = 10000, .rotary_dim = 16, .factor = 8, .original_max_positions = 64};
    const std::vector<double> expected = rope_frequencies(llama3), found = rope_frequencies(scaled.rope);
    ASSERT_EQ(found.size(), 8u);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i] / expected[i], 1.0, 1e-6) << i;

    const ModelConfig qwen3 = config_of("qwen3-Q4_K_M.gguf");
    EXPECT_EQ(qwen3.head_dim, 64u);
    EXPECT_EQ(qwen3.q_size(), 384u);
    EXPECT_TRUE(qwen3.qk_norm && qwen3.tied_embeddings);
    EXPECT_EQ(qwen3.dtype, std::nullopt);
    EXPECT_EQ(config_of("llama-small-BF16.gguf").dtype, DType::kBF16);
    // <|end_of_text|>, <|eom_id|>, <|eot_id|>
    EXPECT_THAT(config_of("llama-Q6_K.gguf").generation.eos_token_ids, ElementsAre(595, 598, 599));
}

TEST(GgufModels, EachBrokenFileIsRefusedInOneLineThatNamesIt) {
    std::ifstream in(kQuantized / "broken-gguf/cases.json");
    const auto cases = nlohmann::json::parse(in);
    ASSERT_EQ(cases.size(), 32u);
    const std::map<std::string, std::string> said = {
        {"gguf-unknown-architecture",
         "architecture \"neverland\" is not supported; supported are llama, qwen2, qwen3, phi3"},
        {"gguf-wrong-shape", "tensor \"blk.0.ffn_gate.weight\": expected shape"},
        {"gguf-unknown-tokenizer-model", "kind \"mystery\" is not supported"},
        {"gguf-removed-type", "Q4_2"},
        {"gguf-zero-heads", "llama.attention.head_count: expected 1 to 1024, found 0"},
        {"gguf-no-architecture", "general.architecture is missing"},
        {"gguf-eos-beyond-vocab", "tokenizer.ggml.eos_token_id: expected 0 to"},
        {"gguf-block-count-mismatch", "is missing"},
        {"gguf-missing-tensor", "tensor blk.0.attn_v.weight is missing: expected ["},
        {"gguf-big-endian", "big-endian"},
    };
    for (const auto& one : cases) {
        const std::string name = one["name"], expect = one["expect"];
        const std::string message = refusal_of(kQuantized / "broken-gguf" / (name + ".gguf"));
        if (expect == "load" || name == "gguf-no-tokenizer") {
            EXPECT_EQ(message, "") << name;
            continue;
        }
        EXPECT_THAT(message, HasSubstr(name + ".gguf: ")) << one["reason"];
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        EXPECT_LT(message.size(), 400u) << message;
        const auto words = said.find(name);
        EXPECT_THAT(message, HasSubstr(words == said.end() ? "" : words->second));
    }
}

TEST(GgufModels, TypesOfFewerBitsAreRefusedByName) {
    EXPECT_THAT(refusal_of(kQuantized / "gguf/llama-Q2_K.gguf"),
                AllOf(HasSubstr("llama-Q2_K.gguf: tensor \"blk."), HasSubstr("Q2_K is not read; lorad reads F32"),
                      HasSubstr("Q3_K")));
}

class WrittenGguf : public ::testing::Test {
  protected:
    std::filesystem::path write(const std::string& name, const std::string& bytes) {
        const std::filesystem::path path = dir_.path() / name;
        std::filesystem::create_directories(path.parent_path());
        std::ofstream(path, std::ios::binary) << bytes;
        return path;
    }
    lorad::testing::TempDir dir_;
};

TEST_F(WrittenGguf, OtherKindsAreNamedByWhatTheyAre) {
    GgufWriter adapter, pictures, old_pictures, bert, embedding, control;
    adapter.text("general.type", "adapter").text("general.architecture", "llama");
    pictures.text("general.type", "mmproj").text("general.architecture", "clip");
    old_pictures.text("general.architecture", "clip");
    bert.text("general.architecture", "nomic-bert");
    embedding.text("general.architecture", "qwen3").number<uint32_t>("qwen3.pooling_type", 4, 3);
    control.text("general.type", "imatrix");
    EXPECT_THAT(refusal_of(write("a.gguf", adapter.file())),
                AllOf(HasSubstr("a.gguf: a LoRA adapter"), HasSubstr("--lora NAME=FILE")));
    for (const GgufWriter& one : {pictures, old_pictures})
        EXPECT_THAT(refusal_of(write("b.gguf", one.file())), HasSubstr("mmproj"));
    for (const GgufWriter& one : {bert, embedding})
        EXPECT_THAT(refusal_of(write("c.gguf", one.file())), HasSubstr("an embedding model"));
    EXPECT_THAT(refusal_of(write("d.gguf", control.file())),
                HasSubstr("general.type: expected \"model\", found \"imatrix\""));
    EXPECT_THAT(refusal_of(write("not-named-so.bin", bert.file())), HasSubstr("an embedding model"));
}

// A tiny llama whose fields a test may change.
GgufWriter tiny(const std::string& architecture = "llama", uint32_t n_blocks = 1) {
    GgufWriter writer;
    const auto number = [&](const std::string& key, uint32_t value) {
        writer.number<uint32_t>(architecture + "." + key, 4, value);
    };
    writer.text("general.architecture", architecture);
    number("embedding_length", 32);
    number("feed_forward_length", 32);
    number("block_count", n_blocks);
    number("attention.head_count", 2);
    number("context_length", 256);
    writer.number<float>(architecture + ".attention.layer_norm_rms_epsilon", 6, 1e-5f);
    return writer;
}
void add_tensors(GgufWriter& writer, bool is_fused = false) {
    const auto matrix = [&](const char* name, uint64_t rows) {
        writer.tensor(name, 0, {rows, 32}, std::string(rows * 32 * 4, 0));
    };
    const auto norm = [&](const char* name) { writer.tensor(name, 0, {32}, std::string(32 * 4, 0)); };
    matrix("token_embd.weight", 40);
    norm("output_norm.weight");
    norm("blk.0.attn_norm.weight");
    norm("blk.0.ffn_norm.weight");
    if (is_fused) {
        matrix("blk.0.attn_qkv.weight", 96);
        matrix("blk.0.ffn_up.weight", 64);
    } else {
        for (const char* name : {"blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight",
                                 "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"})
            matrix(name, 32);
    }
    matrix("blk.0.attn_output.weight", 32);
    matrix("blk.0.ffn_down.weight", 32);
}

TEST_F(WrittenGguf, RopeScalingAndWindowsAreRead) {
    const auto config_of = [&](GgufWriter writer) {
        add_tensors(writer);
        const auto files = ModelFiles::open(write("tiny.gguf", writer.file()));
        EXPECT_TRUE(files.ok()) << files.error().message;
        EXPECT_EQ(refusal_of(dir_.path() / "tiny.gguf"), "");
        return (*files)->config().value();
    };
    EXPECT_EQ(config_of(tiny()).rope.type, RopeType::kDefault);
    EXPECT_EQ(config_of(tiny()).tied_embeddings, true);
    GgufWriter linear = tiny();
    linear.text("llama.rope.scaling.type", "linear").number<float>("llama.rope.scaling.factor", 6, 4);
    EXPECT_EQ(config_of(linear).rope.type, RopeType::kLinear);
    EXPECT_EQ(config_of(linear).rope.factor, 4);
    GgufWriter yarn = tiny();
    yarn.text("llama.rope.scaling.type", "yarn")
        .number<float>("llama.rope.scaling.factor", 6, 4)
        .number<uint32_t>("llama.rope.scaling.original_context_length", 4, 128);
    const ModelConfig stretched = config_of(yarn);
    EXPECT_EQ(stretched.max_positions, 512u);
    EXPECT_NEAR(stretched.rope.attention_factor, 1.0 + 0.1 * std::log(4.0), 1e-12);
    GgufWriter window = tiny();
    window.number<uint32_t>("llama.attention.sliding_window", 4, 64);
    EXPECT_THAT(config_of(window).sliding_windows, ElementsAre(64));
    GgufWriter sampling = tiny();
    sampling.number<float>("general.sampling.temp", 6, 0.5f).number<int32_t>("general.sampling.top_k", 5, 20);
    EXPECT_EQ(config_of(sampling).generation.temperature, 0.5f);
    EXPECT_EQ(config_of(sampling).generation.top_k, 20u);
}

TEST_F(WrittenGguf, WhatItWouldComputeOtherwiseIsRefused) {
    const auto refused = [&](GgufWriter writer) {
        add_tensors(writer);
        return refusal_of(write("tiny.gguf", writer.file()));
    };
    EXPECT_THAT(refused(tiny().number<uint32_t>("llama.expert_count", 4, 8)),
                HasSubstr("llama.expert_used_count is missing"));
    EXPECT_THAT(refused(tiny().number<float>("llama.logit_scale", 6, 0.5f)), HasSubstr("llama.logit_scale"));
    EXPECT_THAT(refused(tiny().text("llama.rope.scaling.type", "su3")),
                HasSubstr("rope scaling \"su3\" is not supported"));
    EXPECT_THAT(refused(tiny().number<uint32_t>("llama.attention.value_length", 4, 32)),
                HasSubstr("llama.attention.value_length: expected 16"));
    EXPECT_THAT(refused(tiny().number<uint32_t>("llama.rope.dimension_count", 4, 8)),
                HasSubstr("llama.rope.dimension_count: expected the heads' 16, found 8"));
    EXPECT_THAT(refused(tiny().number<uint32_t>("general.quantization_version", 4, 1)), "");
    GgufWriter old = tiny();
    old.number<uint32_t>("general.quantization_version", 4, 1)
        .tensor("output.weight", 8, {40, 32}, std::string(40 * 34, 0));
    EXPECT_THAT(refused(old), HasSubstr("general.quantization_version = 1 (uint32), expected 2"));
    EXPECT_THAT(refused(tiny().array("llama.attention.head_count_kv", {2})), "");
    EXPECT_THAT(
        refused(tiny("llama", 2).array("llama.attention.head_count_kv", {2})),
        HasSubstr("llama.attention.head_count_kv: expected 2 numbers, one for each layer, found an array of 1"));
    GgufWriter named;
    named.number<uint32_t>("general.architecture", 4, 3);
    EXPECT_THAT(refused(named),
                HasSubstr("general.architecture: expected the name of a model's architecture, found 3"));
    GgufWriter more = tiny();
    more.tensor("blk.0.attn_sinks.weight", 0, {2}, std::string(8, 0));
    EXPECT_THAT(refused(more), HasSubstr("\"blk.0.attn_sinks.weight\": [2] is no part of the llama"));
}

TEST_F(WrittenGguf, AScaleThatIsNoNumberIsFoundWhereItIsDecoded) {
    GgufWriter writer = tiny();
    std::string blocks(40 * 34, 1);
    blocks[20 * 34] = 0, blocks[20 * 34 + 1] = 0x7c;  // infinity in f16
    writer.tensor("output.weight", 8, {40, 32}, blocks);
    add_tensors(writer);
    const auto files = ModelFiles::open(write("tiny.gguf", writer.file()));
    ASSERT_TRUE(files.ok()) << files.error().message;
    const auto tensors = (*files)->tensors();
    ASSERT_TRUE(tensors.ok()) << tensors.error().message;
    const Tensor* head = tensors->find("lm_head.weight");
    std::vector<std::byte> out(20 * 32 * 2);
    EXPECT_TRUE(decode_rows(*head, 0, 20, gpu::ScalarType::kF16, out).ok());
    const Status damaged = decode_rows(*head, 20, 20, gpu::ScalarType::kF16, out);
    ASSERT_FALSE(damaged.ok());
    EXPECT_THAT(damaged.error().message,
                AllOf(HasSubstr("tensor lm_head.weight: expected finite numbers"), HasSubstr("Q8_0")));
}

TEST_F(WrittenGguf, Phi3HasItsMatricesJoinedAndTwoSetsOfFactors) {
    GgufWriter writer = tiny("phi3");
    writer.number<uint32_t>("phi3.rope.scaling.original_context_length", 4, 64)
        .number<float>("phi3.rope.scaling.attn_factor", 6, 1.25f);
    std::string ones, twos;
    for (int i = 0; i < 8; ++i) GgufWriter::put<float>(ones, 1.0f), GgufWriter::put<float>(twos, 2.0f);
    writer.tensor("rope_factors_short.weight", 0, {8}, ones).tensor("rope_factors_long.weight", 0, {8}, twos);
    add_tensors(writer, true);
    const auto files = ModelFiles::open(write("phi.gguf", writer.file()));
    ASSERT_TRUE(files.ok()) << files.error().message;
    const auto config = (*files)->config();
    EXPECT_EQ(config->rope.type, RopeType::kLongRope);
    EXPECT_EQ(config->rope.original_max_positions, 64u);
    EXPECT_EQ(config->rope.attention_factor, 1.25);
    EXPECT_EQ(config->rope.long_factors, std::vector<double>(8, 2.0));
    const auto tensors = (*files)->tensors();
    ASSERT_TRUE(tensors.ok()) << tensors.error().message;
    EXPECT_NE(tensors->find("model.layers.0.mlp.gate_up_proj.weight"), nullptr);
    EXPECT_NE(tensors->find("model.layers.0.self_attn.qkv_proj.weight"), nullptr);
}

TEST_F(WrittenGguf, SplitSetsAreOneModel) {
    const auto part = [](GgufWriter writer, uint16_t number, uint16_t n_files) {
        return writer.number<uint16_t>("split.no", 2, number)
            .number<uint16_t>("split.count", 2, n_files)
            .number<int32_t>("split.tensors.count", 5, 11);
    };
    GgufWriter rest;
    add_tensors(rest);
    write("m-00001-of-00002.gguf", part(tiny(), 0, 2).file());
    const auto second = write("m-00002-of-00002.gguf", part(rest, 1, 2).file());
    EXPECT_EQ(refusal_of(dir_.path()), "");
    EXPECT_EQ(refusal_of(second), "");
    EXPECT_EQ(served_name_of(second), "m");
    write("m-00002-of-00002.gguf", part(rest, 0, 2).file());
    EXPECT_THAT(refusal_of(dir_.path()),
                HasSubstr("m-00002-of-00002.gguf: expected split.no 1 of 2, found 0 (uint16) of 2"));
    std::filesystem::remove(second);
    EXPECT_THAT(refusal_of(dir_.path()),
                HasSubstr("m-00002-of-00002.gguf: no such file; the model is split into 2 files"));
    std::filesystem::rename(dir_.path() / "m-00001-of-00002.gguf", dir_.path() / "other.gguf");
    EXPECT_THAT(refusal_of(dir_.path()), HasSubstr("a name such as NAME-00001-of-00002.gguf"));
}

TEST_F(WrittenGguf, AFolderHoldsOneModel) {
    GgufWriter model = tiny(), pictures;
    add_tensors(model);
    pictures.text("general.type", "mmproj").text("general.architecture", "clip");
    write("it/Tiny.Q8_0.gguf", model.file());
    write("it/mmproj.gguf", pictures.file());
    write("it/config.json", "{}");
    EXPECT_EQ(refusal_of(dir_.path() / "it"), "");
    EXPECT_EQ(served_name_of(dir_.path() / "it" / ""), "it");
    EXPECT_EQ(served_name_of(dir_.path() / "it/Tiny.Q8_0.gguf"), "Tiny.Q8_0");
    write("it/Tiny.Q4_0.gguf", model.file());
    EXPECT_THAT(refusal_of(dir_.path() / "it"),
                HasSubstr("expected one GGUF model, found 2 (Tiny.Q4_0.gguf, Tiny.Q8_0.gguf); give the file itself"));
}

}  // namespace
}  // namespace lorad::model::gguf_model_test
