// Folders of few bits: numbers against what each method's own library makes of the same tensors, and what is refused.
#include "model/quant/quantized_folder.h"

#include <bit>
#include <cstring>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/config/config.h"
#include "model/quant/matrix_decoder.h"
#include "model/quant/matrix_source.h"
#include "model/weights/weights.h"
#include "tests/support/goldens.h"

namespace lorad::model::quantized_folder_test {
namespace {

using namespace lorad::testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::filesystem::path quantized_goldens() { return goldens_dir() / "quantized"; }

std::vector<std::string> folders_in(const std::filesystem::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
}

Result<TensorFiles> open_model(const std::filesystem::path& folder) {
    TRY_ASSIGN(const ModelConfig config, load_model_config(folder));
    return map_quantized_folder(folder, config.quantization);
}

class QuantizedGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(QuantizedGolden, NumbersAreThoseOfTheLibraryInBits) {
    const auto files = open_model(quantized_goldens() / "hf" / GetParam());
    ASSERT_TRUE(files.ok()) << files.error().message;
    const auto expected =
        TensorFiles::map(quantized_goldens() / "expected/hf" / (GetParam() + ".safetensors"), ErrorCode::kIo);
    ASSERT_TRUE(expected.ok());
    constexpr std::string_view kBegin = "dequantized.", kEnd = ".first_rows";
    size_t n_compared = 0;
    for (const Tensor& rows : expected->tensors()) {
        if (!rows.name.starts_with(kBegin)) continue;
        const Tensor* tensor = files->find(
            std::string_view(rows.name).substr(kBegin.size(), rows.name.size() - kBegin.size() - kEnd.size()));
        ASSERT_NE(tensor, nullptr) << rows.name;
        ASSERT_EQ(tensor->dtype, DType::kPacked);
        ASSERT_EQ(tensor->shape[1], rows.shape[1]);
        std::vector<float> numbers(rows.n_elements()), reference = golden_floats(*expected, rows.name);
        tensor->source->decode(0, rows.shape[0], numbers);
        for (size_t i = 0; i < numbers.size(); ++i) {
            ASSERT_EQ(std::bit_cast<uint32_t>(numbers[i]), std::bit_cast<uint32_t>(reference[i]))
                << rows.name << " at " << i << ": " << numbers[i] << ", " << reference[i];
        }
        ++n_compared;
    }
    EXPECT_EQ(n_compared, 1u);
}

// Wherever a reader begins, and however many rows it takes at a time.
TEST_P(QuantizedGolden, RowsAreTheSameInPieces) {
    const auto files = open_model(quantized_goldens() / "hf" / GetParam());
    ASSERT_TRUE(files.ok()) << files.error().message;
    size_t n_packed = 0;
    for (const Tensor& tensor : files->tensors()) {
        if (!tensor.source) continue;
        ++n_packed;
        const uint64_t n = tensor.shape[0], k = tensor.shape[1];
        std::vector<float> whole(n * k), pieces(n * k);
        tensor.source->decode(0, n, whole);
        for (uint64_t row = 0; row < n;) {
            const uint64_t n_rows = std::min<uint64_t>(n - row, 1 + row % 5);
            tensor.source->decode(row, n_rows, std::span(pieces).subspan(row * k, n_rows * k));
            row += n_rows;
        }
        ASSERT_EQ(whole, pieces) << tensor.name;
    }
    EXPECT_EQ(n_packed, 14u) << "seven layers in two blocks";
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
    std::string name = info.param;
    std::ranges::replace(name, '-', '_');
    return name;
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedGolden, ::testing::ValuesIn(folders_in(quantized_goldens() / "hf")), test_name);

// What a model says until its weights are on the device, without one.
std::string refusal_of(const std::filesystem::path& folder) {
    const auto config = load_model_config(folder);
    if (!config.ok()) return config.error().message;
    const auto files = map_quantized_folder(folder, config->quantization);
    if (!files.ok()) return files.error().message;
    ModelWeights weights;
    const auto loader = WeightLoader::create(*files, *config, weights);
    if (!loader.ok()) return loader.error().message;
    for (const Tensor& tensor : files->tensors()) {
        if (tensor.shape.size() != 2) continue;
        std::vector<std::byte> out(tensor.n_elements() * 2);
        const Status decoded = decode_rows(tensor, 0, tensor.shape[0], gpu::ScalarType::kF16, out);
        if (!decoded.ok()) return decoded.error().message;
    }
    return "loads";
}

TEST(BrokenQuantizedFolders, AreRefusedWithWhatWasExpectedAndFound) {
    const std::map<std::string, std::vector<std::string>> expected = {
        {"awq-unsupported-version",
         {"config.json: quantization_config.version: expected gemm", "found string \"gemv\""}},
        {"awq-words-missing", {".qweight: expected I32", "found I32 [", "scales"}},
        {"fp8-block-scale-shape", {".weight_scale_inv: expected F32, F16 or BF16 [", "found F32 ["}},
        {"fp8-no-scale", {".weight_scale is missing: FP8 needs it"}},
        {"gptq-bits-5", {"config.json: quantization_config.bits: expected 4 or 8", "found number 5"}},
        {"gptq-g-idx-beyond-groups", {".g_idx: expected groups 0 to 1, found 9999 at 5"}},
        {"gptq-impossible-group", {".scales: expected groups that divide its 128 inputs", "found group_size 48"}},
        {"nf4-absmax-too-short", {".weight.absmax: expected F32, F16 or BF16 [", "found F32 ["}},
        {"nf4-blocksize-zero",
         {".quant_state.bitsandbytes__nf4: blocksize: expected", "expected integer from 1", "found 0"}},
        {"nf4-control", {"loads"}},
        {"nf4-no-quant-state", {".quant_state.bitsandbytes__nf4 is missing: bitsandbytes needs it"}},
        {"no-quantization-config", {"config.json: expected a quantization_config, found none", "quantized by"}},
        {"unsupported-method",
         {"config.json: quantization_config.quant_method: quantized by \"quip-sharp\"",
          "it reads bitsandbytes (NF4, FP4, LLM.int8), gptq, awq"}},
        {"w4a16-no-zero-point", {".weight_zero_point is missing: 4-bit integers", "with zero points needs it"}},
        {"w4a16-wrong-weight-shape", {".weight_packed: expected I32 [", "that weight_shape tells", "found I32 ["}},
    };
    const auto names = folders_in(quantized_goldens() / "broken");
    ASSERT_EQ(names.size(), expected.size());
    for (const std::string& name : names) {
        const std::string said = refusal_of(quantized_goldens() / "broken" / name);
        ASSERT_TRUE(expected.contains(name)) << name;
        for (const std::string& part : expected.at(name)) EXPECT_THAT(said, HasSubstr(part)) << name;
        EXPECT_EQ(said.find('\n'), std::string::npos) << name << ": one line";
    }
}

// AutoGPTQ wrote a bias of zeros for each layer, also of models without.
TEST(QuantizedFolders, BiasesOfZerosOfAModelWithoutAreLeftOut) {
    const auto folder = quantized_goldens() / "hf/llama-gptq-sym";
    const auto config = load_model_config(folder);
    ASSERT_TRUE(config.ok());
    for (const float value : {0.0f, 0.5f}) {
        auto files = map_quantized_folder(folder, config->quantization);
        ASSERT_TRUE(files.ok());
        const std::vector<float> bias(128, value);
        std::vector<Tensor> tensors(files->tensors().begin(), files->tensors().end());
        tensors.push_back({.name = "model.layers.0.self_attn.q_proj.bias",
                           .dtype = DType::kF32,
                           .shape = {128},
                           .data = std::as_bytes(std::span(bias))});
        std::ranges::sort(tensors, {}, &Tensor::name);
        files->set_tensors(std::move(tensors));
        ModelWeights weights;
        const auto loader = WeightLoader::create(*files, *config, weights);
        const std::string said = loader.ok() ? "loads" : loader.error().message;
        EXPECT_THAT(said, HasSubstr(value == 0.0f ? "loads"
                                                  : "self_attn.q_proj.bias\" [128] is not part of a LlamaForCausalLM"));
    }
}

}  // namespace
}  // namespace lorad::model::quantized_folder_test
