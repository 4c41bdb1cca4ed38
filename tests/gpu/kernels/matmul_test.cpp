#include "gpu/kernels/launch.h"
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

    MatmulPlan plan(const Problem& p, MatmulVariant variant, uint32_t row_tile, uint32_t column_tile,
                    uint32_t n_splits) {
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
        execute([&](Recorder& recorder) { kernels_->products.record(recorder, plan, {.product = params}); });
        return content<float>(y, plan.n_splits * split_stride);
    }

    void check_variants(bool each_type);
    void check_unrolled(bool each_type);

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

// Each shape with each type of weights, or with one of them in turn.
void Matmul::check_variants(bool each_type) {
    struct Shape {
        uint32_t n, k, n_rows, bucket;
    };
    const Shape shapes[] = {{96, 250, 1, 1},  {112, 96, 3, 4},    {250, 576, 7, 8},
                            {64, 64, 13, 16}, {70, 1030, 33, 48}, {130, 192, 70, 96}};
    uint32_t n_problems = 0;
    uint32_t turn = 0;  // every pipeline costs time to build, so types and tiles change together
    for (Shape s : shapes) {
        for (Type weight : reference::kTypes) {
            const bool is_its_turn = each_type || weight == reference::kTypes[turn / 3 % 3];
            ++turn;
            if (!is_its_turn) continue;
            ++n_problems;
            Problem p = make(s.n, s.k, s.n_rows, s.bucket, weight, turn % 2 == 0 ? Type::kF32 : weight);
            uint32_t n_splits = 1 + turn % 3;
            if (s.bucket <= 8) check(p, plan(p, MatmulVariant::kMatvec, s.bucket, s.bucket <= 4 ? 2 : 1, n_splits));
            check(p, plan(p, MatmulVariant::kLanes, s.bucket <= 4 ? s.bucket : 8, 1, n_splits));
            check(p, plan(p, MatmulVariant::kTiled, s.bucket <= 16 ? 16 : s.bucket <= 48 ? 32 : 64, 64, n_splits));
        }
    }
    EXPECT_EQ(n_problems, std::size(shapes) * (each_type ? std::size(reference::kTypes) : 1));
}

TEST_F(Matmul, PortableVariantsMatchTheReference) { check_variants(false); }

class SlowMatmul : public Matmul {};

TEST_F(SlowMatmul, EachPortableVariantMatchesTheReferenceWithEachType) { check_variants(true); }

TEST_F(Matmul, ThePlanOfEveryRowCountWorks) {
    for (uint32_t rows : {1u, 2u, 3u, 6u, 8u, 12u, 16u, 24u, 48u, 70u}) {
        Problem p = make(192, 250, rows, rows, Type::kBf16, Type::kF32);
        MatmulPlan planned =
            *kernels_->products.plan({.n = p.n, .k = p.k, .type = ScalarType::kBf16, .rows = rows, .max_splits = 4});
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

// On the software device that has them: every type, few rows and many, k in one piece and in equal ones, numbers
// of workgroups with none to four digits; and a row's bits whatever its step. Each shape with each type of weights, or
// with f32 and one type of 16 bits in turn.
void Matmul::check_unrolled(bool each_type) {
    struct Shape {
        uint32_t n, k, max_splits, n_splits, rows;
    };
    uint32_t turn = 0;
    for (const Shape s : {Shape{72, 250, 16, 1, 5}, Shape{64, 1000, 16, 2, 5}, Shape{64, 1000, 1, 1, 5},
                          Shape{32900, 60, 1, 1, 5}, Shape{130, 60, 1, 1, 69}}) {
        ++turn;
        for (const Type type : reference::kTypes) {
            // f32 has a kernel of its own.
            if (!each_type && type != Type::kF32 && type != (turn % 2 == 0 ? Type::kF16 : Type::kBf16)) continue;
            const Problem many = make(s.n, s.k, s.rows, s.rows + 1, type, Type::kF32);
            const MatmulPlan plan = *kernels_->products.plan(
                {.n = s.n, .k = s.k, .type = scalar(type), .rows = many.bucket, .max_splits = s.max_splits});
            ASSERT_STREQ(variant_name(plan), type == Type::kF32 ? "matmul_unrolled" : "matmul_unrolled_16");
            EXPECT_EQ(plan.n_splits, s.n_splits);
            check(many, plan);
            Problem one = many;
            one.n_rows = one.bucket = 1;
            one.x.assign(many.x.begin() + 3 * s.k, many.x.begin() + 4 * s.k);
            const MatmulPlan alone_plan = *kernels_->products.plan(
                {.n = s.n, .k = s.k, .type = scalar(type), .rows = 1, .max_splits = s.max_splits});
            ASSERT_NE(alone_plan.row_tile, plan.row_tile);
            const std::vector<float> together = multiply(many, plan), alone = multiply(one, alone_plan);
            for (uint32_t split = 0; split < plan.n_splits; split++) {
                const float* const from_many =
                    &together[(size_t{split} * (many.bucket + kSlackRows) + 3) * padded(s.n)];
                EXPECT_EQ(0, std::memcmp(&alone[size_t{split} * (1 + kSlackRows) * padded(s.n)], from_many,
                                         s.n * sizeof(float)))
                    << "split " << split;
            }
        }
    }
}

TEST_F(Matmul, UnrolledProductsMatchTheReferenceAndKeepARowsBits) {
    if (!has_software_lanes(device().capabilities())) GTEST_SKIP() << "for software devices with subgroups of 8";
    check_unrolled(false);
    // A long k that equal pieces do not divide is left to the other kernel.
    EXPECT_STREQ(variant_name(*kernels_->products.plan({.n = 64, .k = 64 * 61, .type = ScalarType::kF16, .rows = 1})),
                 "matmul_lanes");
}

TEST_F(SlowMatmul, UnrolledProductsMatchTheReferenceWithEachType) {
    if (!has_software_lanes(device().capabilities())) GTEST_SKIP() << "for software devices with subgroups of 8";
    check_unrolled(true);
}

TEST_F(Matmul, BatchInvariantPlansDifferOnlyInTheirTiles) {
    auto invariant = must(KernelSet::create(device(), {.path = KernelPath::kPortable, .batch_invariant = true}));
    MatmulPlan one =
        *invariant->products.plan({.n = 3584, .k = 18944, .type = ScalarType::kBf16, .rows = 1, .max_splits = 8});
    for (uint32_t rows : {2u, 8u, 9u, 64u, 512u}) {
        MatmulPlan many = *invariant->products.plan(
            {.n = 3584, .k = 18944, .type = ScalarType::kBf16, .rows = rows, .max_splits = 8});
        EXPECT_EQ(many.variant, one.variant);
        EXPECT_EQ(many.n_splits, one.n_splits);
        EXPECT_EQ(many.k_per_split, one.k_per_split);
    }
}

}  // namespace
}  // namespace lorad::gpu::testing::matmul_test
