// Numbers of a file's matrix in the type of the device: rounding against the fp64 reference, sources of packed
// matrices, numbers beyond a type.
#include "model/quant/matrix_decoder.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/exec/executor.h"
#include "model/exec/runner.h"
#include "model/quant/matrix_source.h"
#include "proto/base/format.h"
#include "tests/reference/numbers.h"
#include "tests/support/goldens.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_device.h"

namespace lorad::model::matrix_decoder_test {
namespace {

using namespace lorad::testing;
using gpu::ScalarType;
using ::testing::HasSubstr;

uint16_t narrowed(float value, ScalarType type) {
    uint16_t bits = 0;
    (void)narrow({&value, 1}, type, reinterpret_cast<std::byte*>(&bits));
    return bits;
}

// Around each number that f16 has, and half-way to the next, on both sides of the tie.
TEST(MatrixDecoder, RoundsToF16AsTheReferenceDoes) {
    for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
        const float here = reference::from_f16(static_cast<uint16_t>(bits)),
                    next = reference::from_f16(static_cast<uint16_t>(bits + 1));
        const float tie = std::isinf(next) ? 65520.0f : here + (next - here) / 2;
        for (const float value :
             {here, tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e9f), std::nextafter(here, 1e9f)}) {
            ASSERT_EQ(narrowed(value, ScalarType::kF16), reference::to_f16(value)) << value;
            ASSERT_EQ(narrowed(-value, ScalarType::kF16), reference::to_f16(-value)) << -value;
        }
    }
}

TEST(MatrixDecoder, RoundsToBf16AsTheReferenceDoes) {
    std::mt19937 random(7);
    for (uint32_t i = 0; i < 200'000; ++i) {
        const uint32_t bits = random() & (i % 4 == 0 ? 0xffff8000 : ~0u);  // ties among them
        float value = 0;
        std::memcpy(&value, &bits, sizeof value);
        ASSERT_EQ(narrowed(value, ScalarType::kBf16), reference::to_bf16(value)) << std::hexfloat << value;
    }
}

TEST(MatrixDecoder, SaysWhichNumbersAreBeyondAType) {
    std::byte out[4];
    const float fits = 65519.0f, beyond = 65520.0f, infinite = std::numeric_limits<float>::infinity(),
                largest = std::numeric_limits<float>::max();
    EXPECT_TRUE(narrow({&fits, 1}, ScalarType::kF16, out));
    EXPECT_FALSE(narrow({&beyond, 1}, ScalarType::kF16, out));
    EXPECT_TRUE(narrow({&infinite, 1}, ScalarType::kF16, out));
    EXPECT_TRUE(narrow({&beyond, 1}, ScalarType::kBf16, out));
    EXPECT_FALSE(narrow({&largest, 1}, ScalarType::kBf16, out));
    EXPECT_TRUE(narrow({&largest, 1}, ScalarType::kF32, out));
}

// The number of an element says where it stands.
class Counting final : public MatrixSource {
  public:
    explicit Counting(uint64_t n_columns, float at_the_end = 0) : n_columns_(n_columns), at_the_end_(at_the_end) {}
    std::string_view format() const override { return "counting"; }
    void decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const override {
        for (uint64_t i = 0; i < n_rows * n_columns_; ++i) out[i] = static_cast<float>(row_begin * n_columns_ + i);
        if (at_the_end_ != 0) out[n_rows * n_columns_ - 1] = at_the_end_;
    }

  private:
    uint64_t n_columns_;
    float at_the_end_;
};

Tensor packed(uint64_t n_rows, uint64_t n_columns, float at_the_end = 0) {
    return {.name = "model.w.weight",
            .dtype = DType::kPacked,
            .shape = {n_rows, n_columns},
            .source = std::make_shared<Counting>(n_columns, at_the_end)};
}

TEST(MatrixDecoder, EachRowComesToItsPlace) {
    const uint64_t n_columns = 1000, n_rows = 777;  // many pieces, the last not full
    const Tensor tensor = packed(n_rows, n_columns);
    std::vector<float> out(700 * n_columns);
    ASSERT_TRUE(decode_rows(tensor, 70, 700, ScalarType::kF32, std::as_writable_bytes(std::span(out))).ok());
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], static_cast<float>(70 * n_columns + i));
}

TEST(MatrixDecoder, WidensAndNarrowsWhatIsNotPacked) {
    // 1, -2, 0.333, 65504, 2^-24, -0
    const std::vector<uint16_t> halves = {0x3c00, 0xc000, 0x3555, 0x7bff, 0x0001, 0x8000};
    const Tensor tensor{.name = "w", .dtype = DType::kF16, .shape = {2, 3}, .data = std::as_bytes(std::span(halves))};
    std::vector<float> wide(3);
    ASSERT_TRUE(decode_rows(tensor, 1, 1, ScalarType::kF32, std::as_writable_bytes(std::span(wide))).ok());
    EXPECT_EQ(wide, (std::vector<float>{65504.0f, 0x1p-24f, -0.0f}));
    std::vector<uint16_t> narrow_ones(6);
    ASSERT_TRUE(decode_rows(tensor, 0, 2, ScalarType::kBf16, std::as_writable_bytes(std::span(narrow_ones))).ok());
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(narrow_ones[i], reference::to_bf16(reference::from_f16(halves[i])));
}

TEST(MatrixDecoder, ANumberBeyondTheTypeNamesTheTensorAndTheWayOut) {
    const Tensor tensor = packed(8, 8, 1e6f);
    std::vector<std::byte> out(8 * 8 * 2);
    const Status decoded = decode_rows(tensor, 0, 8, ScalarType::kF16, out);
    ASSERT_FALSE(decoded.ok());
    EXPECT_EQ(decoded.error().code, ErrorCode::kInvalidModel);
    EXPECT_THAT(decoded.error().message, HasSubstr("model.w.weight"));
    EXPECT_THAT(decoded.error().message, HasSubstr("--dtype bfloat16"));
    EXPECT_TRUE(decode_rows(tensor, 0, 8, ScalarType::kBf16, out).ok());
}

// What a type of all matrices does to a real model: with f32 the activations are f32 as well.
TEST(MatrixDecoder, AModelIsLoadedInTheTypeThatWasAskedFor) {
    const auto folder = goldens_dir() / "models/qwen2-tied";
    const auto config = load_model_config(folder);
    ASSERT_TRUE(config.ok());
    const std::vector<TokenId> prompt = {3, 99, 512, 8, 44, 7};
    std::vector<std::vector<float>> logits;
    for (const auto type : {ScalarType::kF32, ScalarType::kBf16, ScalarType::kF16}) {
        ExecutorOptions options{
            .n_rows_max = 32, .n_sequences_max = 1, .n_positions_max = 64, .n_adapter_slots = 1, .weight_type = type};
        const auto executor = Executor::load(test_device(), folder, *config, options);
        ASSERT_TRUE(executor.ok()) << executor.error().message;
        const auto found = Runner(**executor).logits(prompt, false, {});
        ASSERT_TRUE(found.ok()) << found.error().message;
        logits.push_back(*found);
    }
    double largest = 0, of_bf16 = 0, of_f16 = 0;
    for (size_t i = 0; i < logits[0].size(); ++i) {
        largest = std::max<double>(largest, std::abs(logits[0][i]));
        of_bf16 = std::max<double>(of_bf16, std::abs(logits[1][i] - logits[0][i]));
        of_f16 = std::max<double>(of_f16, std::abs(logits[2][i] - logits[0][i]));
    }
    // The file's numbers are f16: they are rounded in bf16 alone. Activations may be of the weights' type, too.
    EXPECT_LT(of_f16, 0.01 * largest);
    EXPECT_GT(of_bf16, std::max(2 * of_f16, 1e-4 * largest));
    EXPECT_LT(of_bf16, 0.05 * largest);
}

// A folder whose v_proj of one layer is F32 beside q and k of F16: the numbers are the same, so are the logits.
TEST(MatrixDecoder, JoinedMatricesOfSeveralTypesBecomeOne) {
    const auto folder = goldens_dir() / "models/qwen2-tied";
    const auto files = TensorFiles::map_folder(folder);
    ASSERT_TRUE(files.ok()) << files.error().message;
    const std::string widened = "model.layers.0.self_attn.v_proj.weight";
    std::string header = "{", data;
    for (const Tensor& tensor : files->tensors()) {
        std::string bytes(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
        std::string_view dtype = name_of(tensor.dtype);
        if (tensor.name == widened) {
            ASSERT_EQ(tensor.dtype, DType::kF16);
            bytes.clear();
            for (uint64_t i = 0; i < tensor.n_elements(); ++i) {
                const float value = number_at(tensor, i);
                bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
            }
            dtype = "F32";
        }
        header +=
            format("{}\"{}\":{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", header.size() > 1 ? "," : "",
                   tensor.name, dtype, shape_text(tensor.shape), data.size(), data.size() + bytes.size());
        data += bytes;
    }
    header += "}";
    TempDir mixed;
    const uint64_t n_header = header.size();
    std::ofstream out(mixed.path() / "model.safetensors", std::ios::binary);
    out.write(reinterpret_cast<const char*>(&n_header), sizeof n_header);
    out << header << data;
    out.close();
    std::filesystem::copy_file(folder / "config.json", mixed.path() / "config.json");
    std::vector<std::vector<float>> logits;
    for (const auto& path : {folder, mixed.path()}) {
        const auto config = load_model_config(path);
        ASSERT_TRUE(config.ok());
        const auto executor =
            Executor::load(test_device(), path, *config,
                           {.n_rows_max = 32, .n_sequences_max = 1, .n_positions_max = 64, .n_adapter_slots = 1});
        ASSERT_TRUE(executor.ok()) << executor.error().message;
        EXPECT_EQ((*executor)->weights().layers[0].qkv.type, ScalarType::kF16);
        const std::vector<TokenId> prompt = {3, 99, 512, 8, 44, 7};
        logits.push_back(*Runner(**executor).logits(prompt, false, {}));
    }
    EXPECT_EQ(logits[0], logits[1]);
}

}  // namespace
}  // namespace lorad::model::matrix_decoder_test
