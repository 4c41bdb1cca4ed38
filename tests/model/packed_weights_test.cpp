// Weights in few bits on the device: their bits, and the portable products with them, against the numbers that the
// file's format defines.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "gpu/command.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/register_tiles.h"
#include "gpu/queue.h"
#include "model/files/model_files.h"
#include "model/quant/brick_packer.h"
#include "model/quant/ggml_blocks.h"
#include "model/quant/ggml_pack.h"
#include "model/quant/matrix_decoder.h"
#include "model/quant/matrix_source.h"
#include "model/weights/weights.h"
#include "tests/support/goldens.h"
#include "tests/support/source_dir.h"
#include "tests/support/test_device.h"

namespace lorad::model::packed_weights_test {
namespace {

using namespace lorad::testing;
using gpu::ScalarType;
using gpu::WeightFormat;

// The value of a Result that the test takes for granted.
template <typename T>
T must(Result<T> result) {
    if (!result.ok()) ADD_FAILURE() << result.error().message;
    CHECK(result.ok());
    return std::move(result).value();
}

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

// Every type of blocks.safetensors, in rows of several blocks, without those whose numbers are not finite.
std::vector<Tensor> matrices_of_blocks() {
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
        constexpr uint64_t kRows = 37;
        std::vector<std::byte> rows;
        for (uint64_t i = 0; i < kRows * row_blocks; ++i) {
            const size_t block = (i * 5 + i / 7) % n_own;
            rows.insert(rows.end(), finite.begin() + static_cast<ptrdiff_t>(block * info->block_bytes),
                        finite.begin() + static_cast<ptrdiff_t>((block + 1) * info->block_bytes));
        }
        all.push_back(matrix_of(std::make_shared<BlockRows>(type, std::move(rows), row_bytes), kRows,
                                row_blocks * info->block_numbers));
    }
    all.push_back(matrix_of(std::make_shared<Int8Rows>(WeightFormat::kI8G32, 160, 32), 21, 160));
    all.push_back(matrix_of(std::make_shared<Int8Rows>(WeightFormat::kI8G128, 320, 128), 21, 320));
    return all;
}

// The files of the golden models that are kept open, and a matrix of each format that they add.
struct FolderMatrices {
    std::vector<TensorFiles> files;
    std::vector<Tensor> matrices;
};
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

class PackedWeights : public ::testing::Test {
  protected:
    void SetUp() override { kernels_ = must(gpu::KernelSet::create(device_, {.path = gpu::KernelPath::kPortable})); }

    gpu::Buffer memory(uint64_t n_bytes, gpu::MemoryKind kind = gpu::MemoryKind::kHostUpload) {
        gpu::Buffer buffer = must(device_.create_buffer(n_bytes, kind, "test"));
        std::memset(buffer.mapped().data(), 0xff, n_bytes);
        return buffer;
    }
    template <typename T>
    gpu::Buffer input(const std::vector<T>& values) {
        gpu::Buffer buffer = memory(values.size() * sizeof(T));
        std::memcpy(buffer.mapped().data(), values.data(), values.size() * sizeof(T));
        return buffer;
    }

    // One part, with its table in front.
    gpu::Buffer pack(const Tensor& tensor, ScalarType type) {
        const auto n = tensor.shape[0];
        std::vector<std::byte> bricks(
            gpu::bytes_of(*tensor.source->device_format(), n, static_cast<uint32_t>(tensor.shape[1])));
        const Status packed = pack_rows(tensor, 0, n, type, bricks);
        EXPECT_TRUE(packed.ok()) << tensor.name << ": " << packed.error().message;
        gpu::Buffer buffer = memory(gpu::kPartAlign + bricks.size());
        const auto table = std::as_bytes(tensor.source->table());
        std::ranges::copy(table, buffer.mapped().begin() + gpu::kPartAlign - gpu::kPartTableBytes);
        std::ranges::copy(bricks, buffer.mapped().begin() + gpu::kPartAlign);
        return buffer;
    }

    void execute(const std::function<void(gpu::Recorder&)>& record) {
        gpu::Recorder recorder = must(gpu::Recorder::begin(device_));
        record(recorder);
        ASSERT_TRUE(kernels_->status().ok());
        const gpu::CommandBuffer recording = must(std::move(recorder).end());
        const gpu::CommandBuffer* recordings[] = {&recording};
        ASSERT_TRUE(device_.compute_queue().wait(must(device_.compute_queue().submit(recordings))).ok());
    }

    // Reads the matrix back in `type`, as a model of that type has it, from row `first` on.
    void expect_bits(const Tensor& tensor, ScalarType type, uint32_t first) {
        const auto n = static_cast<uint32_t>(tensor.shape[0]), k = static_cast<uint32_t>(tensor.shape[1]),
                   stride = gpu::padded(k), n_padded = gpu::padded(n - first);
        const WeightFormat format = *tensor.source->device_format();
        const gpu::Buffer part = pack(tensor, type);
        const gpu::Buffer to =
            memory(uint64_t{n_padded} * stride * gpu::bytes_of(type), gpu::MemoryKind::kHostReadback);
        execute([&](gpu::Recorder& recorder) {
            kernels_->products.unpack_weights(recorder,
                                              {.from = part.address() + gpu::kPartAlign,
                                               .to = to.address(),
                                               .first_row = first,
                                               .n = n - first,
                                               .n_rows = n_padded,
                                               .stride = stride},
                                              {format, type});
        });
        std::vector<float> numbers(uint64_t{n} * k);
        tensor.source->decode(0, n, numbers);
        std::vector<std::byte> want(numbers.size() * gpu::bytes_of(type));
        ASSERT_TRUE(narrow(numbers, type, want.data()));
        const size_t row_bytes = k * gpu::bytes_of(type);
        for (uint32_t row = 0; row < n_padded; ++row) {
            const std::byte* got = to.mapped().data() + uint64_t{row} * stride * gpu::bytes_of(type);
            std::vector<std::byte> expected(row_bytes);
            if (first + row < n) std::memcpy(expected.data(), want.data() + (first + row) * row_bytes, row_bytes);
            for (uint32_t i = 0; i < k; ++i) {
                ASSERT_EQ(0, std::memcmp(got + i * gpu::bytes_of(type), expected.data() + i * gpu::bytes_of(type),
                                         gpu::bytes_of(type)))
                    << tensor.name << " as " << gpu::name_of(format) << " in " << gpu::name_of(gpu::format_of(type))
                    << ": row " << first + row << " column " << i << ", expected "
                    << (first + row < n ? numbers[(first + row) * k + i] : 0.0f);
            }
        }
    }

    // By each of the portable ways, or, as software takes seconds to compile one, by one of them.
    void expect_products(const Tensor& tensor, std::optional<uint32_t> one = std::nullopt) {
        const auto n = static_cast<uint32_t>(tensor.shape[0]) / 4 * 4, k = static_cast<uint32_t>(tensor.shape[1]),
                   stride = gpu::padded(k), n_padded = gpu::padded(n);
        constexpr uint32_t kRows = 5;
        const gpu::Buffer part = pack(tensor, ScalarType::kF32);
        std::vector<float> w(tensor.shape[0] * k), x(size_t{kRows + gpu::kSlackRows} * stride);
        tensor.source->decode(0, tensor.shape[0], w);
        std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
        for (uint32_t t = 0; t < kRows; ++t) {
            for (uint32_t i = 0; i < k; ++i) x[size_t{t} * stride + i] = uniform(random_);
        }
        const gpu::Buffer x_buffer = input(x), count = input(std::vector<uint32_t>{kRows, 0, 0, 0});
        struct Way {
            gpu::MatmulVariant variant;
            uint32_t row_tile, column_tile, tile = 0, short_sum = 0;
        };
        const gpu::RegisterTile& first = gpu::kRegisterTiles.front();
        const std::array ways = {Way{gpu::MatmulVariant::kMatvec, 8, 1}, Way{gpu::MatmulVariant::kLanes, 8, 1},
                                 Way{gpu::MatmulVariant::kTiled, 16, 64},
                                 Way{gpu::MatmulVariant::kRegisters, first.rows(), first.columns()},
                                 Way{gpu::MatmulVariant::kRegisters, first.rows(), first.columns(), 0, gpu::kShortSum}};
        for (const Way& way : ways) {
            if (one && &way != &ways[*one % ways.size()]) continue;
            gpu::MatmulPlan plan;
            plan.variant = way.variant;
            plan.row_tile = way.row_tile;
            plan.column_tile = way.column_tile;
            plan.tile = way.tile;
            plan.short_sum = way.short_sum;
            plan.rows = kRows;
            plan.n_splits = stride > gpu::kWeightAlign ? 2 : 1;
            plan.k_per_split = round_up(ceil_div(stride, plan.n_splits), gpu::kWeightAlign);
            plan.packed = *tensor.source->device_format();
            const uint32_t split_stride = (kRows + gpu::kSlackRows) * n_padded;
            const gpu::Buffer y = memory(uint64_t{plan.n_splits} * split_stride * 4, gpu::MemoryKind::kHostReadback);
            gpu::MatmulParams params{};
            params.n_rows = count.address();
            params.w = part.address() + gpu::kPartAlign;
            params.x = x_buffer.address();
            params.y = y.address();
            params.n = n;
            params.k = k;
            params.w_stride = params.x_stride = stride;
            params.y_stride = n_padded;
            params.split_stride = split_stride;
            execute([&](gpu::Recorder& recorder) { kernels_->products.record(recorder, plan, {.product = params}); });
            const auto* got = reinterpret_cast<const float*>(y.mapped().data());
            for (uint32_t t = 0; t < kRows; ++t) {
                for (uint32_t i = 0; i < n_padded; ++i) {
                    double sum = 0, want = 0, magnitude = 1e-30;
                    for (uint32_t s = 0; s < plan.n_splits; ++s)
                        sum += got[uint64_t{s} * split_stride + uint64_t{t} * n_padded + i];
                    if (i >= n) {
                        ASSERT_TRUE(std::isnan(sum)) << "column " << i << " of another part was written";
                        continue;
                    }
                    for (uint32_t j = 0; j < k; ++j) {
                        const double term = static_cast<double>(w[size_t{i} * k + j]) * x[size_t{t} * stride + j];
                        want += term;
                        magnitude += std::fabs(term);
                    }
                    // Weights are exact, so only k sums of f32 are rounded, each by 2^-24 of a sum that never exceeds
                    // the magnitudes'; with short sums weights and x as well, and the sums of half as many, by 2^-11.
                    const double halves = way.short_sum == 0 ? 0.0 : std::ldexp(way.short_sum / 2 + 3, -11);
                    ASSERT_NEAR(sum, want, (std::ldexp(k, -24) + halves) * magnitude)
                        << tensor.name << " variant " << static_cast<int>(way.variant) << " row " << t << " column "
                        << i;
                }
            }
        }
    }

    gpu::Device& device_ = test_device();
    std::unique_ptr<gpu::KernelSet> kernels_;
    std::mt19937 random_{20260729};
};

TEST_F(PackedWeights, HaveTheBitsOfTheFilesFormatOnTheDevice) {
    const FolderMatrices folders = matrices_of_folders();
    std::vector<Tensor> all = matrices_of_blocks();
    all.insert(all.end(), folders.matrices.begin(), folders.matrices.end());
    std::set<WeightFormat> seen;
    uint32_t turn = 0;
    for (const Tensor& tensor : all) {
        seen.insert(*tensor.source->device_format());
        expect_bits(tensor, ScalarType::kF32, 0);
        // A model of 16 bits has the numbers of folders rounded to that type.
        expect_bits(tensor, turn % 2 == 0 ? ScalarType::kBf16 : ScalarType::kF16, turn % 3 * 7);
        ++turn;
    }
    EXPECT_EQ(seen.size(), gpu::kWeightFormats - gpu::kWeightsQ8_0) << "of the formats";
}

TEST_F(PackedWeights, ProductsEqualTheReferenceInEveryWay) {
    const FolderMatrices folders = matrices_of_folders();
    std::vector<Tensor> all = matrices_of_blocks();
    all.insert(all.end(), folders.matrices.begin(), folders.matrices.end());
    // All read weights by the same functions, whose bits the test above has seen; each way has some of its own.
    const std::map<WeightFormat, std::optional<uint32_t>> ways = {{WeightFormat::kQ4_K, std::nullopt},
                                                                  {WeightFormat::kQ8_0, 4},
                                                                  {WeightFormat::kQ6_K, 1},
                                                                  {WeightFormat::kTable, 1},
                                                                  {WeightFormat::kI4G32, 2}};
    std::set<WeightFormat> seen;
    for (const Tensor& tensor : all) {
        const WeightFormat format = *tensor.source->device_format();
        if (ways.contains(format) && seen.insert(format).second) expect_products(tensor, ways.at(format));
    }
    EXPECT_EQ(seen.size(), ways.size());
}

// Of every golden model, through the loader: joined matrices of several formats, rows in another order, tables.
TEST_F(PackedWeights, OfAWholeModelAreTheFilesNumbers) {
    uint32_t n_mixed = 0;
    std::vector<std::filesystem::path> models;
    for (const char* kind : {"quantized/gguf", "quantized/hf"}) {
        for (const auto& entry : std::filesystem::directory_iterator(goldens_dir() / kind))
            models.push_back(entry.path());
    }
    for (const std::filesystem::path& path : models) {
        const auto opened = ModelFiles::open(path);
        if (!opened.ok()) continue;  // adapters, and what is there to be refused
        const auto config = (*opened)->config();
        const auto files = (*opened)->tensors();
        if (!config.ok() || !files.ok()) continue;
        ModelWeights weights;
        const auto loader = must(WeightLoader::create(*files, *config, weights, {.type = ScalarType::kF32}));
        ASSERT_TRUE(loader->allocate(device_).ok());
        ASSERT_TRUE(loader->upload(device_, {}).ok());
        const std::string last = std::to_string(weights.layers.size() - 1);
        const std::pair<const Matrix*, std::vector<std::string>> all[] = {
            {&weights.layers.back().qkv, {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
            {&weights.layers.back().gate_up, {"mlp.gate_proj", "mlp.up_proj"}},
            {&weights.layers.back().down, {"mlp.down_proj"}}};
        for (const auto& [matrix, names] : all) {
            if (!matrix->is_packed()) continue;
            n_mixed += matrix->parts.size() > 1;
            uint32_t row = 0;
            for (const std::string& name : names) {
                const Tensor* tensor = files->find("model.layers." + last + "." + name + ".weight");
                ASSERT_NE(tensor, nullptr) << name;
                std::vector<float> want(tensor->n_elements());
                tensor->source->decode(0, tensor->shape[0], want);
                const MatrixPart& part = matrix->part_of(row);
                const auto n = static_cast<uint32_t>(tensor->shape[0]);
                const gpu::Buffer to = memory(uint64_t{n} * matrix->row_bytes(), gpu::MemoryKind::kHostReadback);
                execute([&](gpu::Recorder& recorder) {
                    kernels_->products.unpack_weights(recorder,
                                                      {.from = matrix->address_of(part),
                                                       .to = to.address(),
                                                       .first_row = row - part.row_begin,
                                                       .n = n,
                                                       .n_rows = n,
                                                       .stride = matrix->k_stride},
                                                      {part.format, ScalarType::kF32});
                });
                const auto* got = reinterpret_cast<const float*>(to.mapped().data());
                for (uint32_t i = 0; i < n; ++i) {
                    ASSERT_EQ(0, std::memcmp(got + uint64_t{i} * matrix->k_stride,
                                             want.data() + uint64_t{i} * matrix->k, matrix->k * sizeof(float)))
                        << path << " " << name << " row " << i;
                }
                row += n;
            }
        }
    }
    EXPECT_GE(n_mixed, 1u) << "no model has a joined matrix of two formats";
}

TEST(PackedFormats, TakeTheBytesOfTheirFiles) {
    // Bits for a weight, scales included.
    const std::map<WeightFormat, double> bits = {
        {WeightFormat::kQ8_0, 8.5},    {WeightFormat::kQ4_0, 4.5},    {WeightFormat::kQ4_1, 5.0},
        {WeightFormat::kQ5_0, 5.5},    {WeightFormat::kQ5_1, 6.0},    {WeightFormat::kQ4_K, 4.5},
        {WeightFormat::kQ5_K, 5.5},    {WeightFormat::kQ6_K, 6.5625}, {WeightFormat::kIQ4_NL, 4.5},
        {WeightFormat::kIQ4_XS, 4.25}, {WeightFormat::kMXFP4, 4.25},  {WeightFormat::kTable, 4.5},
        {WeightFormat::kI4G128, 4.25}, {WeightFormat::kFP8, 8.25}};
    for (const auto& [format, bits_of_weight] : bits) {
        EXPECT_EQ(gpu::bytes_of(format, 64, 512) * 8, static_cast<uint64_t>(bits_of_weight * 64 * 512))
            << gpu::name_of(format);
    }
}

}  // namespace
}  // namespace lorad::model::packed_weights_test
