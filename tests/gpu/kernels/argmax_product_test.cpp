// The output layer's product that says rows' greatest logits, against the same product and sample_argmax, where the
// device has kernels by warpgroups.
#include <algorithm>
#include <cmath>
#include <string>

#include "gpu/kernels/products/warpgroup_tiles.h"
#include "tests/gpu/kernels/warpgroup_fixture.h"

namespace lorad::gpu::testing::argmax_product_test {
namespace {

class ArgmaxProduct : public WarpgroupTest {
  protected:
    static Product greatest(uint32_t n, uint32_t k, ScalarType type, uint32_t rows) {
        return {.n = n,
                .k = k,
                .type = type,
                .rows = rows,
                .may_be_in_fragments = true,
                .result = ProductResult::kGreatest};
    }

    void SetUp() override {
        WarpgroupTest::SetUp();
        if (IsSkipped()) return;
        for (const ScalarType type : {ScalarType::kF16, ScalarType::kBf16})
            ASSERT_TRUE(kernels_->products.plan(greatest(1000, 128, type, 64))) << "left out by its test at the start";
    }

    struct Case {
        Type type = Type::kF16;
        uint32_t n = 0, k = 0, n_rows = 0, bucket = 0;
    };
    struct Outcome {
        std::vector<int32_t> sampled;
        std::vector<SampleResult> results;
    };

    // w: [n][k], x: [n_rows][k].
    Outcome run(const Case& c, std::vector<float> w, const std::vector<float>& x, const MatmulPlan& plan,
                bool from_logits) {
        const uint32_t stride = padded(c.k), n_padded = padded(c.n);
        w.resize(size_t{n_padded} * c.k);
        const Buffer w_buffer = input(reference::encode(w, c.k, stride, c.type)),
                     x_buffer =
                         x_in_fragments(reference::encode(x, c.k, stride, c.type), stride, c.bucket, plan.x_order);
        const Buffer count = input(std::vector<uint32_t>{c.n_rows}),
                     rows = input(std::vector<LogitRow>(c.bucket, {0, kNoReadback}));
        const Buffer y = poisoned(size_t{round_up(c.bucket, plan.row_tile)} * n_padded * 4),
                     partials = poisoned(SamplingKernels::sample_partial_bytes(c.bucket));
        const Buffer sampled = poisoned(c.bucket * 4), results = poisoned(c.bucket * sizeof(SampleResult));
        const MatmulParams product = product_params(c.n, c.k, count, w_buffer, x_buffer, y, 0);
        SampleArgmaxParams params{};
        params.n_logit_rows = count.address();
        params.logits = y.address();
        params.logit_rows = rows.address();
        params.sampled = sampled.address();
        params.results = results.address();
        params.partials = partials.address();
        params.vocab = c.n;
        params.logits_stride = n_padded;
        execute([&](Recorder& recorder) {
            if (from_logits) {
                MatmulPlan sums = plan;
                sums.result = ProductResult::kSums;
                kernels_->products.record(recorder, sums, {.product = product});
                recorder.barrier();
                kernels_->sampling.sample_argmax(recorder, params, c.bucket);
                return;
            }
            kernels_->products.record(recorder, plan, {.product = product, .partials = params.partials});
            recorder.barrier();
            kernels_->sampling.sample_join(recorder, params, plan.column_tiles(c.n), c.bucket);
        });
        if (!from_logits) {
            for (const float logit : content<float>(y, size_t{c.n_rows} * n_padded))
                EXPECT_TRUE(is_poison(logit)) << "logits are written";
            // Behind the rows that there are nothing is said.
            const size_t n_parts = plan.column_tiles(c.n);
            const auto parts = content<float>(partials, size_t{c.bucket} * n_parts * 4);
            for (size_t i = size_t{c.n_rows} * n_parts * 4; i < parts.size(); i++)
                EXPECT_TRUE(is_poison(parts[i])) << "row " << i / n_parts / 4;
        }
        return {content<int32_t>(sampled, c.bucket), content<SampleResult>(results, c.bucket)};
    }

    // The same tiles add in the same order, so the same greatest logit, bit for bit.
    void check(const Case& c, const MatmulPlan& plan, const std::vector<float>& w, const std::vector<float>& x) {
        const Outcome want = run(c, w, x, plan, true), got = run(c, w, x, plan, false);
        const std::string what = describe(plan) + ", columns " + std::to_string(c.n);
        for (uint32_t t = 0; t < c.n_rows; t++) {
            EXPECT_EQ(got.sampled[t], want.sampled[t]) << what << ", row " << t;
            EXPECT_EQ(got.results[t].token, want.results[t].token) << what << ", row " << t;
            if (want.sampled[t] < 0) continue;
            EXPECT_EQ(got.results[t].max_logit, want.results[t].max_logit) << what << ", row " << t;
            EXPECT_NEAR(got.results[t].log_sum_exp, want.results[t].log_sum_exp,
                        2e-6 * std::max(1.0f, std::fabs(want.results[t].log_sum_exp)))
                << what << ", row " << t;
        }
        for (uint32_t t = c.n_rows; t < c.bucket; t++)
            EXPECT_EQ(got.sampled[t], -1) << "poison is -1 as an integer: the row beyond the count is untouched";
    }
};

TEST_F(ArgmaxProduct, IsThatOfTheLogits) {
    for (const Type type : {Type::kF16, Type::kBf16}) {
        for (uint32_t tile = 0; tile < kWarpgroupTiles.size(); tile++) {
            // The last tile moved back, columns that are none, a tile that has but one column of its own; rows that
            // fill no block, a tile, or several.
            for (const Case& c : {Case{type, 1000, 384, 20, 24}, Case{type, 577, 256, 64, 64},
                                  Case{type, 2017, 128, 33, 48}, Case{type, 320, 1152, 200, 256}}) {
                const auto w = reference::random_values(size_t{c.n} * c.k, type, random_),
                           x = reference::random_values(size_t{c.n_rows} * c.k, type, random_);
                check(c, warpgroup_plan(tile, greatest(c.n, c.k, scalar(type), c.bucket), 1, padded(c.k)), w, x);
            }
        }
    }
}

// As an output layer has them: several tiles for each workgroup, one after the other.
TEST_F(ArgmaxProduct, WorkgroupsTakeTilesInTurns) {
    const Case c{Type::kF16, 100003, 128, 17, 24};
    const auto plan = kernels_->products.plan(greatest(c.n, c.k, ScalarType::kF16, c.bucket));
    ASSERT_TRUE(plan);
    const uint32_t at_once = kWarpgroupTiles[plan->tile].at_once * device().capabilities().n_compute_units_hint;
    ASSERT_TRUE(is_persistent(plan->column_tiles(c.n), 1, 1, at_once));
    check(c, *plan, reference::random_values(size_t{c.n} * c.k, c.type, random_),
          reference::random_values(size_t{c.n_rows} * c.k, c.type, random_));
}

TEST_F(ArgmaxProduct, TiesGoToTheLowestIndexAndWhatIsNotFiniteFailsItsRow) {
    const Case c{Type::kF16, 1500, 128, 24, 24};
    const auto plan = kernels_->products.plan(greatest(c.n, c.k, ScalarType::kF16, c.bucket));
    ASSERT_TRUE(plan);
    std::vector<float> w(size_t{c.n} * c.k, 0.0f), x(size_t{c.n_rows} * c.k, 0.0f);
    const auto set = [&](uint32_t column, float value) { w[size_t{column} * c.k] = value; };
    for (const uint32_t column : {1499u, 770u, 1201u}) set(column, 2.0f);  // of different tiles; within one see below
    for (const uint32_t column : {301u, 304u, 312u, 309u}) set(column, -2.0f);
    for (uint32_t t = 0; t < c.n_rows; t++) x[size_t{t} * c.k] = t % 2 == 0 ? 1.0f : -1.0f;
    x[size_t{4} * c.k] = INFINITY;
    x[size_t{7} * c.k] = NAN;
    x[size_t{9} * c.k] = 0.0f;
    const Outcome got = run(c, w, x, *plan, false);
    for (uint32_t t = 0; t < c.n_rows; t++) {
        const int32_t want = t == 4 || t == 7 ? -1 : t == 9 ? 0 : t % 2 == 0 ? 770 : 301;
        EXPECT_EQ(got.sampled[t], want) << "row " << t;
    }
}

// One sum of a row is not finite, of one lane.
TEST_F(ArgmaxProduct, OneInfiniteLogitFailsItsRow) {
    const Case c{Type::kF16, 1500, 128, 20, 24};
    const auto plan = kernels_->products.plan(greatest(c.n, c.k, ScalarType::kF16, c.bucket));
    ASSERT_TRUE(plan);
    for (const uint32_t column : {0u, 779u, 781u, 1499u}) {
        for (const float bad : {INFINITY, -INFINITY}) {
            std::vector<float> w(size_t{c.n} * c.k, 0.25f), x(size_t{c.n_rows} * c.k, 1.0f);
            w[size_t{column} * c.k + 5] = bad;
            const Outcome got = run(c, w, x, *plan, false);
            for (uint32_t t = 0; t < c.n_rows; t++)
                EXPECT_EQ(got.sampled[t], -1) << "column " << column << ", row " << t;
        }
    }
}

TEST_F(ArgmaxProduct, IsForSomeNumbersOfRows) {
    const auto has = [&](const KernelSet& kernels, uint32_t rows) {
        return kernels.products.plan(greatest(1000, 128, ScalarType::kF16, rows)).has_value();
    };
    for (const uint32_t rows : {17u, 64u, 128u, 512u}) EXPECT_TRUE(has(*kernels_, rows)) << rows;
    for (const uint32_t rows : {1u, 16u, 65u, 127u}) EXPECT_FALSE(has(*kernels_, rows)) << rows;
    EXPECT_FALSE(kernels_->products.plan(greatest(1000, 128, ScalarType::kF32, 64)));
    EXPECT_FALSE(kernels_->products.plan(
        greatest(96 * (kSamplePartsMax + 1) + 128 * kSamplePartsMax, 128, ScalarType::kF16, 64)))
        << "more parts than there is room for";
    EXPECT_FALSE(has(*must(KernelSet::create(device(), {.batch_invariant = true})), 64));
    EXPECT_FALSE(has(*must(KernelSet::create(device(), {.left_out = {"matmul_warpgroup_argmax_f16"}})), 64));
}

}  // namespace
}  // namespace lorad::gpu::testing::argmax_product_test
