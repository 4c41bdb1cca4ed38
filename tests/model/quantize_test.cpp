// Models in 16 or 32 bits that lorad quantizes itself while it loads them.
#include "model/quant/quantize.h"

#include <cmath>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/model_files.h"
#include "model/quant/ggml_blocks.h"
#include "model/weights.h"
#include "tests/support/goldens.h"

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

}  // namespace
}  // namespace lorad::model::quantize_test
