// One row without matrix units, and what comes behind it in the same dispatch.
#include <cmath>
#include <optional>

#include "gpu/kernels/products/deferred_norm.h"
#include "gpu/kernels/products/few_rows/few_row_tiles.h"
#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::row_product_test {
namespace {

constexpr float kEps = 1e-6f;
constexpr uint32_t kForms = kRowForms.size();

class RowProducts : public KernelTest {
  protected:
    void SetUp() override {
        KernelTest::SetUp();
        kernels_ = must(KernelSet::create(device(), {.path = KernelPath::kPortable}));
    }

    MatmulPlan plan(const Product& product, uint32_t tile) {
        MatmulPlan plan = *kernels_->products.plan_by(MatmulVariant::kRow, product);
        MatmulPlan other = plan;
        other.tile = tile;
        other.column_tile = kRowForms[tile].columns;
        return other;
    }

    // A matrix with rows up to a multiple of 64, of which those behind the last are NaN.
    struct Weights {
        uint32_t n = 0, k = 0;
        std::vector<float> values;
        Buffer buffer;
    };
    Weights weights(uint32_t n, uint32_t k, Type type) {
        Weights w{n, k, reference::random_values(size_t{n} * k, type, random_), {}};
        auto bytes = reference::encode(w.values, k, padded(k), type);
        bytes.resize(size_t{padded(n)} * padded(k) * bytes_of(scalar(type)), std::byte{0xff});
        w.buffer = input(bytes);
        return w;
    }
    static double product(const Weights& w, uint32_t row, const std::vector<float>& x) {
        double sum = 0;
        for (uint32_t j = 0; j < w.k; j++) sum += double{w.values[size_t{row} * w.k + j]} * x[j];
        return sum;
    }
    // With zeros up to a multiple of 64.
    std::vector<float> row(uint32_t k) {
        auto x = reference::random_values(k, Type::kF32, random_);
        x.resize(padded(k));
        return x;
    }
    static double bound(uint32_t k, double factor = 1) { return sum_tolerance(k) * (1 + std::sqrt(k) / 3) * factor; }

    static MatmulParams params(const Weights& w, const Buffer& x, const Buffer& y, uint32_t n, uint32_t y_stride) {
        MatmulParams p{};
        p.w = w.buffer.address();
        p.x = x.address();
        p.y = y.address();
        p.n = n;
        p.k = w.k;
        p.w_stride = p.x_stride = padded(w.k);
        p.y_stride = y_stride;
        return p;
    }

    void check_sums(uint32_t n, uint32_t k, Type type, uint32_t tile) {
        const Weights w = weights(n, k, type);
        const auto x = row(k);
        const Buffer x_buffer = input(x), y = poisoned(padded(n) * 4);
        const MatmulPlan of = plan({.n = n, .k = k, .type = scalar(type), .rows = 1, .max_splits = 8}, tile);
        SCOPED_TRACE(::testing::Message() << describe(of) << " n " << n << " k " << k << " type " << int(type));
        execute([&](Recorder& recorder) {
            kernels_->products.record(recorder, of, {.product = params(w, x_buffer, y, n, padded(n))});
        });
        const auto got = content<float>(y, padded(n));
        for (uint32_t i = 0; i < n; i++) ASSERT_NEAR(got[i], product(w, i, x), bound(k)) << "column " << i;
        for (uint32_t i = n; i < padded(n); i++) ASSERT_TRUE(is_poison(got[i])) << "column " << i << " was written";
    }

    // A product that ends in the stream, then products behind its norm.
    void check_stream(uint32_t hidden, uint32_t k, uint32_t n_out, Type type, uint32_t tile, bool has_bias) {
        const Weights w = weights(hidden, k, type), out = weights(n_out, hidden, type),
                      gates = weights(2 * n_out, hidden, type);
        const auto x = row(k), old = reference::random_values(hidden, Type::kF32, random_),
                   gamma = reference::random_values(hidden, Type::kF32, random_),
                   bias = reference::random_values(hidden, Type::kF32, random_);
        const Buffer x_buffer = input(x), gamma_buffer = input(gamma), bias_buffer = input(bias);
        auto stream_values = old;
        stream_values.resize(padded(hidden));
        const Buffer stream = input(stream_values), xn = input(std::vector<float>(padded(hidden))),
                     norms = poisoned(deferred_norm_bytes(padded(hidden)));
        const MatmulPlan end =
            plan({.n = hidden, .k = k, .type = scalar(type), .rows = 1, .result = ProductResult::kResidual}, tile);
        SCOPED_TRACE(::testing::Message()
                     << describe(end) << " hidden " << hidden << " k " << k << " type " << int(type));
        execute([&](Recorder& recorder) {
            kernels_->products.record(recorder, end,
                                      {.product = params(w, x_buffer, xn, hidden, padded(hidden)),
                                       .residual = {.bias = has_bias ? bias_buffer.address() : 0,
                                                    .stream = stream.address(),
                                                    .gamma = gamma_buffer.address(),
                                                    .xn = xn.address(),
                                                    .norms = norms.address(),
                                                    .stream_stride = padded(hidden),
                                                    .xn_stride = padded(hidden)}});
        });
        const auto got = content<float>(stream, hidden), normed = content<float>(xn, padded(hidden));
        double squares = 0;
        for (uint32_t i = 0; i < hidden; i++) {
            ASSERT_NEAR(got[i], product(w, i, x) + old[i] + (has_bias ? bias[i] : 0.0f), bound(k, 2)) << "stream " << i;
            ASSERT_FLOAT_EQ(normed[i], got[i] * gamma[i]) << "xn " << i;
            squares += double{got[i]} * got[i];
        }
        for (uint32_t i = hidden; i < padded(hidden); i++) ASSERT_EQ(normed[i], 0.0f) << "xn " << i << " was written";
        const double factor = 1 / std::sqrt(squares / hidden + kEps);
        double size = 0;
        for (const float value : normed) size = std::max(size, std::fabs(double{value}) * factor);
        const DeferredNorm norm{
            .norms = norms.address(), .hidden = hidden, .eps = kEps, .n_tiles = end.column_tiles(hidden)};
        const MatmulPlan sums =
            plan({.n = n_out, .k = hidden, .type = scalar(type), .rows = 1, .max_splits = 8, .norm_is_deferred = true},
                 tile);
        const Buffer y = poisoned(padded(n_out) * 4), act = poisoned(padded(n_out) * 4);
        const MatmulPlan gated = plan({.n = 2 * n_out,
                                       .k = hidden,
                                       .type = scalar(type),
                                       .rows = 1,
                                       .norm_is_deferred = true,
                                       .result = ProductResult::kGated},
                                      tile);
        execute([&](Recorder& recorder) {
            kernels_->products.record(recorder, sums,
                                      {.product = params(out, xn, y, n_out, padded(n_out)), .norm = norm});
            kernels_->products.record(recorder, gated,
                                      {.product = params(gates, xn, act, n_out, padded(n_out)), .norm = norm});
        });
        const auto got_sums = content<float>(y, padded(n_out)), got_act = content<float>(act, padded(n_out));
        const double tolerance = bound(hidden, size);
        for (uint32_t i = 0; i < n_out; i++) {
            ASSERT_NEAR(got_sums[i], product(out, i, normed) * factor, tolerance) << "sum " << i;
            const double gate = product(gates, i, normed) * factor, up = product(gates, n_out + i, normed) * factor;
            ASSERT_NEAR(got_act[i], gate / (1 + std::exp(-gate)) * up,
                        tolerance * (1.1 * std::fabs(up) + std::fabs(gate) + 1))
                << "act " << i;
        }
        for (uint32_t i = n_out; i < padded(n_out); i++) ASSERT_EQ(got_act[i], 0.0f) << "act " << i;
    }
};

TEST_F(RowProducts, EveryFormMatchesTheReference) {
    constexpr Type kTypes[] = {Type::kF16, Type::kBf16, Type::kF32};
    for (uint32_t tile = 0; tile < kForms; tile++) {
        // Rows of w that tiles do not divide; words of a row that are fewer than threads, and that leave some over.
        check_sums(130, 200, kTypes[tile % 3], tile);
        check_sums(67, 8960, kTypes[(tile + 1) % 3], tile);
        if (HasFailure()) return;
    }
}

TEST_F(RowProducts, EndsInTheStreamAndTheNextOnesHaveTheNormsFactor) {
    constexpr Type kTypes[] = {Type::kF16, Type::kBf16, Type::kF32};
    for (uint32_t tile = 0; tile < kForms; tile++) {
        check_stream(448, 1030, 130, kTypes[tile % 3], tile, tile % 2 == 0);
        check_stream(100, 64, 70, kTypes[(tile + 1) % 3], tile, tile % 2 != 0);
        if (HasFailure()) return;
    }
}

}  // namespace
}  // namespace lorad::gpu::testing::row_product_test
