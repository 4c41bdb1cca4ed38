// Products by warpgroups: the choice of tiles and the text of the program everywhere, the products where the device has
// such kernels.
#include <cmath>
#include <set>
#include <string>

#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/kernels/products/warpgroup_direct_text.h"
#include "gpu/kernels/products/warpgroup_text.h"
#include "gpu/kernels/products/warpgroup_tiles.h"
#include "tests/gpu/kernels/warpgroup_fixture.h"

namespace lorad::gpu::testing::warpgroup_test {
namespace {

TEST(WarpgroupTiles, FitWhatAModuleGets) {
    for (const WarpgroupTile& tile : kWarpgroupTiles) {
        EXPECT_LE(tile.shared_bytes(), 48u * 1024) << tile.columns;
        EXPECT_LE(tile.at_once * (tile.shared_bytes() + 1024), 64u * 1024) << tile.columns;
        EXPECT_LE(tile.rows(), kSlackRows) << tile.columns;
        EXPECT_TRUE(tile.columns % tile.part == 0 && tile.part % 8 == 0 && tile.part <= 256) << tile.columns;
    }
}

TEST(WarpgroupTiles, SplitsCoverKOnceAndFillTheDevice) {
    for (const uint32_t n : {128u, 448u, 3584u, 4608u, 37888u, 152064u}) {
        for (const uint32_t stride : {64u, 1088u, 3584u, 18944u}) {
            for (const uint32_t rows : {48u, 64u, 96u, 128u, 256u, 2048u}) {
                for (const bool gated : {false, true}) {
                    const WarpgroupChoice choice = choose_warpgroup_tile({.n = n,
                                                                          .stride = stride,
                                                                          .rows = rows,
                                                                          .max_splits = gated ? 1u : 16u,
                                                                          .multiprocessors = 132,
                                                                          .gated = gated});
                    const std::string what =
                        std::to_string(n) + "x" + std::to_string(stride) + ", rows " + std::to_string(rows);
                    ASSERT_EQ(choice.k_per_split == 0, rows <= 64 && stride % 128 != 0)
                        << what << ": tiles of few rows take 128 of k at once";
                    if (choice.k_per_split == 0) continue;
                    EXPECT_EQ(choice.k_per_split % kWarpgroupTiles[choice.tile].k, 0u) << what;
                    EXPECT_GE(choice.n_splits * choice.k_per_split, stride) << what;
                    EXPECT_LT((choice.n_splits - 1) * choice.k_per_split, stride) << what;
                    EXPECT_LE(choice.n_splits, gated ? 1u : 16u) << what;
                    EXPECT_TRUE(
                        fits(kWarpgroupTiles[choice.tile], {.n = n, .stride = stride, .rows = rows, .gated = gated}))
                        << what;
                }
            }
        }
    }
    // down of 256 rows has 56 tiles of 128x128 for 264 places.
    EXPECT_GE(choose_warpgroup_tile({.n = 3584, .stride = 18944, .rows = 256, .max_splits = 16, .multiprocessors = 132})
                  .n_splits,
              3u);
    // Tiles that sweeps found best, of an H100 for 64 rows and of an H200 for more (docs/PERFORMANCE.md).
    const auto columns_of = [](uint32_t n, uint32_t stride, uint32_t rows, bool gated) {
        const WarpgroupTile& tile = kWarpgroupTiles[choose_warpgroup_tile({.n = n,
                                                                           .stride = stride,
                                                                           .rows = rows,
                                                                           .max_splits = gated ? 1u : 16u,
                                                                           .multiprocessors = 132,
                                                                           .gated = gated})
                                                        .tile];
        return std::pair(tile.columns, tile.slots);
    };
    EXPECT_EQ(columns_of(37888, 3584, 64, false), std::pair(96u, 2u));
    EXPECT_EQ(columns_of(37888, 3584, 64, true), std::pair(96u, 2u));
    EXPECT_EQ(columns_of(3584, 18944, 64, false), std::pair(128u, 3u));
    EXPECT_EQ(columns_of(152064, 3584, 64, false), std::pair(96u, 2u)) << "four tiles for each workgroup";
    EXPECT_EQ(columns_of(37888, 3584, 128, true), std::pair(288u, 8u));
    EXPECT_EQ(columns_of(37888, 3584, 256, true), std::pair(288u, 8u))
        << "two rounds, where 128 columns are two and a bit";
    EXPECT_EQ(columns_of(3584, 18944, 256, false), std::pair(224u, 6u));
    EXPECT_EQ(columns_of(152064, 3584, 256, false), std::pair(128u, 3u))
        << "nine rounds, and memory is what it waits for";
    EXPECT_EQ(columns_of(37888, 3584, 2048, true), std::pair(256u, 6u));
    EXPECT_EQ(columns_of(3584, 18944, 2048, false), std::pair(224u, 6u));
    EXPECT_EQ(columns_of(4608, 3584, 2048, false), std::pair(288u, 8u));
    EXPECT_EQ(
        choose_warpgroup_tile({.n = 37888, .stride = 3584, .rows = 2048, .max_splits = 16, .multiprocessors = 132})
            .n_splits,
        1u);
    EXPECT_EQ(choose_warpgroup_tile({.n = 64, .stride = 64, .rows = 256, .max_splits = 1, .multiprocessors = 132})
                  .k_per_split,
              0u)
        << "no tile is that narrow";
}

TEST(PrefetchPages, AreAllThatAMatrixLiesIn) {
    constexpr uint64_t kPage = kPrefetchPageBytes;
    EXPECT_EQ(pages_to_prefetch(5 * kPage, 0).n, 0u);
    EXPECT_EQ(pages_to_prefetch(5 * kPage + 256, 0).n, 0u);
    EXPECT_EQ(pages_to_prefetch(5 * kPage, 3 * kPage).n, 3u);
    EXPECT_EQ(pages_to_prefetch(5 * kPage, 3 * kPage + 1).n, 4u);
    EXPECT_EQ(pages_to_prefetch(5 * kPage + 256, 3 * kPage).n, 4u);
    EXPECT_EQ(pages_to_prefetch(5 * kPage + 256, 3 * kPage - 256).n, 3u);
    EXPECT_EQ(pages_to_prefetch(5 * kPage + 256, 3 * kPage).begin, 5 * kPage + 256);
}

TEST(WarpgroupText, SaysWhatTheTileSays) {
    std::set<std::string> texts;
    for (const WarpgroupTile& tile : kWarpgroupTiles) {
        for (const ScalarType type : {ScalarType::kF16, ScalarType::kBf16}) {
            for (const uint32_t gated_rows : {0u, 18944u}) {
                if (gated_rows > 0 && !tile.may_gate()) continue;
                const std::string text = warpgroup_text(
                    {.tile = tile, .type = type, .stride = 3584, .row_blocks = 0, .gated_rows = gated_rows});
                const uint32_t parts = tile.columns / tile.part;
                EXPECT_EQ(count(text, "wgmma.mma_async"), 2 * parts * tile.k / 16);
                EXPECT_EQ(count(text, type == ScalarType::kBf16 ? "k16.f32.bf16.bf16" : "k16.f32.f16.f16"),
                          2 * parts * tile.k / 16);
                EXPECT_EQ(count(text, "bar.sync"), tile.overlaps ? 2 * parts : 2 * 2 * parts)
                    << "behind the loads, and behind a product that is waited for";
                EXPECT_EQ(count(text, "wgmma.wait_group.sync.aligned 1;"), tile.overlaps ? 2 * parts : 0);
                EXPECT_EQ(count(text, "wgmma.wait_group.sync.aligned 0;"), tile.overlaps ? 1 : 2 * parts);
                EXPECT_EQ(
                    count(text, "cp.async.wait_group " + std::to_string(tile.slots - (tile.overlaps ? 3 : 1)) + ";"),
                    2 * parts);
                // Of each part that is asked for before the loop, and in it in two steps.
                const uint32_t n_asked = (tile.overlaps ? tile.slots - 2 : tile.slots) + 2 * parts,
                               load_rows = tile.threads() / (tile.k / 8);
                EXPECT_EQ(count(text, "cp.async.cg.shared.global"), n_asked * ceil_div(tile.part, load_rows));
                EXPECT_EQ(count(text, "@%last cp.async"), tile.part % load_rows == 0 ? 0 : n_asked)
                    << "rows of the next part";
                EXPECT_EQ(count(text, "ring[" + std::to_string(tile.shared_bytes()) + "]"), 1u);
                EXPECT_EQ(count(text, ".maxntid " + std::to_string(tile.threads())), 1u);
                EXPECT_EQ(count(text, "st.global.v2.f32"), gated_rows > 0 ? 0 : tile.columns / 4);
                EXPECT_EQ(count(text, "st.global.v4.b32"), gated_rows > 0 ? tile.columns / 2 / 16 : 0);
                EXPECT_EQ(count(text, "prefetch"), 0u) << "only beside adapters";
                EXPECT_EQ(count(text, "{"), count(text, "}"));
                EXPECT_TRUE(texts.insert(text).second) << "the same text twice";
            }
        }
    }
    for (const uint32_t units : {0u, 132u}) {
        const std::string text =
            warpgroup_text({.tile = kWarpgroupTiles[0], .stride = 64, .units = units, .persistent = units > 0});
        EXPECT_EQ(count(text, "%nctaid.z"), units > 0 ? 2u : 0u) << "for its place, and for its share of the tiles";
        EXPECT_EQ(count(text, "@%is bra tile;"), units > 0 ? 1u : 0u);
    }
    for (const WarpgroupTile& tile : kWarpgroupTiles) {
        const std::string text = warpgroup_text({.tile = tile, .stride = 128, .units = 132, .persistent = true});
        EXPECT_EQ(count(text, "wgmma.wait_group.sync.aligned 0; bar.sync 0;"), tile.overlaps ? 1u : 0u)
            << "the next tile's parts go where others may still read";
    }
    for (const WarpgroupTile& tile : kWarpgroupTiles) {
        const std::string text = warpgroup_text({.tile = tile, .stride = 128, .argmax = true});
        EXPECT_EQ(count(text, "st.global.v2.f32"), 0u) << "no logits";
        EXPECT_EQ(count(text, "st.global.v4.b32"), 2u) << "a thread's two rows";
        EXPECT_EQ(count(text, "ex2.approx.f32"), tile.columns / 2);
    }
    for (const WarpgroupTile& tile : kWarpgroupTiles) {
        if (!can_read_n_major(tile)) continue;
        for (const uint32_t stacked_columns : {0u, 64u}) {
            const std::string text =
                warpgroup_text({.tile = tile, .stride = 37888, .w_columns = 3584, .stacked_columns = stacked_columns});
            const uint32_t parts = tile.columns / tile.part;
            EXPECT_EQ(count(text, ", 1, 1, 1, 1;"), 2 * parts * tile.k / 16) << "all matrices of w are transposed";
            EXPECT_EQ(count(text, ", 1, 1, 1, 0;"), 0u);
            EXPECT_GT(count(text, "add.u64 %w, %w, 458752;"), 0u) << "a step is 64 rows of w";
            EXPECT_EQ(count(text, "add.u64 %stacked_w, %stacked_w, 458752;"),
                      stacked_columns > 0 ? count(text, "add.u64 %w, %w, 458752;") : 0u);
        }
    }
    const std::string few = warpgroup_text({.tile = kWarpgroupTiles[0], .stride = 64, .row_blocks = 5});
    EXPECT_EQ(count(few, "rem.u32 %first, %warp, 5;"), 1u) << "warps without rows do others' work again";
}

TEST(WarpgroupDirect, SplitsCoverKOnceAndGiveAllMultiprocessorsWork) {
    for (const uint32_t n : {1536u, 3584u, 4608u, 5120u, 25344u, 37888u}) {
        for (const uint32_t stride : {1536u, 3584u, 3648u, 18944u}) {
            for (const uint32_t rows : {17u, 64u, 65u}) {
                const DirectChoice choice =
                    choose_direct({.n = n, .stride = stride, .rows = rows, .max_splits = 16, .multiprocessors = 132});
                const std::string what =
                    std::to_string(n) + "x" + std::to_string(stride) + ", rows " + std::to_string(rows);
                if (rows > kDirectRowsMax || stride % kDirectK != 0 ||
                    n > 132 * kDirectColumnBlocksMax * kDirectColumnBlock) {
                    EXPECT_EQ(choice.k_per_split, 0u) << what;
                    continue;
                }
                if (choice.k_per_split == 0) continue;  // too many would be idle
                EXPECT_EQ(choice.k_per_split % kDirectK, 0u) << what;
                EXPECT_GE(choice.n_splits * choice.k_per_split, stride) << what;
                EXPECT_LT((choice.n_splits - 1) * choice.k_per_split, stride) << what;
                EXPECT_LE(choice.n_splits, 16u) << what;
                EXPECT_LE(choice.column_blocks, kDirectColumnBlocksMax) << what;
                EXPECT_LE(ceil_div(n / kDirectColumnBlock, choice.column_blocks) * choice.n_splits, 132u)
                    << what << ": all run at once";
            }
        }
    }
    // What the sweeps of H200s found best (docs/PERFORMANCE.md): o, down and qkv of 7B.
    const auto choice_of = [](uint32_t n, uint32_t stride) {
        const DirectChoice choice =
            choose_direct({.n = n, .stride = stride, .rows = 64, .max_splits = 16, .multiprocessors = 132});
        return std::pair(choice.column_blocks, choice.n_splits);
    };
    EXPECT_EQ(choice_of(3584, 3584), std::pair(7u, 4u));
    EXPECT_EQ(choice_of(3584, 18944), std::pair(7u, 4u));
    EXPECT_EQ(choice_of(4608, 3584), std::pair(9u, 4u));
    EXPECT_EQ(
        choose_direct(
            {.n = 4608, .stride = 3584, .rows = 64, .max_splits = 16, .multiprocessors = 132, .leaves_room = true})
            .column_blocks,
        7u)
        << "room for a shrink beside it";
    EXPECT_EQ(
        choose_direct(
            {.n = 17920, .stride = 1536, .rows = 64, .max_splits = 16, .multiprocessors = 132, .leaves_room = true})
            .column_blocks,
        9u)
        << "there is none with room";
    // Down of a smaller model, o of another one: not with fewer blocks than were measured.
    EXPECT_GE(choice_of(2048, 8192).first, 4u);
    EXPECT_GE(choice_of(4096, 4096).first, 4u);
}

TEST(WarpgroupDirect, TextSaysWhatTheProgramSays) {
    std::set<std::string> texts;
    for (const ScalarType type : {ScalarType::kF16, ScalarType::kBf16}) {
        for (uint32_t column_blocks = 1; column_blocks <= kDirectColumnBlocksMax; column_blocks++) {
            for (uint32_t row_blocks = 1; row_blocks <= 4; row_blocks++) {
                const DirectProgram program{
                    .column_blocks = column_blocks, .row_blocks = row_blocks, .type = type, .stride = 3584};
                const std::string text = warpgroup_direct_text(program), rows = std::to_string(16 * row_blocks);
                EXPECT_EQ(count(text, "wgmma.mma_async.sync.aligned.m64n" + rows +
                                          (type == ScalarType::kBf16 ? "k16.f32.bf16.bf16" : "k16.f32.f16.f16")),
                          2 * kDirectK / 16);
                EXPECT_EQ(count(text, "ld.global.L2::256B"), 2 * 2 * 2 * kDirectK / 32)
                    << "before the loop and in it, two steps, two rows";
                EXPECT_EQ(count(text, ".maxntid " + std::to_string(program.threads())), 1u);
                EXPECT_EQ(count(text, "ring[" + std::to_string(3 * 16 * row_blocks * kDirectK * 2) + "]"), 1u);
                EXPECT_LE(3 * 16 * row_blocks * kDirectK * 2, 48u * 1024) << "what a module gets";
                EXPECT_EQ(count(text, "st.global.v2.f32"), 4 * row_blocks);
                EXPECT_EQ(count(text, "prefetch.global.L2"), 1u);
                EXPECT_EQ(count(text, "{"), count(text, "}"));
                EXPECT_TRUE(texts.insert(text).second) << "the same text twice";
            }
        }
    }
}

class Warpgroup : public WarpgroupTest {
  protected:
    void SetUp() override {
        WarpgroupTest::SetUp();
        if (IsSkipped()) return;
        ASSERT_EQ(kernels_->options().path, KernelPath::kWarpgroup) << "left out by its test at the start";
    }

    struct Case {
        Type type;
        uint32_t n, k, n_rows, bucket;
    };

    static Buffer x_buffer(const Case& c, const std::vector<float>& x, uint32_t order) {
        return x_in_fragments(reference::encode(x, c.k, padded(c.k), c.type), padded(c.k), c.bucket, order);
    }

    void check(const Case& c, const MatmulPlan& plan) {
        const uint32_t n_padded = padded(c.n), stride = padded(c.k);
        auto w = reference::random_values(size_t{c.n} * c.k, c.type, random_);
        const auto x = reference::random_values(size_t{c.n_rows} * c.k, c.type, random_);
        w.resize(size_t{n_padded} * c.k);
        const Buffer w_buffer = input(reference::encode(w, c.k, stride, c.type)),
                     x_fragments = x_buffer(c, x, plan.x_order), count = input(std::vector<uint32_t>{c.n_rows});
        const size_t split_stride = size_t{round_up(c.bucket, plan.row_tile)} * n_padded;
        const Buffer y = poisoned(plan.n_splits * split_stride * 4);
        const MatmulParams params = product_params(c.n, c.k, count, w_buffer, x_fragments, y, split_stride);
        execute([&](Recorder& recorder) {
            kernels_->products.record(
                recorder, plan,
                {.product = params, .prefetch = pages_to_prefetch(w_buffer.address(), w_buffer.size())});
        });
        const auto parts = content<float>(y, plan.n_splits * split_stride);
        for (size_t i = size_t{round_up(c.n_rows, plan.row_tile)} * n_padded; i < split_stride; i++)
            ASSERT_TRUE(is_poison(parts[i])) << "a tile of rows behind the last";
        w.resize(size_t{c.n} * c.k);
        for (uint32_t t = 0; t < c.n_rows; t += c.n_rows > 40 ? 13 : 1) {
            std::vector<float> sum(c.n);
            for (uint32_t split = 0; split < plan.n_splits; split++) {
                for (uint32_t i = 0; i < c.n; i++) sum[i] += parts[split * split_stride + size_t{t} * n_padded + i];
            }
            const auto want = reference::multiply(w, reference::to_doubles({&x[size_t{t} * c.k], c.k}));
            // A matrix unit cuts off what is below a sum's last bit at each of k / 16 additions, half a unit of it on
            // the average.
            const double cut_off = std::ldexp(static_cast<double>(ceil_div(c.k, 16)), -24),
                         rounded = sum_tolerance(c.k) * (1.0 + std::sqrt(c.k) / 3);
            for (uint32_t i = 0; i < c.n; i++) {
                ASSERT_NEAR(sum[i], want[i], rounded + std::fabs(want[i]) * cut_off)
                    << describe(plan) << ", splits " << plan.n_splits << ", row " << t << ", column " << i;
            }
        }
    }

    static Product gated(Type type, uint32_t rows) {
        return {.type = scalar(type), .rows = rows, .result = ProductResult::kGated};
    }
    void check_gated(const Case& c, const MatmulPlan& plan, uint32_t y_order) {
        const uint32_t stride = padded(c.k);
        const auto w = reference::random_values(size_t{2 * c.n} * c.k, c.type, random_);
        const auto x = reference::random_values(size_t{c.n_rows} * c.k, c.type, random_);
        const Buffer w_buffer = input(reference::encode(w, c.k, stride, c.type)),
                     x_fragments = x_buffer(c, x, plan.x_order), count = input(std::vector<uint32_t>{c.n_rows});
        const size_t n_bytes = size_t{round_up(c.bucket, plan.row_tile)} * c.n * 2;
        const Buffer y = poisoned(n_bytes);
        MatmulParams params{};
        params.n_rows = count.address();
        params.w = w_buffer.address();
        params.x = x_fragments.address();
        params.y_fragments = y.address();
        params.n = params.y_stride = c.n;
        params.k = c.k;
        params.w_stride = params.x_stride = stride;
        execute([&](Recorder& recorder) {
            kernels_->products.record(recorder, plan, {.product = params, .y_order = y_order});
        });
        const auto got = content<uint16_t>(y, n_bytes / 2);
        for (uint32_t t = 0; t < c.n_rows; t += 7) {
            const auto sums = reference::multiply(w, reference::to_doubles({&x[size_t{t} * c.k], c.k}));
            for (uint32_t f = 0; f < c.n; f++) {
                const double want = sums[f] / (1.0 + std::exp(-sums[f])) * sums[c.n + f];
                const float have = decode16(got[fragment_offset(t, f, c.n, y_order) / 2], scalar(c.type));
                ASSERT_NEAR(have, want,
                            (std::fabs(want) + 0.05 * std::sqrt(c.k)) * (c.type == Type::kBf16 ? 8e-3 : 1e-3))
                    << describe(plan) << ", row " << t << ", column " << f;
            }
        }
    }
};

TEST_F(Warpgroup, EachTileMatchesTheReference) {
    uint32_t n_cases = 0;
    for (const Type type : {Type::kF16, Type::kBf16}) {
        for (uint32_t tile = 0; tile < kWarpgroupTiles.size(); tile++) {
            for (const uint32_t n_splits : {1u, 3u}) {
                // Columns that the last tile has twice, k that is no multiple of a step, rows that fill no tile, or
                // several and a bit.
                for (const Case& c :
                     {Case{type, 320, 64, 20, 32}, Case{type, 448, 1030, 3, 16}, Case{type, 330, 1150, 130, 144},
                      Case{type, 1000, 256, 300, 320}, Case{type, 512, 384, 50, 64}, Case{type, 330, 256, 3, 400}}) {
                    const uint32_t k_step = kWarpgroupTiles[tile].k, steps = padded(c.k) / k_step,
                                   split_steps = ceil_div(steps, n_splits);
                    if (padded(c.k) % k_step != 0) continue;
                    n_cases++;
                    check(c, warpgroup_plan(tile, {.type = scalar(type), .rows = c.bucket},
                                            ceil_div(steps, split_steps), split_steps * k_step));
                }
            }
        }
    }
    EXPECT_GE(n_cases, 2 * kWarpgroupTiles.size() * 2 * 4) << "two types, two numbers of splits, four to six shapes";
}

// Columns that the last workgroup has not, warps without columns, k that splits do not divide, rows that fill no block
// of 16.
TEST_F(Warpgroup, DirectMatchesTheReference) {
    ASSERT_TRUE(kernels_->products
                    .plan({.n = 4096,
                           .k = 4096,
                           .type = ScalarType::kF16,
                           .rows = 64,
                           .max_splits = 8,
                           .may_be_in_fragments = true})
                    ->variant == MatmulVariant::kWarpgroupDirect)
        << "left out by its test at the start";
    for (const Type type : {Type::kF16, Type::kBf16}) {
        for (const uint32_t column_blocks : {1u, 4u, 7u, 9u, kDirectColumnBlocksMax}) {
            for (const uint32_t n_splits : {1u, 3u}) {
                for (const Case& c :
                     {Case{type, 448, 1024, 3, 16}, Case{type, 1000, 640, 30, 32}, Case{type, 330, 1150, 40, 48},
                      Case{type, 512, 1408, 50, 64}, Case{type, 512, 384, 64, 64}}) {
                    const uint32_t steps = padded(c.k) / kDirectK, split_steps = ceil_div(steps, n_splits);
                    check(c, direct_plan(column_blocks, {.type = scalar(type), .rows = c.bucket},
                                         ceil_div(steps, split_steps), split_steps * kDirectK));
                }
            }
        }
    }
}

TEST_F(Warpgroup, EachGatedTileMatchesTheReference) {
    for (const Type type : {Type::kF16, Type::kBf16}) {
        for (uint32_t tile = 0; tile < kWarpgroupTiles.size(); tile++) {
            if (!kWarpgroupTiles[tile].may_gate()) continue;
            for (const Case& c : {Case{type, 320, 512, 200, 208}, Case{type, 192, 1150, 10, 16}}) {
                // Products behind so many rows have no other.
                for (const uint32_t y_order : {kFragmentsByColumns, kFragmentsByRows, kRowFragments})
                    check_gated(c, warpgroup_plan(tile, gated(type, c.bucket), 1, padded(c.k)), y_order);
            }
        }
    }
}

// So many tiles that workgroups take several, three by some and two by others; and as many as run at once but some,
// plain and gated.
TEST_F(Warpgroup, TilesInTurnsAndBesideEachOtherMatchTheReference) {
    const uint32_t units = device().capabilities().n_compute_units_hint;
    ASSERT_GT(units, 0u);
    for (uint32_t tile = 0; tile < kWarpgroupTiles.size(); tile++) {
        const WarpgroupTile& t = kWarpgroupTiles[tile];
        if (t.groups > 1 && !t.overlaps) continue;
        const uint32_t at_once = t.at_once * units,
                       many = round_up((2 * at_once + at_once / 3) * t.columns, kWeightAlign),
                       few = round_up((at_once - 5) * t.columns, 128);
        ASSERT_TRUE(is_persistent(many / t.columns, 1, 1, at_once));
        ASSERT_FALSE(is_persistent(few / t.columns, 1, 1, at_once));
        const Product sums{.type = ScalarType::kF16, .rows = 64};
        check({Type::kF16, many, 384, 50, 64}, warpgroup_plan(tile, sums, 1, 384));
        check({Type::kF16, few / 2, 384, 50, 64}, warpgroup_plan(tile, sums, 2, 256));
        if (!t.may_gate()) continue;
        const MatmulPlan plan = warpgroup_plan(tile, gated(Type::kBf16, 64), 1, 256);
        check_gated({Type::kBf16, few / 2, 256, 50, 64}, plan, kRowFragments);
        check_gated({Type::kBf16, many / 2, 256, 50, 64}, plan, kFragmentsByRows);
    }
}

TEST_F(Warpgroup, IsTakenForManyRowsWhereXMayBeInFragments) {
    const auto product = [](uint32_t rows, bool may_be_in_fragments, AdapterForm adapters,
                            uint32_t rank_max = kMaxRank) {
        return Product{.n = 4096,
                       .k = 4096,
                       .type = ScalarType::kF16,
                       .rows = rows,
                       .max_splits = 8,
                       .may_be_in_fragments = may_be_in_fragments,
                       .adapters = adapters,
                       .rank_max = rank_max};
    };
    const auto variant = [&](const KernelSet& kernels, uint32_t rows, bool may_be_in_fragments,
                             AdapterForm adapters = AdapterForm::kApart) {
        return kernels.products.plan(product(rows, may_be_in_fragments, adapters))->variant;
    };
    EXPECT_EQ(variant(*kernels_, 256, true), MatmulVariant::kWarpgroup);
    EXPECT_EQ(kernels_->products
                  .plan({.n = 8192,
                         .k = 4096,
                         .type = ScalarType::kF16,
                         .rows = 256,
                         .max_splits = 8,
                         .may_be_in_fragments = true,
                         .result = ProductResult::kGated})
                  ->variant,
              MatmulVariant::kWarpgroup);
    EXPECT_NE(variant(*kernels_, 256, false), MatmulVariant::kWarpgroup);
    EXPECT_NE(variant(*kernels_, 256, true, AdapterForm::kRuns), MatmulVariant::kWarpgroup);
    // Few ranks in long runs are left to who reads the sums, where that goes with warpgroups.
    const auto adds_runs = [&](const KernelSet& kernels, uint32_t rank_max, uint32_t rows) {
        return kernels.products.plan(product(rows, true, AdapterForm::kRuns, rank_max)).has_value();
    };
    EXPECT_FALSE(adds_runs(*kernels_, 16, 128));
    EXPECT_TRUE(adds_runs(*kernels_, 17, 128));
    EXPECT_TRUE(adds_runs(*kernels_, 16, 64));
    EXPECT_TRUE(adds_runs(*must(KernelSet::create(device(), {.path = KernelPath::kCoopmat})), 16, 128));
    const auto stacks = [&](const KernelSet& kernels, uint32_t rows, bool may_be_in_fragments) {
        return kernels.products.plan(product(rows, may_be_in_fragments, AdapterForm::kStacked)).has_value();
    };
    EXPECT_TRUE(stacks(*kernels_, 128, true));
    EXPECT_FALSE(stacks(*kernels_, 64, true));
    EXPECT_FALSE(stacks(*kernels_, 128, false));
    EXPECT_FALSE(stacks(*must(KernelSet::create(device(), {.left_out = {"matmul_warpgroup_stacked_f16"}})), 128, true));
    EXPECT_EQ(variant(*kernels_, 48, true), MatmulVariant::kWarpgroupDirect);
    EXPECT_NE(variant(*kernels_, 32, true), MatmulVariant::kWarpgroupDirect);
    EXPECT_EQ(variant(*must(KernelSet::create(device(), {.left_out = {"matmul_warpgroup_direct_f16"}})), 48, true),
              MatmulVariant::kWarpgroup);
    EXPECT_NE(variant(*kernels_, 96, true), MatmulVariant::kWarpgroup);
    EXPECT_NE(variant(*kernels_, 16, true), MatmulVariant::kWarpgroup);
    for (const KernelSetOptions& options :
         {KernelSetOptions{.path = KernelPath::kCoopmat}, KernelSetOptions{.batch_invariant = true},
          KernelSetOptions{.left_out = {"matmul_warpgroup_f16"}}}) {
        EXPECT_NE(variant(*must(KernelSet::create(device(), options)), 256, true), MatmulVariant::kWarpgroup);
    }
}

}  // namespace
}  // namespace lorad::gpu::testing::warpgroup_test
