// Products of packed weights for 9 to 128 rows by warpgroups: order of activations, cuts of k and texts of programs on
// any device, results where the device takes them.
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gpu/kernels/products/packed/packed_rows_text.h"
#include "gpu/kernels/products/packed/packed_warpgroup_text.h"
#include "gpu/kernels/random_bricks.h"
#include "gpu/kernels/rungs.h"
#include "proto/base/format.h"
#include "tests/gpu/kernels/kernel_fixture.h"
#include "tests/gpu/kernels/program_text.h"

namespace lorad::gpu::testing::packed_warpgroup_test {
namespace {

constexpr uint32_t kSharedOfAWorkgroup = 48 << 10;  // that a program may declare

TEST(MatrixFragments, EachElementHasAPlaceOfItsOwn) {
    constexpr uint32_t kRows = 128, kColumns = 384;
    std::set<uint64_t> places;
    for (uint32_t row = 0; row < kRows; ++row) {
        for (uint32_t column = 0; column < kColumns; ++column)
            places.insert(fragment_offset(row, column, kColumns, kMatrixFragments));
    }
    EXPECT_EQ(places.size(), size_t{kRows} * kColumns);
    EXPECT_EQ(*places.rbegin(), size_t{kRows} * kColumns * 2 - 2);
}

// Element i of matrix m of a step is, of the lanes' 32 columns each, pair 2 m of lane i / 2, or of those behind.
TEST(MatrixFragments, MatricesHaveTheColumnsOfLanesCodes) {
    for (uint32_t column = 0; column < 256; ++column) {
        const uint32_t lane = column % 128 / 32, j = column % 32 / 4, element = column % 4;
        const uint32_t in_matrix = element < 2 ? 2 * lane + element : 8 + 2 * lane + element - 2;
        const uint32_t step = column / 128 * 2 + j / 4;
        const uint64_t want = uint64_t{step} * kMatrixFragmentBytes + 3 * 1024 + j % 4 * 256 + in_matrix / 8 * 128 +
                              5 * 16 + in_matrix % 8 * 2;
        EXPECT_EQ(fragment_offset(3 * 8 + 5, column, 256, kMatrixFragments), want) << column;
    }
}

TEST(PackedWarpgroup, ThereIsAProgramForEachFormatAndNumberOfRows) {
    uint32_t n = 0;
    for (uint32_t format = kWeightsQ8_0; format < kWeightFormats; ++format) {
        if (!has_packed_rows(static_cast<WeightFormat>(format))) continue;
        for (const ScalarType type : {ScalarType::kF16, ScalarType::kBf16}) {
            for (const uint32_t blocks : {1u, kMatrixFragmentRows / 16}) {
                SCOPED_TRACE(lorad::format("format {}, {} rows", format, blocks * 16));
                const std::string text = packed_warpgroup_text(
                    {.format = static_cast<WeightFormat>(format), .type = type, .stride = 1536, .row_blocks = blocks});
                EXPECT_LE(check_program_text(text, 10), kSharedOfAWorkgroup);
                EXPECT_NE(text.find(lorad::format("m64n{}k16.f32.{}", blocks * 16,
                                                  type == ScalarType::kBf16 ? "bf16" : "f16")),
                          std::string::npos);
                ++n;
            }
        }
    }
    EXPECT_EQ(n, 16u * 2 * 2) << "all packed formats but the one with a table of f32";
}

constexpr std::array kTested = {WeightFormat::kQ4_K,   WeightFormat::kQ6_K, WeightFormat::kQ8_0,
                                WeightFormat::kIQ4_NL, WeightFormat::kFP8,  WeightFormat::kI4G32};

class PackedWarpgroupProduct : public KernelTest {
  protected:
    void SetUp() override {
        KernelTest::SetUp();
        KernelSetOptions options{.path = lorad::testing::best_path()};
        for (const WeightFormat format : kTested) options.packed_formats |= 1u << number_of(format);
        kernels_ = must(KernelSet::create(device(), options));
        if (!kernels_->ladder().has(RungId::kPackedWarpgroups, ScalarType::kF16))
            GTEST_SKIP() << "no programs of packed weights on warpgroups: " << device().capabilities().name;
    }

    // few_ranges: so long rows of y that the matrix seems a small part of a large one, whose workgroups are few.
    void check(WeightFormat format, Type type, uint32_t n, uint32_t k, uint32_t n_rows, uint32_t max_splits,
               bool few_ranges = false) {
        SCOPED_TRACE(lorad::format("{} type {} n {} k {} rows {} splits {}", name_of(format), static_cast<int>(type), n,
                                   k, n_rows, max_splits));
        const Product product{.n = n,
                              .k = k,
                              .type = scalar(type),
                              .formats = 1u << number_of(format),
                              .align = kBrickRows,
                              .rows = n_rows,
                              .max_splits = max_splits,
                              .may_be_in_fragments = true};
        const std::optional<MatmulPlan> plan = kernels_->products.plan(product);
        ASSERT_TRUE(plan && plan->variant == MatmulVariant::kPackedWarpgroup);
        const Buffer part = input(std::vector<std::byte>(kPartAlign + bytes_of(format, n, k)));
        self_test::fill_part(format, part.mapped(), random_);
        const Buffer plain = poisoned(uint64_t{n} * k * 4);
        execute([&](Recorder& recorder) {
            kernels_->products.unpack_weights(recorder,
                                              {.from = part.address() + kPartAlign,
                                               .to = plain.address(),
                                               .first_row = 0,
                                               .n = n,
                                               .n_rows = n,
                                               .stride = k},
                                              {format, ScalarType::kF32});
        });
        const std::vector<float> w = content<float>(plain, size_t{n} * k);
        const std::vector<float> x = reference::random_values(size_t{n_rows} * k, type, random_);
        auto rows = reference::encode(x, k, k, type);
        rows.resize(size_t{round_up(n_rows, kFragmentRowsMost)} * k * 2,
                    std::byte{0xff});  // rows that there are not are no numbers
        const Buffer x_b = input(in_fragments(rows, k, plan->x_order)), count = input(std::vector<uint32_t>{n_rows});
        const uint32_t capacity = n_rows + 1;
        const uint32_t y_stride = padded(n) * (few_ranges ? 100 : 1);
        const Buffer y = poisoned(uint64_t{plan->n_splits} * capacity * y_stride * 4);
        MatmulParams params = product_params(n, k, count, part, x_b, y, size_t{capacity} * y_stride);
        params.y_stride = y_stride;
        params.w = part.address() + kPartAlign;
        execute([&](Recorder& recorder) { kernels_->products.record(recorder, *plan, {.product = params}); });
        const auto got = content<float>(y, size_t{plan->n_splits} * capacity * y_stride);
        double error = 0, size = 0;
        for (uint32_t t = 0; t < capacity; ++t) {
            for (uint32_t i = 0; i < n; ++i) {
                double sum = 0;
                for (uint32_t split = 0; split < plan->n_splits; ++split) {
                    const float value = got[(size_t{split} * capacity + t) * y_stride + i];
                    ASSERT_EQ(is_poison(value), t == n_rows) << "row " << t << " column " << i << " split " << split;
                    sum += value;
                }
                if (t == n_rows) continue;
                double want = 0;
                for (uint32_t c = 0; c < k; ++c) want += double{w[size_t{i} * k + c]} * x[size_t{t} * k + c];
                error += (sum - want) * (sum - want);
                size += want * want;
            }
        }
        EXPECT_LE(std::sqrt(error / size), type == Type::kBf16 ? 6e-3 : 8e-4);
    }
};

// A tile that ends beyond the matrix; tiles that workgroups share, and all of k in one split.
TEST_F(PackedWarpgroupProduct, EqualsF64) {
    uint32_t n = 0;
    for (const WeightFormat format : kTested) {
        for (const Type type : {Type::kF16, Type::kBf16}) {
            for (const uint32_t rows : {9u, 48u, 64u, 65u, 100u})
                check(format, type, 304, 768, rows, rows % 2 == 0 ? 8 : 1);
            ++n;
        }
    }
    EXPECT_EQ(n, 12u);
    check(WeightFormat::kQ4_K, Type::kF16, 4608, 3584, 33, 16);
}

// Ranges that end within one tile and begin in another, or have several tiles.
TEST_F(PackedWarpgroupProduct, RangesCrossTiles) {
    for (const WeightFormat format : {WeightFormat::kQ4_K, WeightFormat::kQ8_0}) {
        for (const uint32_t max_splits : {1u, 3u}) {
            for (const uint32_t rows : {30u, 100u}) check(format, Type::kF16, 1808, 768, rows, max_splits, true);
        }
    }
}

}  // namespace
}  // namespace lorad::gpu::testing::packed_warpgroup_test
