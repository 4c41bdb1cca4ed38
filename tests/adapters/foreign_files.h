// PEFT adapters written as GGUF and MLX files, as the tools of those formats write them.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "model/files/safetensors.h"
#include "proto/base/format.h"
#include "tests/adapters/adapter_folder.h"
#include "tests/support/gguf_writer.h"

namespace lorad::testing {

inline GgufWriter gguf_header(const std::string& architecture, float alpha) {
    GgufWriter writer;
    writer.text("general.architecture", architecture).text("general.type", "adapter").text("adapter.type", "lora");
    writer.number<float>("adapter.lora.alpha", 6, alpha);
    return writer;
}

inline uint32_t gguf_type(const std::string& dtype) { return dtype == "F32" ? 0 : dtype == "F16" ? 1 : 30; }
inline std::string_view bytes_of(const TestTensor& tensor) {
    return {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()};
}

inline TestTensor transposed(const TestTensor& from) {
    TestTensor to{from.dtype, {from.shape[1], from.shape[0]}, from.data};
    const size_t size = from.dtype == "F32" ? 4 : 2;
    for (uint64_t row = 0; row < from.shape[0]; ++row) {
        for (uint64_t column = 0; column < from.shape[1]; ++column) {
            std::memcpy(to.data.data() + (column * from.shape[0] + row) * size,
                        from.data.data() + (row * from.shape[1] + column) * size, size);
        }
    }
    return to;
}

// llama.cpp's order of the rows of q and k: reshape(n_head, 2, half), swap the last two.
inline TestTensor permuted(const TestTensor& from, uint64_t n_heads) {
    TestTensor to = from;
    const uint64_t row_bytes = from.data.size() / from.shape[0], half = from.shape[0] / n_heads / 2;
    uint64_t row = 0;
    for (uint64_t head = 0; head < n_heads; ++head) {
        for (uint64_t j = 0; j < half; ++j) {
            for (uint64_t i = 0; i < 2; ++i) {
                std::memcpy(to.data.data() + row++ * row_bytes,
                            from.data.data() + ((head * 2 + i) * half + j) * row_bytes, row_bytes);
            }
        }
    }
    return to;
}

// The tensors of a PEFT file without PEFT's prefix.
inline TestTensors read_peft(const std::filesystem::path& file) {
    const auto files = model::TensorFiles::map(file, ErrorCode::kIo);
    TestTensors tensors;
    for (const model::Tensor& tensor : files->tensors()) {
        TestTensor copy{
            std::string(model::name_of(tensor.dtype)), tensor.shape, {tensor.data.begin(), tensor.data.end()}};
        tensors[tensor.name.substr(std::string("base_model.model.").size())] = std::move(copy);
    }
    return tensors;
}

// What convert_lora_to_gguf makes of them, for adapters of A and B and embeddings.
inline std::string as_gguf(const TestTensors& tensors, const model::ModelConfig& config, float alpha) {
    const bool is_llama = config.architecture == "LlamaForCausalLM" || config.architecture == "MistralForCausalLM";
    const std::map<std::string, std::string> architectures{
        {"Qwen2ForCausalLM", "qwen2"}, {"Qwen3ForCausalLM", "qwen3"}, {"Phi3ForCausalLM", "phi3"}};
    GgufWriter writer = gguf_header(is_llama ? "llama" : architectures.at(config.architecture), alpha);
    const std::map<std::string, std::string> parts{
        {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"},          {"self_attn.v_proj", "attn_v"},
        {"self_attn.o_proj", "attn_output"}, {"mlp.gate_proj", "ffn_gate"},           {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},       {"self_attn.qkv_proj", "attn_qkv"},      {"mlp.gate_up_proj", "ffn_up"},
        {"input_layernorm", "attn_norm"},    {"post_attention_layernorm", "ffn_norm"}};
    for (const auto& [name, tensor] : tensors) {
        const bool is_a = name.find(".lora_A.") != std::string::npos || name.ends_with("_A");
        const std::string end = name.find("lora_") == std::string::npos ? ".weight"
                                : is_a                                  ? ".weight.lora_a"
                                                                        : ".weight.lora_b";
        TestTensor out = tensor;
        std::string to = "output";
        if (name.starts_with("model.embed_tokens")) {
            to = "token_embd";
            if (is_a) out = transposed(tensor);
        } else if (name.starts_with("model.layers.")) {
            const size_t dot = name.find('.', 13);
            const std::string module =
                name.substr(dot + 1, name.find(end == ".weight" ? ".weight" : ".lora_") - dot - 1);
            to = format("blk.{}.{}", name.substr(13, dot - 13), parts.at(module));
            if (is_llama && !is_a && module == "self_attn.q_proj") out = permuted(tensor, config.n_heads);
            if (is_llama && !is_a && module == "self_attn.k_proj") out = permuted(tensor, config.n_kv_heads);
        }
        writer.tensor(to + end, gguf_type(out.dtype), out.shape, bytes_of(out));
    }
    return writer.file();
}

// What mlx-lm saves.
inline TestTensors as_mlx(const TestTensors& tensors) {
    TestTensors out;
    for (const auto& [name, tensor] : tensors) {
        const size_t at = name.find(".lora_");
        const std::string module = name.substr(0, at), end = name.substr(at);
        if (end.starts_with(".lora_magnitude_vector")) {
            out[module + ".m"] = tensor;
        } else {
            out[module + (end.find("_A") != std::string::npos ? ".lora_a" : ".lora_b")] = transposed(tensor);
        }
    }
    return out;
}

}  // namespace lorad::testing
