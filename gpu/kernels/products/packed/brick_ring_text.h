// The part of programs in PTX that streams bricks of packed weights (weight_format.h) through a warp's ring in shared
// memory into its registers. Internal to the programs that do.
#pragma once

#include <cstdint>

#include "gpu/kernels/products/packed/packed_deal_text.h"

namespace lorad::gpu {

// A warp's bricks come by cp.async, whole and in order. It takes one into registers and asks for the one that follows
// in its place.
// Registers of the program around it: %lane, %t, %g; %ring, %ring_end and %slot, the ring's addresses in shared memory;
// %policy, of w in the caches; free ones: %i, %j, %is, %ptr, %wide.
class BrickRingWriter : protected PackedDealWriter {
  protected:
    // stride: of w and x, elements, a multiple of 128. slots: bricks of the ring.
    BrickRingWriter(WeightFormat format, ScalarType type, uint32_t stride, uint32_t slots);

    uint32_t bricks() const { return tile_bricks_; }  // of a band
    uint32_t slot_bytes() const { return brick_bytes(format_number()); }

    // All registers that are not the surrounding program's, among them, for it to set: %to_copy, bricks of the warp
    // that are not asked for yet; %from, where the next of them lies, with this lane's 16 bytes.
    void declare_ring();
    // The lane's places in a brick, and constants of all bricks.
    void start_ring();
    void fill_ring();
    // The next brick to registers, once it is there.
    void take_brick();
    // What comes into the taken brick's place.
    void replace_brick();

    // Follows each brick that is asked for.
    virtual void follow_copy() {}
    ~BrickRingWriter() = default;

    const uint32_t stride_, slots_;

  private:
    void copy_brick();
};

}  // namespace lorad::gpu
