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

#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/register_tiles.h"
#include "model/files/model_files.h"
#include "model/quant/matrix_decoder.h"
#include "model/quant/matrix_source.h"
#include "model/weights/weights.h"
#include "tests/support/goldens.h"
#include "tests/support/packed_fixture.h"

namespace lorad::model::packed_weights_test {
namespace {

using namespace lorad::testing;
using gpu::ScalarType;
using gpu::WeightFormat;

class PackedWeights : public PackedFixture {
  protected:
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
