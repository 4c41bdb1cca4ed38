// Matrices of few bits from tensors that are written by hand, number by number.
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/quant/fp8.h"
#include "model/quant/matrix_decoder.h"
#include "model/quant/matrix_source.h"
#include "model/quant/quantized_folder.h"

namespace lorad::model::quant_matrix_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Tensors with memory of their own.
class Files {
  public:
    template <typename T>
    Files& add(const std::string& name, DType dtype, std::vector<uint64_t> shape, const std::vector<T>& values) {
        std::vector<std::byte>& bytes = bytes_.emplace_back(values.size() * sizeof(T));
        std::memcpy(bytes.data(), values.data(), bytes.size());
        tensors_.push_back({.name = name, .dtype = dtype, .shape = std::move(shape), .data = bytes});
        return *this;
    }
    Files& floats(const std::string& name, std::vector<uint64_t> shape, const std::vector<float>& values) {
        return add(name, DType::kF32, std::move(shape), values);
    }
    Files& words(const std::string& name, std::vector<uint64_t> shape, const std::vector<uint32_t>& values) {
        return add(name, DType::kI32, std::move(shape), values);
    }
    Files& bytes(const std::string& name, std::vector<uint64_t> shape, const std::vector<uint8_t>& values) {
        return add(name, DType::kU8, std::move(shape), values);
    }
    Files& text(const std::string& name, const std::string& value) {
        return add(name, DType::kU8, {value.size()}, std::vector<char>(value.begin(), value.end()));
    }

    Result<std::vector<Tensor>> join(const QuantizationConfig& config) {
        std::ranges::sort(tensors_, {}, &Tensor::name);
        return join_quantized(tensors_, config);
    }
    std::string refusal(const QuantizationConfig& config) {
        const auto joined = join(config);
        return joined.ok() ? "accepted" : joined.error().message;
    }
    // Row after row of the one matrix that there is.
    std::vector<float> numbers(const QuantizationConfig& config) {
        const auto joined = join(config);
        EXPECT_TRUE(joined.ok()) << joined.error().message;
        if (!joined.ok()) return {};
        EXPECT_EQ(joined->size(), 1u);
        const Tensor& matrix = joined->front();
        EXPECT_EQ(matrix.name, "x.weight");
        EXPECT_EQ(matrix.dtype, DType::kPacked);
        std::vector<float> out(matrix.shape[0] * matrix.shape[1]);
        matrix.source->decode(0, matrix.shape[0], out);
        return out;
    }

  private:
    std::deque<std::vector<std::byte>> bytes_;
    std::vector<Tensor> tensors_;
};

const QuantizationConfig kBnb{.method = QuantMethod::kBitsAndBytes};
const QuantizationConfig kFp8{.method = QuantMethod::kFp8};

std::vector<float> counting_map(size_t n, float step = 1.0f) {
    std::vector<float> map(n);
    for (size_t i = 0; i < n; ++i) map[i] = static_cast<float>(i) * step;
    return map;
}

TEST(BnbMatrix, TheFirstOfTwoWeightsIsInTheHighHalfAndBlocksRunOverTheEndsOfRows) {
    // Rows of 3, blocks of 4: the second block begins in the second row.
    Files files;
    files.bytes("x.weight", {3, 1}, {0x12, 0x34, 0x56})
        .floats("x.weight.absmax", {2}, {1.0f, 10.0f})
        .floats("x.weight.quant_map", {16}, counting_map(16))
        .text("x.weight.quant_state.bitsandbytes__nf4",
              R"({"quant_type": "nf4", "blocksize": 4, "dtype": "float16", "shape": [2, 3]})");
    EXPECT_THAT(files.numbers(kBnb), ElementsAre(1, 2, 3, 4, 50, 60));
    EXPECT_EQ(files.join(kBnb)->front().source->format(), "NF4");
}

TEST(BnbMatrix, DoubleQuantizationRoundsTheProductBeforeTheOffsetIsAdded) {
    const float scale = 7.0f / 977.0f, offset = 0.1f;
    const float expected = [&] {
        volatile float product = scale * 3.0f;
        return product + offset;
    }();
    ASSERT_NE(expected, std::fma(scale, 3.0f, offset)) << "the numbers tell nothing";
    Files files;
    files.bytes("x.weight", {1, 1}, {0x10})
        .bytes("x.weight.absmax", {1}, {3})
        .floats("x.weight.quant_map", {16}, counting_map(16))
        .floats("x.weight.nested_absmax", {1}, {scale})
        .floats("x.weight.nested_quant_map", {256}, counting_map(256))
        .text(
            "x.weight.quant_state.bitsandbytes__fp4",
            R"({"quant_type": "fp4", "blocksize": 64, "dtype": "bfloat16", "shape": [1, 2], "nested_blocksize": 256, "nested_offset": 0.1, "nested_dtype": "float32"})");
    EXPECT_THAT(files.numbers(kBnb), ElementsAre(expected, 0));
    EXPECT_EQ(files.join(kBnb)->front().source->format(), "FP4 with double quantization");
}

TEST(BnbMatrix, LlmInt8HasAScaleForEachRow) {
    Files files;
    files.add<int8_t>("x.weight", DType::kI8, {2, 2}, {127, -127, 1, 0})
        .floats("x.SCB", {2}, {2.0f, 12.7f})
        .bytes("x.weight_format", {}, {0});
    const auto numbers = files.numbers(kBnb);
    EXPECT_FLOAT_EQ(numbers[0], 2.0f);
    EXPECT_FLOAT_EQ(numbers[1], -2.0f);
    EXPECT_FLOAT_EQ(numbers[2], 0.1f);
    EXPECT_EQ(numbers[3], 0.0f);
    Files turned;
    turned.add<int8_t>("x.weight", DType::kI8, {1, 2}, {1, 1})
        .floats("x.SCB", {1}, {1.0f})
        .bytes("x.weight_format", {}, {2});
    EXPECT_THAT(turned.refusal(kBnb), HasSubstr("tensor x.weight_format: expected 0 (rows), found 2"));
}

TEST(BnbMatrix, StatesThatDoNotFitAreRefused) {
    const auto said = [](const std::string& state, uint64_t n_bytes = 4) {
        Files files;
        files.bytes("x.weight", {n_bytes, 1}, std::vector<uint8_t>(n_bytes))
            .floats("x.weight.absmax", {1}, {1})
            .floats("x.weight.quant_map", {16}, counting_map(16))
            .text("x.weight.quant_state.bitsandbytes__nf4", state);
        return files.refusal(kBnb);
    };
    EXPECT_EQ(said(R"({"blocksize": 64, "shape": [2, 4]})"), "accepted");
    EXPECT_THAT(said(R"({"blocksize": 64, "shape": [2, 4]})", 5),
                HasSubstr("tensor x.weight: expected 4 bytes, two weights each of [2, 4] NF4, found U8 [5, 1]"));
    EXPECT_THAT(said(R"({"blocksize": 4, "shape": [2, 4]})"),
                HasSubstr("tensor x.weight.absmax: expected F32, F16 or BF16 [2], found F32 [1]"));
    EXPECT_THAT(said(R"({"blocksize": 64, "shape": [4294967295, 4294967295]})"),
                HasSubstr("tensor x.weight: expected 9223372032559808513 bytes"));
    EXPECT_THAT(said(R"({"blocksize": 64, "shape": [0, 4]})"), HasSubstr("shape: expected sizes from 1 on"));
    EXPECT_THAT(said(R"({"blocksize": 64, "shape": [8]})"), HasSubstr("shape: expected rows and columns"));
    EXPECT_THAT(said(R"({"shape": [2, 4]})"), HasSubstr("blocksize: required"));
    EXPECT_THAT(said("{"), HasSubstr("x.weight.quant_state.bitsandbytes__nf4: "));
}

// One group of two, or of one, inputs each; outputs 0 to 7.
QuantizationConfig gptq(uint32_t group_size, bool symmetric, bool zeros_v2 = false) {
    return {.method = QuantMethod::kGptq,
            .bits = 4,
            .group_size = group_size,
            .symmetric = symmetric,
            .zeros_v2 = zeros_v2};
}

// Eight inputs of one output, codes 0 to 7.
Files gptq_files(uint32_t zero_words, const std::vector<uint32_t>& g_idx = {}) {
    Files files;
    files.words("x.qweight", {1, 1}, {0x76543210})
        .words("x.qzeros", {2, 1}, {zero_words, zero_words})
        .floats("x.scales", {2, 1}, {1.0f, 10.0f});
    if (!g_idx.empty()) files.words("x.g_idx", {8}, g_idx);
    return files;
}

TEST(GptqMatrix, StoredZeroPointsAreOneLessInTheFirstVersion) {
    EXPECT_THAT(gptq_files(0x2).numbers(gptq(4, false)), ElementsAre(-3, -2, -1, 0, 10, 20, 30, 40));
    EXPECT_THAT(gptq_files(0x2).numbers(gptq(4, false, true)), ElementsAre(-2, -1, 0, 1, 20, 30, 40, 50));
}

TEST(GptqMatrix, SymmetricModelsTellTheirVersionByTheValues) {
    const auto expected = ElementsAre(-8, -7, -6, -5, -40, -30, -20, -10);
    for (const bool says_v2 : {false, true}) {
        EXPECT_THAT(gptq_files(0x7).numbers(gptq(4, true, says_v2)), expected);
        EXPECT_THAT(gptq_files(0x8).numbers(gptq(4, true, says_v2)), expected);
        EXPECT_THAT(gptq_files(0xfffffff8).numbers(gptq(4, true, says_v2)), expected)
            << "fields beyond the last output say nothing";
    }
}

TEST(GptqMatrix, ZeroPointsOfZeroBorrowedFromTheFieldAbove) {
    // Outputs with zero points 0 and 3: 0x30 - 0x11 = 0x1f. Codes are 5 throughout.
    Files files;
    files.words("x.qweight", {1, 2}, {0x55555555, 0x55555555})
        .words("x.qzeros", {1, 1}, {0x1f})
        .floats("x.scales", {1, 2}, {1.0f, 1.0f});
    EXPECT_THAT(files.numbers(gptq(0, false)), ElementsAre(5, 5, 5, 5, 5, 5, 5, 5, 2, 2, 2, 2, 2, 2, 2, 2));
}

TEST(GptqMatrix, GroupsMayHaveAnyOrder) {
    EXPECT_THAT(gptq_files(0x0, {1, 0, 1, 0, 0, 0, 1, 1}).numbers(gptq(4, false, true)),
                ElementsAre(0, 1, 20, 3, 4, 5, 60, 70));
    EXPECT_THAT(gptq_files(0x0, {0, 0, 0, 0, 2, 1, 1, 1}).refusal(gptq(4, false)),
                HasSubstr("tensor x.g_idx: expected groups 0 to 1, found 2 at 4"));
    EXPECT_THAT(gptq_files(0x0, {0, 0, 0, 0, 0xffffffff, 1, 1, 1}).refusal(gptq(4, false)), HasSubstr("found -1 at 4"));
    QuantizationConfig ordered = gptq(4, false);
    ordered.act_order = true;
    EXPECT_THAT(gptq_files(0x0).refusal(ordered), HasSubstr("tensor x.g_idx is missing: desc_act"));
}

TEST(GptqMatrix, EightBitsAreFourToAWord) {
    Files files;
    files.words("x.qweight", {1, 1}, {0xff800100}).words("x.qzeros", {1, 1}, {0x7f}).floats("x.scales", {1, 1}, {0.5f});
    QuantizationConfig config = gptq(0, true);
    config.bits = 8;
    EXPECT_THAT(files.numbers(config), ElementsAre(-64, -63.5f, 0, 63.5f));
    EXPECT_EQ(files.join(config)->front().source->format(), "GPTQ int8");
}

TEST(GptqMatrix, OverridesOfSomeModulesAreToldByTheirTensors) {
    QuantizationConfig config = gptq(128, false, true);
    config.has_overrides = true;
    EXPECT_THAT(gptq_files(0x0, {0, 0, 0, 0, 1, 1, 1, 1}).numbers(config), ElementsAre(0, 1, 2, 3, 40, 50, 60, 70))
        << "4 bits, groups of 4";
    Files files;
    files.words("x.qweight", {1, 1}, {0x04030201})
        .words("x.qzeros", {1, 1}, {0})
        .floats("x.scales", {1, 1}, {1.0f})
        .words("x.g_idx", {4}, {0, 0, 0, 0});
    EXPECT_THAT(files.numbers(config), ElementsAre(1, 2, 3, 4)) << "8 bits";
    EXPECT_THAT(gptq_files(0x0).refusal(config),
                HasSubstr("tensor x.g_idx is missing: the groups of x are not those of config.json"));
}

TEST(AwqMatrix, OutputsLieInAWordByTheirOwnOrder) {
    // Nibble p holds output 0, 2, 4, 6, 1, 3, 5, 7, so the nibbles 0 2 4 6 1 3 5 7 are the codes 0 to 7.
    Files files;
    files.words("x.qweight", {2, 1}, {0x75316420, 0x75316420})
        .words("x.qzeros", {2, 1}, {0x00000000, 0x75316420})
        .floats("x.scales", {2, 8}, std::vector<float>(16, 2.0f));
    const QuantizationConfig config{.method = QuantMethod::kAwq, .bits = 4, .group_size = 1};
    EXPECT_THAT(files.numbers(config), ElementsAre(0, 0, 2, 0, 4, 0, 6, 0, 8, 0, 10, 0, 12, 0, 14, 0))
        << "rows of two inputs";
}

QuantizationConfig compressed(const WeightScheme& scheme) {
    return {.method = QuantMethod::kCompressedTensors, .schemes = {scheme}};
}

TEST(CompressedMatrix, CodesAndZeroPointsAreShiftedByHalfTheRange) {
    Files files;
    files.words("x.weight_packed", {2, 1}, {0x76543210, 0xfedcba98})
        .add<int64_t>("x.weight_shape", DType::kI64, {2}, {2, 6})
        .floats("x.weight_scale", {2, 2}, {1, 10, 100, 1000});
    const WeightScheme symmetric{.is_packed = true, .bits = 4, .strategy = ScaleStrategy::kGroup, .group_size = 3};
    EXPECT_THAT(files.numbers(compressed(symmetric)),
                ElementsAre(-8, -7, -6, -50, -40, -30, 0, 100, 200, 3000, 4000, 5000));
    WeightScheme with_zeros = symmetric;
    with_zeros.symmetric = false;
    EXPECT_THAT(files.refusal(compressed(with_zeros)), HasSubstr("tensor x.weight_zero_point is missing"));
    // Both rows share a word of each group: nibble 0 is row 0, nibble 1 row 1.
    files.words("x.weight_zero_point", {1, 2}, {0x80, 0x91});
    EXPECT_THAT(files.numbers(compressed(with_zeros)), ElementsAre(0, 1, 2, 20, 30, 40, 0, 100, 200, 2000, 3000, 4000));
    WeightScheme ragged = symmetric;
    ragged.group_size = 4;
    EXPECT_THAT(files.refusal(compressed(ragged)),
                HasSubstr("tensor x.weight_scale: expected groups that divide its 6 inputs, found group_size 4"));
}

TEST(CompressedMatrix, EightBitsAreWordsOrBytes) {
    Files words;
    words.words("x.weight_packed", {1, 1}, {0xff800100})
        .add<int64_t>("x.weight_shape", DType::kI64, {2}, {1, 4})
        .floats("x.weight_scale", {1, 1}, {1});
    EXPECT_THAT(words.numbers(compressed({.is_packed = true, .bits = 8})), ElementsAre(-128, -127, 0, 127));
    Files bytes;
    bytes.add<int8_t>("x.weight", DType::kI8, {2, 2}, {-128, 127, 0, 1}).floats("x.weight_scale", {1}, {0.5f});
    EXPECT_THAT(bytes.numbers(compressed({.bits = 8, .strategy = ScaleStrategy::kTensor})),
                ElementsAre(-64, 63.5f, 0, 0.5f));
}

TEST(CompressedMatrix, AMatrixFitsOneOfTheGroups) {
    Files files;
    files.words("x.weight_packed", {1, 1}, {0xff800100})
        .add<int64_t>("x.weight_shape", DType::kI64, {2}, {1, 4})
        .floats("x.weight_scale", {1, 1}, {1});
    QuantizationConfig config =
        compressed({.is_packed = true, .bits = 4, .strategy = ScaleStrategy::kGroup, .group_size = 2});
    EXPECT_THAT(files.refusal(config),
                HasSubstr("tensor x.weight_scale: expected F32, F16 or BF16 [1, 2], found F32 [1, 1]"));
    config.schemes.push_back({.is_packed = true, .bits = 8});
    EXPECT_THAT(files.numbers(config), ElementsAre(-128, -127, 0, 127));
    config.schemes.pop_back();
    config.schemes.push_back({.is_float = true});
    EXPECT_THAT(files.refusal(config), HasSubstr("nor do its tensors fit another of the 2 groups of the config"));
}

TEST(CompressedMatrix, GroupsMayHaveAnyOrder) {
    Files files;
    files.words("x.weight_packed", {1, 1}, {0x0000ba98})
        .add<int64_t>("x.weight_shape", DType::kI64, {2}, {1, 4})
        .floats("x.weight_scale", {1, 2}, {1, 10})
        .words("x.weight_g_idx", {4}, {1, 0, 0, 1});
    EXPECT_THAT(
        files.numbers(compressed({.is_packed = true, .bits = 4, .strategy = ScaleStrategy::kGroup, .group_size = 2})),
        ElementsAre(0, 1, 2, 30));
    Files in_order;
    in_order.words("x.weight_packed", {1, 1}, {0x0000ba98})
        .add<int64_t>("x.weight_shape", DType::kI64, {2}, {1, 4})
        .floats("x.weight_scale", {1, 2}, {1, 10});
    EXPECT_THAT(
        in_order.refusal(compressed(
            {.is_packed = true, .bits = 4, .has_order = true, .strategy = ScaleStrategy::kGroup, .group_size = 2})),
        HasSubstr("tensor x.weight_g_idx is missing"));
    in_order.words("x.weight_g_idx", {4}, {~0u, ~0u, ~0u, ~0u});  // not used
    EXPECT_THAT(in_order.numbers(
                    compressed({.is_packed = true, .bits = 4, .strategy = ScaleStrategy::kGroup, .group_size = 2})),
                ElementsAre(0, 1, 20, 30));
}

TEST(Fp8Matrix, CodesHaveTheValuesOfE4m3) {
    EXPECT_EQ(e4m3_value(0x00), 0.0f);
    EXPECT_TRUE(std::signbit(e4m3_value(0x80)));
    EXPECT_EQ(e4m3_value(0x01), 0x1p-9f);
    EXPECT_EQ(e4m3_value(0x07), 7 * 0x1p-9f);
    EXPECT_EQ(e4m3_value(0x08), 0x1p-6f);
    EXPECT_EQ(e4m3_value(0x38), 1.0f);
    EXPECT_EQ(e4m3_value(0xbc), -1.5f);
    EXPECT_EQ(e4m3_value(0x7e), 448.0f);
    EXPECT_TRUE(std::isnan(e4m3_value(0x7f)));
    EXPECT_TRUE(std::isnan(e4m3_value(0xff)));
}

Files fp8_files(const std::vector<uint8_t>& codes, std::vector<uint64_t> shape) {
    Files files;
    files.add("x.weight", DType::kF8E4M3, std::move(shape), codes);
    return files;
}

TEST(Fp8Matrix, BlocksAreCutAtTheEnds) {
    Files files = fp8_files(std::vector<uint8_t>(9, 0x38), {3, 3});
    files.floats("x.weight_scale_inv", {2, 2}, {1, 2, 3, 4});
    EXPECT_THAT(files.numbers({.method = QuantMethod::kFp8, .block_rows = 2, .block_columns = 2}),
                ElementsAre(1, 1, 2, 1, 1, 2, 3, 3, 4));
    EXPECT_THAT(files.refusal({.method = QuantMethod::kFp8, .block_rows = 3, .block_columns = 2}),
                HasSubstr("tensor x.weight_scale_inv: expected F32, F16 or BF16 [1, 2], found F32 [2, 2]"));
}

TEST(Fp8Matrix, ScalesOfRowsAndOfTheWholeAreToldByTheirSize) {
    EXPECT_THAT(fp8_files({0x38, 0xb8, 0x40, 0x38}, {2, 2}).floats("x.weight_scale", {2, 1}, {1, 10}).numbers(kFp8),
                ElementsAre(1, -1, 20, 10));
    EXPECT_THAT(fp8_files({0x38, 0xb8, 0x40, 0x38}, {2, 2})
                    .floats("x.weight_scale", {}, {2})
                    .floats("x.input_scale", {}, {1})
                    .numbers(kFp8),
                ElementsAre(2, -2, 4, 2));
    EXPECT_THAT(fp8_files({0x38, 0xb8, 0x40, 0x38}, {2, 2})
                    .floats("x.weight_scale_inv", {}, {2})
                    .floats("x.activation_scale", {}, {1})
                    .numbers(kFp8),
                ElementsAre(2, -2, 4, 2));
    EXPECT_THAT(fp8_files({0x38, 0xb8, 0x40, 0x38}, {2, 2}).floats("x.weight_scale", {3}, {1, 1, 1}).refusal(kFp8),
                HasSubstr("tensor x.weight_scale: expected F32, F16 or BF16 [2], found"));
}

TEST(Fp8Matrix, ACodeThatIsNoNumberIsRefusedWithItsTensorWhenItIsDecoded) {
    Files files = fp8_files({0x38, 0x7f}, {1, 2});
    files.floats("x.weight_scale", {}, {1});
    const auto joined = files.join(kFp8);
    ASSERT_TRUE(joined.ok());
    std::vector<std::byte> out(8);
    const Status decoded = decode_rows(joined->front(), 0, 1, gpu::ScalarType::kF32, out);
    ASSERT_FALSE(decoded.ok());
    EXPECT_THAT(decoded.error().message, AllOf(HasSubstr("tensor x.weight"), HasSubstr("NaN in its FP8")));
}

TEST(JoinQuantized, LayersThatWereLeftInSixteenBitsStayAsTheyAre) {
    Files files = gptq_files(0x7);
    files.add<uint16_t>("lm_head.weight", DType::kF16, {1, 2}, {0x3c00, 0x4000})
        .floats("x.bias", {1}, {3})
        .floats("norm.weight", {1}, {1});
    const auto joined = files.join(gptq(4, true));
    ASSERT_TRUE(joined.ok()) << joined.error().message;
    std::vector<std::string> names;
    for (const Tensor& tensor : *joined) names.push_back(tensor.name + " " + std::string(name_of(tensor.dtype)));
    EXPECT_THAT(names, ElementsAre("lm_head.weight F16", "norm.weight F32", "x.bias F32", "x.weight packed"));
}

TEST(JoinQuantized, TensorsOfAnotherMethodAreNamed) {
    EXPECT_THAT(gptq_files(0x7).refusal(kBnb),
                HasSubstr("tensor x.weight.quant_state.bitsandbytes__nf4 is missing: bitsandbytes needs it"));
    EXPECT_THAT(gptq_files(0x7).refusal({}), AllOf(HasSubstr("config.json: expected a quantization_config, found none"),
                                                   HasSubstr("tensor x."), HasSubstr("quantized by gptq")));
    Files both = gptq_files(0x7);
    both.floats("x.weight", {1, 8}, std::vector<float>(8));
    EXPECT_THAT(both.refusal(gptq(4, true)), HasSubstr("tensor x.weight [1, 8] is no part of a matrix in GPTQ"));
    Files plain;
    plain.floats("x.weight", {1, 8}, std::vector<float>(8));
    EXPECT_THAT(plain.refusal(gptq(4, true)), AllOf(HasSubstr("config.json: quantized by gptq, but no tensor is")));
    Files mixed = gptq_files(0x7);
    mixed.add("y.weight", DType::kF8E4M3, {1, 2}, std::vector<uint8_t>{1, 2});
    EXPECT_THAT(mixed.refusal(gptq(4, true)), HasSubstr("tensor y.qweight is missing: GPTQ needs it"));
}

}  // namespace
}  // namespace lorad::model::quant_matrix_test
