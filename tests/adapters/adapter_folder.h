// Adapter folders made on the spot, for a small base model that exists only as a config.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "proto/base/format.h"
#include "proto/json/json.h"
#include "tests/support/temp_dir.h"

namespace lorad::testing {

// hidden 40, q 64, k and v 32, ffn 96, 2 layers.
inline model::ModelConfig small_config(bool fused = false) {
    model::ModelConfig config;
    config.architecture = fused ? "Phi3ForCausalLM" : "LlamaForCausalLM";
    config.vocab_size = 100;
    config.hidden_size = 40;
    config.intermediate_size = 96;
    config.n_layers = 2;
    config.n_heads = 4;
    config.n_kv_heads = 2;
    config.head_dim = 16;
    config.fused_qkv = fused;
    config.fused_gate_up = fused;
    return config;
}

struct TestTensor {
    std::string dtype = "F32";
    std::vector<uint64_t> shape;
    std::vector<std::byte> data;
};

template <typename T>
std::vector<std::byte> as_data(const std::vector<T>& values) {
    std::vector<std::byte> data(values.size() * sizeof(T));
    if (!data.empty()) std::memcpy(data.data(), values.data(), data.size());
    return data;
}

// Values that differ at every place and are exact in f16 and bf16: small whole numbers.
inline float test_value(uint64_t seed, uint64_t row, uint64_t column) {
    return static_cast<float>((seed * 31 + row * 7 + column * 3) % 61) - 30.0f;
}
inline uint16_t to_bf16(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }
inline uint16_t to_f16(float value) {  // of zero and normal numbers that f16 holds exactly
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if (value == 0.0f) return 0;
    return static_cast<uint16_t>(((bits >> 16) & 0x8000) | ((((bits >> 23) & 0xff) - 112) << 10) |
                                 ((bits >> 13) & 0x3ff));
}

inline TestTensor matrix(uint64_t rows, uint64_t columns, uint64_t seed, const std::string& dtype = "F32") {
    TestTensor tensor{dtype, {rows, columns}, {}};
    std::vector<float> wide;
    std::vector<uint16_t> narrow;
    for (uint64_t row = 0; row < rows; ++row) {
        for (uint64_t column = 0; column < columns; ++column) {
            const float value = test_value(seed, row, column);
            if (dtype == "F32") {
                wide.push_back(value);
            } else {
                narrow.push_back(dtype == "F16" ? to_f16(value) : to_bf16(value));
            }
        }
    }
    tensor.data = dtype == "F32" ? as_data(wide) : as_data(narrow);
    return tensor;
}

using TestTensors = std::map<std::string, TestTensor>;

// "self_attn.q_proj" of layer 1 -> "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
inline std::string lora_name(uint32_t layer, const std::string& module, char which) {
    return format("base_model.model.model.layers.{}.{}.lora_{}.weight", layer, module, which);
}
inline void add_pair(TestTensors& tensors, uint32_t layer, const std::string& module, uint64_t rank, uint64_t n,
                     uint64_t k, uint64_t seed = 1, const std::string& dtype = "F32") {
    tensors[lora_name(layer, module, 'A')] = matrix(rank, k, seed, dtype);
    tensors[lora_name(layer, module, 'B')] = matrix(n, rank, seed + 1, dtype);
}
// q and v in both layers.
inline TestTensors plain_tensors(uint64_t rank = 4, uint64_t seed = 1) {
    TestTensors tensors;
    for (uint32_t layer = 0; layer < 2; ++layer) {
        add_pair(tensors, layer, "self_attn.q_proj", rank, 64, 40, seed + layer * 10);
        add_pair(tensors, layer, "self_attn.v_proj", rank, 32, 40, seed + layer * 10 + 2);
    }
    return tensors;
}

inline std::string safetensors_bytes(const TestTensors& tensors,
                                     const std::map<std::string, std::string>& metadata = {}) {
    JsonWriter header;
    header.begin_object();
    if (!metadata.empty()) {
        header.key("__metadata__").begin_object();
        for (const auto& [key, value] : metadata) header.field(key, value);
        header.end_object();
    }
    std::string data;
    for (const auto& [name, tensor] : tensors) {
        header.key(name).begin_object().field("dtype", tensor.dtype).key("shape").begin_array();
        for (const uint64_t size : tensor.shape) header.value(size);
        header.end_array().key("data_offsets").begin_array().value(static_cast<uint64_t>(data.size()));
        data.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
        header.value(static_cast<uint64_t>(data.size())).end_array().end_object();
    }
    header.end_object();
    std::string text = header.take();
    text.append((8 - text.size() % 8) % 8, ' ');
    const uint64_t size = text.size();
    std::string file(sizeof(size), '\0');
    std::memcpy(file.data(), &size, sizeof(size));
    return file + text + data;
}

inline const char* const kPlainConfig =
    R"({"peft_type":"LORA","r":4,"lora_alpha":8,"target_modules":["q_proj","v_proj"]})";

// A folder of its own, removed at the end of the test.
class AdapterFolder {
  public:
    explicit AdapterFolder(const std::string& config = kPlainConfig, const TestTensors& tensors = plain_tensors()) {
        write("adapter_config.json", config);
        write("adapter_model.safetensors", safetensors_bytes(tensors));
    }

    void write(const std::string& name, const std::string& contents) const {
        std::ofstream(path() / name, std::ios::binary) << contents;
    }
    void remove(const std::string& name) const { std::filesystem::remove(path() / name); }
    const std::filesystem::path& path() const { return folder_.path(); }

  private:
    TempDir folder_;
};

}  // namespace lorad::testing
