#include "model/quant/quantized_folder.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "model/quant/bnb.h"
#include "model/quant/compressed.h"
#include "model/quant/fp8.h"
#include "model/quant/gptq_awq.h"
#include "model/quant/linear_tensors.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr std::string_view kWeight = "weight";

// The names that show that a layer is quantized, and by which method it may have been.
struct PartName {
    std::string_view name, methods;
};
constexpr PartName kParts[] = {
    {"weight.absmax", "bitsandbytes"},
    {"weight.quant_map", "bitsandbytes"},
    {"weight.nested_absmax", "bitsandbytes"},
    {"weight.nested_quant_map", "bitsandbytes"},
    {"weight.quant_state.bitsandbytes__nf4", "bitsandbytes"},
    {"weight.quant_state.bitsandbytes__fp4", "bitsandbytes"},
    {"SCB", "bitsandbytes"},
    {"weight_format", "bitsandbytes"},
    {"qweight", "gptq or awq"},
    {"qzeros", "gptq or awq"},
    {"scales", "gptq or awq"},
    {"g_idx", "gptq"},
    {"weight_packed", "compressed-tensors"},
    {"weight_shape", "compressed-tensors"},
    {"weight_zero_point", "compressed-tensors"},
    {"weight_g_idx", "compressed-tensors"},
    {"weight_scale", "compressed-tensors or fp8"},
    {"weight_scale_inv", "fp8"},
};

// The rounding of activations and of the KV cache, which lorad does not do.
constexpr std::string_view kOfActivations[] = {"input_scale",       "output_scale",     "input_zero_point",
                                               "output_zero_point", "activation_scale", "k_scale",
                                               "v_scale",           "q_scale"};

// "layer.q_proj" of "layer.q_proj.scales"; empty where the name does not end in that part.
std::string_view layer_of(std::string_view name, std::string_view part) {
    if (name.size() < part.size() + 2 || !name.ends_with(part) || name[name.size() - part.size() - 1] != '.') return {};
    return name.substr(0, name.size() - part.size() - 1);
}

const PartName* part_of(std::string_view name) {
    const auto* part = std::ranges::find_if(kParts, [&](const PartName& p) { return !layer_of(name, p.name).empty(); });
    return part == std::end(kParts) ? nullptr : part;
}

bool is_of_activations(std::string_view name) {
    return std::ranges::any_of(kOfActivations, [&](std::string_view part) { return !layer_of(name, part).empty(); });
}

// Codes that are kept in NAME.weight itself.
bool is_coded_weight(const Tensor& tensor) {
    return !is_weight_type(tensor.dtype) && !layer_of(tensor.name, kWeight).empty();
}

Result<Tensor> make_matrix(LinearTensors& linear, const QuantizationConfig& config) {
    switch (config.method) {
        case QuantMethod::kNone:
        case QuantMethod::kMxfp4: break;
        case QuantMethod::kBitsAndBytes: return make_bnb_matrix(linear);
        case QuantMethod::kGptq: return make_gptq_matrix(linear, config);
        case QuantMethod::kAwq: return make_awq_matrix(linear, config);
        case QuantMethod::kCompressedTensors: return make_compressed_matrix(linear, config.schemes);
        case QuantMethod::kFp8: return make_fp8_matrix(linear, config);
    }
    CHECK(false);
}

Status check_none_is_quantized(std::span<const Tensor> tensors) {
    for (const Tensor& tensor : tensors) {
        const PartName* part = part_of(tensor.name);
        if (!part) continue;
        return make_error(
            ErrorCode::kInvalidModel,
            format("config.json: expected a quantization_config, found none; tensor {} is of a layer quantized by {}",
                   tensor.name, part->methods));
    }
    return ok_status();
}

}  // namespace

Result<std::vector<Tensor>> join_quantized(std::span<const Tensor> tensors, const QuantizationConfig& config) {
    std::vector<Tensor> joined(tensors.begin(), tensors.end());
    if (!config) {
        TRY(check_none_is_quantized(tensors));
        return joined;
    }
    if (config.method == QuantMethod::kMxfp4) return joined;
    std::map<std::string, LinearTensors, std::less<>> layers;
    const auto layer = [&](std::string_view name) -> LinearTensors& {
        return layers.try_emplace(std::string(name), std::string(name)).first->second;
    };
    const bool drops_activations =
        config.method == QuantMethod::kCompressedTensors || config.method == QuantMethod::kFp8;
    for (const Tensor& tensor : tensors) {
        const PartName* part = part_of(tensor.name);
        if (part) layer(layer_of(tensor.name, part->name)).add(part->name, tensor);
        if (!part && is_coded_weight(tensor)) layer(layer_of(tensor.name, kWeight)).add(kWeight, tensor);
    }
    if (layers.empty()) {
        return make_error(
            ErrorCode::kInvalidModel,
            format("{}: quantized by {}, but no tensor is: give the model's own config.json, or its quantized tensors",
                   config.where, name_of(config.method)));
    }
    // A weight beside such tensors is one of them.
    std::erase_if(joined, [&](const Tensor& tensor) {
        if (part_of(tensor.name) || is_coded_weight(tensor) || (drops_activations && is_of_activations(tensor.name)))
            return true;
        return layers.contains(layer_of(tensor.name, kWeight));
    });
    for (const Tensor& tensor : tensors) {
        const std::string_view name = layer_of(tensor.name, kWeight);
        if (!is_coded_weight(tensor) && layers.contains(name)) layer(name).add(kWeight, tensor);
    }
    for (auto& [name, linear] : layers) {
        TRY_ASSIGN(Tensor matrix, make_matrix(linear, config));
        joined.push_back(std::move(matrix));
    }
    std::ranges::sort(joined, {}, &Tensor::name);
    return joined;
}

Result<TensorFiles> map_quantized_folder(const std::filesystem::path& folder, const QuantizationConfig& config) {
    TRY_ASSIGN(TensorFiles files, TensorFiles::map_folder(folder));
    TRY_ASSIGN(std::vector<Tensor> tensors, join_quantized(files.tensors(), config));
    files.set_tensors(std::move(tensors));
    return files;
}

}  // namespace lorad::model
