// Which form of products follows from what was measured, and how that is remembered; without a device.
#include "gpu/kernels/tuning/measured_products.h"

#include <gmock/gmock.h>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/products/register_tiles.h"
#include "proto/base/format.h"
#include "tests/support/planned_devices.h"

namespace lorad::gpu::testing::measured_products_test {
namespace {

using lorad::testing::PlannedDevice;
using lorad::testing::text_of;
using lorad::testing::without_matrices;
using ::testing::HasSubstr;

constexpr uint32_t kSplits = 16;

MeasuredProduct gate_up(uint32_t rows, std::vector<MeasuredForm> forms) {
    return {.n = 37888, .k = 3584, .rows = rows, .max_splits = kSplits, .forms = std::move(forms)};
}

Product product_of(uint32_t rows) {
    return {.n = 37888, .k = 3584, .type = ScalarType::kF16, .rows = rows, .max_splits = kSplits};
}

const MeasuredForm kTable{{.tile = 4, .short_sum = kShortSum}, 100};

TEST(MeasuredProducts, TheTableIsKeptUnlessAnotherFormIsFasterByMoreThanChance) {
    const auto chosen = [](std::vector<MeasuredForm> forms) -> int {
        const MeasuredProduct product = gate_up(64, forms);
        const MeasuredForm* const better = product.better();
        return better == nullptr ? -1 : static_cast<int>(better - product.forms.data());
    };
    const ProductForm f32{.tile = 4}, wide{.tile = 3, .short_sum = kShortSum};
    EXPECT_EQ(chosen({kTable}), -1);
    EXPECT_EQ(chosen({kTable, {f32, 120}, {wide, 130}}), -1);
    EXPECT_EQ(chosen({kTable, {f32, 96}, {wide, 130}}), -1) << "4 % are chance";
    EXPECT_EQ(chosen({kTable, {f32, 95}, {wide, 130}}), 1);
    EXPECT_EQ(chosen({kTable, {f32, 90}, {wide, 80}}), 2) << "the fastest";
    EXPECT_EQ(chosen({}), -1);
}

TEST(MeasuredProducts, TheLineOfARecordIsReadAsItWasWritten) {
    MeasuredProducts measured;
    EXPECT_EQ(MeasuredProducts::parse(measured.text())->all().size(), 0u);
    measured.add(gate_up(8, {kTable, {{.tile = 0, .cut = -1}, 12.375}, {{.tile = kTiledForm}, 1e6}}));
    measured.add({.n = 512, .k = 64, .type = ScalarType::kBf16, .rows = 512, .max_splits = 1, .forms = {{{}, 3.5}}});
    const std::string text = measured.text();
    EXPECT_EQ(text, "37888x3584 f16 8/16: 4/16/0=100.000 0/0/-1=12.375 255/0/0=1000000.000;512x64 bf16 512/1: "
                    "0/0/0=3.500");
    const std::optional<MeasuredProducts> read = MeasuredProducts::parse(text);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->text(), text);
    ASSERT_EQ(read->all().size(), 2u);
    EXPECT_EQ(read->all()[0].forms[1].form, (ProductForm{.tile = 0, .cut = -1}));
    EXPECT_EQ(read->all()[0].forms[1].us, 12.375);
    EXPECT_EQ(read->all()[1].type, ScalarType::kBf16);
}

TEST(MeasuredProducts, WhatIsNoSuchLineIsNotRead) {
    const std::string good = "512x64 f16 8/16: 4/16/0=100.5 0/0/0=12.3";
    ASSERT_TRUE(MeasuredProducts::parse(good));
    for (const char* bad : {"",
                            "none ",
                            "512x64",
                            "512x64 f16 8/16:",
                            "512x64 f32 8/16: 0/0/0=1",
                            "512x64 f16 9/16: 0/0/0=1",
                            "512x64 f16 8/0: 0/0/0=1",
                            "0x64 f16 8/16: 0/0/0=1",
                            "512x64 f16 8/16: 77/0/0=1",
                            "512x64 f16 8/16: 0/7/0=1",
                            "512x64 f16 8/16: 0/0/2=1",
                            "512x64 f16 8/16: 255/16/0=1",
                            "512x64 f16 8/16: 0/0/0=0",
                            "512x64 f16 8/16: 0/0/0=-1",
                            "512x64 f16 8/16: 0/0/0=inf",
                            "512x64 f16 8/16: 0/0/0=nan",
                            "512x64 f16 8/16: 0/0/0=1;",
                            "512x64 f16 8/16: 0/0/0=1 x",
                            "-5x64 f16 8/16: 0/0/0=1",
                            "99999999999x64 f16 8/16: 0/0/0=1"})
        EXPECT_FALSE(MeasuredProducts::parse(bad)) << bad;
    for (size_t n = 1; n < good.size(); ++n) {  // cut short: nothing, or the same with fewer forms or digits
        const auto part = MeasuredProducts::parse(good.substr(0, n));
        if (part) {
            EXPECT_LE(part->text().size(), good.size() + 10) << n;
        }
    }
}

class MeasuredPlans : public ::testing::Test {
  protected:
    std::optional<MatmulPlan> plan(const Product& product) const { return ProductPlanner(device_.facts).plan(product); }

    PlannedDevice device_{"portable", without_matrices(), KernelPath::kAuto};
};

TEST_F(MeasuredPlans, FollowWhatIsFasterForSuchRowsAlone) {
    const std::optional<MatmulPlan> few = plan(product_of(8)), some = plan(product_of(64)),
                                    many = plan(product_of(512));
    const ProductForm table{.tile = some->tile, .short_sum = some->short_sum};
    ASSERT_EQ(some->short_sum, kShortSum);
    const ProductForm other{.tile = some->tile, .short_sum = 0};
    device_.facts.measured.add(gate_up(64, {{table, 400}, {other, 200}}));
    for (const uint32_t rows : {17u, 40u, 64u, 128u}) {
        const std::optional<MatmulPlan> now = plan(product_of(rows));
        EXPECT_EQ(now->short_sum, 0u) << rows;
        EXPECT_EQ(now->tile, some->tile) << rows;
        EXPECT_TRUE(now->is_measured);
        EXPECT_THAT(describe(*now), HasSubstr(", as measured on this device"));
    }
    EXPECT_EQ(plan(product_of(8)), few);
    EXPECT_EQ(plan(product_of(512)), many);
    Product other_size = product_of(64), other_type = product_of(64), packed = product_of(64), whole = product_of(64);
    other_size.n = 4608;
    other_type.type = ScalarType::kBf16;
    packed.formats = 1u << number_of(WeightFormat::kQ8_0);
    whole.max_splits = 1;
    for (const Product& product : {other_size, other_type, packed, whole})
        EXPECT_FALSE(plan(product)->is_measured) << text_of(plan(product));
}

TEST_F(MeasuredPlans, KeepTheTableWithoutAMargin) {
    const std::optional<MatmulPlan> before = plan(product_of(64));
    const ProductForm table{.tile = before->tile, .short_sum = before->short_sum};
    device_.facts.measured.add(gate_up(64, {{table, 400}, {{.tile = before->tile}, 385}}));
    EXPECT_EQ(plan(product_of(64)), before);
}

TEST_F(MeasuredPlans, CutKAsItWasMeasured) {
    Product down = {.n = 3584, .k = 18944, .type = ScalarType::kF16, .rows = 8, .max_splits = kSplits};
    const std::optional<MatmulPlan> before = plan(down);
    ASSERT_GT(before->n_splits, 1u);
    for (const int32_t cut : {-1, 1}) {
        PlannedDevice device("portable", without_matrices(), KernelPath::kAuto);
        const ProductForm table{.tile = before->tile, .short_sum = before->short_sum};
        ProductForm other = table;
        other.cut = cut;
        device.facts.measured.add(
            {.n = down.n, .k = down.k, .rows = 8, .max_splits = kSplits, .forms = {{table, 100}, {other, 50}}});
        const std::optional<MatmulPlan> now = ProductPlanner(device.facts).plan(down);
        EXPECT_EQ(now->tile, before->tile);
        if (cut > 0) {
            EXPECT_TRUE(now->n_splits > before->n_splits || before->n_splits == kSplits);
        } else {
            EXPECT_LT(now->n_splits, before->n_splits);
        }
        EXPECT_LE(now->n_splits, down.max_splits);
        EXPECT_EQ(now->k_per_split % kWeightAlign, 0u);
        EXPECT_GE(now->n_splits * now->k_per_split, padded(down.k));
    }
}

TEST_F(MeasuredPlans, TakeTilesInSharedMemoryWhereTheyAreFaster) {
    const std::optional<MatmulPlan> before = plan(product_of(512));
    const ProductForm table{.tile = before->tile, .short_sum = before->short_sum};
    device_.facts.measured.add(gate_up(512, {{table, 4000}, {{.tile = kTiledForm}, 3000}}));
    EXPECT_EQ(plan(product_of(512))->variant, MatmulVariant::kTiled);
    EXPECT_EQ(plan(product_of(2048))->variant, MatmulVariant::kTiled);
    EXPECT_EQ(plan(product_of(64))->variant, MatmulVariant::kRegisters);
}

TEST_F(MeasuredPlans, DoNotChangeWhatMustNotDependOnTheBatch) {
    PlannedDevice invariant("batch invariant", without_matrices(), KernelPath::kAuto, true);
    const auto text = [&] {
        std::string all;
        for (const uint32_t rows : {1u, 8u, 64u, 512u})
            all += text_of(ProductPlanner(invariant.facts).plan(product_of(rows)));
        return all;
    };
    const std::string before = text();
    for (const uint32_t rows : kMeasuredRows)
        invariant.facts.measured.add(gate_up(rows, {kTable, {{.tile = 3}, 1}, {{.tile = kTiledForm}, 2}}));
    EXPECT_EQ(text(), before);
}

TEST_F(MeasuredPlans, WithoutShortSumsNoneComeBack) {
    PlannedDevice exact("portable f32", without_matrices(), KernelPath::kPortableF32);
    exact.facts.measured.add(gate_up(64, {{{.tile = 4}, 100}, {{.tile = 4, .short_sum = kShortSum}, 10}}));
    EXPECT_EQ(ProductPlanner(exact.facts).plan(product_of(64))->short_sum, 0u);
}

}  // namespace
}  // namespace lorad::gpu::testing::measured_products_test
