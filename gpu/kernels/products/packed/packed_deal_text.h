// The part of programs in PTX that finds a range of packed_deal.h. Internal to the programs with PackedParams.
#pragma once

#include "gpu/kernels/products/packed/packed_codes_text.h"
#include "gpu/kernels/products/packed/packed_deal.h"

namespace lorad::gpu {

// Registers of the program around it: %ranges, those of the deal; %units, %unit, %bricks, %in_band, %split;
// %y, %y_at, %y_stride, %split_stride, %splits, %split_bytes; free ones: %i, %j, %is, %wide.
class PackedDealWriter : protected PackedCodesWriter {
  protected:
    // tile_bricks: of a tile's k, as the deal counts them. Others as the codes'.
    PackedDealWriter(WeightFormat format, ScalarType type, uint32_t tile_bricks, const char* load = "ld.shared",
                     bool is_pair = false)
        : PackedCodesWriter(format, type, load, is_pair), tile_bricks_(tile_bricks) {}

    // %bricks: those of range number `range`; %i: its first one of the part, which is brick %in_band of `tile`. Sets
    // %units and %unit for find_split().
    void take_range(const char* range, const char* tile) {
        line("ld.param.u32 %units, [params+{}]; ld.param.u32 %unit, [params+{}];", PACKED_PARAM(deal.units),
             PACKED_PARAM(deal.unit_bricks));
        line("mul.lo.u32 %i, {0}, %units; div.u32 %i, %i, %ranges; add.u32 %j, {0}, 1; mul.lo.u32 %j, %j, %units; "
             "div.u32 %j, %j, %ranges; sub.u32 %bricks, %j, %i; mul.lo.u32 %bricks, %bricks, %unit; mul.lo.u32 %i, %i, "
             "%unit;",
             range);
        line("div.u32 {0}, %i, {1}; mul.lo.u32 %j, {0}, {1}; sub.u32 %in_band, %i, %j;", tile, tile_bricks_);
    }

    // %split: that of the range's first tile, as many as there are ranges before this one that have some of it.
    void find_split(const char* range, const char* tile) {
        line("mul.lo.u32 %i, {}, {}; div.u32 %i, %i, %unit; add.u32 %i, %i, 1; mul.lo.u32 %i, %i, %ranges; sub.u32 %i, "
             "%i, 1; div.u32 %i, %i, %units; sub.u32 %split, {}, %i;",
             tile, tile_bricks_, range);
    }

    // %y, %y_stride, %splits and %split_bytes of the product.
    void load_y() {
        line("ld.param.u64 %y, [params+{}]; ld.param.u32 %y_stride, [params+{}]; ld.param.u32 %split_stride, "
             "[params+{}]; ld.param.u32 %splits, [params+{}]; mul.wide.u32 %split_bytes, %split_stride, 4;",
             MATMUL_PARAM(y), MATMUL_PARAM(y_stride), MATMUL_PARAM(split_stride), PACKED_PARAM(n_splits));
    }

    // The sums of `band` to split %split, and where `tile` ends zeros to those that are left; goes on to the next tile
    // then. store: what puts a lane's sums at %y_at; clear: what makes them zero.
    template <typename Store, typename Clear>
    void end_tile(const char* tile, const char* band, const char* tile_ends, Store store, Clear clear) {
        line("mul.wide.u32 %wide, {}, {}; add.u64 %y_at, %y, %wide; cvt.u64.u32 %wide, %split; mul.lo.u64 %wide, "
             "%wide, %split_bytes; add.u64 %y_at, %y_at, %wide;",
             band, kBrickRows * 4);
        store();
        clear();
        line("@!{} bra tile_done;", tile_ends);
        line("more_splits: add.u32 %split, %split, 1; setp.ge.u32 %is, %split, %splits; @%is bra splits_done; add.u64 "
             "%y_at, %y_at, %split_bytes;");
        store();
        line("bra more_splits;");
        line("splits_done: mov.u32 %split, 0; mov.u32 %in_band, 0; add.u32 {0}, {0}, 1;", tile);
        line("tile_done:");
    }

    const uint32_t tile_bricks_;
};

}  // namespace lorad::gpu
