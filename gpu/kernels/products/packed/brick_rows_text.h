// The part of programs in PTX that multiplies up to eight rows of x by a warp's bricks of packed weights in matrices of
// 16x8 (PTX ISA, "mma.m16n8k16"). Internal to the programs that do.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/kernels/products/packed/brick_ring_text.h"

namespace lorad::gpu {

struct BrickRows {
    uint32_t stride = 0;          // of w and x, elements, a multiple of 128
    uint32_t slots = 1;           // bricks of the ring
    bool x_in_fragments = false;  // kBandFragments, else rows
    bool x_changes = false;       // x is written by the same dispatch, so its loads must see a barrier's acquire
};

// Other warps of the multiprocessor work while one waits for a brick. Lane 4 g + t has elements of rows g and g + 8 of
// w and of row g of x, and in %d0 .. 3, to which %d4 .. 7 are to be added, the sums of w's rows g, g, g + 8, g + 8 and
// x's rows 2t, 2t + 1, 2t, 2t + 1.
// A register of the program around it, beside the ring's: %has_x: row g of x exists.
class BrickRowsWriter : protected BrickRingWriter {
  protected:
    BrickRowsWriter(WeightFormat format, ScalarType type, const BrickRows& rows)
        : BrickRingWriter(format, type, rows.stride, rows.slots), rows_(rows) {}

    // Of x: bytes of a brick's columns.
    uint32_t x_step() const { return halves() * half_bytes(); }

    // As the ring's, with, for the surrounding program to set, %next_in_band: the place in its band of the next brick
    // to fetch.
    void declare_rows();
    void start_rows();
    // %x_begin: this lane's first words of x, of which `param` has the address; %x_at: those of %next_in_band.
    void point_at_x(size_t param);

    // The next brick to registers, and what comes into its place.
    void fetch();
    // The brick in registers. The columns of a half beyond the matrix are skipped: `skip` is a label behind it.
    void multiply(const char* skip);
    void clear_sums();
    void add_sums();
    ~BrickRowsWriter() = default;

  private:
    // The last brick of a band has a half that is not of the matrix.
    bool ends_within_brick() const { return stride_ % brick_columns(format_number()) != 0; }
    uint32_t x_registers() const { return halves() * 16; }
    // From a half of 128 columns to the next, and from eight of a lane's columns to the next.
    uint32_t half_bytes() const;
    uint32_t eight_bytes() const { return rows_.x_in_fragments ? 32 * 16 : 16; }
    void multiply_half(uint32_t half);

    const BrickRows rows_;
};

}  // namespace lorad::gpu
