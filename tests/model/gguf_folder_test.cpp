// One model as a folder and as GGUF, in the layout of llama.cpp's converters: the same config, and the same numbers in
// the same places.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "model/config/rope.h"
#include "model/files/model_files.h"
#include "model/gguf/gguf_names.h"
#include "model/quant/matrix_source.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/goldens.h"
#include "tests/support/temp_dir.h"

namespace lorad::model::gguf_folder_test {
namespace {

using lorad::testing::GgufWriter;
using lorad::testing::goldens_dir;

uint32_t number_of_type(DType dtype) { return dtype == DType::kF32 ? 0 : dtype == DType::kF16 ? 1 : 30; }

std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The file's names by ours.
std::map<std::string, std::string> names_in_gguf(const ModelConfig& config, bool has_norms_after) {
    std::map<std::string, std::string> names;
    for (const char* whole : {"token_embd", "output_norm", "output"}) names[*name_from_gguf(whole, false)] = whole;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        for (const char* part : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down",
                                 "attn_qkv", "attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"}) {
            const std::string name = "blk." + std::to_string(layer) + "." + part;
            names[*name_from_gguf(name, config.fused_gate_up, has_norms_after)] = name;
        }
        for (const char* part : {"post_attention_norm", "post_ffw_norm"}) {
            const std::string name = "blk." + std::to_string(layer) + "." + part;
            if (has_norms_after) names[*name_from_gguf(name, config.fused_gate_up, true)] = name;
        }
    }
    return names;
}

// Rows of each head in pairs: reshape(heads, 2, half), swap the last two.
std::string in_pairs(const Tensor& tensor, uint64_t n_heads) {
    const uint64_t half = tensor.shape[0] / n_heads / 2, row_bytes = tensor.data.size() / tensor.shape[0];
    std::string out;
    for (uint64_t head = 0; head < n_heads; ++head) {
        for (uint64_t j = 0; j < half; ++j) {
            for (uint64_t i = 0; i < 2; ++i)
                out += text_of(tensor.data.subspan(((head * 2 + i) * half + j) * row_bytes, row_bytes));
        }
    }
    return out;
}

std::string as_gguf(const TensorFiles& files, const ModelConfig& config) {
    const GgufArchitecture& architecture = *gguf_architecture_of(config.architecture);
    GgufWriter writer;
    writer.text("general.architecture", architecture.gguf);
    const std::string prefix = std::string(architecture.gguf) + ".";
    const auto number = [&](const char* key, uint32_t value) { writer.number<uint32_t>(prefix + key, 4, value); };
    number("context_length", config.max_positions);
    number("embedding_length", config.hidden_size);
    number("feed_forward_length", config.intermediate_size);
    number("block_count", config.n_layers);
    number("attention.head_count", config.n_heads);
    number("attention.head_count_kv", config.n_kv_heads);
    number("attention.key_length", config.head_dim);
    number("attention.value_length", config.head_dim);
    number("rope.dimension_count", config.rope.rotary_dim);
    writer.number<float>(prefix + "rope.freq_base", 6, static_cast<float>(config.rope.theta));
    writer.number<float>(prefix + "attention.layer_norm_rms_epsilon", 6, config.rms_norm_eps);
    if (config.sliding_windows[0] != 0) number("attention.sliding_window", config.sliding_windows[0]);
    if (config.rope.type == RopeType::kLlama3) {
        RopeConfig plain = config.rope;
        plain.type = RopeType::kDefault;
        const std::vector<double> before = rope_frequencies(plain), after = rope_frequencies(config.rope);
        std::string factors;
        for (size_t i = 0; i < after.size(); ++i)
            GgufWriter::put<float>(factors, static_cast<float>(before[i] / after[i]));
        writer.tensor("rope_freqs.weight", 0, {after.size()}, factors);
    }
    const auto names = names_in_gguf(config, architecture.has_norms_after);
    for (const Tensor& tensor : files.tensors()) {
        const size_t dot = tensor.name.rfind('.');
        const std::string ours = tensor.name.substr(0, dot);
        const bool is_q = ours.ends_with("q_proj"), is_k = ours.ends_with("k_proj");
        const bool is_turned = architecture.permutes_q_and_k && (is_q || is_k);
        writer.tensor(names.at(ours) + tensor.name.substr(dot), number_of_type(tensor.dtype), tensor.shape,
                      is_turned ? in_pairs(tensor, is_q ? config.n_heads : config.n_kv_heads) : text_of(tensor.data));
    }
    return writer.file();
}

std::vector<float> decoded(const Tensor& tensor) {
    if (!tensor.source) return numbers_of(tensor);
    std::vector<float> numbers(tensor.n_elements());
    tensor.source->decode(0, tensor.shape[0], numbers);
    return numbers;
}

class GgufOfFolders : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufOfFolders, HasTheConfigAndTheNumbersOfTheFolder) {
    const auto folder = ModelFiles::open(goldens_dir() / "models" / GetParam());
    ASSERT_TRUE(folder.ok()) << folder.error().message;
    const auto config = (*folder)->config();
    const auto tensors = (*folder)->tensors();
    ASSERT_TRUE(config.ok() && tensors.ok());
    lorad::testing::TempDir dir;
    const auto path = dir.path() / "model.gguf";
    std::ofstream(path, std::ios::binary) << as_gguf(*tensors, *config);

    const auto gguf = ModelFiles::open(path);
    ASSERT_TRUE(gguf.ok()) << gguf.error().message;
    const ModelConfig found = (*gguf)->config().value();
    for (const auto size :
         {&ModelConfig::vocab_size, &ModelConfig::hidden_size, &ModelConfig::intermediate_size, &ModelConfig::n_layers,
          &ModelConfig::n_heads, &ModelConfig::n_kv_heads, &ModelConfig::head_dim, &ModelConfig::max_positions}) {
        EXPECT_EQ(found.*size, (*config).*size);
    }
    for (const auto flag :
         {&ModelConfig::tied_embeddings, &ModelConfig::qkv_bias, &ModelConfig::o_bias, &ModelConfig::mlp_bias,
          &ModelConfig::qk_norm, &ModelConfig::fused_qkv, &ModelConfig::fused_gate_up}) {
        EXPECT_EQ(found.*flag, (*config).*flag);
    }
    EXPECT_EQ(found.rms_norm_eps, config->rms_norm_eps);
    EXPECT_EQ(found.sliding_windows, config->sliding_windows);
    const std::vector<double> expected = rope_frequencies(config->rope), frequencies = rope_frequencies(found.rope);
    ASSERT_EQ(frequencies.size(), expected.size());
    // Factors and theta are f32 in the file.
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(frequencies[i] / expected[i], 1.0, 2e-7) << i;

    const auto read = (*gguf)->tensors();
    ASSERT_TRUE(read.ok()) << read.error().message;
    ASSERT_EQ(read->tensors().size(), tensors->tensors().size());
    for (const Tensor& tensor : tensors->tensors()) {
        const Tensor* same = read->find(tensor.name);
        ASSERT_NE(same, nullptr) << tensor.name;
        ASSERT_EQ(same->shape, tensor.shape) << tensor.name;
        EXPECT_TRUE(decoded(*same) == decoded(tensor)) << tensor.name;
    }
}

INSTANTIATE_TEST_SUITE_P(All, GgufOfFolders,
                         ::testing::Values("llama-scaled", "llama-tied", "mistral-window", "phi3-sharded", "qwen2-tied",
                                           "qwen3"),
                         [](const auto& instance) {
                             std::string name = instance.param;
                             std::ranges::replace(name, '-', '_');
                             return name;
                         });

// As llama.cpp reads it: every sixth layer is a full one, the others have a rotary table of their own; norms hold the
// whole weight.
TEST(GgufOfGemma3, HasTheLayersThatItsArchitectureMeans) {
    const auto folder = ModelFiles::open(goldens_dir() / "families/models/gemma3-nested");
    ASSERT_TRUE(folder.ok()) << folder.error().message;
    ModelConfig config = (*folder)->config().value();
    config.sliding_windows.assign(config.n_layers, 20);
    const TensorFiles tensors = (*folder)->tensors().value();
    lorad::testing::TempDir dir;
    const auto path = dir.path() / "model.gguf";
    std::ofstream(path, std::ios::binary) << as_gguf(tensors, config);
    const auto gguf = ModelFiles::open(path);
    ASSERT_TRUE(gguf.ok()) << gguf.error().message;
    const ModelConfig found = (*gguf)->config().value();
    EXPECT_TRUE(found.one_plus_norms && found.norms_hold_one && found.wide_activations);
    EXPECT_EQ(found.embed_scale, config.embed_scale);
    ASSERT_EQ(found.layers.size(), 4u);
    LayerFacts expected = config.layer(0);
    expected.attention.scale = 1.0f / std::sqrt(24.0f);  // of the heads' size, which the file does not say otherwise
    for (uint32_t layer = 0; layer < 4; ++layer) EXPECT_TRUE(found.layer(layer) == expected) << layer;
    EXPECT_EQ(found.rope_of(0).theta, 1e6);
    EXPECT_EQ(found.rope_of(1).theta, 1e4);
    const auto read = (*gguf)->tensors();
    ASSERT_TRUE(read.ok()) << read.error().message;
    ASSERT_EQ(read->tensors().size(), tensors.tensors().size());
    for (const Tensor& tensor : tensors.tensors()) {
        const Tensor* same = read->find(tensor.name);
        ASSERT_NE(same, nullptr) << tensor.name;
        EXPECT_TRUE(decoded(*same) == decoded(tensor)) << tensor.name;
    }
}

}  // namespace
}  // namespace lorad::model::gguf_folder_test
