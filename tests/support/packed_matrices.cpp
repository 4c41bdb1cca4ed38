#include "tests/support/packed_matrices.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "model/files/model_files.h"
#include "model/quant/ggml_blocks.h"
#include "model/quant/ggml_pack.h"
#include "model/quant/matrix_source.h"
#include "tests/support/goldens.h"
#include "tests/support/source_dir.h"

namespace lorad::testing {
namespace {

using namespace model;
using gpu::WeightFormat;

// Rows of GGUF blocks, some of which are as far out as their type goes.
class BlockRows final : public MatrixSource {
  public:
    BlockRows(GgmlType type, std::vector<std::byte> blocks, uint64_t row_bytes)
        : type_(type), blocks_(std::move(blocks)), row_bytes_(row_bytes) {}
    std::string_view format() const override { return name_of(type_); }
    void decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const override {
        decode_ggml(type_, std::span(blocks_).subspan(row_begin * row_bytes_, n_rows * row_bytes_), out);
    }
    std::optional<WeightFormat> device_format() const override { return device_format_of(type_); }
    void pack(uint64_t row_begin, uint64_t n_rows, std::span<uint8_t> codes,
              std::span<std::byte> records) const override {
        const uint64_t columns = codes.size() / n_rows, record_bytes = records.size() / n_rows;
        for (uint64_t i = 0; i < n_rows; ++i) {
            pack_ggml_row(type_, std::span(blocks_).subspan((row_begin + i) * row_bytes_, row_bytes_),
                          codes.subspan(i * columns, columns), records.subspan(i * record_bytes, record_bytes));
        }
    }

  private:
    GgmlType type_;
    std::vector<std::byte> blocks_;
    uint64_t row_bytes_;
};

// Integers of 8 bits with scales in bf16, which no golden folder has.
class Int8Rows final : public MatrixSource {
  public:
    Int8Rows(WeightFormat format, uint64_t k, uint32_t group) : format_(format), k_(k), group_(group) {}
    std::string_view format() const override { return "int8"; }
    uint8_t code(uint64_t row, uint64_t i) const { return static_cast<uint8_t>(row * 37 + i * 11 + i / 7); }
    uint8_t zero(uint64_t row, uint64_t g) const { return static_cast<uint8_t>(100 + row + 3 * g); }
    // 2^-7 and a little more
    uint32_t scale(uint64_t row, uint64_t g) const { return 0x3c00u + static_cast<uint32_t>(row * 5 + g * 9) % 64; }
    void decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const override {
        for (uint64_t r = 0; r < n_rows; ++r) {
            for (uint64_t i = 0; i < k_; ++i) {
                const uint64_t row = row_begin + r, g = i / group_;
                out[r * k_ + i] =
                    static_cast<float>(code(row, i) - zero(row, g)) * std::bit_cast<float>(scale(row, g) << 16);
            }
        }
    }
    std::optional<WeightFormat> device_format() const override { return format_; }
    void pack(uint64_t row_begin, uint64_t n_rows, std::span<uint8_t> codes,
              std::span<std::byte> records) const override {
        for (uint64_t r = 0; r < n_rows; ++r) {
            for (uint64_t i = 0; i < k_; ++i) codes[r * k_ + i] = code(row_begin + r, i);
            for (uint64_t g = 0; g < (k_ + group_ - 1) / group_; ++g) {
                const uint32_t word = scale(row_begin + r, g) | zero(row_begin + r, g) << 16 | 0x80000000u;
                std::memcpy(records.data() + r * (records.size() / n_rows) + g * sizeof word, &word, sizeof word);
            }
        }
    }

  private:
    WeightFormat format_;
    uint64_t k_;
    uint32_t group_;
};

Tensor matrix_of(std::shared_ptr<const MatrixSource> source, uint64_t n, uint64_t k) {
    return {.name = std::string(source->format()),
            .dtype = DType::kPacked,
            .shape = {n, k},
            .data = {},
            .source = std::move(source)};
}

}  // namespace

std::vector<Tensor> matrices_of_blocks(uint64_t n_rows) {
    const TensorFiles files =
        must(TensorFiles::map(source_dir() / "tests/goldens/quantized/blocks.safetensors", ErrorCode::kIo));
    std::vector<Tensor> all;
    for (uint32_t number = 0; number < 64; ++number) {
        const GgmlTypeInfo* info = ggml_type_info(number);
        if (info == nullptr || !info->is_read || !device_format_of(static_cast<GgmlType>(number))) continue;
        const auto type = static_cast<GgmlType>(number);
        const Tensor* blocks = files.find(std::string(info->name) + ".blocks");
        const uint64_t row_blocks = info->block_numbers == 32 ? 11 : 2;  // 352 columns: the last brick is not full
        std::vector<std::byte> finite;
        for (uint64_t block = 0; block < blocks->shape[0]; ++block) {
            const auto bytes = blocks->data.subspan(block * info->block_bytes, info->block_bytes);
            std::vector<float> numbers(info->block_numbers);
            decode_ggml(type, bytes, numbers);
            if (std::ranges::all_of(numbers, [](float x) { return std::isfinite(x) && std::fabs(x) < 65504.0f; }))
                finite.insert(finite.end(), bytes.begin(), bytes.end());
        }
        const uint64_t row_bytes = row_blocks * info->block_bytes;
        // Blocks come round again, so that there are rows for more than a brick.
        const size_t n_own = finite.size() / info->block_bytes;
        EXPECT_GT(n_own, 8u) << info->name;
        std::vector<std::byte> rows;
        for (uint64_t i = 0; i < n_rows * row_blocks; ++i) {
            const size_t block = (i * 5 + i / 7) % n_own;
            rows.insert(rows.end(), finite.begin() + static_cast<ptrdiff_t>(block * info->block_bytes),
                        finite.begin() + static_cast<ptrdiff_t>((block + 1) * info->block_bytes));
        }
        all.push_back(matrix_of(std::make_shared<BlockRows>(type, std::move(rows), row_bytes), n_rows,
                                row_blocks * info->block_numbers));
    }
    all.push_back(matrix_of(std::make_shared<Int8Rows>(WeightFormat::kI8G32, 160, 32), n_rows, 160));
    all.push_back(matrix_of(std::make_shared<Int8Rows>(WeightFormat::kI8G128, 320, 128), n_rows, 320));
    return all;
}

FolderMatrices matrices_of_folders() {
    FolderMatrices found;
    std::set<WeightFormat> known;
    for (const auto& entry : std::filesystem::directory_iterator(goldens_dir() / "quantized/hf")) {
        TensorFiles files = must(must(ModelFiles::open(entry.path()))->tensors());
        for (const Tensor& tensor : files.tensors()) {
            const auto format = tensor.source ? tensor.source->device_format() : std::nullopt;
            if (format && known.insert(*format).second) found.matrices.push_back(tensor);
        }
        found.files.push_back(std::move(files));
    }
    return found;
}

}  // namespace lorad::testing
