// A product of decode_bricks_text.cpp: the workgroup's bands of a packed matrix, dealt to its warps. Internal to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "gpu/kernels/persistent/decode_bricks_text.h"
#include "gpu/kernels/products/packed/brick_rows_text.h"

namespace lorad::gpu {

struct BrickPhase {
    const char* name;  // in labels and registers
    WeightFormat format = WeightFormat::kF32;
    uint32_t k = 0;
    uint32_t bands = 0;      // of one matrix
    uint32_t first = 0;      // the workgroup that has the first band; the next one has the next, and so on in turns
    size_t w = 0, w_up = 0;  // parameters: the matrix, and, of gates, the ups, whose bands go with theirs; else 0
    size_t x = 0;
    bool x_in_fragments = true, x_changes = true;
};

// Registers of the program around it, beside BrickRowsWriter's: %part, the workgroup; %warp; %ring, where the warp's
// ring begins; %store0 and %store1: rows 2t and 2t + 1 of x exist; %partials_at, where this lane's part of partial sum
// 0 lies, in shared or global memory. Of its own, for the ends of products: %count_<name>, bands of the workgroup;
// %bricks_<name>, their bricks; %warps_<name>, the warps that have any; %index_<name>, the workgroup as bands are
// dealt.
// Partial sum b + w is warp w's of the workgroup's band b; a warp's bricks are in a row, so no two have one place.
class BrickPhaseWriter final : BrickRowsWriter {
  public:
    BrickPhaseWriter(const DecodeBricksProgram& program, const BrickPhase& phase)
        : BrickRowsWriter(phase.format, program.type,
                          {.stride = phase.k,
                           .slots = program.ring_bytes() / brick_bytes(number_of(phase.format)),
                           .x_in_fragments = phase.x_in_fragments,
                           .x_changes = phase.x_changes}),
          p_(program),
          phase_(phase) {}

    // Finds the warp's bricks and asks for the first ones. Opens a scope, which the program closes at its end.
    std::string begin();
    // All of the warp's bricks, whose partial sums it leaves. x has to be complete.
    std::string multiply_all();
    // %s += the sums of local band %lb, row %row of x, row %col of w. Free registers that it uses: %i, %j, %at, %n,
    // %wide, %ptr, %v, %is.
    std::string add_partials();

  private:
    uint32_t matrices() const { return phase_.w_up != 0 ? 2 : 1; }
    void point_at_band();
    void follow_copy() override;
    void end_band();
    std::string take() { return std::exchange(text_, std::string()); }

    const DecodeBricksProgram& p_;
    const BrickPhase phase_;
    uint32_t n_copies_ = 0, n_sums_ = 0;
};

}  // namespace lorad::gpu
