#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::matmul_test {
namespace {

struct Problem {
    uint32_t n = 0, k = 0, n_rows = 0, bucket = 0;
    Type weight = Type::kF32, act = Type::kF32;
    std::vector<float> w, x;
};

class Matmul : public KernelTest {
  protected:
    Problem make(uint32_t n, uint32_t k, uint32_t n_rows, uint32_t bucket, Type weight, Type act) {
        Problem p{n, k, n_rows, bucket, weight, act, {}, {}};
        p.w = reference::random_values(size_t{n} * k, weight, random_);
        p.x = reference::random_values(size_t{n_rows} * k, act, random_);
        return p;
    }

    MatmulPlan plan(const Problem& p, MatmulVariant variant, uint32_t row_tile, uint32_t column_tile, uint32_t n_splits) {
        MatmulPlan plan;
        plan.variant = variant;
        plan.k_per_split = round_up(ceil_div(padded(p.k), n_splits), kWeightAlign);
        plan.n_splits = ceil_div(padded(p.k), plan.k_per_split);
        plan.row_tile = row_tile;
        plan.column_tile = column_tile;
        plan.rows = p.bucket;
        plan.weight_type = scalar(p.weight);
        plan.act_type = scalar(p.act);
        return plan;
    }

    // y [split][bucket + slack][padded n]
    std::vector<float> multiply(const Problem& p, const MatmulPlan& plan) {
        uint32_t n_padded = padded(p.n);
        uint32_t stride = padded(p.k);
        std::vector<float> w = p.w;
        w.resize(size_t{n_padded} * p.k);
        Buffer w_buffer = input(reference::encode(w, p.k, stride, p.weight));
        auto x_bytes = reference::encode(p.x, p.k, stride, p.act);
        x_bytes.resize(size_t{p.bucket + kSlackRows} * stride * bytes_of(scalar(p.act)), std::byte{0xff});
        Buffer x_buffer = input(x_bytes);
        Buffer count = input(std::vector<uint32_t>{p.n_rows});
        size_t split_stride = size_t{p.bucket + kSlackRows} * n_padded;
        Buffer y = poisoned(plan.n_splits * split_stride * 4);
        const MatmulParams params = product_params(p.n, p.k, count, w_buffer, x_buffer, y, split_stride);
        execute([&](Recorder& recorder) { kernels_->products.matmul(recorder, params, plan); });
        return content<float>(y, plan.n_splits * split_stride);
    }

    void check(const Problem& p, const MatmulPlan& plan) {
        SCOPED_TRACE(::testing::Message() << "n " << p.n << " k " << p.k << " rows " << p.n_rows << "/" << p.bucket
                                          << " types " << int(p.weight) << int(p.act) << " splits " << plan.n_splits);
        auto y = multiply(p, plan);
        uint32_t n_padded = padded(p.n);
        size_t capacity = p.bucket + kSlackRows;
        for (uint32_t t = 0; t < capacity; t++) {
            std::vector<float> row(n_padded, 0.0f);
            for (uint32_t s = 0; s < plan.n_splits; s++) {
                for (uint32_t i = 0; i < n_padded; i++) row[i] += y[(s * capacity + t) * n_padded + i];
            }
            if (t >= p.n_rows) {
                for (uint32_t i = 0; i < n_padded; i++) ASSERT_TRUE(is_poison(row[i])) << "row " << t << " was written";
                continue;
            }
            auto want = reference::multiply(p.w, reference::to_doubles({&p.x[size_t{t} * p.k], p.k}));
            expect_near(want, row.data(), sum_tolerance(p.k), 1.0 + std::sqrt(p.k) / 3, "row " + std::to_string(t));
        }
    }
};

TEST_F(Matmul, EachPortableVariantMatchesTheReference) {
    struct Shape {
        uint32_t n, k, n_rows, bucket;
    };
    const Shape shapes[] = {{96, 250, 1, 1}, {112, 96, 3, 4}, {250, 576, 7, 8}, {64, 64, 13, 16}, {70, 1030, 33, 48}, {130, 192, 70, 96}};
    uint32_t turn = 0;  // every pipeline costs time to build, so types and tiles change together
    for (Shape s : shapes) {
        for (Type weight : reference::kTypes) {
            Problem p = make(s.n, s.k, s.n_rows, s.bucket, weight, ++turn % 2 == 0 ? Type::kF32 : weight);
            uint32_t n_splits = 1 + turn % 3;
            if (s.bucket <= 8) check(p, plan(p, MatmulVariant::kMatvec, s.bucket, s.bucket <= 4 ? 2 : 1, n_splits));
            check(p, plan(p, MatmulVariant::kLanes, s.bucket <= 4 ? s.bucket : 8, 1, n_splits));
            check(p, plan(p, MatmulVariant::kTiled, s.bucket <= 16 ? 16 : s.bucket <= 48 ? 32 : 64, 64, n_splits));
        }
    }
}

TEST_F(Matmul, ThePlanOfEveryRowCountWorks) {
    for (uint32_t rows : {1u, 2u, 3u, 6u, 8u, 12u, 16u, 24u, 48u, 70u}) {
        Problem p = make(192, 250, rows, rows, Type::kBf16, Type::kF32);
        MatmulPlan planned = kernels_->products.plan_matmul(p.n, p.k, ScalarType::kBf16, rows, 4);
        EXPECT_LE(planned.n_splits, 4u);
        EXPECT_EQ(planned.act_type, ScalarType::kF32);
        check(p, planned);
    }
}

TEST_F(Matmul, ARowsBitsDoNotDependOnTheOtherRowsOfItsVariant) {
    Problem all = make(100, 700, 21, 24, Type::kF16, Type::kF32);
    struct Variant {
        MatmulVariant variant;
        uint32_t tile_alone, tile_together, columns_alone, columns_together;
    };
    for (Variant v : {Variant{MatmulVariant::kMatvec, 1, 8, 1, 2}, Variant{MatmulVariant::kLanes, 1, 8, 1, 1},
                      Variant{MatmulVariant::kTiled, 16, 64, 64, 64}}) {
        auto together = multiply(all, plan(all, v.variant, v.tile_together, v.columns_together, 2));
        for (uint32_t t : {0u, 9u, 20u}) {
            Problem one = all;
            one.n_rows = one.bucket = 1;
            one.x.assign(all.x.begin() + t * all.k, all.x.begin() + (t + 1) * all.k);
            auto alone = multiply(one, plan(one, v.variant, v.tile_alone, v.columns_alone, 2));
            EXPECT_EQ(0, std::memcmp(alone.data(), &together[t * padded(all.n)], all.n * 4))
                << "variant " << int(v.variant) << " row " << t;
        }
    }
}

TEST_F(Matmul, BatchInvariantPlansDifferOnlyInTheirTiles) {
    auto invariant = must(KernelSet::create(device(), {.path = KernelPath::kPortable, .batch_invariant = true}));
    MatmulPlan one = invariant->products.plan_matmul(3584, 18944, ScalarType::kBf16, 1, 8);
    for (uint32_t rows : {2u, 8u, 9u, 64u, 512u}) {
        MatmulPlan many = invariant->products.plan_matmul(3584, 18944, ScalarType::kBf16, rows, 8);
        EXPECT_EQ(many.variant, one.variant);
        EXPECT_EQ(many.n_splits, one.n_splits);
        EXPECT_EQ(many.k_per_split, one.k_per_split);
    }
}

}  // namespace
}  // namespace lorad::gpu::testing::matmul_test
