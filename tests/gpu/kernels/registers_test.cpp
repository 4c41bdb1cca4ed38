// Products by blocks in registers, in f32 and with short sums in f16, with the workgroups that GPUs have.
#include <array>
#include <cmath>
#include <set>

#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/few_rows/few_row_tiles.h"
#include "gpu/kernels/products/register_tiles.h"
#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::registers_test {
namespace {

struct Problem {
    uint32_t n = 0, k = 0, n_rows = 0;
    Type weight = Type::kF16;
    std::vector<float> w, x;
};

class RegisterProducts : public KernelTest {
  protected:
    Problem make(uint32_t n, uint32_t k, uint32_t n_rows, Type weight) {
        return {n,
                k,
                n_rows,
                weight,
                reference::random_values(size_t{n} * k, weight, random_),
                reference::random_values(size_t{n_rows} * k, Type::kF32, random_)};
    }

    static MatmulPlan plan(const Problem& p, uint32_t tile, uint32_t short_sum, uint32_t n_splits) {
        MatmulPlan plan;
        plan.variant = MatmulVariant::kRegisters;
        plan.tile = tile;
        plan.row_tile = kRegisterTiles[tile].rows();
        plan.column_tile = kRegisterTiles[tile].columns();
        plan.k_per_split = round_up(ceil_div(padded(p.k), n_splits), kWeightAlign);
        plan.n_splits = ceil_div(padded(p.k), plan.k_per_split);
        plan.rows = p.n_rows;
        plan.short_sum = short_sum;
        plan.weight_type = scalar(p.weight);
        return plan;
    }

    // y [split][row][padded n]; what is not written stays a NaN.
    std::vector<float> multiply(const Problem& p, const MatmulPlan& plan) {
        const uint32_t n_padded = padded(p.n), stride = padded(p.k);
        std::vector<float> w = p.w;
        w.resize(size_t{n_padded} * p.k);
        const Buffer w_buffer = input(reference::encode(w, p.k, stride, p.weight)),
                     x_buffer = input(reference::encode(p.x, p.k, stride, Type::kF32)),
                     count = input(std::vector<uint32_t>{p.n_rows});
        const size_t split_stride = size_t{p.n_rows + kSlackRows} * n_padded;
        const Buffer y = poisoned(plan.n_splits * split_stride * 4);
        const MatmulParams params = product_params(p.n, p.k, count, w_buffer, x_buffer, y, split_stride);
        execute([&](Recorder& recorder) { kernels_->products.record(recorder, plan, {.product = params}); });
        return content<float>(y, plan.n_splits * split_stride);
    }

    // Each element, and the errors of all together. Short sums of L elements: x is rounded once, each half of a pair
    // L / 2 times while it is summed, the sum of both once; by 2^-11 of what there is, which is at most the sum of all
    // magnitudes. Roundings go either way: the root of their mean square is 2^-11 / sqrt(3) of what is rounded, where
    // that is just above a power of two, and what is rounded grows as the root of the elements. The test has twice
    // that.
    void check(const Problem& p, const MatmulPlan& plan) {
        SCOPED_TRACE(::testing::Message() << describe(plan) << ", n " << p.n << " k " << p.k << " rows " << p.n_rows
                                          << " weights " << int(p.weight) << " splits " << plan.n_splits);
        const std::vector<float> y = multiply(p, plan);
        const uint32_t n_padded = padded(p.n);
        const size_t capacity = p.n_rows + kSlackRows;
        const double length = plan.short_sum, ulp = std::ldexp(1.0, -11);
        double errors = 0, sizes = 0;
        for (uint32_t t = 0; t < capacity; t++) {
            for (uint32_t i = 0; i < n_padded; i++) {
                double got = 0, want = 0, magnitude = 0;
                for (uint32_t s = 0; s < plan.n_splits; s++) got += y[(s * capacity + t) * n_padded + i];
                if (t >= p.n_rows) {
                    ASSERT_TRUE(std::isnan(got)) << "row " << t << " was written";
                    continue;
                }
                for (uint32_t j = 0; i < p.n && j < p.k; j++) {
                    const double term = double{p.w[size_t{i} * p.k + j]} * p.x[size_t{t} * p.k + j];
                    want += term;
                    magnitude += std::fabs(term);
                }
                const double short_bound = length > 0 ? (length / 2 + 2) * ulp * magnitude : 0;
                const double bound = short_bound + sum_tolerance(p.k) * (1 + std::sqrt(p.k) / 3);
                ASSERT_LE(std::fabs(got - want), bound) << "row " << t << " column " << i << ", expected " << want;
                errors += (got - want) * (got - want);
                sizes += want * want;
            }
        }
        const double half = length / 2, growth = 1 + (length > 0 ? (half * (half + 1) + length) / length : 0);
        if (length > 0) {
            EXPECT_LE(std::sqrt(errors / sizes), 2 * ulp / std::sqrt(3.0) * std::sqrt(growth));
        }
    }

    // What plans take of the table, which is what a GPU runs, one tile in so many; and each kind of weights and cut of
    // k.
    void check_tiles(uint32_t step) {
        uint32_t turn = 0, n_tiles = 0;
        for (uint32_t tile = 0; tile < kRegisterTiles.size(); tile += step) {
            const RegisterTile& t = kRegisterTiles[tile];
            for (const uint32_t short_sum : {0u, kShortSum}) {
                // A software device with subgroups of 4 has workgroups of 128 threads at most.
                if (!fits(t, short_sum, device().capabilities())) continue;
                n_tiles++;
                const Type weight =
                    short_sum != 0 ? Type::kF16 : std::array{Type::kBf16, Type::kF16, Type::kF32}[++turn % 3];
                // More than a tile, with an end inside of one, and k that the slices' steps do not divide.
                const Problem p = make(t.columns() + 6, 130 + 64 * (turn % 2), t.rows() + 3, weight);
                check(p, plan(p, tile, short_sum, 1 + turn % 2));
            }
        }
        EXPECT_GE(n_tiles, 2 * (kRegisterTiles.size() / step - 1));
    }

    void check_streams(bool each_kind);
};

TEST_F(RegisterProducts, TilesMatchTheReference) { check_tiles(3); }

// A software device compiles a program for each tile.
class SlowRegisterProducts : public RegisterProducts {};

TEST_F(SlowRegisterProducts, EveryTileMatchesTheReference) { check_tiles(1); }

// Rows through registers, at most 8 of them: each tile with each kind of sums, or with one of them in turn. Each number
// of rows is there with some tile.
void RegisterProducts::check_streams(bool each_kind) {
    struct Kind {
        Type weight;
        uint32_t short_sum;
    };
    uint32_t n_tiles = 0, turn = 0;
    for (const Kind& kind : {Kind{Type::kBf16, 0}, Kind{Type::kF16, 0}, Kind{Type::kF16, kShortSum}}) {
        turn++;
        for (uint32_t tile = 0; tile < kStreamTiles.size(); tile++) {
            const StreamTile& t = kStreamTiles[tile];
            if (!each_kind && (tile + tile / 3 + turn) % 3 != 0) continue;  // not in step with k
            if (!fits(t, kind.short_sum, device().capabilities())) continue;
            n_tiles++;
            const uint32_t n_rows = std::array{8u, 3u, 5u, 2u}[tile % 4];
            // An end inside of a tile, of a step, of a stage.
            const Problem p = make(t.columns() + 6, std::array{130u, 1000u, 2880u}[tile % 3], n_rows, kind.weight);
            MatmulPlan of = plan(p, 0, kind.short_sum, 1 + tile % 3);
            of.variant = MatmulVariant::kStream;
            of.tile = tile;
            of.row_tile = n_rows <= 4 ? 4 : 8;
            of.column_tile = t.columns();
            check(p, of);
        }
    }
    // Lanes along k are of one subgroup.
    const bool fit = device().capabilities().subgroup_size_min >= 8;
    EXPECT_EQ(n_tiles, fit ? (each_kind ? 3 : 1) * kStreamTiles.size() : 0);
}

TEST_F(RegisterProducts, EveryStreamMatchesTheReference) { check_streams(false); }

TEST_F(SlowRegisterProducts, EveryStreamMatchesTheReferenceWithEachKindOfSums) { check_streams(true); }

TEST_F(RegisterProducts, ARowsBitsDoNotDependOnTheTileWhereAllOfKIsOneThreads) {
    const Problem all = make(130, 700, 21, Type::kF16);
    for (const uint32_t short_sum : {0u, kShortSum}) {
        std::vector<float> first;
        uint32_t last = 0;
        for (uint32_t tile = 0; tile < kRegisterTiles.size(); tile++) {
            if (kRegisterTiles[tile].slices != 1) continue;
            if (!fits(kRegisterTiles[tile], short_sum, device().capabilities())) continue;
            last = tile;
            const std::vector<float> y = multiply(all, plan(all, tile, short_sum, 2));
            if (first.empty()) first = y;
            EXPECT_EQ(0, std::memcmp(first.data(), y.data(), size_t{all.n_rows} * padded(all.n) * 4))
                << describe(plan(all, tile, short_sum, 2));
        }
        Problem one = all;
        one.n_rows = 1;
        one.x.assign(all.x.begin() + 20 * all.k, all.x.begin() + 21 * all.k);
        const std::vector<float> alone = multiply(one, plan(one, last, short_sum, 2));
        EXPECT_EQ(0, std::memcmp(alone.data(), &first[size_t{20} * padded(all.n)], all.n * 4));
    }
}

// f16 ends at 65504 and has few bits below 6e-5; activations of a model are beyond both.
TEST_F(RegisterProducts, ShortSumsTakeActivationsThatF16CannotHold) {
    Problem p = make(64, 256, 6, Type::kF16);
    const std::array factors = {3e9f, 1e-9f, 1.0f, 0.0f, 1e30f, 1e-30f};
    for (size_t i = 0; i < p.x.size(); i++) p.x[i] *= factors[i / p.k];
    // One element stands out of its neighbours, as some activations do.
    p.x[2 * p.k + 77] = 2e5f;
    const std::vector<float> y = multiply(p, plan(p, 0, kShortSum, 1));
    for (uint32_t t = 0; t < p.n_rows; t++) {
        for (uint32_t i = 0; i < p.n; i++) {
            double want = 0, magnitude = 0;
            for (uint32_t j = 0; j < p.k; j++) {
                const double term = double{p.w[size_t{i} * p.k + j]} * p.x[size_t{t} * p.k + j];
                want += term;
                magnitude += std::fabs(term);
            }
            ASSERT_LE(std::fabs(y[size_t{t} * padded(p.n) + i] - want), (kShortSum / 2 + 2) * 0x1p-11 * magnitude)
                << "row " << t << " column " << i << ", expected " << want;
        }
    }
}

}  // namespace
}  // namespace lorad::gpu::testing::registers_test
