// Models in 16 or 32 bits that lorad quantizes itself: while it loads them, and into GGUF files.
#include "model/quant/quantize.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/files/model_files.h"
#include "model/gguf/gguf_export.h"
#include "model/quant/ggml_blocks.h"
#include "model/quant/matrix_decoder.h"
#include "model/quant/matrix_source.h"
#include "model/weights/weights.h"
#include "tests/support/goldens.h"
#include "tests/support/temp_dir.h"

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

// Relative root mean square errors of normal numbers: half of a step of 4.5 bits, and of 6.5 bits, is about 0.07 and
// 0.017 of the deviation. A scale, code or minimum in the wrong place costs far more.
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
        for (size_t i = 0; i < numbers.size(); ++i)
            EXPECT_NEAR(back[i], numbers[i], 0.5f * 0.02f) << name_of(type) << " " << i;
    }
}

TEST(QuantizeTensors, OfAFolderLieInFewBitsOnTheDeviceWhereTheirRowsAreWholeBlocks) {
    const auto files = ModelFiles::open(goldens_dir() / "models/llama-scaled");
    ASSERT_TRUE(files.ok());
    const auto config = (*files)->config();
    for (const auto& [name, format] :
         {std::pair{"q8_0", gpu::WeightFormat::kQ8_0}, {"nf4", gpu::WeightFormat::kTable}}) {
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

TEST(QuantizeTensors, TellWhatDoesNotGetTheTypeThatWasAskedFor) {
    const auto note = [](const char* model, QuantizeType type) {
        const auto files = ModelFiles::open(goldens_dir() / model);
        const auto tensors = (*files)->tensors();
        return quantize_note(*tensors, type);
    };
    // Three layers of seven matrices, embedding and output layer; rows of 128, but for down's of 344.
    EXPECT_EQ(note("models/llama-scaled", QuantizeType::kQ4_K),
              "quantize q4_k: 20 matrices get Q8_0, as rows are no whole blocks of 256; 3 matrices stay in 16 or 32 "
              "bits, as rows are no whole blocks of 32");
    EXPECT_EQ(note("models/llama-scaled", QuantizeType::kQ8_0),
              "quantize q8_0: 3 matrices stay in 16 or 32 bits, as rows are no whole blocks of 32");
    EXPECT_EQ(note("models/llama-scaled", QuantizeType::kNf4),
              "quantize nf4: 3 matrices stay in 16 or 32 bits, as rows are no whole blocks of 64");
    EXPECT_EQ(note("quantized/gguf/llama-small-F16.gguf", QuantizeType::kQ8_0), "");
    EXPECT_THAT(note("quantized/gguf/llama-Q4_0.gguf", QuantizeType::kQ4_K),
                ::testing::MatchesRegex("quantize q4_k: [0-9]+ matrices are in few bits already and stay"));
}

// llama's q and k lie in another order of rows in GGUF than on the device.
TEST(QuantizeTensors, OfAGgufFileIn16BitsAreAllQuantizedWhateverTheOrderOfTheirRows) {
    const auto files = ModelFiles::open(goldens_dir() / "quantized/gguf/llama-small-F16.gguf");
    ASSERT_TRUE(files.ok()) << files.error().message;
    const auto plain = (*files)->tensors();
    auto quantized = (*files)->tensors();
    ASSERT_TRUE(plain.ok() && quantized.ok());
    quantize_tensors(*quantized, QuantizeType::kQ8_0);
    size_t n_reordered = 0;
    for (const Tensor& tensor : plain->tensors()) {
        if (!tensor.name.ends_with("_proj.weight")) continue;
        const Tensor* found = quantized->find(tensor.name);
        ASSERT_TRUE(found != nullptr && found->source) << tensor.name;
        EXPECT_EQ(found->source->format(), "Q8_0") << tensor.name;
        std::vector<float> numbers(tensor.n_elements()), got(numbers.size());
        if (tensor.source) {
            ++n_reordered;
            tensor.source->decode(0, tensor.shape[0], numbers);
        } else {
            numbers = numbers_of(tensor);
        }
        found->source->decode(0, tensor.shape[0], got);
        EXPECT_EQ(got, there_and_back(GgmlType::kQ8_0, numbers)) << tensor.name;
    }
    EXPECT_GT(n_reordered, 0u);
}

TEST(GgufExport, AFolderBecomesAFileOfTheSameModel) {
    const TempDir dir;
    const std::filesystem::path folder = goldens_dir() / "models/llama-scaled", file = dir.path() / "model.gguf";
    const Status exported = export_gguf(folder, QuantizeType::kQ8_0, file, {});
    ASSERT_TRUE(exported.ok()) << exported.error().message;
    const auto from = ModelFiles::open(folder), to = ModelFiles::open(file);
    ASSERT_TRUE(from.ok() && to.ok()) << to.error().message;
    const auto config_from = (*from)->config(), config_to = (*to)->config();
    ASSERT_TRUE(config_to.ok()) << config_to.error().message;
    EXPECT_EQ(config_to->n_layers, config_from->n_layers);
    EXPECT_EQ(config_to->n_kv_heads, config_from->n_kv_heads);
    EXPECT_EQ(config_to->tied_embeddings, config_from->tied_embeddings);
    EXPECT_EQ(config_to->generation.eos_token_ids.front(), config_from->generation.eos_token_ids.front());
    const auto tensors_from = (*from)->tensors(), tensors_to = (*to)->tensors();
    ASSERT_TRUE(tensors_to.ok()) << tensors_to.error().message;
    for (const Tensor& tensor : tensors_from->tensors()) {
        const Tensor* found = tensors_to->find(tensor.name);
        if (found == nullptr) continue;  // an output layer that is tied
        ASSERT_EQ(found->shape, tensor.shape) << tensor.name;
        std::vector<float> want = numbers_of(tensor), got;
        const auto type = ggml_type_for(tensor, QuantizeType::kQ8_0);
        if (type) {
            std::vector<float> row(tensor.shape[1]);
            for (uint64_t r = 0; r < tensor.shape[0]; ++r) {
                const std::vector<float> back =
                    there_and_back(*type, std::span(want).subspan(r * row.size(), row.size()));
                std::ranges::copy(back, want.begin() + static_cast<ptrdiff_t>(r * row.size()));
            }
        }
        if (found->source) {
            got.resize(want.size());
            found->source->decode(0, tensor.shape[0], got);
        } else {
            got = numbers_of(*found);
        }
        EXPECT_EQ(got, want) << tensor.name;
    }
    const auto tokenizer_from = (*from)->tokenizer(), tokenizer_to = (*to)->tokenizer();
    ASSERT_TRUE(tokenizer_to.ok() && *tokenizer_to) << tokenizer_to.error().message;
    for (const char* text : {"Hello, world! 12345", "  two  blanks\n\nand lines\t",
                             "na\xc3\xafve caf\xc3\xa9 \xf0\x9f\x98\x80", "I'll don't"}) {
        const auto ids_from = (*tokenizer_from)->encode(text, true), ids_to = (*tokenizer_to)->encode(text, true);
        ASSERT_TRUE(ids_from.ok() && ids_to.ok());
        EXPECT_EQ(*ids_to, *ids_from) << text;
    }
}

TEST(GgufExport, ReadsNoTensorThatIsSmallerThanTheConfigSays) {
    const TempDir dir;
    for (const auto& [from, to, tensor] :
         {std::tuple("\"num_attention_heads\": 8", "\"num_attention_heads\": 16", "_proj.weight"),
          std::tuple("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4", "model.layers.3")}) {
        const std::filesystem::path folder = dir.path() / tensor;
        std::filesystem::copy(goldens_dir() / "models/llama-scaled", folder, std::filesystem::copy_options::recursive);
        std::ifstream in(folder / "config.json");
        std::string text((std::istreambuf_iterator<char>(in)), {});
        const size_t at = text.find(from);
        ASSERT_NE(at, std::string::npos) << from << text;
        std::ofstream(folder / "config.json") << text.replace(at, std::string_view(from).size(), to);
        const Status exported = export_gguf(folder, QuantizeType::kQ8_0, dir.path() / "out.gguf", {});
        ASSERT_FALSE(exported.ok());
        EXPECT_THAT(exported.error().message, HasSubstr(tensor));
    }
}

TEST(QuantizeTensors, TakesExpertsLeavesRoutersAndKeepsNotes) {
    std::vector<std::byte> bytes(64 * 64 * sizeof(float));
    std::vector<Tensor> tensors;
    for (const char* name : {"model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.experts.down_proj.weight",
                             "model.layers.0.mlp.experts.3.up_proj.weight", "model.layers.0.mlp.gate.weight"})
        tensors.push_back({name, DType::kF32, {64, 64}, bytes, nullptr});
    TensorFiles files = TensorFiles::of(tensors, {});
    files.set_tensors(tensors, {"a note"});
    quantize_tensors(files, QuantizeType::kQ8_0);
    for (const Tensor& tensor : files.tensors())
        EXPECT_EQ(tensor.source != nullptr, tensor.name.ends_with("_proj.weight")) << tensor.name;
    EXPECT_EQ(files.left_out(), std::vector<std::string>{"a note"});
}

// A copy of a golden model in 16 bits whose tensor has one number replaced.
std::filesystem::path model_with_number(const TempDir& dir, const char* model, const std::string& tensor_name,
                                        uint64_t index, uint16_t bits) {
    const std::filesystem::path folder = dir.path() / (model + tensor_name);
    std::filesystem::copy(goldens_dir() / "models" / model, folder);
    std::filesystem::permissions(folder / "model.safetensors", std::filesystem::perms::owner_write,
                                 std::filesystem::perm_options::add);
    std::ifstream whole(folder / "model.safetensors", std::ios::binary);
    uint64_t n_head = 0;
    whole.read(reinterpret_cast<char*>(&n_head), sizeof n_head);
    std::string head(n_head, '\0');
    whole.read(head.data(), static_cast<std::streamsize>(n_head));
    const size_t offsets = head.find("data_offsets", head.find('"' + tensor_name + '"'));
    const uint64_t begin = std::stoull(head.substr(head.find('[', offsets) + 1));
    std::fstream file(folder / "model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(sizeof n_head + n_head + begin + index * sizeof bits));
    file.write(reinterpret_cast<const char*>(&bits), sizeof bits);
    return folder;
}

constexpr uint16_t kNanBits = 0x7fff, kHugeBits = 0x7f00;  // NaN in f16 and bf16; 1.7e38 in bf16

TEST(GgufExport, RefusesNumbersThatAreNoneOrHaveNoRoomByTheirTensor) {
    const TempDir dir;
    const std::string q_proj = "model.layers.1.self_attn.q_proj.weight", norm = "model.norm.weight",
                      embedding = "model.embed_tokens.weight";
    for (const std::string& tensor : {q_proj, norm, embedding}) {
        const std::filesystem::path folder = model_with_number(dir, "llama-scaled", tensor, 7, kNanBits),
                                    out = dir.path() / "out.gguf";
        for (const QuantizeType type : {QuantizeType::kQ8_0, QuantizeType::kQ4_K, QuantizeType::kQ6_K}) {
            const Status exported = export_gguf(folder, type, out, {});
            ASSERT_FALSE(exported.ok()) << tensor;
            EXPECT_THAT(
                exported.error().message,
                HasSubstr("tensor " + tensor + ": expected finite numbers, found infinite ones or NaN in its "));
            EXPECT_FALSE(std::filesystem::exists(out));
        }
    }
    const Status huge = export_gguf(model_with_number(dir, "llama-tied", q_proj, 7, kHugeBits), QuantizeType::kQ8_0,
                                    dir.path() / "huge.gguf", {});
    EXPECT_THAT(huge.error().message,
                HasSubstr("tensor " + q_proj + ": expected finite numbers, found infinite ones or NaN in its Q8_0"));
}

TEST(QuantizeTensors, RefuseNumbersThatAreNoneByTheirTensor) {
    const TempDir dir;
    const std::string name = "model.layers.1.self_attn.q_proj.weight";
    const std::filesystem::path folder = model_with_number(dir, "llama-scaled", name, 7, kNanBits);
    const auto files = ModelFiles::open(folder);
    for (const char* type : {"q8_0", "nf4"}) {
        auto tensors = (*files)->tensors();
        quantize_tensors(*tensors, *parse_quantize_type(type));
        const Tensor* tensor = tensors->find(name);
        ASSERT_NE(tensor->source, nullptr);
        std::vector<std::byte> rows(tensor->shape[0] * tensor->shape[1] * sizeof(float));
        EXPECT_THAT(decode_rows(*tensor, 0, tensor->shape[0], gpu::ScalarType::kF32, rows).error().message,
                    HasSubstr("tensor " + name + ": expected finite numbers"))
            << type;
    }
}

TEST(GgufExport, SaysWhatItCannotWrite) {
    const TempDir dir;
    const auto said = [&](const std::filesystem::path& model, QuantizeType type) {
        const Status exported = export_gguf(model, type, dir.path() / "out.gguf", {});
        return exported.ok() ? std::string("written") : exported.error().message;
    };
    const Status nowhere =
        export_gguf(goldens_dir() / "models/llama-scaled", QuantizeType::kQ8_0, dir.path() / "none/out.gguf", {});
    EXPECT_THAT(nowhere.error().message, HasSubstr("out.gguf.part: cannot be made: No such file or directory"));
    EXPECT_THAT(said(goldens_dir() / "models/llama-scaled", QuantizeType::kNf4), HasSubstr("GGUF has none for NF4"));
    EXPECT_THAT(said(goldens_dir() / "quantized/gguf/llama-Q4_K_M.gguf", QuantizeType::kQ8_0),
                HasSubstr("expected F32, F16 or BF16, found Q4_K"));
    EXPECT_THAT(said(goldens_dir() / "quantized/hf/llama-awq", QuantizeType::kQ8_0),
                HasSubstr("expected F32, F16 or BF16, found AWQ int4"));
    uint32_t n_told = 0;
    const Status whole = export_gguf(goldens_dir() / "quantized/gguf/llama-small-F16.gguf", QuantizeType::kQ8_0,
                                     dir.path() / "out.gguf", [&](uint64_t, uint64_t) {
                                         ++n_told;
                                         EXPECT_FALSE(std::filesystem::exists(dir.path() / "out.gguf"))
                                             << "has its name before it is whole";
                                     });
    EXPECT_TRUE(whole.ok());
    EXPECT_GT(n_told, 0u);
    EXPECT_TRUE(std::filesystem::exists(dir.path() / "out.gguf"));
    EXPECT_FALSE(std::filesystem::exists(dir.path() / "out.gguf.part"));
    EXPECT_THAT(said(goldens_dir() / "quantized/gguf/llama-small-F16.gguf", QuantizeType::kQ8_0),
                HasSubstr("is there already"));
}

}  // namespace
}  // namespace lorad::model::quantize_test
