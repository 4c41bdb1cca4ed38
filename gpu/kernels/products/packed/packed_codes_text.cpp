#include "gpu/kernels/products/packed/packed_codes_text.h"

#include <array>

namespace lorad::gpu {
namespace {

// f16 of 1024 + c is 0x6400 | c, as of 64 + c it is 0x5400 | 16 c.
constexpr uint32_t kMagic = 0x64006400, kMinus1024 = 0xe400e400, kMinus64 = 0xd400d400, kSixteenth = 0x2c002c00;
constexpr uint32_t kSignBits = 0x80008000;

constexpr uint32_t pair_of(uint32_t half) { return half | half << 16; }

// f16 bits of the formats' own tables: IQ4's, and twice E2M1.
constexpr std::array<uint16_t, 16> kIQ4Halves = {0xd7f0, 0xd680, 0xd530, 0xd410, 0xd220, 0xd060, 0xcd80, 0xc900,
                                                 0x3c00, 0x4a80, 0x4e40, 0x50c0, 0x52a0, 0x5450, 0x5590, 0x5710};
constexpr std::array<uint16_t, 16> kE2M1Halves = {0x0000, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4600, 0x4800, 0x4a00,
                                                  0x8000, 0xbc00, 0xc000, 0xc200, 0xc400, 0xc600, 0xc800, 0xca00};

}  // namespace

void PackedCodesWriter::declare_codes(uint32_t sets) {
    line(".reg .b32 %c<{}>, %h<{}>, %r<8>, %q<2>, %p<2>, %a<{}>, %b<2>, %e<8>, %l<8>;", code(halves(), 0),
         high(halves(), 0) + 1, sets * 4);
    // Of r = 0 and 1: the scale, the one of the piece's second 16 columns, minus the minimum, minus what a code is
    // above its integer, also of a code 16 times as high.
    line(".reg .b32 %s<2>, %u<2>, %m<2>, %k<2>, %z<2>;");
    line(".reg .f32 %fs<2>, %fu<2>, %fm<2>, %f<4>;");
    line(".reg .b32 %by_t, %by_g, %shift, %sixteenth, %n<4>;");
    line(".reg .b16 %half<4>;");
    line(".reg .b64 %long;");
}

void PackedCodesWriter::place_lane() {
    const uint32_t f = format_number();
    line("mul.lo.u32 %lane_high, %lane, {}; add.u32 %lane_high, %lane_high, {};", 4 * high_bits_of(f), high_offset(f));
    line("mul.lo.u32 %lane_record, %g, {}; add.u32 %lane_record, %lane_record, {}; shr.u32 %lane_second, %g, 1; "
         "mul.lo.u32 %lane_second, %lane_second, 4; add.u32 %lane_second, %lane_second, {};",
         record_bytes(f), record_offset(f), record_offset(f) + kBrickRows * record_bytes(f));
    point_at_records();
}

void PackedCodesWriter::point_at_records() {
    const uint32_t f = format_number();
    if (f == kWeightsQ4_K || f == kWeightsQ5_K || f == kWeightsIQ4_XS || record_bytes(f) == 4) return;
    // Entries of four or two bytes, or for two pieces.
    if (record_bytes(f) == 16 && f != kWeightsQ6_K)
        line("mad.lo.u32 %lane_record, %t, 4, %lane_record;");
    else
        line("shr.u32 %i, %t, 1; mad.lo.u32 %lane_record, %i, 4, %lane_record;");
}

void PackedCodesWriter::start_codes() {
    // Selectors of prmt: the half of a word that t's or g's lowest bit says, twice.
    line("and.b32 %i, %t, 1; mul.lo.u32 %by_t, %i, 0x2222; add.u32 %by_t, %by_t, 0x1010; and.b32 %i, %g, 1; mul.lo.u32 "
         "%by_g, %i, 0x2222; add.u32 %by_g, %by_g, 0x1010; mov.b32 %sixteenth, {};",
         kSixteenth);
    for (uint32_t r = 0; r < 2; ++r) {
        const uint32_t zero = fixed_zero_of(format_number());
        line("mov.b32 %k{}, {}; mov.b32 %z{}, {};", r, kMinus1024 + pair_of(zero), r, kMinus64 + pair_of(zero * 16));
        line("mov.b32 %m{0}, 0; mov.f32 %fm{0}, 0f00000000;", r);
    }
    if (is_integer() || format_ == WeightFormat::kFP8) return;
    // %l0 .. 3: the low bytes of the table's 16 halves, %l4 .. 7 their high bytes.
    const std::array<uint16_t, 16>& table = format_ == WeightFormat::kMXFP4 ? kE2M1Halves : kIQ4Halves;
    for (uint32_t i = 0; i < 8; ++i) {
        uint32_t word = 0;
        for (uint32_t b = 0; b < 4; ++b) word |= (table[i % 4 * 4 + b] >> (i / 4 * 8) & 0xffu) << (8 * b);
        line("mov.b32 %l{}, {};", i, word);
    }
}

void PackedCodesWriter::fetch_codes(uint32_t half) {
    for (uint32_t plane = 0; plane < planes(); ++plane) fetch_plane(half, plane);
}

void PackedCodesWriter::fetch_plane(uint32_t half, uint32_t plane) {
    for (uint32_t r = 0; r < 2; ++r) {
        const uint32_t row = (is_pair_ ? 0 : half * kBrickRows) + r * 8, from = half_offset(half),
                       c = code(half, r) + plane * 4;
        line("{}.v4.b32 {{%c{}, %c{}, %c{}, %c{}}}, [%codes_at+{}];", load_, c, c + 1, c + 2, c + 3,
             from + plane * high_offset(format_number()) / 2 + row * 64);  // 64 bytes a row
        const uint32_t h = high(half, r);
        if (high_words() == 1) line("{}.b32 %h{}, [%high_at+{}];", load_, h, from + row * 16);
        if (high_words() == 2) line("{}.v2.b32 {{%h{}, %h{}}}, [%high_at+{}];", load_, h, h + 1, from + row * 32);
    }
}

void PackedCodesWriter::fetch_records() {
    for (uint32_t r = 0; r < 2; ++r) fetch_records(r);
}

void PackedCodesWriter::fetch_records(uint32_t r) {
    const uint32_t f = format_number(), at = r * 8 * record_bytes(f), words = record(r);
    if (f == kWeightsQ4_K || f == kWeightsQ5_K) {
        line("{}.v4.b32 {{%r{}, %r{}, %r{}, %r{}}}, [%record_at+{}];", load_, words, words + 1, words + 2, words + 3,
             at);
    } else if (f == kWeightsIQ4_XS) {
        line("{}.v2.b32 {{%r{}, %r{}}}, [%record_at+{}];", load_, words, words + 1, at);
    } else if (f == kWeightsQ6_K) {
        for (uint32_t half = 0; half < halves(); ++half)
            line("{}.b32 %r{}, [%record_at+{}];", load_, words + half, at + half * 8);
        line("{}.b32 %q{}, [%second_at+{}];", load_, r, r * 16);
    } else {
        for (uint32_t half = 0; half < (is_pair_ ? 2 : 1); ++half)
            line("{}.b32 %r{}, [%record_at+{}];", load_, words + half, half_offset(half) + at);
    }
}

// a and b of six bits: four lie together, two with the other's.
void PackedCodesWriter::find_k_scales(uint32_t half, uint32_t r) {
    const uint32_t words = record(r);
    line("shl.b32 %shift, %t, 2; add.u32 %shift, %shift, {};", half * 16);
    line("shr.u32 %n0, %r{}, %shift; shr.u32 %n1, %r{}, %shift; shr.u32 %n2, %r{}, %shift; and.b32 %n0, %n0, 15; "
         "and.b32 %n1, %n1, 15;",
         words + 1, words + 2, words + 3);
    line("and.b32 %n3, %n2, 3; shl.b32 %n3, %n3, 4; or.b32 %n0, %n0, %n3; and.b32 %n3, %n2, 12; shl.b32 %n3, %n3, 2; "
         "or.b32 %n1, %n1, %n3;");
    if (is_in_halves()) {
        line("prmt.b32 %n0, %n0, %n1, 0x5410; or.b32 %n0, %n0, {}; add.rn.f16x2 %n0, %n0, %k{}; mul.rn.f16x2 %n0, %n0, "
             "%r{};",
             kMagic, r, words);
        line("prmt.b32 %s{0}, %n0, %n0, 0x1010; prmt.b32 %m{0}, %n0, %n0, 0x3232; xor.b32 %m{0}, %m{0}, {1};", r,
             kSignBits);
        return;
    }
    line("mov.b32 {{%half0, %half1}}, %r{}; cvt.f32.f16 %f0, %half0; cvt.f32.f16 %f1, %half1; cvt.rn.f32.u32 %f2, %n0; "
         "cvt.rn.f32.u32 %f3, %n1; mul.f32 %fs{}, %f0, %f2; mul.f32 %fm{}, %f1, %f3; neg.f32 %fm{}, %fm{};",
         words, r, r, r, r);
}

void PackedCodesWriter::find_q6_scales(uint32_t half, uint32_t r) {
    // d twice; two numbers of eight bits with their signs
    line("prmt.b32 %n0, %q{}, %q{}, %by_g; and.b32 %shift, %t, 1; shl.b32 %shift, %shift, 4; shr.u32 %n1, %r{}, "
         "%shift; bfe.s32 %n2, %n1, 0, 8; bfe.s32 %n3, %n1, 8, 8;",
         r, r, record(r) + half);
    if (is_in_halves()) {
        line("cvt.rn.f16.s32 %half0, %n2; cvt.rn.f16.s32 %half1, %n3; mov.b32 %n1, {{%half0, %half1}}; mul.rn.f16x2 "
             "%n1, %n1, %n0; prmt.b32 %s{0}, %n1, %n1, 0x1010; prmt.b32 %u{0}, %n1, %n1, 0x3232;",
             r);
        return;
    }
    line("mov.b32 {{%half0, %half1}}, %n0; cvt.f32.f16 %f0, %half0; cvt.rn.f32.s32 %f1, %n2; cvt.rn.f32.s32 %f2, %n3; "
         "mul.f32 %fs{}, %f0, %f1; mul.f32 %fu{}, %f0, %f2;",
         r, r);
}

// A word of a scale of 16 bits and a zero point.
void PackedCodesWriter::find_group_scales(uint32_t word, uint32_t r) {
    line("shl.b32 %n0, %r{0}, 16; mov.b32 {{%half0, %half1}}, %r{0}; cvt.f32.f16 %f0, %half0; mov.b32 %f1, %n0; "
         "setp.lt.s32 %is, %r{0}, 0; selp.f32 %fs{1}, %f1, %f0, %is;",
         word, r);
    line("bfe.u32 %n0, %r{0}, 16, 15; mad.lo.u32 %k{1}, %n0, 0x10001, {2}; mad.lo.u32 %z{1}, %n0, 0x100010, {3};", word,
         r, kMinus1024, kMinus64);
    if (is_in_halves()) line("cvt.rn.f16x2.f32 %s{0}, %fs{0}, %fs{0};", r);
}

void PackedCodesWriter::find_scales(uint32_t half, uint32_t r) {
    const uint32_t word = record(r) + (is_pair_ ? half : 0);
    switch (format_) {
        case WeightFormat::kQ8_0:
        case WeightFormat::kQ4_0:
        case WeightFormat::kQ5_0:
        case WeightFormat::kIQ4_NL:
            line("prmt.b32 %s{0}, %r{1}, %r{1}, %by_t; mov.b32 {{%half0, %half1}}, %s{0}; cvt.f32.f16 %fs{0}, %half0;",
                 r, word);
            return;
        case WeightFormat::kQ4_1:
        case WeightFormat::kQ5_1:
            line("prmt.b32 %s{0}, %r{1}, %r{1}, 0x1010; prmt.b32 %m{0}, %r{1}, %r{1}, 0x3232; mov.b32 {{%half0, "
                 "%half1}}, %r{1}; cvt.f32.f16 %fs{0}, %half0; cvt.f32.f16 %fm{0}, %half1;",
                 r, word);
            return;
        case WeightFormat::kQ4_K:
        case WeightFormat::kQ5_K: return find_k_scales(half, r);
        case WeightFormat::kQ6_K: return find_q6_scales(half, r);
        case WeightFormat::kIQ4_XS:
            line("mul.lo.u32 %shift, %t, 6; add.u32 %shift, %shift, {0}; mov.b64 %long, {{%r{1}, %r{2}}}; shr.u64 "
                 "%long, %long, %shift; cvt.u32.u64 %n0, %long; and.b32 %n0, %n0, 63; sub.u32 %n0, %n0, 32; "
                 "cvt.rn.f32.s32 %f0, %n0; mov.b32 {{%half0, %half1}}, %r{1}; cvt.f32.f16 %f1, %half0; mul.f32 %fs{3}, "
                 "%f1, %f0;",
                 16 + 24 * half, word, word + 1, r);
            return;
        case WeightFormat::kMXFP4:
            // 2^(e - 128): the two smallest are subnormal
            line("shl.b32 %shift, %t, 3; shr.u32 %n0, %r{0}, %shift; and.b32 %n0, %n0, 255; mov.b32 %n1, 0x00200000; "
                 "shl.b32 %n1, %n1, %n0; sub.u32 %n2, %n0, 1; shl.b32 %n2, %n2, 23; setp.lt.u32 %is, %n0, 2; selp.b32 "
                 "%n0, %n1, %n2, %is; mov.b32 %fs{1}, %n0;",
                 word, r);
            return;
        case WeightFormat::kFP8: line("mov.b32 %fs{}, %r{};", r, word); return;
        case WeightFormat::kI4G32:
        case WeightFormat::kI4G128:
        case WeightFormat::kI8G32:
        case WeightFormat::kI8G128: return find_group_scales(word, r);
        case WeightFormat::kF32:
        case WeightFormat::kF16:
        case WeightFormat::kBf16:
        case WeightFormat::kTable: break;  // has_packed_rows() has none of them
    }
}

// Row r's elements: the integers of four columns.
void PackedCodesWriter::make_integers(uint32_t half, uint32_t r, uint32_t j) {
    const uint32_t to = element(r);
    if (has_8bit_codes(format_number())) {
        const uint32_t word = code(half, r) + j / 4 * 4 + j % 4;
        line("prmt.b32 %a{0}, %c{1}, {2}, 0x4240; prmt.b32 %a{3}, %c{1}, {2}, 0x4341; add.rn.f16x2 %a{0}, %a{0}, "
             "%k{4}; add.rn.f16x2 %a{3}, %a{3}, %k{4};",
             to, word, kMagic | kMagic >> 8, to + 1, r);
        return;
    }
    const uint32_t word = code(half, r) + j / 2;
    std::string codes = lorad::format("%c{}", word);
    if (j % 2 == 1) {
        line("shr.u32 %n0, %c{}, 8;", word);
        codes = "%n0";
    }
    if (high_words() == 0) {
        line("lop3.b32 %a{0}, {2}, 0x000f000f, {3}, 0xea; lop3.b32 %a{1}, {2}, 0x00f000f0, {3}, 0xea; add.rn.f16x2 "
             "%a{0}, %a{0}, %k{4}; fma.rn.f16x2 %a{1}, %a{1}, %sixteenth, %z{4};",
             to, to + 1, codes, kMagic, r);
        return;
    }
    line("shr.u32 %n1, {2}, 4; lop3.b32 %a{0}, {2}, 0x000f000f, {3}, 0xea; lop3.b32 %a{1}, %n1, 0x000f000f, {3}, 0xea;",
         to, to + 1, codes, kMagic);
    add_high_bits(half, r, j);
    line("add.rn.f16x2 %a{0}, %a{0}, %k{2}; add.rn.f16x2 %a{1}, %a{1}, %k{2};", to, to + 1, r);
}

// Of row r's elements: the bits of the codes above four.
void PackedCodesWriter::add_high_bits(uint32_t half, uint32_t r, uint32_t j) {
    const uint32_t bits = high_words();
    const uint32_t word = high(half, r) + (bits == 2 ? j / 4 : 0);
    const uint32_t first = bits == 1 ? 2 * j : 8 * (j / 2 % 2) + 4 * (j % 2);
    const uint32_t mask = bits == 1 ? 0x00100010 : 0x00300030;
    for (uint32_t p = 0; p < 2; ++p) {
        const int shift = static_cast<int>(first + p * bits) - 4;
        line("{0}.b32 %n2, %h{1}, {2}; lop3.b32 %a{3}, %n2, {4}, %a{3}, 0xea;", shift < 0 ? "shl" : "shr", word,
             shift < 0 ? -shift : shift, element(r) + p, mask);
    }
}

// %e{4r} .. + 3: the table's halves of a word's columns (0, 2), (4, 6), (1, 3) and (5, 7).
void PackedCodesWriter::look_up(uint32_t word, uint32_t r) {
    for (uint32_t odd = 0; odd < 2; ++odd) {
        const std::string codes = odd == 0 ? lorad::format("%c{}", word) : "%n0";
        if (odd == 1) line("shr.u32 %n0, %c{}, 16;", word);
        // selectors among eight, and bytes of ones where the code is in the table's second half
        line("and.b32 %n1, {0}, 0x7777; shr.u32 %n2, {0}, 3; and.b32 %n2, %n2, 0x1111; prmt.b32 %n2, 0x0000ff00, 0, "
             "%n2;",
             codes);
        for (uint32_t part = 0; part < 2; ++part) {
            line("prmt.b32 %n3, %l{}, %l{}, %n1; prmt.b32 %i, %l{}, %l{}, %n1; lop3.b32 %p{}, %n2, %i, %n3, 0xca;",
                 part * 4, part * 4 + 1, part * 4 + 2, part * 4 + 3, part);
        }
        line("prmt.b32 %e{0}, %p0, %p1, 0x5140; prmt.b32 %e{1}, %p0, %p1, 0x7362;", r * 4 + odd * 2,
             r * 4 + odd * 2 + 1);
    }
}

void PackedCodesWriter::scale_elements(uint32_t r, bool is_second) {
    const char* which = format_ == WeightFormat::kQ6_K && is_second ? "u" : "s";
    for (uint32_t a = element(r); a < element(r) + 2; ++a) {
        if (is_in_halves()) {
            if (has_minimum(format_number()))
                line("fma.rn.f16x2 %a{0}, %a{0}, %{1}{2}, %m{2};", a, which, r);
            else
                line("mul.rn.f16x2 %a{0}, %a{0}, %{1}{2};", a, which, r);
            continue;
        }
        line("mov.b32 {{%half0, %half1}}, %a{}; cvt.f32.f16 %f0, %half0; cvt.f32.f16 %f1, %half1;", a);
        for (uint32_t i = 0; i < 2; ++i) {
            if (has_minimum(format_number()))
                line("fma.rn.f32 %f{0}, %f{0}, %f{1}{2}, %fm{2};", i, which, r);
            else
                line("mul.rn.f32 %f{0}, %f{0}, %f{1}{2};", i, which, r);
        }
        line("cvt.rn.{}x2.f32 %a{}, %f1, %f0;", type_ == ScalarType::kBf16 ? "bf16" : "f16", a);
    }
}

void PackedCodesWriter::make_elements(uint32_t half, uint32_t r, uint32_t j, uint32_t set) {
    set_ = set;
    if (is_integer()) {
        make_integers(half, r, j);
    } else if (format_ == WeightFormat::kFP8) {
        // columns 0 2 1 3
        line("prmt.b32 %n0, %c{0}, 0, 0x3120; mov.b32 {{%half0, %half1}}, %n0; cvt.rn.f16x2.e4m3x2 %a{1}, %half0; "
             "cvt.rn.f16x2.e4m3x2 %a{2}, %half1;",
             code(half, r) + j / 4 * 4 + j % 4, element(r), element(r) + 1);
    } else {
        if (j % 2 == 0) look_up(code(half, r) + j / 2, r);
        for (uint32_t odd = 0; odd < 2; ++odd) line("mov.b32 %a{}, %e{};", element(r) + odd, r * 4 + odd * 2 + j % 2);
    }
    scale_elements(r, j >= 4);
}

void PackedCodesWriter::arrange_x(uint32_t first) {
    if (is_by_table())
        line("prmt.b32 %b0, %x{0}, %x{1}, 0x5410; prmt.b32 %b1, %x{0}, %x{1}, 0x7632;", first, first + 1);
    else
        line("mov.b32 %b0, %x{}; mov.b32 %b1, %x{};", first, first + 1);
}

void PackedCodesWriter::arrange_elements(uint32_t set) {
    if (!is_by_table()) return;
    for (uint32_t a = set * 4; a < set * 4 + 4; a += 2)
        line("prmt.b32 %n0, %a{0}, %a{1}, 0x5410; prmt.b32 %a{1}, %a{0}, %a{1}, 0x7632; mov.b32 %a{0}, %n0;", a, a + 1);
}

}  // namespace lorad::gpu
