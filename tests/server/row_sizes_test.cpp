#include "server/engine/row_sizes.h"

#include <gtest/gtest.h>

namespace lorad::server::row_sizes_test {
namespace {

TEST(RowSizes, AStepTakesTheTimeOfTheNextLargerSize) {
    const RowSizes sizes({16, 24, 32, 48, 64, 96, 128}, 100);
    EXPECT_EQ(sizes.largest(), 100u);
    EXPECT_EQ(sizes.rounded_up(97), 100u);
    EXPECT_EQ(sizes.rounded_up(96), 96u);
    EXPECT_EQ(sizes.rounded_up(300), 300u);
    EXPECT_EQ(sizes.rounded_down(99), 96u);
    EXPECT_EQ(sizes.rounded_down(128), 100u);
    EXPECT_EQ(sizes.rounded_down(5), 5u);
    EXPECT_EQ(sizes[sizes.index_of(33)], 48u);
    EXPECT_EQ(sizes.index_of(101), sizes.n());
}

}  // namespace
}  // namespace lorad::server::row_sizes_test
