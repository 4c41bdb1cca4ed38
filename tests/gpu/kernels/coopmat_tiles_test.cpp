#include "gpu/kernels/products/coopmat_tiles.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "proto/base/format.h"

namespace lorad::gpu::coopmat_tiles_test {
namespace {

struct Product {
    uint32_t n, k;
};
// Of Qwen2.5 0.5B, 1.5B, 3B, 7B and 14B, Llama 3 1B and 8B, and the smallest there can be.
const std::vector<Product> kProducts = {
    {1152, 896},   {896, 896},    {9728, 896},   {896, 4864},   {2048, 1536},  {1536, 1536},  {17920, 1536},
    {1536, 8960},  {2560, 2048},  {2048, 2048},  {22016, 2048}, {2048, 11008}, {4608, 3584},  {3584, 3584},
    {37888, 3584}, {3584, 18944}, {7168, 5120},  {5120, 5120},  {27648, 5120}, {5120, 13824}, {3072, 2048},
    {16384, 2048}, {2048, 8192},  {6144, 4096},  {4096, 4096},  {28672, 4096}, {4096, 14336}, {64, 64},
    {64, 192},     {128, 64},     {152064, 3584}};

template <typename F>
void for_each_device(F f) {
    for (const uint32_t units : {0u, 16u, 64u, 84u, 108u, 128u, 132u}) {
        for (const uint32_t subgroup_size : {8u, 16u, 32u, 64u}) {
            for (const uint32_t shared_kib : {32u, 48u, 64u}) {
                DeviceCapabilities caps;
                caps.n_compute_units_hint = units;
                caps.subgroup_size = subgroup_size;
                caps.shared_memory_bytes = shared_kib * 1024;
                caps.max_workgroup_invocations = 1024;
                f(caps);
            }
        }
    }
}

DeviceCapabilities an_h200() {
    DeviceCapabilities caps;
    caps.n_compute_units_hint = 132;
    caps.subgroup_size = 32;
    caps.shared_memory_bytes = 48 * 1024;
    caps.max_workgroup_invocations = 1024;
    return caps;
}

// An H200 was seen to have 395 workgroups of 16x96x128 and of 64x96x64 at work at once, three on a multiprocessor. With
// as many of 32x128x128 the order of workgroups changed from step to step, so there are two.
TEST(CoopmatTiles, AsManyWorkgroupsAsRunSideBySide) {
    const auto at_once = [](uint32_t rows, uint32_t columns, uint32_t k) {
        for (const CoopmatTile& tile : kCoopmatTiles) {
            if (tile.rows == rows && tile.columns == columns && tile.k == k) return workgroups_at_once(tile, an_h200());
        }
        return 0u;
    };
    EXPECT_EQ(at_once(16, 96, 128), 3 * 132u);
    EXPECT_EQ(at_once(64, 96, 64), 3 * 132u);
    EXPECT_EQ(at_once(32, 128, 128), 2 * 132u);
    for_each_device([](const DeviceCapabilities& caps) {
        for (const CoopmatTile& tile : kCoopmatTiles) ASSERT_GE(workgroups_at_once(tile, caps), multiprocessors(caps));
    });
}

TEST(CoopmatTiles, EveryProductHasOneThatFits) {
    for_each_device([](const DeviceCapabilities& caps) {
        for (const Product& p : kProducts) {
            for (const uint32_t rows : {1u, 3u, 16u, 24u, 32u, 48u, 64u, 96u, 128u, 192u, 256u, 1024u, 2048u}) {
                const TileChoice choice = choose_tile(caps, {.n = p.n, .stride = p.k, .rows = rows, .max_splits = 16});
                const CoopmatTile& tile = kCoopmatTiles[choice.tile];
                ASSERT_GT(choice.k_per_split, 0u) << p.n << "x" << p.k << " rows " << rows;
                ASSERT_TRUE(fits(tile, p.n, p.k, caps));
                ASSERT_LE(tile.rows, kSlackRows);
                ASSERT_EQ(choice.k_per_split % tile.k, 0u);
                ASSERT_GE(uint64_t{choice.k_per_split} * choice.n_splits, p.k);
                ASSERT_LT(uint64_t{choice.k_per_split} * (choice.n_splits - 1), p.k);
            }
        }
    });
}

TEST(CoopmatTiles, WhereXMayBeInFragmentsMoreProductsTakeTheTileThatReadsThem) {
    const auto tile_of = [](const Product& p, uint32_t rows, bool in_fragments) {
        return choose_tile(an_h200(),
                           {.n = p.n, .stride = p.k, .rows = rows, .max_splits = 16, .in_fragments = in_fragments})
            .tile;
    };
    uint32_t n_rows = 0, n_blocks = 0;
    for (const Product& p : kProducts) {
        for (const uint32_t rows : {256u, 384u, 512u, 768u, 1024u, 2048u}) {
            const uint32_t in_rows = tile_of(p, rows, false), in_fragments = tile_of(p, rows, true);
            EXPECT_TRUE(in_fragments == in_rows || in_fragments == kFragmentsTile)
                << p.n << "x" << p.k << " rows " << rows;
            n_rows += in_rows == kFragmentsTile ? 1 : 0;
            n_blocks += in_fragments == kFragmentsTile ? 1 : 0;
        }
    }
    EXPECT_GT(n_blocks, n_rows + 10);
    for (const Product& p : {Product{4608, 3584}, {37888, 3584}, {3584, 18944}})
        EXPECT_EQ(tile_of(p, 2048, true), kFragmentsTile) << p.n << "x" << p.k;
}

TEST(CoopmatTiles, NeedThreadsThatFetchWholeRows) {
    DeviceCapabilities caps = an_h200();
    const auto fits_at = [&](const CoopmatTile& tile, uint32_t subgroup_size) {
        caps.subgroup_size = subgroup_size;
        return fits(tile, 37888, 3584, caps);
    };
    // 3 subgroups of 8 are 24 threads, 16 words a row.
    EXPECT_FALSE(fits_at({16, 96, 128, 3, 3, 1.0}, 8));
    for (const uint32_t size : {16u, 32u, 64u}) EXPECT_TRUE(fits_at({16, 96, 128, 3, 3, 1.0}, size)) << size;
    // 512 threads fetch 64 rows of 64 elements, which do not divide 96.
    EXPECT_FALSE(fits_at({64, 96, 64, 4, 2, 1.0}, 128));
    EXPECT_TRUE(fits_at({64, 96, 64, 4, 2, 1.0}, 32));
    for (const CoopmatTile& tile : kCoopmatTiles)
        EXPECT_TRUE(fits_at(tile, 32)) << tile.rows << "x" << tile.columns << "x" << tile.k;
}

// A row's bits must not depend on how many rows there are.
TEST(CoopmatTiles, BatchInvariantCutsOfKAreTheSameForEveryNumberOfRows) {
    for_each_device([](const DeviceCapabilities& caps) {
        for (const Product& p : kProducts) {
            for (const uint32_t max_splits : {1u, 8u, 16u}) {
                const auto of_rows = [&](uint32_t rows) {
                    return choose_tile(
                        caps,
                        {.n = p.n, .stride = p.k, .rows = rows, .max_splits = max_splits, .batch_invariant = true});
                };
                const TileChoice first = of_rows(1);
                ASSERT_GT(first.k_per_split, 0u);
                for (const uint32_t rows : {2u, 16u, 32u, 48u, 64u, 96u, 128u, 192u, 256u, 512u, 1024u, 2048u}) {
                    ASSERT_EQ(of_rows(rows).k_per_split, first.k_per_split)
                        << p.n << "x" << p.k << " rows " << rows << " multiprocessors " << caps.n_compute_units_hint;
                }
            }
        }
    });
}

TEST(CoopmatTiles, RowsInFrontAreWholeWhereTheTilesFillTheDeviceATimeAndABit) {
    uint32_t n_found = 0;
    for_each_device([&](const DeviceCapabilities& caps) {
        for (const Product& p : kProducts) {
            for (const uint32_t rows : {64u, 128u, 192u, 256u, 512u, 1024u, 1536u, 2048u}) {
                for (const bool batch_invariant : {false, true}) {
                    const TileChoice choice = choose_tile(
                        caps,
                        {.n = p.n, .stride = p.k, .rows = rows, .max_splits = 16, .batch_invariant = batch_invariant});
                    if (choice.whole_rows == 0) continue;
                    const CoopmatTile& tile = kCoopmatTiles[choice.tile];
                    ASSERT_FALSE(batch_invariant) << "a row's bits would depend on its place";
                    ASSERT_GT(rows, 128u) << "decodes and their attention know nothing of it";
                    ASSERT_TRUE(tile.pairs);
                    ASSERT_EQ(choice.whole_rows % tile.rows, 0u);
                    ASSERT_LT(choice.whole_rows, rows);
                    ASSERT_GT(choice.n_splits, 1u);
                    n_found++;
                }
            }
        }
    });
    EXPECT_GT(n_found, 1000u);
    const DeviceCapabilities h200 = an_h200();
    // 448 tiles for 264 places: nine of sixteen rows of tiles, 252, and four parts of the other 196.
    const TileChoice down = choose_tile(h200, {.n = 3584, .stride = 18944, .rows = 2048, .max_splits = 16});
    EXPECT_EQ(down.whole_rows, 1152u);
    EXPECT_EQ(down.n_splits, 4u);
    EXPECT_EQ(choose_tile(h200, {.n = 3584, .stride = 18944, .rows = 2048, .max_splits = 1}).whole_rows, 0u);
}

// As measured (docs/PERFORMANCE.md): 0.27 ms of a step with few rows for 0.33.
TEST(CoopmatTiles, OutputLayersTakeTheTilesThatWideMatricesAreFastestWith) {
    const auto name = [](uint32_t n, uint32_t rows, uint32_t max_splits) {
        const TileChoice choice =
            choose_tile(an_h200(), {.n = n, .stride = 3584, .rows = rows, .max_splits = max_splits});
        const CoopmatTile& tile = kCoopmatTiles[choice.tile];
        return lorad::format("{}x{}x{} splits {}", tile.rows, tile.columns, tile.k, choice.n_splits);
    };
    EXPECT_EQ(name(152064, 8, 1), "16x96x128 splits 1");
    EXPECT_EQ(name(152064, 64, 1), "64x96x64 splits 1");
    // Narrow ones must not follow: one workgroup of 96 columns does not fill a multiprocessor.
    EXPECT_EQ(name(3584, 8, 16), "16x64x128 splits 7");
    EXPECT_EQ(name(4608, 8, 16), "16x64x128 splits 7");
    EXPECT_EQ(name(3584, 64, 16), "64x128x64 splits 8");
    for_each_device([](const DeviceCapabilities& caps) {
        for (const Product& p : kProducts) {
            for (const uint32_t rows : {8u, 64u, 256u}) {
                const TileChoice choice = choose_tile(caps, {.n = p.n, .stride = p.k, .rows = rows, .max_splits = 16});
                const CoopmatTile& tile = kCoopmatTiles[choice.tile];
                const uint32_t n_tiles = ceil_div(rows, tile.rows) * ceil_div(p.n, tile.columns);
                ASSERT_TRUE(!tile.whole_k || n_tiles >= kWideRounds * multiprocessors(caps))
                    << p.n << "x" << p.k << " rows " << rows;
            }
        }
    });
}

TEST(CoopmatTiles, GatedProductsTakeTilesWithRoomForBothHalves) {
    uint32_t n_found = 0;
    for_each_device([&](const DeviceCapabilities& caps) {
        for (const Product& p : kProducts) {
            for (const uint32_t rows : {64u, 128u, 512u}) {
                const TileChoice choice =
                    choose_tile(caps, {.n = p.n, .stride = p.k, .rows = rows, .max_splits = 1, .gated = true});
                if (choice.k_per_split == 0) continue;
                const CoopmatTile& tile = kCoopmatTiles[choice.tile];
                ASSERT_TRUE(gates(tile, caps.subgroup_size));
                ASSERT_EQ(choice.n_splits, 1u);
                ASSERT_EQ(tile.columns % (16 * tile.subgroups_n), 0u);
                ASSERT_EQ(tile.columns / 2 % 8, 0u) << "results are written in words of 8";
                n_found++;
            }
        }
    });
    EXPECT_GT(n_found, 1000u);
}

}  // namespace
}  // namespace lorad::gpu::coopmat_tiles_test
