// The matmul variants above the portable ones, where the device has them; the ladder that chooses them, everywhere.
#include <array>
#include <string>

#include "gpu/kernels/kernel_ladder.h"
#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::matmul_fast_test {
namespace {

class FastMatmul : public KernelTest {
  protected:
    void SetUp() override {
        KernelTest::SetUp();
        kernels_ = must(KernelSet::create(device(), {.path = lorad::testing::best_path()}));
    }

    struct Result {
        std::vector<float> y;  // rows of n_padded, splits summed
        MatmulPlan plan;
    };

    Result multiply(uint32_t n, uint32_t k, uint32_t n_rows, uint32_t bucket, Type type, const std::vector<float>& w,
                    const std::vector<float>& x, uint32_t whole_tiles = 0) {
        MatmulPlan plan =
            *kernels_->products.plan({.n = n, .k = k, .type = scalar(type), .rows = bucket, .max_splits = 8});
        if (whole_tiles > 0) plan = with_whole_rows(plan, k, whole_tiles);
        return multiply(plan, n, k, n_rows, bucket, type, w, x);
    }

    Result multiply(const MatmulPlan& plan, uint32_t n, uint32_t k, uint32_t n_rows, uint32_t bucket, Type type,
                    const std::vector<float>& w, const std::vector<float>& x) {
        EXPECT_EQ(plan.act_type, scalar(type));
        const uint32_t n_padded = padded(n), stride = padded(k);
        std::vector<float> rows = w;
        rows.resize(size_t{n_padded} * k);
        Buffer w_buffer = input(reference::encode(rows, k, stride, type));
        auto x_bytes = reference::encode(x, k, stride, type);
        x_bytes.resize(size_t{bucket + kSlackRows} * stride * 2, std::byte{0xff});
        Buffer x_buffer = input(plan.x_in_fragments ? in_fragments(x_bytes, stride, plan.x_order) : x_bytes);
        Buffer count = input(std::vector<uint32_t>{n_rows});
        const size_t split_stride = size_t{round_up(bucket, plan.row_tile)} * n_padded;
        Buffer y = poisoned((plan.n_splits * split_stride + size_t{kSlackRows} * n_padded) * 4);
        const MatmulParams params = product_params(n, k, count, w_buffer, x_buffer, y, split_stride);
        execute([&](Recorder& recorder) { kernels_->products.record(recorder, plan, {.product = params}); });
        const auto all = content<float>(y, plan.n_splits * split_stride);
        Result result{std::vector<float>(size_t{n_rows} * n_padded), plan};
        for (uint32_t t = 0; t < n_rows; t++) {
            for (uint32_t s = 0; s < plan.n_splits; s++) {
                const float* row = &all[s * split_stride + size_t{t} * n_padded];
                if (s >= plan.splits_of(t)) {
                    EXPECT_TRUE(is_poison(row[0]) && is_poison(row[n - 1]))
                        << "split " << s << " of row " << t << " was written";
                    continue;
                }
                for (uint32_t i = 0; i < n_padded; i++) result.y[size_t{t} * n_padded + i] += row[i];
            }
        }
        return result;
    }
};

TEST_F(FastMatmul, EveryRowCountAndTypeMatchesTheReference) {
    if (matrix_types().empty()) GTEST_SKIP() << "no cooperative matrices: " << device().capabilities().name;
    struct Shape {
        uint32_t n, k;
    };
    for (const Type type : matrix_types()) {
        for (const Shape s : {Shape{64, 64}, {200, 250}, {320, 1030}, {448, 3584}}) {
            for (const uint32_t bucket : {1u, 2u, 3u, 4u, 12u, 16u, 24u, 32u, 48u, 64u, 96u, 128u, 192u, 256u, 1024u}) {
                if (bucket > 256 && s.k > 300) continue;
                const uint32_t n_rows = bucket > 3 ? bucket - 1 : bucket;
                const auto w = reference::random_values(size_t{s.n} * s.k, type, random_);
                const auto x = reference::random_values(size_t{n_rows} * s.k, type, random_);
                const Result got = multiply(s.n, s.k, n_rows, bucket, type, w, x);
                // First, last and middle rows: the reference is slow.
                for (const uint32_t t : {0u, n_rows / 2, n_rows - 1}) {
                    const auto want = reference::multiply(w, reference::to_doubles({&x[size_t{t} * s.k], s.k}));
                    expect_near(want, &got.y[size_t{t} * padded(s.n)], sum_tolerance(s.k), 1.0 + std::sqrt(s.k) / 3,
                                "n " + std::to_string(s.n) + " k " + std::to_string(s.k) + " bucket " +
                                    std::to_string(bucket) + " variant " + std::to_string(int(got.plan.variant)) +
                                    " splits " + std::to_string(got.plan.n_splits) + " row " + std::to_string(t));
                }
            }
        }
    }
}

// An output layer, whose tiles workgroups take in turns up to 64 rows, in one step of k and in several.
TEST_F(FastMatmul, EveryTileOfAWideMatrixIsThere) {
    if (matrix_types().empty()) GTEST_SKIP() << "no cooperative matrices: " << device().capabilities().name;
    const uint32_t n = 96 * (6 * multiprocessors(device().capabilities()) + 5) + 40;
    for (const Type type : matrix_types()) {
        for (const uint32_t k : {64u, 384u}) {
            const auto w = reference::random_values(size_t{n} * k, type, random_);
            for (const uint32_t n_rows : {3u, 30u, 64u, 90u}) {
                const auto x = reference::random_values(size_t{n_rows} * k, type, random_);
                const Result got = multiply(n, k, n_rows, n_rows, type, w, x);
                EXPECT_EQ(got.plan.n_splits, 1u);
                const uint32_t t = n_rows - 1;
                const auto want = reference::multiply(w, reference::to_doubles({&x[size_t{t} * k], k}));
                expect_near(want, &got.y[size_t{t} * padded(n)], sum_tolerance(k), 1.0 + std::sqrt(k) / 3,
                            "row " + std::to_string(t) + " k " + std::to_string(k));
            }
        }
    }
}

// Splits of k and more workgroups than multiprocessors, which have places of neighbouring tiles and splits.
TEST_F(FastMatmul, EveryTileAndSplitHasOnePlace) {
    if (matrix_types().empty()) GTEST_SKIP() << "no cooperative matrices: " << device().capabilities().name;
    constexpr uint32_t kK = 1536;
    constexpr size_t kPlans = 5;
    const uint32_t units = multiprocessors(device().capabilities()), n = units * 33 / 8 * 8;
    const auto w = reference::random_values(size_t{n} * kK, Type::kF16, random_);
    for (const uint32_t n_rows : {8u, 32u, 64u}) {
        const auto x = reference::random_values(size_t{n_rows} * kK, Type::kF16, random_);
        const uint32_t t = n_rows - 1;
        const auto want = reference::multiply(w, reference::to_doubles({&x[size_t{t} * kK], kK}));
        auto plans = kernels_->products.candidates(
            {.n = n, .k = kK, .type = ScalarType::kF16, .rows = n_rows, .max_splits = 8, .may_be_in_fragments = true});
        std::erase_if(plans, [&](const MatmulPlan& p) {
            const uint32_t workgroups = ceil_div(n, p.column_tile) * p.n_splits;
            return p.variant != MatmulVariant::kCoopmat || p.row_tile < n_rows || p.n_splits == 1 ||
                   workgroups <= units || workgroups % units == 0;
        });
        ASSERT_GE(plans.size(), kPlans);
        for (size_t i = 0; i < kPlans; i++) {
            const Result got = multiply(plans[i * plans.size() / kPlans], n, kK, n_rows, n_rows, Type::kF16, w, x);
            expect_near(want, &got.y[size_t{t} * padded(n)], sum_tolerance(kK), 1.0 + std::sqrt(kK) / 3,
                        "row " + std::to_string(t) + ", columns by " + std::to_string(got.plan.column_tile) +
                            ", splits " + std::to_string(got.plan.n_splits));
        }
    }
}

TEST_F(FastMatmul, RowsInFrontMayHaveAllOfKWhereThatOfTheOthersIsSplit) {
    if (matrix_types().empty()) GTEST_SKIP() << "no cooperative matrices: " << device().capabilities().name;
    constexpr uint32_t kN = 320, kK = 1030, kRows = 370, kBucket = 384;
    for (const Type type : matrix_types()) {
        const auto w = reference::random_values(size_t{kN} * kK, type, random_);
        const auto x = reference::random_values(size_t{kRows} * kK, type, random_);
        for (const uint32_t whole_tiles : {1u, 2u}) {
            const Result got = multiply(kN, kK, kRows, kBucket, type, w, x, whole_tiles);
            ASSERT_EQ(got.plan.variant, MatmulVariant::kCoopmat);
            const uint32_t end = got.plan.whole_rows;
            ASSERT_LT(end, kRows);
            for (const uint32_t t : {0u, end - 1, end, end + 1, kRows - 1}) {
                const auto want = reference::multiply(w, reference::to_doubles({&x[size_t{t} * kK], kK}));
                expect_near(want, &got.y[size_t{t} * kN], sum_tolerance(kK), 1.0 + std::sqrt(kK) / 3,
                            "row " + std::to_string(t) + ", " + std::to_string(end) + " are whole");
            }
        }
    }
}

// In fragments or in rows, the same elements are added in the same order.
TEST_F(FastMatmul, XInFragmentsGivesTheSameBits) {
    kernels_ = must(KernelSet::create(device(), {}));
    if (fragment_types().empty()) GTEST_SKIP() << "no products of fragments: " << device().capabilities().name;
    constexpr uint32_t kN = 448, kK = 1030, kRows = 500, kBucket = 512;
    kernels_ = must(KernelSet::create(device(), {.path = KernelPath::kCoopmat}));  // no products by warpgroups
    EXPECT_FALSE(
        kernels_->products.plan({.n = 4096, .k = 4096, .type = ScalarType::kF16, .rows = 2048})->x_in_fragments)
        << "nobody said that x may be";
    EXPECT_FALSE(kernels_->products
                     .plan({.n = 4096, .k = 4096, .type = ScalarType::kF16, .rows = 192, .may_be_in_fragments = true})
                     ->x_in_fragments);
    const auto invariant = must(KernelSet::create(device(), {.batch_invariant = true}));
    EXPECT_FALSE(invariant->products
                     .plan({.n = 4096, .k = 4096, .type = ScalarType::kF16, .rows = 2048, .may_be_in_fragments = true})
                     ->x_in_fragments);
    uint32_t n_mixed = 0;
    for (const Type type : fragment_types()) {
        const auto w = reference::random_values(size_t{kN} * kK, type, random_);
        const auto x = reference::random_values(size_t{kRows} * kK, type, random_);
        auto plans = kernels_->products.candidates(
            {.n = kN, .k = kK, .type = scalar(type), .rows = kBucket, .max_splits = 8, .may_be_in_fragments = true});
        plans.push_back(
            *kernels_->products.plan({.n = kN, .k = kK, .type = scalar(type), .rows = kBucket, .max_splits = 8}));
        take(plans.back(), {.tile = kFragmentsTile, .n_splits = 3, .k_per_split = 384, .x_in_fragments = true});
        plans.push_back(with_whole_rows(plans.back(), kK, 2));
        std::erase_if(plans, [](const MatmulPlan& plan) { return !plan.x_in_fragments; });
        EXPECT_GE(plans.size(), 5u);
        for (const MatmulPlan& plan : plans) {
            MatmulPlan in_rows = plan;
            in_rows.x_in_fragments = false;
            n_mixed += plan.whole_rows > 0 ? 1 : 0;
            const Result got = multiply(plan, kN, kK, kRows, kBucket, type, w, x),
                         want = multiply(in_rows, kN, kK, kRows, kBucket, type, w, x);
            ASSERT_EQ(0, std::memcmp(got.y.data(), want.y.data(), got.y.size() * 4))
                << describe(plan) << " splits " << plan.n_splits;
            const auto row = reference::multiply(w, reference::to_doubles({&x[size_t{kRows - 1} * kK], kK}));
            expect_near(row, &got.y[size_t{kRows - 1} * kN], sum_tolerance(kK), 1.0 + std::sqrt(kK) / 3, "last row");
        }
    }
    EXPECT_GE(n_mixed, 1u);
}

TEST_F(FastMatmul, ManyRowsOnTheHighestRungMatchTheReference) {
    auto forced = KernelSet::create(device(), {.path = KernelPath::kCoopmat2});
    if (!forced.ok()) GTEST_SKIP() << forced.error().message;
    kernels_ = std::move(forced).value();
    constexpr uint32_t kN = 384, kK = 320, kRows = 1530;
    for (const Type type : matrix_types()) {
        const auto w = reference::random_values(size_t{kN} * kK, type, random_);
        const auto x = reference::random_values(size_t{kRows} * kK, type, random_);
        const Result got = multiply(kN, kK, kRows, 1536, type, w, x);
        EXPECT_EQ(got.plan.variant, MatmulVariant::kCoopmat2);
        for (const uint32_t t : {0u, 127u, 128u, kRows - 1}) {
            const auto want = reference::multiply(w, reference::to_doubles({&x[size_t{t} * kK], kK}));
            expect_near(want, &got.y[size_t{t} * kN], sum_tolerance(kK), 1.0 + std::sqrt(kK) / 3,
                        "row " + std::to_string(t));
        }
    }
}

TEST_F(FastMatmul, BatchInvariantRowsHaveTheSameBitsInEveryBatch) {
    kernels_ = must(KernelSet::create(device(), {.path = lorad::testing::best_path(), .batch_invariant = true}));
    if (kernels_->act_type(ScalarType::kF16) == ScalarType::kF32)
        GTEST_SKIP() << "no cooperative matrices: " << device().capabilities().name;
    constexpr uint32_t kN = 448, kK = 1536, kRows = 130;
    const auto w = reference::random_values(size_t{kN} * kK, Type::kF16, random_);
    const auto x = reference::random_values(size_t{kRows} * kK, Type::kF16, random_);
    const Result all = multiply(kN, kK, kRows, 192, Type::kF16, w, x);
    for (const uint32_t bucket : {1u, 3u, 16u, 24u, 32u, 64u, 96u, 128u}) {
        const std::vector<float> first(x.begin(), x.begin() + size_t{bucket} * kK);
        const Result some = multiply(kN, kK, bucket, bucket, Type::kF16, w, first);
        EXPECT_EQ(0, std::memcmp(some.y.data(), all.y.data(), size_t{bucket} * padded(kN) * 4)) << "bucket " << bucket;
    }
}

TEST_F(FastMatmul, AForcedPathIsTakenOrRefused) {
    for (const KernelPath path : {KernelPath::kCoopmat, KernelPath::kCoopmat2}) {
        auto forced = KernelSet::create(device(), {.path = path});
        if (forced.ok()) {
            EXPECT_EQ(forced.value()->options().path, path);
        } else {
            EXPECT_EQ(forced.error().code, ErrorCode::kInvalidConfig);
            EXPECT_NE(forced.error().message.find("the best that works there is"), std::string::npos);
        }
    }
}

DeviceCapabilities capable() {
    DeviceCapabilities caps;
    caps.subgroup_size = caps.subgroup_size_min = caps.subgroup_size_max = 32;
    caps.matrix_functions = caps.coopmat_f16_16x8 = caps.subgroup_vote = true;
    caps.shared_memory_bytes = 48 * 1024;
    caps.max_workgroup_invocations = 1024;
    caps.int16 = caps.float16 = caps.coopmat_f16 = caps.bfloat16_coopmat = caps.coopmat2 = caps.coopmat2_bfloat16 =
        true;
    return caps;
}

TEST(KernelLadder, ACpuDeviceStaysPortableUnlessAskedOtherwise) {
    DeviceCapabilities caps = capable();
    caps.is_cpu = true;
    EXPECT_EQ(ladder_of(caps, KernelPath::kAuto).path(), KernelPath::kPortable);
    EXPECT_EQ(ladder_of(caps, KernelPath::kCoopmat).has(ScalarType::kF16), has_kernel_module("matmul_coopmat_f16"))
        << "asked for";
}

TEST(KernelLadder, NeverClimbsAboveThePathThatWasAskedFor) {
    EXPECT_EQ(ladder_of(capable(), KernelPath::kPortable).path(), KernelPath::kPortable);
    EXPECT_NE(ladder_of(capable(), KernelPath::kCoopmat).path(), KernelPath::kCoopmat2);
}

TEST(KernelLadder, HasNoRungThatNeedsAModuleLeftOut) {
    const KernelLadder whole = ladder_of(capable(), KernelPath::kCoopmat2);
    for (const std::string module : {"matmul_coopmat_f16",
                                     "matmul_coopmat_bf16",
                                     "matmul_coopmat2_f16",
                                     "matmul_coopmat2_bf16",
                                     "lora_shrink_f16",
                                     "lora_shrink_bf16",
                                     "gated_act_f16",
                                     "gated_act_bf16",
                                     "matmul_coopmat_gated_f16",
                                     "matmul_coopmat_gated_bf16",
                                     "matmul_coopmat_lora_f16",
                                     "matmul_coopmat_lora_bf16",
                                     "matmul_coopmat_gated_lora_f16",
                                     "matmul_coopmat_gated_lora_bf16",
                                     "matmul_coopmat_fragments_f16",
                                     "matmul_coopmat_fragments_bf16",
                                     "matmul_coopmat_lora_fragments_f16",
                                     "matmul_coopmat_lora_fragments_bf16",
                                     "matmul_coopmat_gated_fragments_f16",
                                     "matmul_coopmat_gated_fragments_bf16",
                                     "matmul_coopmat_gated_lora_fragments_f16",
                                     "matmul_coopmat_gated_lora_fragments_bf16",
                                     "attention_tile",
                                     "attention_tile_kv8",
                                     "attention_group",
                                     "attention_group_kv8",
                                     "attention_from_qkv",
                                     "attention_coopmat2",
                                     "attention_registers"}) {
        EXPECT_NE(ladder_of(capable(), KernelPath::kCoopmat2, {&module, 1}) == whole, has_kernel_module(module))
            << module;
    }
    const std::array<std::string, 2> left_out = {"matmul_coopmat_f16", "gated_act_bf16"};
    const KernelLadder ladder = ladder_of(capable(), KernelPath::kCoopmat2, left_out);
    EXPECT_FALSE(ladder.has(ScalarType::kF16));
    EXPECT_FALSE(ladder.has(RungId::kShrink, ScalarType::kF16)) << "which stands on it";
    EXPECT_FALSE(ladder.has(RungId::kGatedAct, ScalarType::kBf16));
    EXPECT_EQ(ladder.has(ScalarType::kBf16), whole.has(ScalarType::kBf16));
    EXPECT_EQ(ladder.has(RungId::kShrink, ScalarType::kBf16), whole.has(RungId::kShrink, ScalarType::kBf16));
    EXPECT_EQ(ladder.has(RungId::kAttentionGroup), whole.has(RungId::kAttentionGroup));
}

TEST(KernelLadder, FragmentsAreForSubgroupsOf32WithRoomForTheirTile) {
    const auto offers = [](auto&& change, ScalarType type) {
        DeviceCapabilities caps = capable();
        change(caps);
        return ladder_of(caps, KernelPath::kAuto).has(RungId::kFragments, type);
    };
    for (const ScalarType type : {ScalarType::kF16, ScalarType::kBf16}) {
        const bool there = has_kernel_module(type == ScalarType::kF16 ? "matmul_coopmat_fragments_f16"
                                                                      : "matmul_coopmat_fragments_bf16");
        EXPECT_EQ(offers([](DeviceCapabilities&) {}, type), there);
        EXPECT_FALSE(offers([](DeviceCapabilities& caps) { caps.subgroup_size = 16; }, type));
        EXPECT_FALSE(offers([](DeviceCapabilities& caps) { caps.subgroup_size = 64; }, type));
        EXPECT_FALSE(offers([](DeviceCapabilities& caps) { caps.shared_memory_bytes = 32 * 1024; }, type));
        EXPECT_EQ(offers([](DeviceCapabilities& caps) { caps.int16 = false; }, type),
                  there && type == ScalarType::kF16);
    }
}

TEST(KernelLadder, LeavesABf16ModelPortableWhereOnlyF16Works) {
    DeviceCapabilities caps = capable();
    caps.bfloat16_coopmat = caps.coopmat2_bfloat16 = false;
    EXPECT_FALSE(ladder_of(caps, KernelPath::kAuto).has(ScalarType::kBf16));
    EXPECT_EQ(ladder_of(caps, KernelPath::kAuto).has(ScalarType::kF16), has_kernel_module("matmul_coopmat_f16"));
}

}  // namespace
}  // namespace lorad::gpu::testing::matmul_fast_test
