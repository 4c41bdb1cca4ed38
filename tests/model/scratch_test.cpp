#include "model/forward/scratch.h"

#include <vector>

#include <gtest/gtest.h>

namespace lorad::model::scratch_test {
namespace {

// What products write (whole row tiles of each split, but none of the rows in front in the later ones) must not
// overlap, and fit.
TEST(Scratch, PartsOfAProductLieApart) {
    struct Case {
        uint32_t rows, row_tile, whole_rows, n_splits;
    };
    for (const Case& c : {Case{2048, 128, 1152, 4}, Case{2048, 128, 1920, 3}, Case{200, 128, 128, 8},
                          Case{100, 64, 0, 3}, Case{8, 16, 0, 7}, Case{2048, 128, 0, 1}}) {
        Matrix w;
        w.n_padded = 64;
        gpu::MatmulPlan plan;
        plan.rows = c.rows;
        plan.row_tile = c.row_tile;
        plan.whole_rows = c.whole_rows;
        plan.n_splits = c.n_splits;
        std::vector<uint32_t> n_writers(product_elements(w, plan) / w.n_padded);
        for (uint32_t split = 0; split < c.n_splits; split++) {
            for (uint32_t row = split == 0 ? 0 : c.whole_rows; row < round_up(c.rows, c.row_tile); row++) {
                const uint64_t at = uint64_t{split} * split_stride(w, plan) / w.n_padded + row;
                ASSERT_LT(at + gpu::kSlackRows, n_writers.size()) << "slack rows behind may be read";
                EXPECT_EQ(n_writers[at]++, 0u)
                    << "split " << split << " row " << row << " of " << c.rows << ", " << c.whole_rows << " whole";
            }
        }
    }
}

}  // namespace
}  // namespace lorad::model::scratch_test
