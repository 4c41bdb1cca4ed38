// The part of programs in PTX that streams bricks of packed weights (weight_format.h) through a warp's ring in shared
// memory into matrices of 16x8 (PTX ISA, "mma.m16n8k16"). Internal to the programs that do.
#pragma once

#include <cstdint>

#include "gpu/kernels/products/packed/packed_codes_text.h"

namespace lorad::gpu {

struct BrickRing {
    uint32_t stride = 0;          // of w and x, elements, a multiple of 128
    uint32_t slots = 1;           // bricks of the ring
    bool x_in_fragments = false;  // kBandFragments, else rows
    bool x_changes = false;       // x is written by the same dispatch, so its loads must see a barrier's acquire
};

// A warp's bricks come by cp.async, whole and in order. It takes one into registers, asks for the one that follows in
// its place, and multiplies; other warps of the multiprocessor work while it waits. Lane 4 g + t has elements of rows g
// and g + 8 of w and of row g of x, and in %d0 .. 3, to which %d4 .. 7 are to be added, the sums of w's rows g, g,
// g + 8, g + 8 and x's rows 2t, 2t + 1, 2t, 2t + 1.
// Registers of the program around it: %lane, %t, %g; %ring, %ring_end and %slot, the ring's addresses in shared memory;
// %policy, of w in the caches; %has_x: row g of x exists; free ones: %i, %j, %is, %ptr, %wide.
class BrickRingWriter : protected PackedCodesWriter {
  protected:
    BrickRingWriter(WeightFormat format, ScalarType type, const BrickRing& ring);

    uint32_t bricks() const { return bricks_per_row(format_number(), ring_.stride); }  // of a band
    uint32_t slot_bytes() const { return brick_bytes(format_number()); }
    // Of x: bytes of a brick's columns.
    uint32_t x_step() const { return halves() * half_bytes(); }

    // All registers that are not the surrounding program's, among them, for it to set: %to_copy, bricks of the warp
    // that are not asked for yet; %from, where the next of them lies, with this lane's 16 bytes; %next_in_band, the
    // place in its band of the next brick to fetch.
    void declare_ring();
    // The lane's places in a brick, and constants of all bricks.
    void start_ring();
    // %x_begin: this lane's first words of x, of which `param` has the address; %x_at: those of %next_in_band.
    void point_at_x(size_t param);

    void fill_ring();
    // The next brick to registers, and what comes into its place.
    void fetch();
    // The brick in registers. The columns of a half beyond the matrix are skipped: `skip` is a label behind it.
    void multiply(const char* skip);
    void clear_sums();
    void add_sums();

    // Follows each brick that is asked for.
    virtual void follow_copy() {}
    ~BrickRingWriter() = default;

  private:
    // The last brick of a band has a half that is not of the matrix.
    bool ends_within_brick() const { return ring_.stride % brick_columns(format_number()) != 0; }
    uint32_t x_registers() const { return halves() * 16; }
    // From a half of 128 columns to the next, and from eight of a lane's columns to the next.
    uint32_t half_bytes() const;
    uint32_t eight_bytes() const { return ring_.x_in_fragments ? 32 * 16 : 16; }
    void copy_brick();
    void multiply_half(uint32_t half);

    const BrickRing ring_;
};

}  // namespace lorad::gpu
