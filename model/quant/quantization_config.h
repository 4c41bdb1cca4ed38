// Reads how a Hugging Face folder holds its weights in few bits: quantization_config of config.json, checked key by
// key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"
#include "proto/json/json.h"

namespace lorad::model {

enum class QuantMethod : uint8_t { kNone, kBitsAndBytes, kGptq, kAwq, kCompressedTensors, kFp8, kMxfp4 };
// "bitsandbytes", as quant_method says it.
std::string_view name_of(QuantMethod method);

// The numbers that share a scale.
enum class ScaleStrategy : uint8_t { kTensor, kChannel, kGroup, kBlock };

// One group of compressed-tensors' config_groups: how some of the matrices are held.
struct WeightScheme {
    bool is_float = false;   // FP8 (e4m3); else integers
    bool is_packed = false;  // integers in 32-bit words, weight_packed; else one value a byte, weight
    uint32_t bits = 8;       // 4 or 8; FP8: 8
    bool symmetric = true;   // no zero points
    bool has_order = false;  // groups of inputs in an order of their own, weight_g_idx
    ScaleStrategy strategy = ScaleStrategy::kChannel;
    uint32_t group_size = 0;                     // of kGroup
    uint32_t block_rows = 0, block_columns = 0;  // of kBlock
};
// "4-bit integers, groups of 128, symmetric"
std::string describe(const WeightScheme& scheme);

struct QuantizationConfig {
    QuantMethod method = QuantMethod::kNone;
    std::string where = "config.json";  // the file that says so

    // GPTQ and AWQ.
    uint32_t bits = 0;
    uint32_t group_size = 0;     // inputs that share a scale; 0: all
    bool symmetric = false;      // GPTQ: all zero points are 2^(bits - 1)
    bool act_order = false;      // GPTQ: desc_act
    bool zeros_v2 = false;       // GPTQ: stored zero points are the zero points; else they are one less
    bool has_overrides = false;  // GPTQ: some modules have other bits or groups ("dynamic"); their tensors tell

    // compressed-tensors. A matrix fits one of these.
    std::vector<WeightScheme> schemes;

    // fp8: rows and columns of a block with a scale; 0: a scale for each matrix or row.
    uint32_t block_rows = 0, block_columns = 0;

    // A request of the folder that is not honoured here, for the log: activations in 8 bits.
    std::string note;

    explicit operator bool() const { return method != QuantMethod::kNone; }
    // "GPTQ, 4 bits, groups of 128, act-order"; empty without a method.
    std::string summary() const;
};

// Reads the root of config.json: quantization_config, or compression_config as compressed-tensors wrote before. kNone
// if it has neither.
// kInvalidModel names file, key, what was expected and what was found; methods that are not read (MLX's among them) are
// refused by name.
Result<QuantizationConfig> read_quantization(const JsonValue& root);

// The files that quantizers write beside a config.json without their settings: GPTQ, AWQ, and NVIDIA's Model Optimizer,
// which is refused.
inline constexpr std::string_view kQuantizerFileNames[] = {"quantize_config.json", "quant_config.json",
                                                           "hf_quant_config.json"};
Result<QuantizationConfig> parse_quantizer_file(std::string_view name, std::string_view text);

}  // namespace lorad::model
