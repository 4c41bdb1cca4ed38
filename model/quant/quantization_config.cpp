#include "model/quant/quantization_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr std::string_view kReadMethods = "bitsandbytes (NF4, FP4, LLM.int8), gptq, awq, compressed-tensors and fp8";
constexpr std::string_view kWhatToDo =
    "give the model that this one was made from, in f32, f16 or bf16, or one quantized by these";
constexpr uint32_t kGroupMax = 1u << 24;

Error expected(const JsonValue& value, std::string_view what) {
    return value.error(format("expected {}, found {}", what, value.describe()));
}

std::string lower(std::string_view text) {
    std::string out(text);
    std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return out;
}

// The first of two spellings that is there.
std::optional<JsonValue> either(const JsonValue& object, std::string_view key, std::string_view other) {
    if (const auto value = object.find(key)) return value;
    return object.find(other);
}

// Bits of a code. `key_of_old` is the spelling of older files.
Result<uint32_t> read_bits(const JsonValue& root, std::string_view key, std::string_view key_of_old, bool takes_eight) {
    const auto value = either(root, key, key_of_old);
    if (!value) return root.error(format("expected {}, found none", key));
    const auto bits = value->as_int();
    if (!bits.ok() || !(*bits == 4 || (takes_eight && *bits == 8)))
        return expected(*value, takes_eight ? "4 or 8, the widths that lorad reads" : "4, the width that lorad reads");
    return static_cast<uint32_t>(*bits);
}

// Inputs that share a scale; -1, or none: all of them, 0 here.
Result<uint32_t> read_group(const JsonValue& root, std::string_view key, std::string_view key_of_old) {
    const auto value = either(root, key, key_of_old);
    if (!value) return 0u;
    const auto size = value->as_int();
    if (!size.ok() || !(*size == -1 || (*size >= 1 && *size <= kGroupMax)))
        return expected(*value, "-1 or the number of inputs of a group");
    return *size == -1 ? 0u : static_cast<uint32_t>(*size);
}

Status read_bitsandbytes(const JsonValue& root) {
    TRY_ASSIGN(const bool four, root.bool_or("load_in_4bit", false));
    TRY_ASSIGN(const bool eight, root.bool_or("load_in_8bit", false));
    if (four == eight) return root.error("expected one of load_in_4bit and load_in_8bit to be true");
    const auto type = root.find("bnb_4bit_quant_type");
    if (four && type) {
        TRY_ASSIGN(const auto name, type->as_string());
        if (name != "nf4" && name != "fp4") return expected(*type, "nf4 or fp4");
    }
    return ok_status();
}

Status read_gptq(const JsonValue& root, QuantizationConfig& config) {
    TRY_ASSIGN(config.bits, read_bits(root, "bits", "w_bit", true));
    TRY_ASSIGN(config.group_size, read_group(root, "group_size", "q_group_size"));
    TRY_ASSIGN(config.symmetric, root.bool_or("sym", true));
    TRY_ASSIGN(config.act_order, root.bool_or("desc_act", false));
    if (const auto form = either(root, "checkpoint_format", "format")) {
        TRY_ASSIGN(const auto name, form->as_string());
        if (name != "gptq" && name != "gptq_v2")
            return expected(*form, "gptq or gptq_v2, the layouts that lorad reads");
        config.zeros_v2 = name == "gptq_v2";
    }
    TRY_ASSIGN(const bool is_marlin, root.bool_or("is_marlin_format", false));
    if (is_marlin)
        return root.error("expected is_marlin_format to be false: words in Marlin's order are not read; convert the "
                          "model back to gptq");
    if (const auto words = root.find("pack_dtype")) {
        TRY_ASSIGN(const auto name, words->as_string());
        if (name != "int32") return expected(*words, "int32, the words that lorad reads");
    }
    const auto dynamic = root.find("dynamic");
    config.has_overrides = dynamic && dynamic->size() > 0;
    return ok_status();
}

Status read_awq(const JsonValue& root, QuantizationConfig& config) {
    TRY_ASSIGN(config.bits, read_bits(root, "bits", "w_bit", false));
    TRY_ASSIGN(config.group_size, read_group(root, "group_size", "q_group_size"));
    std::optional<JsonValue> version = root.find("version");
    if (!version) version = either(root, "checkpoint_format", "format");
    if (version) {
        TRY_ASSIGN(const auto name, version->as_string());
        if (lower(name) != "gemm") return expected(*version, "gemm, the layout that lorad reads");
    }
    TRY_ASSIGN(const bool has_zeros, root.bool_or("zero_point", true));
    if (!has_zeros) return expected(*root.find("zero_point"), "true");
    return ok_status();
}

// [128, 128], or "128x128" as some versions write it.
Status read_block(const JsonValue& value, uint32_t& rows, uint32_t& columns) {
    constexpr std::string_view kWhat = "two sizes of a block, [rows, columns]";
    if (value.is_string()) {
        TRY_ASSIGN(const auto text, value.as_string());
        if (text != "128x128") return expected(value, kWhat);
        rows = columns = 128;
        return ok_status();
    }
    if (!value.is_array() || value.size() != 2) return expected(value, kWhat);
    TRY_ASSIGN(const auto sizes, value.as_array());
    TRY_ASSIGN(const int64_t n_rows, sizes[0].as_int(1, kGroupMax));
    TRY_ASSIGN(const int64_t n_columns, sizes[1].as_int(1, kGroupMax));
    rows = static_cast<uint32_t>(n_rows);
    columns = static_cast<uint32_t>(n_columns);
    return ok_status();
}

Status read_strategy(const JsonValue& weights, WeightScheme& scheme) {
    TRY_ASSIGN(const uint32_t group, read_group(weights, "group_size", "group_size"));
    const auto value = weights.find("strategy");
    const auto size = weights.find("group_size");
    const bool is_channel = group == 0 && size && size->is_number();                   // -1
    std::string_view name = group != 0 ? "group" : is_channel ? "channel" : "tensor";  // as the library fills it in
    if (value) {
        TRY_ASSIGN(name, value->as_string());
    }
    constexpr std::pair<std::string_view, ScaleStrategy> kStrategies[] = {{"tensor", ScaleStrategy::kTensor},
                                                                          {"channel", ScaleStrategy::kChannel},
                                                                          {"group", ScaleStrategy::kGroup},
                                                                          {"block", ScaleStrategy::kBlock}};
    const auto* known = std::ranges::find(kStrategies, name, &std::pair<std::string_view, ScaleStrategy>::first);
    if (known == std::end(kStrategies)) return expected(*value, "tensor, channel, group or block");
    scheme.strategy = known->second;
    // -1: all of a row
    if (scheme.strategy == ScaleStrategy::kGroup && group == 0) scheme.strategy = ScaleStrategy::kChannel;
    scheme.group_size = scheme.strategy == ScaleStrategy::kGroup ? group : 0;
    if (scheme.strategy != ScaleStrategy::kBlock) return ok_status();
    TRY_ASSIGN(const auto block, weights.require("block_structure"));
    return read_block(block, scheme.block_rows, scheme.block_columns);
}

// `layout` is the name of how tensors are laid out: the group's own, or that of all.
Result<WeightScheme> read_scheme(const JsonValue& weights, const JsonValue& layout) {
    WeightScheme scheme;
    TRY_ASSIGN(const auto layout_name, layout.as_string());
    TRY_ASSIGN(const auto bits, weights.require("num_bits"));
    TRY_ASSIGN(const auto type, weights.string_or("type", "int"));
    scheme.is_float = type == "float";
    if (!scheme.is_float && type != "int") return expected(*weights.find("type"), "int or float");
    scheme.is_packed = layout_name == "pack-quantized";
    const bool is_known = scheme.is_packed || layout_name == "naive-quantized" ||
                          layout_name == (scheme.is_float ? "float-quantized" : "int-quantized");
    if (!is_known || (scheme.is_packed && scheme.is_float)) {
        return layout.error(format("expected pack-quantized, int-quantized or naive-quantized for integers, "
                                   "float-quantized or naive-quantized for FP8, found {} for {}",
                                   layout.describe(), type));
    }
    TRY_ASSIGN(const int64_t n_bits, bits.as_int(1, 64));
    if (n_bits != 8 && !(n_bits == 4 && scheme.is_packed))
        return expected(bits, scheme.is_packed ? "4 or 8, the widths that lorad reads" : "8");
    scheme.bits = static_cast<uint32_t>(n_bits);
    TRY_ASSIGN(scheme.symmetric, weights.bool_or("symmetric", true));
    if (scheme.is_float && !scheme.symmetric)
        return expected(*weights.find("symmetric"), "true, as FP8 has no zero points");
    TRY_ASSIGN(const bool is_dynamic, weights.bool_or("dynamic", false));
    if (is_dynamic) return expected(*weights.find("dynamic"), "false: weights are quantized in the file");
    TRY(read_strategy(weights, scheme));
    if (!scheme.is_float && scheme.strategy == ScaleStrategy::kBlock)
        return expected(*weights.find("strategy"), "tensor, channel or group for integers");
    if (scheme.is_float && scheme.strategy == ScaleStrategy::kGroup)
        return weights.error("strategy: expected tensor, channel or block for FP8, found group");
    if (const auto order = weights.find("actorder"); order && order->is_string()) {
        TRY_ASSIGN(const auto name, order->as_string());
        scheme.has_order = name == "group";
    }
    return scheme;
}

Status read_compressed_tensors(const JsonValue& root, QuantizationConfig& config) {
    if (const auto sparsity = root.find("sparsity_config"); sparsity && sparsity->size() > 0) {
        TRY_ASSIGN(const auto form, sparsity->string_or("format", "dense"));
        if (form != "dense")
            return sparsity->error(
                format("expected format dense, found {}: sparse weights are not read", json_quote_short(form)));
    }
    if (const auto transforms = root.find("transform_config")) {
        const auto groups = transforms->find("config_groups");
        if (groups && groups->size() > 0)
            return transforms->error("expected none: rotations of activations are not applied");
    }
    TRY_ASSIGN(const auto groups, root.require("config_groups"));
    TRY_ASSIGN(const auto members, groups.as_object());
    const auto layout = root.find("format");
    bool quantizes_activations = false;
    for (const JsonMember& member : members) {
        const auto weights = member.value.find("weights");
        if (!weights) continue;
        const auto own = member.value.find("format");
        if (!own && !layout) return root.error("expected format, found none");
        TRY_ASSIGN(const WeightScheme scheme, read_scheme(*weights, own ? *own : *layout));
        config.schemes.push_back(scheme);
        quantizes_activations = quantizes_activations || member.value.find("input_activations");
    }
    if (config.schemes.empty()) return groups.error("expected groups with weights, found none");
    if (quantizes_activations)
        config.note =
            "activations are not rounded to 8 bits, as this folder's config asks for: they stay in the device's type";
    return ok_status();
}

Status read_fp8(const JsonValue& root, QuantizationConfig& config) {
    if (const auto form = root.find("fmt")) {
        TRY_ASSIGN(const auto name, form->as_string());
        if (name != "e4m3" && name != "float8_e4m3fn") return expected(*form, "e4m3");
    }
    if (const auto block = root.find("weight_block_size"))
        TRY(read_block(*block, config.block_rows, config.block_columns));
    config.note =
        "activations are not rounded to 8 bits, as this folder's config asks for: they stay in the device's type";
    return ok_status();
}

Status read_method(const JsonValue& root, QuantizationConfig& config) {
    switch (config.method) {
        case QuantMethod::kNone: return ok_status();
        case QuantMethod::kBitsAndBytes: return read_bitsandbytes(root);
        case QuantMethod::kGptq: return read_gptq(root, config);
        case QuantMethod::kAwq: return read_awq(root, config);
        case QuantMethod::kCompressedTensors: return read_compressed_tensors(root, config);
        case QuantMethod::kFp8: return read_fp8(root, config);
        // experts alone, and their tensors say the rest: map_expert_tensors()
        case QuantMethod::kMxfp4: return ok_status();
    }
    CHECK(false);
}

constexpr std::array<std::pair<QuantMethod, std::string_view>, 6> kMethods = {
    {{QuantMethod::kBitsAndBytes, "bitsandbytes"},
     {QuantMethod::kGptq, "gptq"},
     {QuantMethod::kAwq, "awq"},
     {QuantMethod::kCompressedTensors, "compressed-tensors"},
     {QuantMethod::kFp8, "fp8"},
     {QuantMethod::kMxfp4, "mxfp4"}}};

// The method of a quantization_config. Files of old bitsandbytes do not name theirs.
Result<QuantMethod> method_of(const JsonValue& root) {
    if (!root.is_object()) return expected(root, "an object");
    const auto value = root.find("quant_method");
    if (!value) {
        if (root.find("load_in_4bit") || root.find("load_in_8bit")) return QuantMethod::kBitsAndBytes;
        return root.error(format("expected quant_method, found none (MLX's quantized weights, which are so, are not "
                                 "read); lorad reads {}: {}",
                                 kReadMethods, kWhatToDo));
    }
    TRY_ASSIGN(const auto name, value->as_string());
    for (const auto& [method, known] : kMethods) {
        if (name == known) return method;
    }
    return value->error(format("quantized by {}, which lorad does not read; it reads {}: {}", json_quote_short(name),
                               kReadMethods, kWhatToDo));
}

std::string group_text(uint32_t size) { return size == 0 ? "one group a row" : format("groups of {}", size); }

}  // namespace

std::string_view name_of(QuantMethod method) {
    for (const auto& [known, name] : kMethods) {
        if (known == method) return name;
    }
    return "none";
}

std::string describe(const WeightScheme& scheme) {
    std::string out = scheme.is_float ? "FP8" : format("{}-bit integers", scheme.bits);
    switch (scheme.strategy) {
        case ScaleStrategy::kTensor: out += ", a scale a matrix"; break;
        case ScaleStrategy::kChannel: out += ", a scale a row"; break;
        case ScaleStrategy::kGroup: out += ", " + group_text(scheme.group_size); break;
        case ScaleStrategy::kBlock: out += format(", blocks of {}x{}", scheme.block_rows, scheme.block_columns); break;
    }
    if (!scheme.is_float) out += scheme.symmetric ? ", symmetric" : ", with zero points";
    return out;
}

std::string QuantizationConfig::summary() const {
    switch (method) {
        case QuantMethod::kNone: return {};
        case QuantMethod::kBitsAndBytes: return "bitsandbytes";
        case QuantMethod::kGptq:
            return format("GPTQ, {} bits, {}{}{}", bits, group_text(group_size),
                          symmetric ? ", symmetric" : ", with zero points", act_order ? ", act-order" : "");
        case QuantMethod::kAwq: return format("AWQ, {} bits, {}", bits, group_text(group_size));
        case QuantMethod::kCompressedTensors: {
            std::string out = "compressed-tensors";
            for (const WeightScheme& scheme : schemes) out += "; " + describe(scheme);
            return out;
        }
        case QuantMethod::kMxfp4: return "MXFP4";
        case QuantMethod::kFp8:
            return block_rows == 0 ? "FP8" : format("FP8, blocks of {}x{}", block_rows, block_columns);
    }
    CHECK(false);
}

Result<QuantizationConfig> read_quantization(const JsonValue& root) {
    QuantizationConfig config;
    for (const char* key : {"quantization_config", "compression_config"}) {
        const auto value = root.find(key);
        if (!value) continue;
        TRY_ASSIGN(config.method, method_of(*value));
        TRY(read_method(*value, config));
        return config;
    }
    // MLX's weights of few bits.
    if (const auto mlx = root.find("quantization")) {
        return mlx->error(
            format("quantized by MLX, which lorad does not read; it reads {}: {}", kReadMethods, kWhatToDo));
    }
    return config;
}

Result<QuantizationConfig> parse_quantizer_file(std::string_view name, std::string_view text) {
    TRY_ASSIGN(
        const JsonDocument document,
        parse_json(text, {.name = std::string(name), .code = ErrorCode::kInvalidModel, .allow_duplicate_keys = true}));
    QuantizationConfig config;
    config.where = name;
    const JsonValue root = document.root();
    if (!root.is_object()) return expected(root, "an object");
    if (name == kQuantizerFileNames[2]) {
        return root.error(format("quantized by NVIDIA's Model Optimizer, which lorad does not read; it reads {}: {}",
                                 kReadMethods, kWhatToDo));
    }
    config.method = name == kQuantizerFileNames[0] ? QuantMethod::kGptq : QuantMethod::kAwq;
    if (root.find("quant_method")) {
        TRY_ASSIGN(config.method, method_of(root));
    }
    TRY(read_method(root, config));
    return config;
}

}  // namespace lorad::model
