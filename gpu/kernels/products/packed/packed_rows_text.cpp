#include "gpu/kernels/products/packed/packed_rows_text.h"

#include <cstddef>
#include <utility>

#include "gpu/kernels/products/packed/brick_rows_text.h"

namespace lorad::gpu {
namespace {

// Addresses in shared memory have 32 bits.
class PackedRowsWriter final : BrickRowsWriter {
  public:
    explicit PackedRowsWriter(const PackedRowsProgram& program)
        : BrickRowsWriter(program.format, program.type,
                          {.stride = program.stride, .slots = program.slots, .x_in_fragments = program.x_in_fragments}),
          p_(program) {}

    std::string write() {
        declare();
        begin();
        line("next_brick:");
        fetch();
        multiply("multiplied");
        line(
            "multiplied: add.u32 %in_band, %in_band, 1; sub.u32 %bricks, %bricks, 1; setp.eq.u32 %band_ends, %in_band, "
            "{}; setp.eq.u32 %range_ends, %bricks, 0; or.pred %is, %band_ends, %range_ends; @!%is bra next_brick;",
            bricks());
        end_band();
        line("@!%range_ends bra next_brick;");
        line("finished: cp.async.wait_group 0; ret;");
        line("}}");
        return std::move(text_);
    }

  private:
    void declare() {
        begin_entry(p_.warps * 32, sizeof(PackedParams));
        line(".minnctapersm {}", p_.workgroups);
        line("{{");
        line(".shared .align 128 .b8 slots[{}];", p_.shared_bytes());
        line(".reg .pred %is, %has_x, %band_ends, %range_ends, %store0, %store1;");
        line(".reg .b32 %thread, %warp, %lane, %t, %g, %ranges, %units, %unit, %i, %j, %n_rows, %row, %band, "
             "%in_band, %bricks, %split, %splits;");
        line(".reg .b32 %slot, %ring, %ring_end, %y_stride, %split_stride;");
        line(".reg .b64 %policy, %ptr, %wide, %y, %y_at, %split_bytes;");
        declare_rows();
    }

    // What the first bricks need comes first: they are asked for before anything from memory is waited for.
    void begin() {
        line("mov.u32 %thread, %tid.x; shr.u32 %warp, %thread, 5; and.b32 %lane, %thread, 31; and.b32 %t, %lane, 3; "
             "shr.u32 %g, %lane, 2;");
        line("mov.u32 %ring, slots; mad.lo.u32 %ring, %warp, {0}, %ring; mov.u32 %slot, %ring; add.u32 %ring_end, "
             "%ring, {0};",
             p_.slots * p_.slot_bytes());
        line("mov.u32 %i, %ctaid.x; mad.lo.u32 %warp, %i, {}, %warp; ld.param.u32 %ranges, [params+{}]; setp.ge.u32 "
             "%is, %warp, %ranges; @%is ret;",
             p_.warps, PACKED_PARAM(deal.ranges));
        take_range("%warp", "%band");
        line("mov.u32 %to_copy, %bricks;");
        line("ld.param.u64 %ptr, [params+{}]; mul.wide.u32 %from, %i, {}; add.u64 %from, %from, %ptr; mul.wide.u32 "
             "%wide, %lane, 16; add.u64 %from, %from, %wide; createpolicy.fractional.L2::evict_first.b64 %policy, 1.0;",
             MATMUL_PARAM(w), p_.slot_bytes());
        fill_ring();
        line("ld.param.u64 %ptr, [params+{}]; ld.global.u32 %n_rows, [%ptr]; mov.u32 %next_in_band, %in_band;",
             MATMUL_PARAM(n_rows));
        start_rows();
        point_at_x(MATMUL_PARAM(x));
        // y, of rows 2t and 2t + 1
        load_y();
        line("shl.b32 %row, %t, 1; mad.lo.u32 %i, %row, %y_stride, %g; mul.wide.u32 %wide, %i, 4; add.u64 %y, %y, "
             "%wide; shl.b32 %y_stride, %y_stride, 2;");
        find_split("%warp", "%band");
        line("setp.lt.u32 %has_x, %g, %n_rows; setp.lt.u32 %store0, %row, %n_rows; add.u32 %row, %row, 1; setp.lt.u32 "
             "%store1, %row, %n_rows;");
    }

    // Sums: 0 and 1 of row g of w, 2 and 3 of row g + 8; even ones of row 2t of x.
    void store() {
        line("@%store0 st.global.f32 [%y_at], %d0; @%store0 st.global.f32 [%y_at+32], %d2;");
        line("mul.wide.u32 %wide, %y_stride, 1; add.u64 %ptr, %y_at, %wide; @%store1 st.global.f32 [%ptr], %d1; "
             "@%store1 st.global.f32 [%ptr+32], %d3;");
    }

    void end_band() {
        add_sums();
        end_tile("%band", "%band", "%band_ends", [this] { store(); }, [this] { clear_sums(); });
    }

    const PackedRowsProgram p_;
};

}  // namespace

std::string packed_rows_text(const PackedRowsProgram& program) { return PackedRowsWriter(program).write(); }

}  // namespace lorad::gpu
