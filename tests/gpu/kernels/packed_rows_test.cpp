// How products of packed weights for few rows deal their bricks, as the program does it (packed_rows_text.h).
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/kernels/products/packed/packed_rows_text.h"
#include "proto/base/format.h"

namespace lorad::gpu::packed_rows_test {
namespace {

struct Case {
    uint32_t n, bricks, max_splits, warps;
};

// Each brick is multiplied once, and each split of each band is written once: by the warp whose sums are in it, or,
// with zeros, by the warp that has the band's end.
void check(const Case& c, uint32_t n_splits) {
    SCOPED_TRACE(lorad::format("{} rows of w, {} bricks, {} warps, {} splits", c.n, c.bricks, c.warps, n_splits));
    const PackedDeal deal = deal_bricks(c.n / kBrickRows, c.bricks, n_splits, c.warps);
    ASSERT_LE(deal.ranges, c.warps);
    ASSERT_LE(deal.ranges, deal.units);  // nobody is idle
    ASSERT_EQ(deal.units * deal.unit_bricks, c.n / kBrickRows * c.bricks);
    uint32_t next = 0;
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> written;
    for (uint32_t warp = 0; warp < deal.ranges; ++warp) {
        const uint32_t begin = warp * deal.units / deal.ranges * deal.unit_bricks;
        const uint32_t end = (warp + 1) * deal.units / deal.ranges * deal.unit_bricks;
        ASSERT_EQ(begin, next);
        ASSERT_LT(begin, end);
        next = end;
        const uint32_t first_unit = begin / c.bricks * c.bricks / deal.unit_bricks;
        uint32_t split = warp - ((first_unit + 1) * deal.ranges - 1) / deal.units;
        for (uint32_t band = begin / c.bricks; band * c.bricks < end; ++band) {
            ASSERT_LT(split, n_splits);
            ++written[{band, split}];
            if ((band + 1) * c.bricks > end) break;
            while (++split < n_splits) ++written[{band, split}];
            split = 0;
        }
    }
    ASSERT_EQ(next, c.n / kBrickRows * c.bricks);
    ASSERT_EQ(written.size(), size_t{c.n} / kBrickRows * n_splits);
    for (const auto& [place, times] : written)
        ASSERT_EQ(times, 1u) << "band " << place.first << " split " << place.second;
}

TEST(PackedRows, EachBrickIsMultipliedOnceAndEachSplitWrittenOnce) {
    const std::vector<Case> cases = {{37888, 14, 16, 1584}, {3584, 74, 16, 1584},  {4608, 14, 16, 1584},
                                     {512, 14, 5, 190},     {152064, 14, 1, 1584}, {3584, 14, 4, 1584},
                                     {16, 1, 16, 1584},     {16, 74, 16, 1584},    {176, 3, 4, 1584},
                                     {48, 2, 2, 7},         {896, 7, 16, 96}};
    for (const Case& c : cases) {
        const uint32_t n_splits = packed_splits(c.n / kBrickRows, c.bricks, c.max_splits, c.warps);
        EXPECT_LE(n_splits, c.max_splits);
        check(c, n_splits);
        // Parts of a matrix have the splits that the largest wants.
        check(c, 1);
        check(c, 2);
        check(c, 16);
    }
}

TEST(PackedRows, LargeMatricesMakeAllWarpsEqual) {
    EXPECT_EQ(packed_splits(37888 / kBrickRows, 14, 16, 1584), 2u);
    EXPECT_EQ(packed_splits(152064 / kBrickRows, 14, 1, 1584), 1u);
    EXPECT_EQ(packed_splits(1584, 14, 16, 1584), 1u);
}

TEST(PackedRows, ThereIsAProgramForEachFormat) {
    uint32_t n = 0;
    for (uint32_t format = kWeightsQ8_0; format < kWeightFormats; ++format) {
        if (!has_packed_rows(static_cast<WeightFormat>(format))) continue;
        ++n;
        for (const ScalarType type : {ScalarType::kF16, ScalarType::kBf16}) {
            const std::string text =
                packed_rows_text({.format = static_cast<WeightFormat>(format), .type = type, .stride = 896});
            EXPECT_NE(text.find(".entry matmul("), std::string::npos);
            EXPECT_NE(text.find(type == ScalarType::kBf16 ? "f32.bf16.bf16.f32" : "f32.f16.f16.f32"),
                      std::string::npos);
        }
    }
    EXPECT_EQ(n, 16u) << "all packed formats but the one with a table of f32";
}

}  // namespace
}  // namespace lorad::gpu::packed_rows_test
