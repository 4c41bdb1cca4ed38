// Products that end in the residual stream, and those behind the norm that they defer, where the device has them.
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "gpu/kernels/products/deferred_norm.h"
#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::matmul_residual_test {
namespace {

constexpr float kEps = 1e-6f;
constexpr double kSmallest = 0x1p-25;  // half of the distance between subnormal f16

class MatmulResidual : public KernelTest {
  protected:
    struct Case {
        Type type = Type::kF16;
        uint32_t n = 0, k = 0, n_rows = 0, bucket = 0;
        bool has_bias = false;
        float grows = 1.0f;  // the stream's values, where those of the norm before had a mean square of about 1
        std::optional<MatmulPlan> plan = {};  // instead of the one that plan() takes
    };
    // What a case leaves behind; rows of the bucket.
    struct Left {
        MatmulPlan plan;
        uint32_t stride = 0;  // of stream and xn
        std::vector<float> stream, xn, gamma, scales;
        Buffer xn_buffer, norms, count;
    };

    static Product residual(uint32_t n, uint32_t k, Type type, uint32_t rows) {
        return {.n = n, .k = k, .type = scalar(type), .rows = rows, .result = ProductResult::kResidual};
    }

    void SetUp() override {
        KernelTest::SetUp();
        kernels_ =
            must(KernelSet::create(device(), {.path = lorad::testing::best_path(), .gated = GatedProducts::kAlways}));
    }

    // All 16-bit types on NVIDIA's devices, which know their multiprocessors.
    std::vector<Type> residual_types() const {
        return types_by_lanes(
            [&](Type type) { return kernels_->products.plan(residual(256, 256, type, 8)).has_value(); });
    }

    Left run(const Case& c) {
        SCOPED_TRACE(::testing::Message() << "type " << int(c.type) << " n " << c.n << " k " << c.k << " rows "
                                          << c.n_rows << " of " << c.bucket);
        Left left;
        left.plan = c.plan ? *c.plan : *kernels_->products.plan(residual(c.n, c.k, c.type, c.bucket));
        SCOPED_TRACE(::testing::Message() << left.plan.column_tile << " columns, " << left.plan.subgroups
                                          << " subgroups, " << left.plan.k_step << " of k");
        EXPECT_EQ(c.n % left.plan.column_tile, 0u);
        const uint32_t stride = padded(c.k), n_stride = left.stride = padded(c.n);
        const auto w = reference::random_values(size_t{c.n} * c.k, c.type, random_),
                   x = reference::random_values(size_t{c.n_rows} * c.k, c.type, random_);
        const auto bias = reference::random_values(c.n, Type::kF32, random_);
        left.gamma = reference::random_values(c.n, Type::kF32, random_);
        auto old_stream = reference::random_values(size_t{c.bucket} * c.n, Type::kF32, random_);
        for (float& value : old_stream) value *= c.grows;
        auto x_bytes = reference::encode(x, c.k, stride, c.type);
        x_bytes.resize(size_t{c.bucket + kSlackRows} * stride * 2, std::byte{0xff});
        const Buffer w_buffer = input(reference::encode(w, c.k, stride, c.type)), x_buffer = input(x_bytes),
                     bias_buffer = input(bias);
        const Buffer gamma_buffer = input(left.gamma);
        left.count = input(std::vector<uint32_t>{c.n_rows});
        const Buffer stream = poisoned(size_t{kDeferredRows} * n_stride * 4);
        const auto stream_bytes = reference::encode(old_stream, c.n, n_stride, Type::kF32);
        std::memcpy(stream.mapped().data(), stream_bytes.data(), stream_bytes.size());
        // What lies behind a row's columns is zero, and stays it: the product behind reads that.
        left.xn_buffer = poisoned(size_t{c.bucket + kSlackRows} * n_stride * 2);
        for (uint32_t t = 0; t < c.bucket; t++)
            std::memset(left.xn_buffer.mapped().data() + (size_t{t} * n_stride + c.n) * 2, 0,
                        size_t{n_stride - c.n} * 2);
        left.norms = poisoned(deferred_norm_bytes(c.n));
        std::vector<float> inverse(kDeferredRows);
        for (uint32_t t = 0; t < kDeferredRows; t++) inverse[t] = 0.5f + 0.25f * static_cast<float>(t);
        std::memcpy(left.norms.mapped().data() + kDeferredInverse, inverse.data(), inverse.size() * 4);
        execute([&](Recorder& recorder) {
            MatmulParams product{};
            product.n_rows = left.count.address();
            product.w = w_buffer.address();
            product.x = x_buffer.address();
            product.n = c.n;
            product.k = c.k;
            product.w_stride = product.x_stride = stride;
            kernels_->products.record(recorder, left.plan,
                                      {.product = product,
                                       .residual = {.bias = c.has_bias ? bias_buffer.address() : 0,
                                                    .stream = stream.address(),
                                                    .gamma = gamma_buffer.address(),
                                                    .xn = left.xn_buffer.address(),
                                                    .norms = left.norms.address(),
                                                    .stream_stride = n_stride,
                                                    .xn_stride = n_stride}});
        });
        left.stream = content<float>(stream, size_t{c.bucket} * n_stride);
        left.xn = content(left.xn_buffer, size_t{c.bucket} * n_stride, c.type);
        const auto norms = content<float>(left.norms, left.norms.size() / 4);
        const uint32_t squares_at = kDeferredSquares / 4, rows_of_tile = deferred_norm_rows(c.bucket);
        for (uint32_t t = 0; t < c.bucket; t++) {
            const std::string row = "row " + std::to_string(t);
            const float *own = &left.stream[size_t{t} * n_stride], *own_xn = &left.xn[size_t{t} * n_stride];
            for (uint32_t i = c.n; i < n_stride; i++) EXPECT_EQ(own_xn[i], 0.0f) << row << " of xn, behind its columns";
            if (t >= c.n_rows) {
                EXPECT_TRUE(std::equal(own, own + c.n, &old_stream[size_t{t} * c.n]))
                    << row << " of the stream was written";
                for (uint32_t i = 0; i < c.n; i++) EXPECT_TRUE(is_poison(own_xn[i])) << row << " of xn was written";
                continue;
            }
            auto want = reference::multiply(w, reference::to_doubles({&x[size_t{t} * c.k], c.k}));
            for (uint32_t i = 0; i < c.n; i++)
                want[i] += double{old_stream[size_t{t} * c.n + i]} + (c.has_bias ? bias[i] : 0.0f);
            expect_near(want, own, sum_tolerance(c.k), 1.0 + c.grows + std::sqrt(c.k) / 3, "the stream's " + row);
            const float scale = norms[kDeferredScale / 4 + t];
            EXPECT_FLOAT_EQ(scale, inverse[t] / kDeferredMargin) << row;
            left.scales.push_back(scale);
            for (uint32_t i = 0; i < c.n; i++) {
                // Cut off at the largest f16; rounded once to the type, and three times to f32.
                const double exact = double{own[i]} * left.gamma[i] * scale,
                             scaled = c.type == Type::kF16 ? std::clamp(exact, -65504.0, 65504.0) : exact;
                EXPECT_NEAR(own_xn[i], scaled,
                            std::fabs(scaled) * (reference::unit_roundoff(c.type) + 3e-7) + kSmallest)
                    << row << " of xn, column " << i;
                if (::testing::Test::HasFailure()) return left;
            }
            for (uint32_t tile = 0; tile < left.plan.column_tiles(c.n); tile++) {
                double squares = 0;
                for (uint32_t i = tile * left.plan.column_tile; i < (tile + 1) * left.plan.column_tile; i++)
                    squares += double{own[i]} * own[i];
                EXPECT_NEAR(norms[squares_at + tile * rows_of_tile + t], squares,
                            squares * sum_tolerance(left.plan.column_tile))
                    << row << ", tile " << tile;
            }
        }
        return left;
    }

    // A product, or a gated one, of what the case has left.
    void check_behind(const Case& c, const Left& left, uint32_t n, bool gated) {
        SCOPED_TRACE(::testing::Message() << (gated ? "gated, " : "") << "n " << n << " of " << c.n << " rows "
                                          << c.n_rows << " of " << c.bucket);
        const auto behind = kernels_->products.plan({.n = n,
                                                     .k = c.n,
                                                     .type = scalar(c.type),
                                                     .rows = c.bucket,
                                                     .max_splits = gated ? 1u : 8u,
                                                     .norm_is_deferred = true,
                                                     .result = gated ? ProductResult::kGated : ProductResult::kSums});
        ASSERT_TRUE(behind);
        const MatmulPlan& plan = *behind;
        const auto w = reference::random_values(size_t{n} * c.n, c.type, random_);
        const Buffer w_buffer = input(reference::encode(w, c.n, left.stride, c.type));
        // Each product says the inverses, not only the first one.
        std::memset(left.norms.mapped().data() + kDeferredInverse, 0xff, kDeferredRows * 4);
        const uint32_t n_out = gated ? n / 2 : n, split_stride = round_up(c.bucket, plan.row_tile) * n;
        const Buffer y = poisoned((uint64_t{plan.n_splits} * split_stride + uint64_t{kSlackRows} * n) * 4);
        MatmulParams params{};
        params.n_rows = left.count.address();
        params.w = w_buffer.address();
        params.x = left.xn_buffer.address();
        params.y = y.address();
        params.n = params.y_stride = n_out;
        params.k = c.n;
        params.w_stride = params.x_stride = left.stride;
        params.split_stride = split_stride;
        execute([&](Recorder& recorder) {
            kernels_->products.record(recorder, plan,
                                      {.product = params,
                                       .norm = {.norms = left.norms.address(),
                                                .hidden = c.n,
                                                .eps = kEps,
                                                .n_tiles = left.plan.column_tiles(c.n)}});
        });
        const auto inverses = content<float>(left.norms, kDeferredRows);
        for (uint32_t t = 0; t < c.n_rows; t++) {
            double squares = 0;
            for (uint32_t i = 0; i < c.n; i++)
                squares += double{left.stream[size_t{t} * left.stride + i]} * left.stream[size_t{t} * left.stride + i];
            const double inverse = 1.0 / std::sqrt(squares / c.n + kEps);
            EXPECT_NEAR(inverses[kDeferredInverse / 4 + t], inverse, inverse * sum_tolerance(c.n)) << "row " << t;
            auto want = reference::multiply(w, reference::to_doubles({&left.xn[size_t{t} * left.stride], c.n}));
            for (double& value : want) value *= inverse / left.scales[t];
            const double magnitude = 1.0 + std::sqrt(c.n) / 3, tolerance = sum_tolerance(c.n);
            if (!gated) {
                std::vector<float> sum(n);
                for (uint32_t s = 0; s < plan.n_splits; s++) {
                    const auto all = content<float>(y, (s + 1) * size_t{split_stride});
                    for (uint32_t i = 0; i < n; i++) sum[i] += all[s * size_t{split_stride} + size_t{t} * n + i];
                }
                expect_near(want, sum.data(), tolerance, magnitude, "row " + std::to_string(t));
                continue;
            }
            const auto act = content(y, size_t{c.n_rows} * n_out, c.type);
            for (uint32_t i = 0; i < n_out; i++) {
                const double gate = want[i], value = gate / (1.0 + std::exp(-gate)) * want[n_out + i];
                // SiLU grows by no more than 1.1 for each 1 of its argument, and is no larger than it.
                const double of_sums = tolerance * magnitude * (1.1 * std::fabs(want[n_out + i]) + std::fabs(gate));
                EXPECT_NEAR(act[size_t{t} * n_out + i], value,
                            std::fabs(value) * (reference::unit_roundoff(c.type) + 1e-6) + kSmallest + of_sums)
                    << "row " << t << " column " << i;
                if (::testing::Test::HasFailure()) return;
            }
        }
    }
};

TEST_F(MatmulResidual, EndsInTheStreamAndSaysWhatItsNormNeeds) {
    if (residual_types().empty()) GTEST_SKIP() << "no such products: " << device().capabilities().name;
    for (const Type type : residual_types()) {
        // One step of k for fewer subgroups than there are, steps of 64, whole and broken numbers of steps.
        for (const auto& [n, k] : {std::pair{64u, 64u}, {112u, 200u}, {448u, 3584u}, {896u, 1030u}, {1536u, 256u}}) {
            run({.type = type, .n = n, .k = k, .n_rows = 2, .bucket = 2});
            run({.type = type, .n = n, .k = k, .n_rows = 7, .bucket = 8, .has_bias = true});
            run({.type = type, .n = n, .k = k, .n_rows = 12, .bucket = 12, .has_bias = true});
            run({.type = type, .n = n, .k = k, .n_rows = 13, .bucket = 16});
            if (HasFailure()) return;
        }
    }
}

// Matrices that are full and such that are not, one and two for a subgroup: some plans of each number of columns, and
// all with the subgroups that models of any size take.
TEST_F(MatmulResidual, EveryNumberOfColumns) {
    if (residual_types().empty()) GTEST_SKIP() << "no such products: " << device().capabilities().name;
    constexpr size_t kEvery = 5;
    for (const Type type : residual_types()) {
        std::set<uint32_t> columns;
        for (const uint32_t n : {448u, 480u}) {
            for (const uint32_t bucket : {8u, 16u}) {
                const auto plans = kernels_->products.candidates(residual(n, 896, type, bucket));
                for (size_t i = 0; i < plans.size(); i++) {
                    if (i % kEvery != 0 && (plans[i].k_step != 128 || plans[i].subgroups != (bucket == 8 ? 8 : 6)))
                        continue;
                    columns.insert(plans[i].column_tile);
                    run({.type = type,
                         .n = n,
                         .k = 896,
                         .n_rows = bucket - 1,
                         .bucket = bucket,
                         .has_bias = i % 2 == 0,
                         .plan = plans[i]});
                    if (HasFailure()) return;
                }
            }
        }
        EXPECT_EQ(columns, (std::set<uint32_t>{8, 10, 12, 14, 16, 28, 32}));
    }
}

TEST_F(MatmulResidual, ProductsBehindItHaveTheNormsFactors) {
    if (residual_types().empty()) GTEST_SKIP() << "no such products: " << device().capabilities().name;
    for (const Type type : residual_types()) {
        for (const auto& [n, n_rows, bucket] :
             {std::tuple{64u, 3u, 4u}, {112u, 2u, 2u}, {448u, 8u, 8u}, {1536u, 11u, 16u}}) {
            const Case c{.type = type, .n = n, .k = 320, .n_rows = n_rows, .bucket = bucket};
            const Left left = run(c);
            for (const uint32_t n_out : {128u, 640u}) {
                check_behind(c, left, n_out, false);
                check_behind(c, left, n_out, true);
            }
            if (HasFailure()) return;
        }
    }
}

// Workgroups that take tiles in turns find the factors once.
TEST_F(MatmulResidual, AProductOfManyTilesBehindIt) {
    if (residual_types().empty()) GTEST_SKIP() << "no such products: " << device().capabilities().name;
    const uint32_t n_out = round_up(96 * (6 * multiprocessors(device().capabilities()) + 5), 128);
    for (const Type type : residual_types()) {
        const Case c{.type = type, .n = 192, .k = 128, .n_rows = 5, .bucket = 8};
        const Left left = run(c);
        check_behind(c, left, n_out, true);
        check_behind(c, left, n_out, false);
    }
}

// Scales here are 0.03 to 0.11: 22,000 at most, where the stream itself is three times what f16 holds; then 1.1e7,
// which is cut off, but in bf16 is not.
TEST_F(MatmulResidual, AStreamMayGrowManyThousandfold) {
    if (residual_types().empty()) GTEST_SKIP() << "no such products: " << device().capabilities().name;
    for (const Type type : residual_types()) {
        const Case c{.type = type, .n = 448, .k = 320, .n_rows = 6, .bucket = 8, .grows = 2e5f};
        check_behind(c, run(c), 256, false);
        run({.type = type, .n = 448, .k = 320, .n_rows = 6, .bucket = 8, .grows = 1e8f});
    }
}

TEST_F(MatmulResidual, IsForFewRowsWithoutBatchInvariance) {
    if (residual_types().empty()) GTEST_SKIP() << "no such products: " << device().capabilities().name;
    for (const Type type : residual_types()) {
        EXPECT_FALSE(kernels_->products.plan(residual(448, 448, type, 1)));
        EXPECT_TRUE(kernels_->products.plan(residual(448, 448, type, 16)));
        EXPECT_FALSE(kernels_->products.plan(residual(448, 448, type, 17)));
        EXPECT_FALSE(kernels_->products.plan(residual(446, 448, type, 8)));  // twice a prime
        const auto invariant =
            must(KernelSet::create(device(), {.path = lorad::testing::best_path(), .batch_invariant = true}));
        EXPECT_FALSE(invariant->products.plan(residual(448, 448, type, 8)));
    }
}

}  // namespace
}  // namespace lorad::gpu::testing::matmul_residual_test
