#include "gpu/kernels/products/packed_rows_text.h"

#include <cstddef>
#include <utility>

#include "gpu/kernels/products/packed_codes_text.h"
#include "proto/base/check.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kHalf = 128;  // columns of which a lane has 32

#define PACKED_ROWS_PARAM(member) offsetof(PackedRowsParams, member)

// Registers: %t and %g are a lane's place in a matrix of 16x8: it has elements of rows g and g + 8 of w and of row g of
// x, and sums of rows 2t and 2t + 1 of x. Addresses in shared memory have 32 bits.
class PackedRowsWriter : PackedCodesWriter {
  public:
    explicit PackedRowsWriter(const PackedRowsProgram& program)
        : PackedCodesWriter(program.format, program.type), p_(program) {
        CHECK(has_packed_rows(p_.format) && p_.stride % kHalf == 0 && p_.slot_bytes() % 16 == 0 && p_.slots > 0);
    }

    std::string write() {
        declare();
        begin();
        for (uint32_t i = 0; i < p_.slots; ++i) {
            copy_brick();
            next_slot();
        }
        fetch(0);
        line("next_brick:");
        for (uint32_t set = 0; set < 2; ++set) {
            fetch(1 - set);  // behind the last brick, too, whose words nobody reads
            multiply(set, 0);
            if (ends_within_brick()) line("@%is_short{} bra multiplied_{};", set, set);
            if (halves() > 1) multiply(set, 1);
            line("multiplied_{}:", set);
            line(
                "add.u32 %in_band, %in_band, 1; sub.u32 %bricks, %bricks, 1; setp.eq.u32 %band_ends, %in_band, {}; "
                "setp.eq.u32 %range_ends, %bricks, 0; or.pred %is, %band_ends, %range_ends; @!%is bra band_goes_on_{};",
                bricks(), set);
            end_band(set);
            line("@%range_ends bra finished;");
            line("band_goes_on_{}:", set);
        }
        line("bra next_brick;");
        line("finished: cp.async.wait_group 0; ret;");
        line("}}");
        return std::move(text_);
    }

  private:
    uint32_t bricks() const { return bricks_per_row(format_number(), p_.stride); }
    // The last brick of a band has a half that is not of the matrix.
    bool ends_within_brick() const { return p_.stride % brick_columns(format_number()) != 0; }
    uint32_t x_registers() const { return halves() * 16; }  // of a set
    // Of x: from a half of 128 columns to the next, and from eight of a lane's columns to the next.
    uint32_t half_bytes() const { return p_.x_in_fragments ? kHalf * 2 * kPackedRowsMax : kHalf * 2; }
    uint32_t eight_bytes() const { return p_.x_in_fragments ? 32 * 16 : 16; }

    void declare() {
        begin_entry(p_.warps * 32, sizeof(PackedRowsParams));
        line(".minnctapersm {}", p_.workgroups);
        line("{{");
        line(".shared .align 128 .b8 slots[{}];", p_.shared_bytes());
        line(".reg .pred %is, %more, %copies, %has_x, %has_second, %is_short<2>, %band_ends, %range_ends, %store0, "
             "%store1;");
        line(
            ".reg .b32 %thread, %warp, %lane, %t, %g, %n_warps, %units, %unit, %i, %j, %n_rows, %row, %band, %in_band, "
            "%next_in_band, %bricks, %to_copy, %split, %splits;");
        line(
            ".reg .b32 %slot, %ring, %ring_end, %into, %lane_codes, %lane_high, %lane_record, %lane_second, %codes_at, "
            "%high_at, %record_at, %second_at, %y_stride, %split_stride;");
        line(".reg .b64 %policy, %ptr, %wide, %from, %x_at, %x_begin, %y, %y_at, %split_bytes;");
        line(".reg .f32 %d<8>;");
        line(".reg .b32 %x<{}>;", 2 * x_registers());
        declare_codes();
    }

    void begin() {
        line("mov.u32 %thread, %tid.x; shr.u32 %warp, %thread, 5; and.b32 %lane, %thread, 31; and.b32 %t, %lane, 3; "
             "shr.u32 %g, %lane, 2;");
        line("mov.u32 %ring, slots; mad.lo.u32 %ring, %warp, {0}, %ring; mov.u32 %slot, %ring; add.u32 %ring_end, "
             "%ring, {0};",
             p_.slots * p_.slot_bytes());
        line("mov.u32 %i, %ctaid.x; mad.lo.u32 %warp, %i, {}, %warp; ld.param.u32 %n_warps, [params+{}]; setp.ge.u32 "
             "%is, %warp, %n_warps; @%is ret;",
             p_.warps, PACKED_ROWS_PARAM(n_warps));
        // This warp's bricks, and where the first of them lies.
        line("ld.param.u32 %units, [params+{}]; ld.param.u32 %unit, [params+{}];", PACKED_ROWS_PARAM(n_units),
             PACKED_ROWS_PARAM(unit_bricks));
        line(
            "mul.lo.u32 %i, %warp, %units; div.u32 %i, %i, %n_warps; add.u32 %j, %warp, 1; mul.lo.u32 %j, %j, %units; "
            "div.u32 %j, %j, %n_warps; sub.u32 %bricks, %j, %i; mul.lo.u32 %bricks, %bricks, %unit; mul.lo.u32 %i, %i, "
            "%unit;");
        line("mov.u32 %to_copy, %bricks; div.u32 %band, %i, {0}; mul.lo.u32 %j, %band, {0}; sub.u32 %in_band, %i, %j;",
             bricks());
        line("ld.param.u64 %ptr, [params+{}]; mul.wide.u32 %from, %i, {}; add.u64 %from, %from, %ptr; mul.wide.u32 "
             "%wide, %lane, 16; add.u64 %from, %from, %wide; createpolicy.fractional.L2::evict_first.b64 %policy, 1.0;",
             MATMUL_PARAM(w), p_.slot_bytes());
        // The lane's places in a brick.
        line("mul.lo.u32 %lane_codes, %lane, 16; mul.lo.u32 %lane_high, %lane, {}; add.u32 %lane_high, %lane_high, {};",
             4 * high_bits_of(format_number()), high_offset(format_number()));
        line("mul.lo.u32 %lane_record, %g, {}; add.u32 %lane_record, %lane_record, {}; shr.u32 %lane_second, %g, 1; "
             "mul.lo.u32 %lane_second, %lane_second, 4; add.u32 %lane_second, %lane_second, {};",
             record_bytes(format_number()), record_offset(format_number()),
             record_offset(format_number()) + kBrickRows * record_bytes(format_number()));
        point_at_records();
        // x
        line("ld.param.u64 %ptr, [params+{}]; ld.global.u32 %n_rows, [%ptr]; setp.lt.u32 %has_x, %g, %n_rows;",
             MATMUL_PARAM(n_rows));
        line("ld.param.u64 %x_begin, [params+{}];", MATMUL_PARAM(x));
        if (p_.x_in_fragments)
            line("mul.wide.u32 %wide, %lane, 16; add.u64 %x_begin, %x_begin, %wide;");
        else
            line("mul.wide.u32 %wide, %g, {}; add.u64 %x_begin, %x_begin, %wide; mul.wide.u32 %wide, %t, 64; add.u64 "
                 "%x_begin, %x_begin, %wide;",
                 p_.stride * 2);
        line("mov.u32 %next_in_band, %in_band; mul.wide.u32 %wide, %in_band, {}; add.u64 %x_at, %x_begin, %wide;",
             halves() * half_bytes());
        for (uint32_t i = 0; i < 2 * x_registers(); ++i) line("mov.b32 %x{}, 0;", i);
        // y, of rows 2t and 2t + 1
        line("ld.param.u64 %y, [params+{}]; ld.param.u32 %y_stride, [params+{}]; ld.param.u32 %split_stride, "
             "[params+{}]; ld.param.u32 %splits, [params+{}]; mul.wide.u32 %split_bytes, %split_stride, 4;",
             MATMUL_PARAM(y), MATMUL_PARAM(y_stride), MATMUL_PARAM(split_stride), PACKED_ROWS_PARAM(n_splits));
        line(
            "shl.b32 %row, %t, 1; setp.lt.u32 %store0, %row, %n_rows; mad.lo.u32 %i, %row, %y_stride, %g; mul.wide.u32 "
            "%wide, %i, 4; add.u64 %y, %y, %wide; add.u32 %row, %row, 1; setp.lt.u32 %store1, %row, %n_rows; shl.b32 "
            "%y_stride, %y_stride, 2;");
        // The split of the range's first band: the warps before this one that have some of it.
        line("mul.lo.u32 %i, %band, {}; div.u32 %i, %i, %unit; add.u32 %i, %i, 1; mul.lo.u32 %i, %i, %n_warps; sub.u32 "
             "%i, %i, 1; div.u32 %i, %i, %units; sub.u32 %split, %warp, %i;",
             bricks());
        start_codes();
        clear();
    }

    void clear() {
        for (uint32_t i = 0; i < 8; ++i) line("mov.f32 %d{}, 0f00000000;", i);
    }

    // The range's next brick, or nothing behind its last, into the slot.
    void copy_brick() {
        const uint32_t pieces = p_.slot_bytes() / 16;
        line("setp.ne.u32 %more, %to_copy, 0; mad.lo.u32 %into, %lane, 16, %slot;");
        for (uint32_t i = 0; i < pieces; i += 32) {
            const bool is_whole = i + 32 <= pieces;
            if (!is_whole) line("setp.lt.and.u32 %copies, %lane, {}, %more;", pieces - i);
            line("@{} cp.async.cg.shared.global.L2::cache_hint [%into+{}], [%from+{}], 16, %policy;",
                 is_whole ? "%more" : "%copies", i * 16, i * 16);
        }
        line("cp.async.commit_group; @%more sub.u32 %to_copy, %to_copy, 1; add.u64 %from, %from, {};", p_.slot_bytes());
    }

    void next_slot() {
        line("add.u32 %slot, %slot, {}; setp.eq.u32 %is, %slot, %ring_end; selp.b32 %slot, %ring, %slot, %is;",
             p_.slot_bytes());
    }

    // The next brick to a set of registers, and what comes into its place.
    void fetch(uint32_t set) {
        if (ends_within_brick())
            line("setp.eq.u32 %is_short{0}, %next_in_band, {1}; not.pred %is, %is_short{0}; and.pred %has_second, "
                 "%has_x, %is;",
                 set, bricks() - 1);
        for (uint32_t i = 0; i < halves() * 4; ++i) {
            const uint32_t x = set * x_registers() + i * 4;
            line("@{} ld.global.nc.v4.b32 {{%x{}, %x{}, %x{}, %x{}}}, [%x_at+{}];",
                 ends_within_brick() && i >= 4 ? "%has_second" : "%has_x", x, x + 1, x + 2, x + 3,
                 i / 4 * half_bytes() + i % 4 * eight_bytes());
        }
        line("cp.async.wait_group {}; bar.warp.sync 0xffffffff;", p_.slots - 1);
        line("add.u32 %codes_at, %slot, %lane_codes; add.u32 %high_at, %slot, %lane_high; add.u32 %record_at, %slot, "
             "%lane_record; add.u32 %second_at, %slot, %lane_second;");
        fetch_brick(set);
        line("bar.warp.sync 0xffffffff;");
        copy_brick();
        next_slot();
        line("add.u32 %next_in_band, %next_in_band, 1; add.u64 %x_at, %x_at, {}; setp.eq.u32 %is, %next_in_band, {}; "
             "@%is mov.u32 %next_in_band, 0; @%is mov.u64 %x_at, %x_begin;",
             halves() * half_bytes(), bricks());
    }

    void multiply(uint32_t set, uint32_t half) {
        for (uint32_t r = 0; r < 2; ++r) find_scales(set, half, r);
        for (uint32_t j = 0; j < 8; ++j) {
            for (uint32_t r = 0; r < 2; ++r) make_elements(set, half, r, j);
            const uint32_t d = j % 2 * 4;
            arrange_x(set * x_registers() + half * 16 + j * 2);
            line("mma.sync.aligned.m16n8k16.row.col.f32.{0}.{0}.f32 {{%d{1}, %d{2}, %d{3}, %d{4}}}, {{%a0, %a2, %a1, "
                 "%a3}}, {{%b0, %b1}}, {{%d{1}, %d{2}, %d{3}, %d{4}}};",
                 type_ == ScalarType::kBf16 ? "bf16" : "f16", d, d + 1, d + 2, d + 3);
        }
    }

    // Sums: 0 and 1 of row g of w, 2 and 3 of row g + 8; even ones of row 2t of x.
    void store() {
        line("@%store0 st.global.f32 [%y_at], %d0; @%store0 st.global.f32 [%y_at+32], %d2;");
        line("mul.wide.u32 %wide, %y_stride, 1; add.u64 %ptr, %y_at, %wide; @%store1 st.global.f32 [%ptr], %d1; "
             "@%store1 st.global.f32 [%ptr+32], %d3;");
    }

    void end_band(uint32_t set) {
        for (uint32_t i = 0; i < 4; ++i) line("add.f32 %d{0}, %d{0}, %d{1};", i, i + 4);
        line("mul.wide.u32 %wide, %band, {}; add.u64 %y_at, %y, %wide; cvt.u64.u32 %wide, %split; mul.lo.u64 %wide, "
             "%wide, %split_bytes; add.u64 %y_at, %y_at, %wide;",
             kBrickRows * 4);
        store();
        clear();
        line("@!%band_ends bra band_done_{};", set);
        line("more_splits_{0}: add.u32 %split, %split, 1; setp.ge.u32 %is, %split, %splits; @%is bra splits_done_{0}; "
             "add.u64 %y_at, %y_at, %split_bytes;",
             set);
        store();
        line("bra more_splits_{};", set);
        line("splits_done_{}: mov.u32 %split, 0; mov.u32 %in_band, 0; add.u32 %band, %band, 1;", set);
        line("band_done_{}:", set);
    }

    const PackedRowsProgram p_;
};

}  // namespace

std::string packed_rows_text(const PackedRowsProgram& program) { return PackedRowsWriter(program).write(); }

}  // namespace lorad::gpu
