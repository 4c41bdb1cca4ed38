#include "gpu/kernels/products/packed/brick_rows_text.h"

#include "gpu/kernels/products/activation_fragments.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kHalf = 128;  // columns of which a lane has 32

}  // namespace

uint32_t BrickRowsWriter::half_bytes() const { return rows_.x_in_fragments ? kBandFragmentBytes : kHalf * 2; }

void BrickRowsWriter::declare_rows() {
    line(".reg .pred %has_second, %is_short;");
    line(".reg .b32 %next_in_band;");
    line(".reg .b64 %x_at, %x_begin;");
    line(".reg .f32 %d<8>;");
    line(".reg .b32 %x<{}>;", x_registers());
    declare_ring();
}

void BrickRowsWriter::start_rows() {
    for (uint32_t i = 0; i < x_registers(); ++i) line("mov.b32 %x{}, 0;", i);
    start_ring();
    clear_sums();
}

void BrickRowsWriter::point_at_x(size_t param) {
    line("ld.param.u64 %x_begin, [params+{}];", param);
    if (rows_.x_in_fragments)
        line("mul.wide.u32 %wide, %lane, 16; add.u64 %x_begin, %x_begin, %wide;");
    else
        line("mul.wide.u32 %wide, %g, {}; add.u64 %x_begin, %x_begin, %wide; mul.wide.u32 %wide, %t, 64; add.u64 "
             "%x_begin, %x_begin, %wide;",
             stride_ * 2);
    line("mul.wide.u32 %wide, %next_in_band, {}; add.u64 %x_at, %x_begin, %wide;", x_step());
}

void BrickRowsWriter::clear_sums() {
    for (uint32_t i = 0; i < 8; ++i) line("mov.f32 %d{}, 0f00000000;", i);
}

void BrickRowsWriter::add_sums() {
    for (uint32_t i = 0; i < 4; ++i) line("add.f32 %d{0}, %d{0}, %d{1};", i, i + 4);
}

void BrickRowsWriter::fetch() {
    if (ends_within_brick())
        line("setp.eq.u32 %is_short, %next_in_band, {}; not.pred %is, %is_short; and.pred %has_second, %has_x, %is;",
             bricks() - 1);
    for (uint32_t i = 0; i < halves() * 4; ++i) {
        const uint32_t x = i * 4;
        line("@{} ld.global{}.v4.b32 {{%x{}, %x{}, %x{}, %x{}}}, [%x_at+{}];",
             ends_within_brick() && i >= 4 ? "%has_second" : "%has_x", rows_.x_changes ? "" : ".nc", x, x + 1, x + 2,
             x + 3, i / 4 * half_bytes() + i % 4 * eight_bytes());
    }
    take_brick();
    replace_brick();
    line("add.u32 %next_in_band, %next_in_band, 1; add.u64 %x_at, %x_at, {}; setp.eq.u32 %is, %next_in_band, {}; @%is "
         "mov.u32 %next_in_band, 0; @%is mov.u64 %x_at, %x_begin;",
         x_step(), bricks());
}

void BrickRowsWriter::multiply(const char* skip) {
    multiply_half(0);
    if (halves() == 1) return;
    if (ends_within_brick()) line("@%is_short bra {};", skip);
    multiply_half(1);
}

void BrickRowsWriter::multiply_half(uint32_t half) {
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
