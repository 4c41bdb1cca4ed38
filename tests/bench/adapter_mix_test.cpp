#include "bench/adapter_mix.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "bench/bench_util.h"

namespace lorad::bench::adapter_mix_test {
namespace {

TEST(AdapterMix, NamesAreKnownOrRefusedByName) {
    EXPECT_EQ(mix_named("zipf").value(), Mix::kZipf);
    const auto unknown = mix_named("pareto");
    ASSERT_FALSE(unknown.ok());
    EXPECT_NE(unknown.error().message.find("pareto"), std::string::npos);
}

TEST(AdapterMix, RowsOfOneAdapterLieSideBySideWhateverTheMix) {
    for (const Mix mix : {Mix::kIdentical, Mix::kDistinct, Mix::kUniform, Mix::kZipf}) {
        const auto rows = row_adapters(mix, 100, 7, 3);
        ASSERT_EQ(rows.size(), 100u);
        EXPECT_TRUE(std::ranges::is_sorted(rows));
        EXPECT_LT(rows.back(), 7u);
        EXPECT_EQ(rows, row_adapters(mix, 100, 7, 3));
    }
}

TEST(AdapterMix, IdenticalHasOneAdapterAndDistinctAsManyAsCanBe) {
    const auto count = [](Mix mix, uint32_t n_rows, uint32_t n_adapters) {
        const auto rows = row_adapters(mix, n_rows, n_adapters, 1);
        return std::set<uint32_t>(rows.begin(), rows.end()).size();
    };
    EXPECT_EQ(count(Mix::kIdentical, 64, 64), 1u);
    EXPECT_EQ(count(Mix::kDistinct, 64, 64), 64u);
    EXPECT_EQ(count(Mix::kDistinct, 64, 8), 8u);
    EXPECT_EQ(count(Mix::kDistinct, 8, 64), 8u);
}

TEST(AdapterMix, DrawsHaveTheDistributionThatWasAskedFor) {
    constexpr uint32_t kRows = 20000;
    const auto zipf = row_adapters(Mix::kZipf, kRows, 16, 5), uniform = row_adapters(Mix::kUniform, kRows, 16, 5);
    const auto of = [](const std::vector<uint32_t>& rows, uint32_t adapter) {
        return static_cast<double>(std::ranges::count(rows, adapter));
    };
    // Counts of some thousand: four deviations are at most 10 % of the ratio.
    EXPECT_NEAR(of(zipf, 0) / of(zipf, 1), std::pow(2, 1.1), 0.21);
    EXPECT_NEAR(of(zipf, 0) / of(zipf, 3), std::pow(4, 1.1), 0.46);
    EXPECT_NEAR(of(uniform, 0) / of(uniform, 15), 1.0, 0.16);
}

TEST(Summary, QuantilesLieBetweenTheirNeighbours) {
    const Summary s = summarize({5, 1, 2, 4, 3});
    EXPECT_DOUBLE_EQ(s.median, 3);
    EXPECT_DOUBLE_EQ(s.p10, 1.4);
    EXPECT_DOUBLE_EQ(s.p90, 4.6);
    EXPECT_DOUBLE_EQ(summarize({7}).p90, 7);
    EXPECT_DOUBLE_EQ(summarize({1, 2}).median, 1.5);
}

}  // namespace
}  // namespace lorad::bench::adapter_mix_test
