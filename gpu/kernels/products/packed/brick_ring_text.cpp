#include "gpu/kernels/products/packed/brick_ring_text.h"

#include "gpu/kernels/products/packed/packed_rows_text.h"
#include "proto/base/check.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kHalf = 128;  // columns of which a lane has 32

}  // namespace

BrickRingWriter::BrickRingWriter(WeightFormat format, ScalarType type, const BrickRing& ring)
    : PackedCodesWriter(format, type), ring_(ring) {
    CHECK(has_packed_rows(format) && ring.stride % kHalf == 0 && slot_bytes() % 16 == 0 && ring.slots > 0);
}

uint32_t BrickRingWriter::half_bytes() const { return ring_.x_in_fragments ? kBandFragmentBytes : kHalf * 2; }

void BrickRingWriter::declare_ring() {
    line(".reg .pred %more, %copies, %has_second, %is_short;");
    line(".reg .b32 %to_copy, %next_in_band, %into, %lane_codes, %lane_high, %lane_record, %lane_second, %codes_at, "
         "%high_at, %record_at, %second_at;");
    line(".reg .b64 %from, %x_at, %x_begin;");
    line(".reg .f32 %d<8>;");
    line(".reg .b32 %x<{}>;", x_registers());
    declare_codes();
}

void BrickRingWriter::start_ring() {
    line("mul.lo.u32 %lane_codes, %lane, 16; mul.lo.u32 %lane_high, %lane, {}; add.u32 %lane_high, %lane_high, {};",
         4 * high_bits_of(format_number()), high_offset(format_number()));
    line("mul.lo.u32 %lane_record, %g, {}; add.u32 %lane_record, %lane_record, {}; shr.u32 %lane_second, %g, 1; "
         "mul.lo.u32 %lane_second, %lane_second, 4; add.u32 %lane_second, %lane_second, {};",
         record_bytes(format_number()), record_offset(format_number()),
         record_offset(format_number()) + kBrickRows * record_bytes(format_number()));
    point_at_records();
    for (uint32_t i = 0; i < x_registers(); ++i) line("mov.b32 %x{}, 0;", i);
    start_codes();
    clear_sums();
}

void BrickRingWriter::point_at_x(size_t param) {
    line("ld.param.u64 %x_begin, [params+{}];", param);
    if (ring_.x_in_fragments)
        line("mul.wide.u32 %wide, %lane, 16; add.u64 %x_begin, %x_begin, %wide;");
    else
        line("mul.wide.u32 %wide, %g, {}; add.u64 %x_begin, %x_begin, %wide; mul.wide.u32 %wide, %t, 64; add.u64 "
             "%x_begin, %x_begin, %wide;",
             ring_.stride * 2);
    line("mul.wide.u32 %wide, %next_in_band, {}; add.u64 %x_at, %x_begin, %wide;", x_step());
}

void BrickRingWriter::clear_sums() {
    for (uint32_t i = 0; i < 8; ++i) line("mov.f32 %d{}, 0f00000000;", i);
}

void BrickRingWriter::add_sums() {
    for (uint32_t i = 0; i < 4; ++i) line("add.f32 %d{0}, %d{0}, %d{1};", i, i + 4);
}

// The next of the warp's bricks into the next slot, or nothing behind the last.
void BrickRingWriter::copy_brick() {
    const uint32_t pieces = slot_bytes() / 16;
    line("setp.ne.u32 %more, %to_copy, 0; mad.lo.u32 %into, %lane, 16, %slot;");
    for (uint32_t i = 0; i < pieces; i += 32) {
        const bool is_whole = i + 32 <= pieces;
        if (!is_whole) line("setp.lt.and.u32 %copies, %lane, {}, %more;", pieces - i);
        line("@{} cp.async.cg.shared.global.L2::cache_hint [%into+{}], [%from+{}], 16, %policy;",
             is_whole ? "%more" : "%copies", i * 16, i * 16);
    }
    line("cp.async.commit_group; @%more sub.u32 %to_copy, %to_copy, 1; add.u64 %from, %from, {};", slot_bytes());
    follow_copy();
    line("add.u32 %slot, %slot, {}; setp.eq.u32 %is, %slot, %ring_end; selp.b32 %slot, %ring, %slot, %is;",
         slot_bytes());
}

void BrickRingWriter::fill_ring() {
    for (uint32_t i = 0; i < ring_.slots; ++i) copy_brick();
}

void BrickRingWriter::fetch() {
    if (ends_within_brick())
        line("setp.eq.u32 %is_short, %next_in_band, {}; not.pred %is, %is_short; and.pred %has_second, %has_x, %is;",
             bricks() - 1);
    for (uint32_t i = 0; i < halves() * 4; ++i) {
        const uint32_t x = i * 4;
        line("@{} ld.global{}.v4.b32 {{%x{}, %x{}, %x{}, %x{}}}, [%x_at+{}];",
             ends_within_brick() && i >= 4 ? "%has_second" : "%has_x", ring_.x_changes ? "" : ".nc", x, x + 1, x + 2,
             x + 3, i / 4 * half_bytes() + i % 4 * eight_bytes());
    }
    line("cp.async.wait_group {}; bar.warp.sync 0xffffffff;", ring_.slots - 1);
    line("add.u32 %codes_at, %slot, %lane_codes; add.u32 %high_at, %slot, %lane_high; add.u32 %record_at, %slot, "
         "%lane_record; add.u32 %second_at, %slot, %lane_second;");
    fetch_brick();
    line("bar.warp.sync 0xffffffff;");
    copy_brick();
    line("add.u32 %next_in_band, %next_in_band, 1; add.u64 %x_at, %x_at, {}; setp.eq.u32 %is, %next_in_band, {}; @%is "
         "mov.u32 %next_in_band, 0; @%is mov.u64 %x_at, %x_begin;",
         x_step(), bricks());
}

void BrickRingWriter::multiply(const char* skip) {
    multiply_half(0);
    if (halves() == 1) return;
    if (ends_within_brick()) line("@%is_short bra {};", skip);
    multiply_half(1);
}

void BrickRingWriter::multiply_half(uint32_t half) {
    for (uint32_t r = 0; r < 2; ++r) find_scales(half, r);
    for (uint32_t j = 0; j < 8; ++j) {
        for (uint32_t r = 0; r < 2; ++r) make_elements(half, r, j);
        const uint32_t d = j % 2 * 4;
        arrange_x(half * 16 + j * 2);
        line("mma.sync.aligned.m16n8k16.row.col.f32.{0}.{0}.f32 {{%d{1}, %d{2}, %d{3}, %d{4}}}, {{%a0, %a2, %a1, "
             "%a3}}, {{%b0, %b1}}, {{%d{1}, %d{2}, %d{3}, %d{4}}};",
             type_ == ScalarType::kBf16 ? "bf16" : "f16", d, d + 1, d + 2, d + 3);
    }
}

}  // namespace lorad::gpu
