// The layout of a weight matrix on the device, apart from the type of activations and adapters (ScalarType). This is
// the one place that says it; shaders read weights by formats/weights.glsl, and model/quant/brick_packer.cpp writes
// them.
//
// f32, f16 and bf16 lie in rows, [n_padded][k_stride]. All others lie in bricks of 16 rows and 128 or 256 columns,
// [ceil(n / 16)][ceil(k / columns)][brick]; what is beyond n and k is zero. A brick has, one after the other:
//   codes    pieces of 16 bytes, [half of 128 columns][row][t]: at 4 bits the 32 columns 32 t .. + 31 of the half; at
//            8 bits two such planes, of the first 16 columns of each 32 and of the others. Eight codes of 4 bits lie in
//            a word as columns 0 2 4 6 1 3 5 7, lowest bits first, four of 8 bits as columns 0 2 1 3: so a shift and a
//            mask give a pair of neighbours, 16 bits apart.
//   high     the bits above the lower four, [half][row][t]. One bit: a word, columns 8 w + 2 i and + 1 at bits 4 w + i
//            and 16 above. Two: two words, columns 8 w + 2 i and + 1 in word w / 2 at bits 8 (w % 2) + 2 i and 16
//            above.
//   records  [row]: the scales of a row in this brick, of 6 bits Q6_K's f16 behind those of all rows.
// A weight is s * c - t in f32, c what the code stands for; its bits are those of the file's own arithmetic.
#ifdef __cplusplus
#pragma once
#endif
#ifndef LORAD_GPU_KERNELS_WEIGHT_FORMAT_H
#define LORAD_GPU_KERNELS_WEIGHT_FORMAT_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

// Numbers below are ScalarType's. Behind each: the record of a row in a brick; what the code stands for (c).
// clang-format off
INTEROP_CONST kWeightsQ8_0 = 3;     // f16 s of 32; code - 128
INTEROP_CONST kWeightsQ4_0 = 4;     // f16 s of 32; code - 8
INTEROP_CONST kWeightsQ4_1 = 5;     // {f16 s, f16 -t} of 32; code
INTEROP_CONST kWeightsQ5_0 = 6;     // f16 s of 32; code - 16
INTEROP_CONST kWeightsQ5_1 = 7;     // {f16 s, f16 -t} of 32; code
INTEROP_CONST kWeightsQ4_K = 8;     // f16 d, f16 e, for each 32 a and b of 6 bits: s = d a, t = e b; code
                                    //   (of a and b the 4 low bits of all lie together, then the 2 high bits of both)
INTEROP_CONST kWeightsQ5_K = 9;     // as kWeightsQ4_K; code
INTEROP_CONST kWeightsQ6_K = 10;    // i8 a of 16, f16 d: s = d a; code - 32
INTEROP_CONST kWeightsIQ4_NL = 11;  // f16 s of 32; IQ4's table
INTEROP_CONST kWeightsIQ4_XS = 12;  // f16 d, for each 32 a of 6 bits: s = d (a - 32); IQ4's table
INTEROP_CONST kWeightsMXFP4 = 13;   // u8 e of 32: s = 2^(e - 128); twice E2M1
INTEROP_CONST kWeightsTable = 14;   // f32 s of 64; the part's own table: NF4, FP4
INTEROP_CONST kWeightsI4G32 = 15;   // a word of 32: s in 16 bits, of f16 or, with the highest bit, bf16, and the zero
                                    //   point z in 15; code - z
INTEROP_CONST kWeightsI4G128 = 16;  // the same, of 128
INTEROP_CONST kWeightsI8G32 = 17;   // the same with codes of 8 bits
INTEROP_CONST kWeightsI8G128 = 18;  // the same, of 128
INTEROP_CONST kWeightsFP8 = 19;     // f32 s of 128; E4M3
// clang-format on
INTEROP_CONST kWeightFormats = 20;

INTEROP_CONST kBrickRows = 16;
INTEROP_CONST kPieceColumns = 32;    // that share a piece and a record's entry
INTEROP_CONST kPartAlign = 256;      // of a part's first brick, bytes
INTEROP_CONST kPartTableBytes = 64;  // in front of it: f32[16], kWeightsTable's

// A kernel's constant that names a format: with the type that its numbers are rounded to, 0 for none, in the second
// byte.
INTEROP_CONST kWeightRoundShift = 8;

#ifdef __cplusplus
#define FORMAT_FUNCTION constexpr
#else
#define FORMAT_FUNCTION
#endif
FORMAT_FUNCTION bool is_packed_format(uint32_t f) { return f >= kWeightsQ8_0; }
FORMAT_FUNCTION bool has_8bit_codes(uint32_t f) { return f == kWeightsQ8_0 || f >= kWeightsI8G32; }
// Returns true if a code stands for itself less a zero point: fixed_zero_of(), or what the record has. Others stand for
// what a table or a small float says.
FORMAT_FUNCTION bool has_integer_codes(uint32_t f) {
    return f != kWeightsIQ4_NL && f != kWeightsIQ4_XS && f != kWeightsMXFP4 && f != kWeightsTable && f != kWeightsFP8;
}
FORMAT_FUNCTION uint32_t fixed_zero_of(uint32_t f) {
    return f == kWeightsQ8_0 ? 128u : f == kWeightsQ4_0 ? 8u : f == kWeightsQ5_0 ? 16u : f == kWeightsQ6_K ? 32u : 0u;
}
// Returns true if the record has a t, which is else 0.
FORMAT_FUNCTION bool has_minimum(uint32_t f) {
    return f == kWeightsQ4_1 || f == kWeightsQ5_1 || f == kWeightsQ4_K || f == kWeightsQ5_K;
}
FORMAT_FUNCTION uint32_t high_bits_of(uint32_t f) {
    return f == kWeightsQ6_K ? 2u : f == kWeightsQ5_0 || f == kWeightsQ5_1 || f == kWeightsQ5_K ? 1u : 0u;
}
FORMAT_FUNCTION uint32_t brick_columns(uint32_t f) {
    return f == kWeightsQ4_K || f == kWeightsQ5_K || f == kWeightsQ6_K || f == kWeightsIQ4_XS ? 256u : 128u;
}
FORMAT_FUNCTION uint32_t record_bytes(uint32_t f) {
    return f == kWeightsMXFP4 || f == kWeightsI4G128 || f == kWeightsI8G128 || f == kWeightsFP8 ? 4u
           : f == kWeightsQ8_0 || f == kWeightsQ4_0 || f == kWeightsQ5_0 || f == kWeightsIQ4_NL ||
                   f == kWeightsIQ4_XS || f == kWeightsTable
               ? 8u
               : 16u;
}
FORMAT_FUNCTION uint32_t second_record_bytes(uint32_t f) { return f == kWeightsQ6_K ? 2u : 0u; }
FORMAT_FUNCTION uint32_t high_offset(uint32_t f) {
    return kBrickRows * brick_columns(f) / 2u * (has_8bit_codes(f) ? 2u : 1u);
}
FORMAT_FUNCTION uint32_t record_offset(uint32_t f) {
    return high_offset(f) + kBrickRows * brick_columns(f) / 8u * high_bits_of(f);
}
FORMAT_FUNCTION uint32_t brick_bytes(uint32_t f) {
    return record_offset(f) + kBrickRows * (record_bytes(f) + second_record_bytes(f));
}
FORMAT_FUNCTION uint32_t bricks_per_row(uint32_t f, uint32_t columns) {
    return (columns + brick_columns(f) - 1u) / brick_columns(f);
}

INTEROP_END

#ifdef __cplusplus
#include <array>
#include <string_view>

#include "gpu/kernels/scalar_type.h"

namespace lorad::gpu {

enum class WeightFormat : uint32_t {
    kF32 = 0,
    kF16 = 1,
    kBf16 = 2,  // as ScalarType
    kQ8_0 = kWeightsQ8_0,
    kQ4_0 = kWeightsQ4_0,
    kQ4_1 = kWeightsQ4_1,
    kQ5_0 = kWeightsQ5_0,
    kQ5_1 = kWeightsQ5_1,
    kQ4_K = kWeightsQ4_K,
    kQ5_K = kWeightsQ5_K,
    kQ6_K = kWeightsQ6_K,
    kIQ4_NL = kWeightsIQ4_NL,
    kIQ4_XS = kWeightsIQ4_XS,
    kMXFP4 = kWeightsMXFP4,
    kTable = kWeightsTable,
    kI4G32 = kWeightsI4G32,
    kI4G128 = kWeightsI4G128,
    kI8G32 = kWeightsI8G32,
    kI8G128 = kWeightsI8G128,
    kFP8 = kWeightsFP8,
};
constexpr WeightFormat format_of(ScalarType type) { return static_cast<WeightFormat>(type); }
constexpr uint32_t number_of(WeightFormat format) { return static_cast<uint32_t>(format); }
constexpr bool is_packed(WeightFormat format) { return is_packed_format(number_of(format)); }
// For people.
constexpr std::string_view name_of(WeightFormat format) {
    constexpr std::array<std::string_view, kWeightFormats> kNames = {"f32",
                                                                     "f16",
                                                                     "bf16",
                                                                     "q8_0",
                                                                     "q4_0",
                                                                     "q4_1",
                                                                     "q5_0",
                                                                     "q5_1",
                                                                     "q4_K",
                                                                     "q5_K",
                                                                     "q6_K",
                                                                     "iq4_nl",
                                                                     "iq4_xs",
                                                                     "mxfp4",
                                                                     "4-bit table",
                                                                     "int4, groups of 32",
                                                                     "int4, groups of 128",
                                                                     "int8, groups of 32",
                                                                     "int8, groups of 128",
                                                                     "fp8"};
    static_assert(!kNames.back().empty(), "each format has a name");
    return kNames[number_of(format)];
}

// Returns true if matmul_packed.comp reads the format. Products of others are portable, or of a plain copy.
constexpr bool is_for_matrices(WeightFormat format) { return is_packed(format); }

// Returns true if weights are rounded to the type of the model's matrices, as the file's library does for formats of
// Hugging Face folders, which say in which type training saw them. In GGUF a weight is the f32 itself.
constexpr bool is_rounded(WeightFormat format) { return number_of(format) >= kWeightsTable; }
// All that a kernel needs to know to read weights: their format, and the type of their model's matrices.
struct WeightKind {
    WeightFormat format = WeightFormat::kF32;
    ScalarType type = ScalarType::kF32;

    WeightKind(ScalarType plain) : format(format_of(plain)), type(plain) {}  // NOLINT: a type is a kind of weights
    WeightKind(WeightFormat packed, ScalarType matrix_type) : format(packed), type(matrix_type) {}
    // The value of the kernel's constant.
    uint32_t constant() const {
        return number_of(format) | (is_rounded(format) ? static_cast<uint32_t>(type) << kWeightRoundShift : 0u);
    }
};

// The bytes of n rows of k columns; a packed format has whole bricks.
constexpr uint64_t bytes_of(WeightFormat format, uint64_t n, uint32_t k) {
    if (!is_packed(format)) return n * k * bytes_of(static_cast<ScalarType>(format));
    return (n + kBrickRows - 1) / kBrickRows * bricks_per_row(number_of(format), k) * brick_bytes(number_of(format));
}

}  // namespace lorad::gpu
#endif

#endif
