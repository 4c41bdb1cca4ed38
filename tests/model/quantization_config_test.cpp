// quantization_config of config.json: what is understood of each method, and what is refused.
#include "model/quant/quantization_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lorad::model::quantization_config_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Result<QuantizationConfig> parsed(const std::string& quantization, const std::string& key = "quantization_config") {
    TRY_ASSIGN(const JsonDocument document, parse_json("{\"" + key + "\": " + quantization + "}",
                                                       {.name = "config.json", .code = ErrorCode::kInvalidModel}));
    return read_quantization(document.root());
}

std::string refusal(const std::string& quantization, const std::string& key = "quantization_config") {
    const auto config = parsed(quantization, key);
    if (config.ok()) return "accepted: " + config->summary();
    EXPECT_EQ(config.error().code, ErrorCode::kInvalidModel);
    return config.error().message;
}

std::string summary(const std::string& quantization, const std::string& key = "quantization_config") {
    const auto config = parsed(quantization, key);
    EXPECT_TRUE(config.ok()) << config.error().message;
    return config.ok() ? config->summary() : "";
}

std::string group(const std::string& weights, const std::string& layout = "pack-quantized",
                  const std::string& activations = "null") {
    return R"({"quant_method": "compressed-tensors", "format": ")" + layout +
           R"(", "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": )" + activations +
           R"(, "weights": )" + weights + "}}}";
}

TEST(QuantizationConfig, AFolderWithoutOneIsOfNoMethod) {
    const auto config = parsed("null");
    ASSERT_TRUE(config.ok());
    EXPECT_FALSE(*config);
    EXPECT_EQ(config->summary(), "");
}

TEST(QuantizationConfig, MethodsSayTheirBitsAndGroups) {
    EXPECT_EQ(summary(R"({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4"})"),
              "bitsandbytes");
    EXPECT_EQ(summary(R"({"load_in_8bit": true, "load_in_4bit": false})"), "bitsandbytes")
        << "before quant_method was written";
    EXPECT_EQ(summary(R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false, "sym": true})"),
              "GPTQ, 4 bits, groups of 128, symmetric");
    EXPECT_EQ(summary(R"({"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": true, "sym": false})"),
              "GPTQ, 8 bits, one group a row, with zero points, act-order");
    EXPECT_EQ(summary(R"({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "GEMM"})"),
              "AWQ, 4 bits, groups of 64");
    EXPECT_EQ(summary(R"({"quant_method": "fp8", "weight_block_size": [128, 64]})"), "FP8, blocks of 128x64");
    EXPECT_EQ(summary(R"({"quant_method": "fp8"})"), "FP8");
    EXPECT_EQ(
        summary(group(R"({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": false})")),
        "compressed-tensors; 4-bit integers, groups of 32, with zero points");
    EXPECT_EQ(summary(group(R"({"num_bits": 8, "strategy": "channel"})"), "compression_config"),
              "compressed-tensors; 8-bit integers, a scale a row, symmetric");
    EXPECT_EQ(summary(group(R"({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]})",
                            "float-quantized")),
              "compressed-tensors; FP8, blocks of 128x128");
    EXPECT_EQ(summary(group(R"({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": "128x128"})",
                            "float-quantized")),
              "compressed-tensors; FP8, blocks of 128x128");
    EXPECT_EQ(summary(group(R"({"num_bits": 4, "group_size": 64})")),
              "compressed-tensors; 4-bit integers, groups of 64, symmetric")
        << "a size without a strategy";
}

TEST(QuantizationConfig, GptqSaysWhichZeroPointsItsFilesHold) {
    EXPECT_FALSE(parsed(R"({"quant_method": "gptq", "bits": 4})")->zeros_v2);
    EXPECT_FALSE(parsed(R"({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq"})")->zeros_v2);
    EXPECT_TRUE(parsed(R"({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"})")->zeros_v2);
    EXPECT_TRUE(parsed(R"({"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*down.*": {}}})")->has_overrides);
}

TEST(QuantizationConfig, ActivationsThatAreNotRoundedAreTold) {
    EXPECT_THAT(parsed(R"({"quant_method": "fp8", "weight_block_size": [128, 128]})")->note,
                HasSubstr("activations are not rounded"));
    EXPECT_THAT(
        parsed(group(R"({"num_bits": 8, "type": "float"})", "float-quantized", R"({"num_bits": 8, "dynamic": true})"))
            ->note,
        HasSubstr("activations are not rounded"));
    EXPECT_EQ(parsed(group(R"({"num_bits": 4, "strategy": "channel"})"))->note, "");
}

TEST(QuantizationConfig, UnknownMethodsAreRefusedByNameWithWhatIsRead) {
    for (const char* method : {"quip-sharp", "hqq", "modelopt", "GPTQ"}) {
        EXPECT_THAT(refusal(std::string(R"({"quant_method": ")") + method + "\"}"),
                    AllOf(HasSubstr("config.json: quantization_config.quant_method: "), HasSubstr(method),
                          HasSubstr("bitsandbytes (NF4, FP4, LLM.int8), gptq, awq"),
                          HasSubstr("give the model that this one was made from")));
    }
    EXPECT_THAT(refusal(R"({"bits": 4, "group_size": 64})"),
                AllOf(HasSubstr("expected quant_method, found none"), HasSubstr("MLX")));
    EXPECT_THAT(refusal(R"({"bits": 4, "group_size": 64})", "quantization"),
                AllOf(HasSubstr("config.json: quantization: quantized by MLX"), HasSubstr("gptq, awq")));
    EXPECT_THAT(refusal("4"), HasSubstr("quantization_config: expected an object, found number 4"));
}

TEST(QuantizationConfig, EachKeyIsCheckedWithItsPlace) {
    const std::pair<std::string, std::string> cases[] = {
        {R"({"quant_method": "bitsandbytes"})", "expected one of load_in_4bit and load_in_8bit"},
        {R"({"quant_method": "bitsandbytes", "load_in_4bit": true, "load_in_8bit": true})",
         "expected one of load_in_4bit and load_in_8bit"},
        {R"({"quant_method": "bitsandbytes", "load_in_4bit": 1})", "load_in_4bit: expected"},
        {R"({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf3"})",
         "bnb_4bit_quant_type: expected nf4 or fp4, found string \"nf3\""},
        {R"({"quant_method": "gptq"})", "expected bits, found none"},
        {R"({"quant_method": "gptq", "bits": 3})",
         "bits: expected 4 or 8, the widths that lorad reads, found number 3"},
        {R"({"quant_method": "gptq", "bits": "4"})", "bits: expected 4 or 8"},
        {R"({"quant_method": "gptq", "bits": 4, "group_size": 0})",
         "group_size: expected -1 or the number of inputs of a group, found number 0"},
        {R"({"quant_method": "gptq", "bits": 4, "group_size": -2})", "group_size: expected -1"},
        {R"({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"})",
         "checkpoint_format: expected gptq or gptq_v2, the layouts that lorad reads, found string \"marlin\""},
        {R"({"quant_method": "gptq", "bits": 4, "is_marlin_format": true})", "is_marlin_format"},
        {R"({"quant_method": "gptq", "bits": 4, "pack_dtype": "int64"})", "pack_dtype: expected int32"},
        {R"({"quant_method": "awq", "bits": 8})", "bits: expected 4, the width that lorad reads, found number 8"},
        {R"({"quant_method": "awq", "bits": 4, "version": "gemv_fast"})",
         "version: expected gemm, the layout that lorad reads, found string \"gemv_fast\""},
        {R"({"quant_method": "awq", "bits": 4, "zero_point": false})", "zero_point: expected true"},
        {R"({"quant_method": "fp8", "fmt": "e5m2"})", "fmt: expected e4m3, found string \"e5m2\""},
        {R"({"quant_method": "fp8", "weight_block_size": [128]})", "weight_block_size: expected two sizes of a block"},
        {R"({"quant_method": "fp8", "weight_block_size": [128, 0]})", "weight_block_size[1]: expected integer from 1"},
        {R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})", "config_groups: required"},
        {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}})",
         "config_groups: expected groups with weights, found none"},
        {R"({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 4}}}})",
         "expected format, found none"},
        {R"({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}, "config_groups": {}})",
         "sparsity_config: expected format dense, found \"sparse-24-bitmask\""},
        {R"({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R1": {}}}, "config_groups": {}})",
         "transform_config: expected none: rotations"},
        {group(R"({"num_bits": 4, "type": "float"})", "nvfp4-pack-quantized"), "format: expected pack-quantized"},
        {group(R"({"num_bits": 4, "type": "float"})", "float-quantized"),
         "weights.num_bits: expected 8, found number 4"},
        {group(R"({"num_bits": 2})"), "weights.num_bits: expected 4 or 8, the widths that lorad reads, found number 2"},
        {group(R"({"num_bits": 4, "type": "codebook"})"), "weights.type: expected int or float"},
        {group(R"({"num_bits": 4, "strategy": "token"})"),
         "weights.strategy: expected tensor, channel, group or block"},
        {group(R"({"num_bits": 8, "dynamic": true})"), "weights.dynamic: expected false"},
        {group(R"({"num_bits": 8, "type": "float", "symmetric": false})", "float-quantized"),
         "weights.symmetric: expected true"},
        {group(R"({"num_bits": 8, "strategy": "block", "block_structure": [1, 2]})"),
         "weights.strategy: expected tensor, channel or group for integers"},
        {group(R"({"num_bits": 8, "type": "float", "strategy": "block"})", "float-quantized"),
         "block_structure: required"},
        {group(R"({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 128})", "float-quantized"),
         "strategy: expected tensor, channel or block for FP8, found group"},
        {group(R"({"num_bits": 8, "type": "float", "group_size": 128})", "float-quantized"),
         "strategy: expected tensor, channel or block for FP8, found group"},
    };
    for (const auto& [text, expected] : cases)
        EXPECT_THAT(refusal(text), AllOf(HasSubstr("config.json: quantization_config"), HasSubstr(expected))) << text;
}

}  // namespace
}  // namespace lorad::model::quantization_config_test
