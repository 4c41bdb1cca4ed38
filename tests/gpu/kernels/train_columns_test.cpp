// Kernels of training that go column by column: sums, scaling, dropout.
#include <array>

#include "tests/gpu/kernels/train_fixture.h"

namespace lorad::gpu::testing::train_columns_test {
namespace {

// A quarter of the numbers is dropped.
TrainDropoutParams dropout_params(const Buffer& x, const Buffer& to, const Buffer& keys, uint32_t columns,
                                  uint32_t stride) {
    return {.x = x.address(),
            .to = to.address(),
            .row_keys = keys.address(),
            .columns = columns,
            .x_stride = stride,
            .to_stride = stride,
            .module = 3,
            .seed = 11,
            .step = 4,
            .threshold = 0x40000000u,
            .factor = 4.0f / 3};
}

class TrainColumnsTest : public TrainKernelTest {};

// The generator is written a second time here, as the paper's C code has it.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> x, uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const uint64_t p0 = 0xD2511F53ull * x[0], p1 = 0xCD9E8D57ull * x[2];
        x = {static_cast<uint32_t>(p1 >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(p1),
             static_cast<uint32_t>(p0 >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(p0)};
    }
    return x;
}

TEST_F(TrainColumnsTest, ColumnSumsAndAffineMatchTheReference) {
    const uint32_t columns = 40, parts = 2, n_rows = 7, stride = 96;
    const auto a = random(n_rows * columns * parts), b = random(n_rows * columns * parts), factor = random(columns),
               gain = random(columns), bias = random(columns), before = random(columns);
    const Buffer a_at = rows(a, columns * parts, stride), b_at = rows(b, columns * parts, stride),
                 factor_at = input(factor), gain_at = input(gain), bias_at = input(bias), sums_at = result(before),
                 to_at = poisoned(n_rows * stride * 4);
    execute([&](Recorder& recorder) {
        kernels_.column_sums(recorder, {.to = sums_at.address(),
                                        .a = a_at.address(),
                                        .b = b_at.address(),
                                        .factor = factor_at.address(),
                                        .n_columns = columns,
                                        .n_parts = parts,
                                        .rows = n_rows,
                                        .a_stride = stride,
                                        .b_stride = stride,
                                        .scale = 0.5f});
        kernels_.affine(recorder, {.to = to_at.address(),
                                   .base = b_at.address(),
                                   .z = a_at.address(),
                                   .gain = gain_at.address(),
                                   .factor = factor_at.address(),
                                   .bias = bias_at.address(),
                                   .n = columns,
                                   .to_stride = stride,
                                   .base_stride = stride,
                                   .z_stride = stride,
                                   .rows = n_rows,
                                   .less = 0.25f});
    });
    std::vector<double> sums(before.begin(), before.end());
    for (uint32_t t = 0; t < n_rows; t++) {
        Vector to(columns);
        for (uint32_t n = 0; n < columns; n++) {
            for (uint32_t q = 0; q < parts; q++)
                sums[n] += 0.5 * factor[n] * a[(t * parts + q) * columns + n] * b[(t * parts + q) * columns + n];
            to[n] = b[t * parts * columns + n] +
                    double{a[t * parts * columns + n]} * (double{gain[n]} * factor[n] - 0.25) + bias[n];
        }
        expect_near(to, &content<float>(to_at, n_rows * stride)[t * stride], 1e-6, 2.0, "affine");
    }
    expect_near(sums, content<float>(sums_at, columns).data(), sum_tolerance(n_rows * parts), 2.0, "column sums");
}

// The same of rows in 16 bits: they are read as they are, sums are f32, and what is written is rounded once.
TEST_F(TrainColumnsTest, ColumnSumsAffineAndDropoutOf16BitsMatchTheReference) {
    const uint32_t columns = 40, n_rows = 7, stride = 64;
    for (const Type of : {Type::kBf16, Type::kF16}) {
        const ScalarType type = scalar(of);
        const double rounding = of == Type::kBf16 ? 0x1p-8 : 0x1p-11;
        const auto a = random(n_rows * columns, 1.0f, of), b = random(n_rows * columns, 1.0f, of);
        const auto factor = random(columns), gain = random(columns), before = random(columns);
        std::vector<uint32_t> keys;
        for (uint32_t t = 0; t < n_rows; t++) keys.insert(keys.end(), {t, 3 * t});
        const Buffer a_at = rows(a, columns, stride, of), b_at = rows(b, columns, stride, of),
                     factor_at = input(factor), gain_at = input(gain), keys_at = input(keys), sums_at = result(before),
                     to_at = poisoned(n_rows * stride * 2), left_at = poisoned(n_rows * stride * 2),
                     rest_at = poisoned(n_rows * stride * 2);
        execute([&](Recorder& recorder) {
            kernels_.column_sums(recorder,
                                 {.to = sums_at.address(),
                                  .a = a_at.address(),
                                  .b = b_at.address(),
                                  .factor = factor_at.address(),
                                  .n_columns = columns,
                                  .n_parts = 1,
                                  .rows = n_rows,
                                  .a_stride = stride,
                                  .b_stride = stride,
                                  .scale = 0.5f},
                                 type);
            kernels_.affine(recorder,
                            {.to = to_at.address(),
                             .base = 0,
                             .z = a_at.address(),
                             .gain = gain_at.address(),
                             .factor = factor_at.address(),
                             .bias = 0,
                             .n = columns,
                             .to_stride = stride,
                             .base_stride = 0,
                             .z_stride = stride,
                             .rows = n_rows,
                             .less = 0.25f},
                            type);
            TrainDropoutParams params = dropout_params(a_at, left_at, keys_at, columns, stride);
            kernels_.dropout(recorder, params, TrainDropoutForm::kLeft, n_rows, type);
            params.to = rest_at.address();
            kernels_.dropout(recorder, params, TrainDropoutForm::kRest, n_rows, type);
        });
        const auto to = content(to_at, n_rows * stride, of), left = content(left_at, n_rows * stride, of),
                   rest = content(rest_at, n_rows * stride, of);
        std::vector<double> sums(before.begin(), before.end());
        for (uint32_t t = 0; t < n_rows; t++) {
            for (uint32_t n = 0; n < columns; n++) {
                const double x = a[t * columns + n], want = x * (double{gain[n]} * factor[n] - 0.25);
                sums[n] += 0.5 * factor[n] * x * b[t * columns + n];
                ASSERT_NEAR(to[t * stride + n], want, rounding * std::abs(want) + 1e-6);
                const bool is_left = philox({n / 4, 3 * t, t, 3}, 11, 4)[n % 4] >= 0x40000000u;
                ASSERT_NEAR(left[t * stride + n], is_left ? x * 4 / 3 : 0.0, rounding * std::abs(x * 4 / 3) + 1e-6);
                ASSERT_NEAR(rest[t * stride + n], is_left ? -x / 3 : x, rounding * std::abs(x) + 1e-6);
            }
        }
        expect_near(sums, content<float>(sums_at, columns).data(), sum_tolerance(n_rows), 2.0, "column sums");
    }
}

// More matrices than a workgroup has quads, and such of one quad.
TEST_F(TrainColumnsTest, ManyMatricesAreRoundedByOneDispatch) {
    for (const Type of : {Type::kBf16, Type::kF16}) {
        const double rounding = of == Type::kBf16 ? 0x1p-8 : 0x1p-11;
        constexpr uint32_t kItems = 70, kToStride = 24;
        std::vector<TrainRoundItem> items;
        std::vector<float> values;
        uint32_t n_rows = 0, n_quads = 0;
        for (uint32_t i = 0; i < kItems; i++) {
            const uint32_t rows = i % 5 == 0 ? 1 : 3 + i, columns = 4 + i % 4 * 4;
            items.push_back({.from = values.size() * sizeof(float),
                             .to = uint64_t{n_rows} * kToStride * 2,
                             .rows = rows,
                             .columns = columns,
                             .from_stride = columns + 4,
                             .to_stride = kToStride,
                             .factor = i % 2 == 0 ? 1.0f : 0.75f,
                             .first = n_quads});
            const auto more = random(rows * (columns + 4));
            values.insert(values.end(), more.begin(), more.end());
            n_rows += rows;
            n_quads += rows * columns / 4;
        }
        const Buffer from_at = input(values), to_at = poisoned(n_rows * kToStride * 2);
        std::vector<TrainRoundItem> placed = items;
        for (TrainRoundItem& item : placed) item.from += from_at.address(), item.to += to_at.address();
        const Buffer items_at = input(placed);
        const auto before = content<uint16_t>(to_at, n_rows * kToStride);
        execute([&](Recorder& recorder) {
            kernels_.round_items(recorder, {.items = items_at.address(), .n_items = kItems, .n_quads = n_quads},
                                 scalar(of));
        });
        const auto to = content(to_at, n_rows * kToStride, of);
        const auto words = content<uint16_t>(to_at, n_rows * kToStride);
        for (const TrainRoundItem& item : items) {
            for (uint32_t t = 0; t < item.rows; t++) {
                for (uint32_t c = 0; c < kToStride; c++) {
                    const size_t at = item.to / 2 + t * kToStride + c;
                    if (c >= item.columns) {
                        ASSERT_EQ(words[at], before[at]) << "written beyond the columns";
                        continue;
                    }
                    const double want = double{item.factor} * values[item.from / 4 + t * item.from_stride + c];
                    ASSERT_NEAR(to[at], want, rounding * std::abs(want) + 1e-6);
                }
            }
        }
    }
}

TEST_F(TrainColumnsTest, DropoutLeavesWhatPhiloxSays) {
    // Known answers of Random123 for zeros and for all ones.
    EXPECT_EQ(philox({0, 0, 0, 0}, 0, 0),
              (std::array<uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
    EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u),
              (std::array<uint32_t, 4>{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
    const uint32_t columns = 150, stride = 192, n_rows = 5;
    const auto x = random(n_rows * columns), before = random(n_rows * stride);
    std::vector<uint32_t> keys;
    for (uint32_t t = 0; t < n_rows; t++) keys.insert(keys.end(), {t / 2, 7 * t});
    const Buffer x_at = rows(x, columns, stride), keys_at = input(keys), to_at = result(before),
                 added_at = result(before), rest_at = result(before);
    TrainDropoutParams params = dropout_params(x_at, to_at, keys_at, columns, stride);
    execute([&](Recorder& recorder) {
        kernels_.dropout(recorder, params, TrainDropoutForm::kLeft, n_rows);
        params.to = added_at.address();
        kernels_.dropout(recorder, params, TrainDropoutForm::kAdds, n_rows);
        params.to = rest_at.address();
        kernels_.dropout(recorder, params, TrainDropoutForm::kRest, n_rows);
    });
    const auto to = content<float>(to_at, before.size()), added = content<float>(added_at, before.size()),
               rest = content<float>(rest_at, before.size());
    uint32_t n_left = 0;
    for (uint32_t t = 0; t < n_rows; t++) {
        for (uint32_t k = 0; k < stride; k++) {
            const size_t at = t * stride + k;
            if (k >= columns) {
                ASSERT_EQ(to[at], before[at]) << "written beyond the columns";
                continue;
            }
            const bool is_left = philox({k / 4, keys[2 * t + 1], keys[2 * t], 3}, 11, 4)[k % 4] >= 0x40000000u;
            const float value = is_left ? x[t * columns + k] * params.factor : 0.0f;
            ASSERT_EQ(to[at], value);
            ASSERT_FLOAT_EQ(added[at], before[at] + value);
            ASSERT_NEAR(rest[at], x[t * columns + k] - value, 1e-6);
            n_left += is_left;
        }
    }
    // A quarter is dropped: of 750 within four standard deviations.
    EXPECT_NEAR(n_left, 0.75 * n_rows * columns, 48);
}

}  // namespace
}  // namespace lorad::gpu::testing::train_columns_test
