// Models in 16 or 32 bits that lorad quantizes itself: while it loads them, and into GGUF files.
#include "model/quant/quantize.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/gguf/gguf_export.h"
#include "model/model_files.h"
#include "model/quant/ggml_blocks.h"
#include "model/quant/matrix_source.h"
#include "model/weights.h"
#include "tests/support/goldens.h"
#include "tests/support/temp_dir.h"

namespace lorad::model::quantize_test {
namespace {

using namespace lorad::testing;
using ::testing::HasSubstr;

std::vector<float> there_and_back(GgmlType type, std::span<const float> numbers) {
    const GgmlTypeInfo& info = info_of(type);
    std::vector<std::byte> blocks(numbers.size() / info.block_numbers * info.block_bytes);
    quantize_row(type, numbers, blocks);
    std::vector<float> back(numbers.size());
    decode_ggml(type, blocks, back);
    return back;
}

std::vector<float> normal_numbers(size_t n, float deviation, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, deviation);
    std::vector<float> numbers(n);
    for (float& number : numbers) number = normal(random);
    return numbers;
}

TEST(QuantizeRow, Q8HasTheNearestCodeOfEachNumber) {
    const std::vector<float> numbers = normal_numbers(4096, 0.02f, 1);
    const std::vector<float> back = there_and_back(GgmlType::kQ8_0, numbers);
    for (size_t block = 0; block < numbers.size(); block += 32) {
        float largest = 0;
        for (size_t i = block; i < block + 32; ++i) largest = std::max(largest, std::fabs(numbers[i]));
        // Half a step, and what the scale's rounding to f16 moves the largest code by.
        const float allowed = largest / 127.0f * 0.5f + largest * std::ldexp(1.0f, -11);
        for (size_t i = block; i < block + 32; ++i) ASSERT_NEAR(back[i], numbers[i], allowed * 1.001f);
    }
}

// Relative root mean square errors of normal numbers: half of a step of 4.5 bits, and of 6.5 bits, is about 0.07 and 0.017 of the deviation. A scale, code or minimum in the wrong place costs
// far more.
TEST(QuantizeRow, KTypesAreAsCloseAsTheirBitsAllow) {
    for (const auto& [type, allowed] : {std::pair{GgmlType::kQ4_K, 0.085}, {GgmlType::kQ6_K, 0.022}}) {
        for (const float deviation : {0.02f, 3.0f}) {
            std::vector<float> numbers = normal_numbers(256 * 40, deviation, 2);
            for (size_t i = 0; i < 256; ++i) numbers[i] += 2 * deviation;  // away from zero: what the minimum is for
            const std::vector<float> back = there_and_back(type, numbers);
            double off = 0, all = 0;
            for (size_t i = 0; i < numbers.size(); ++i) {
                off += std::pow(back[i] - numbers[i], 2);
                all += std::pow(numbers[i], 2);
            }
            EXPECT_LE(std::sqrt(off / all), allowed) << name_of(type) << " of deviation " << deviation;
        }
    }
}

TEST(QuantizeRow, ZerosStayZerosAndOneNumberIsMet) {
    for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_K, GgmlType::kQ6_K}) {
        std::vector<float> numbers(256, 0.0f);
        EXPECT_EQ(there_and_back(type, numbers), numbers) << name_of(type);
        numbers[77] = -0.5f;
        const std::vector<float> back = there_and_back(type, numbers);
        for (size_t i = 0; i < numbers.size(); ++i) EXPECT_NEAR(back[i], numbers[i], 0.5f * 0.02f) << name_of(type) << " " << i;
    }
}

TEST(QuantizeTensors, OfAFolderLieInFewBitsOnTheDeviceWhereTheirRowsAreWholeBlocks) {
    const auto files = ModelFiles::open(goldens_dir() / "models/llama-scaled");
    ASSERT_TRUE(files.ok());
    const auto config = (*files)->config();
    for (const auto& [name, format] : {std::pair{"q8_0", gpu::WeightFormat::kQ8_0}, {"nf4", gpu::WeightFormat::kTable}}) {
        auto tensors = (*files)->tensors();
        ASSERT_TRUE(tensors.ok());
        quantize_tensors(*tensors, *parse_quantize_type(name));
        ModelWeights weights;
        const auto loader = WeightLoader::create(*tensors, *config, weights);
        ASSERT_TRUE(loader.ok()) << loader.error().message;
        ASSERT_TRUE(weights.layers[0].qkv.is_packed());
        EXPECT_EQ(weights.layers[0].qkv.parts.front().format, format);
        EXPECT_FALSE(weights.layers[0].down.is_packed()) << "its rows of 344 are no whole blocks";
    }
    EXPECT_THAT(parse_quantize_type("q2").error().message, HasSubstr("expected q8_0, q4_k, q6_k or nf4, found \"q2\""));
}

TEST(GgufExport, AFolderBecomesAFileOfTheSameModel) {
    const TempDir dir;
    const std::filesystem::path folder = goldens_dir() / "models/llama-scaled", file = dir.path() / "model.gguf";
    const Status exported = export_gguf(folder, QuantizeType::kQ8_0, file, {});
    ASSERT_TRUE(exported.ok()) << exported.error().message;
    const auto from = ModelFiles::open(folder), to = ModelFiles::open(file);
    ASSERT_TRUE(from.ok() && to.ok()) << to.error().message;
    const auto config_from = (*from)->config(), config_to = (*to)->config();
    ASSERT_TRUE(config_to.ok()) << config_to.error().message;
    EXPECT_EQ(config_to->n_layers, config_from->n_layers);
    EXPECT_EQ(config_to->n_kv_heads, config_from->n_kv_heads);
    EXPECT_EQ(config_to->tied_embeddings, config_from->tied_embeddings);
    EXPECT_EQ(config_to->generation.eos_token_ids.front(), config_from->generation.eos_token_ids.front());
    const auto tensors_from = (*from)->tensors(), tensors_to = (*to)->tensors();
    ASSERT_TRUE(tensors_to.ok()) << tensors_to.error().message;
    for (const Tensor& tensor : tensors_from->tensors()) {
        const Tensor* found = tensors_to->find(tensor.name);
        if (found == nullptr) continue;  // an output layer that is tied
        ASSERT_EQ(found->shape, tensor.shape) << tensor.name;
        std::vector<float> want = numbers_of(tensor), got;
        const auto type = ggml_type_for(tensor, QuantizeType::kQ8_0);
        if (type) {
            std::vector<float> row(tensor.shape[1]);
            for (uint64_t r = 0; r < tensor.shape[0]; ++r) {
                const std::vector<float> back = there_and_back(*type, std::span(want).subspan(r * row.size(), row.size()));
                std::ranges::copy(back, want.begin() + static_cast<ptrdiff_t>(r * row.size()));
            }
        }
        if (found->source) {
            got.resize(want.size());
            found->source->decode(0, tensor.shape[0], got);
        } else {
            got = numbers_of(*found);
        }
        EXPECT_EQ(got, want) << tensor.name;
    }
    const auto tokenizer_from = (*from)->tokenizer(), tokenizer_to = (*to)->tokenizer();
    ASSERT_TRUE(tokenizer_to.ok() && *tokenizer_to) << tokenizer_to.error().message;
    for (const char* text : {"Hello, world! 12345", "  two  blanks\n\nand lines\t", "na\xc3\xafve caf\xc3\xa9 \xf0\x9f\x98\x80", "I'll don't"}) {
        const auto ids_from = (*tokenizer_from)->encode(text, true), ids_to = (*tokenizer_to)->encode(text, true);
        ASSERT_TRUE(ids_from.ok() && ids_to.ok());
        EXPECT_EQ(*ids_to, *ids_from) << text;
    }
}

TEST(GgufExport, ReadsNoTensorThatIsSmallerThanTheConfigSays) {
    const TempDir dir;
    for (const auto& [from, to, tensor] : {std::tuple("\"num_attention_heads\": 8", "\"num_attention_heads\": 16", "_proj.weight"),
                                           std::tuple("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4", "model.layers.3")}) {
        const std::filesystem::path folder = dir.path() / tensor;
        std::filesystem::copy(goldens_dir() / "models/llama-scaled", folder, std::filesystem::copy_options::recursive);
        std::ifstream in(folder / "config.json");
        std::string text((std::istreambuf_iterator<char>(in)), {});
        const size_t at = text.find(from);
        ASSERT_NE(at, std::string::npos) << from << text;
        std::ofstream(folder / "config.json") << text.replace(at, std::string_view(from).size(), to);
        const Status exported = export_gguf(folder, QuantizeType::kQ8_0, dir.path() / "out.gguf", {});
        ASSERT_FALSE(exported.ok());
        EXPECT_THAT(exported.error().message, HasSubstr(tensor));
    }
}

TEST(QuantizeTensors, ExpertsStayAndNotesAreKept) {
    std::vector<std::byte> bytes(64 * 64 * sizeof(float));
    std::vector<Tensor> tensors;
    for (const char* name : {"model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.experts.down_proj.weight", "model.layers.0.mlp.experts.3.up_proj.weight"})
        tensors.push_back({name, DType::kF32, {64, 64}, bytes, nullptr});
    TensorFiles files = TensorFiles::of(tensors, {});
    files.set_tensors(tensors, {"a note"});
    quantize_tensors(files, QuantizeType::kQ8_0);
    EXPECT_TRUE(files.tensors()[0].source);
    EXPECT_FALSE(files.tensors()[1].source || files.tensors()[2].source);
    EXPECT_EQ(files.left_out(), std::vector<std::string>{"a note"});
}

TEST(GgufExport, SaysWhatItCannotWrite) {
    const TempDir dir;
    const auto said = [&](const std::filesystem::path& model, QuantizeType type) {
        const Status exported = export_gguf(model, type, dir.path() / "out.gguf", {});
        return exported.ok() ? std::string("written") : exported.error().message;
    };
    EXPECT_THAT(said(goldens_dir() / "models/llama-scaled", QuantizeType::kNf4), HasSubstr("GGUF has none for NF4"));
    EXPECT_THAT(said(goldens_dir() / "quantized/gguf/llama-Q4_K_M.gguf", QuantizeType::kQ8_0), HasSubstr("expected F32, F16 or BF16, found Q4_K"));
    EXPECT_THAT(said(goldens_dir() / "quantized/hf/llama-awq", QuantizeType::kQ8_0), HasSubstr("expected F32, F16 or BF16, found AWQ int4"));
    EXPECT_EQ(said(goldens_dir() / "quantized/gguf/llama-small-F16.gguf", QuantizeType::kQ8_0), "written");
    EXPECT_THAT(said(goldens_dir() / "quantized/gguf/llama-small-F16.gguf", QuantizeType::kQ8_0), HasSubstr("is there already"));
}

}  // namespace
}  // namespace lorad::model::quantize_test
