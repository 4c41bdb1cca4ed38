// Reads weights of every format (weight_format.h), exactly. Formats are constants of the kernel, so only one way is
// left of all branches. Needs common.glsl.
#include "gpu/kernels/formats/weight_format.h"

uint format_in(const uint weight) { return weight & ((1u << kWeightRoundShift) - 1); }
uint rounding_in(const uint weight) { return weight >> kWeightRoundShift; }
bool is_packed_weight(const uint weight) { return is_packed_format(format_in(weight)); }

// Rounds to the nearest f16, ties to even, by integers: packHalf2x16 may round otherwise.
uint f16_bits(float value) {
    uint bits = floatBitsToUint(value);
    uint sign = (bits >> 16) & 0x8000u;
    uint magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7e00u;
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and more
    if (magnitude < 0x38800000u) {                        // below 2^-14: steps of 2^-24; the sum rounds to them
        return sign | (floatBitsToUint(uintBitsToFloat(magnitude) + 0.5) & 0x7fffu);
    }
    return sign | ((magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13);
}
float rounded_to(float value, const uint type) {
    if (type == 1) return unpackHalf2x16(f16_bits(value)).x;
    return type == 2 ? uintBitsToFloat(bf16_bits(value) << 16) : value;
}
vec4 rounded_to(vec4 v, const uint type) {
    return type == 0 ? v : vec4(rounded_to(v.x, type), rounded_to(v.y, type), rounded_to(v.z, type), rounded_to(v.w, type));
}

// The brick of a row and column; row: of the part that begins at `base`, stride: the matrix's columns.
uint64_t brick_at(uint64_t base, uint row, uint column, uint stride, const uint format) {
    return base + (uint64_t(row / kBrickRows) * bricks_per_row(format, stride) + column / brick_columns(format)) * brick_bytes(format);
}

// The scale of 32 neighbouring weights: s of the first 16 and of the others, t, and the code that stands for 0.
struct PieceScale {
    float first, second, t;
    uint zero;
};

float half_of(uint word, uint which) { return unpackHalf2x16(word)[which]; }

// Loads the words of a record with a piece's scale; piece: of the row in its brick, 0 .. brick_columns / 32 - 1.
uvec4 scale_words(uint64_t brick, uint row, uint piece, const uint format) {
    const uint64_t record = brick + record_offset(format) + (row % kBrickRows) * record_bytes(format);
    if (format == kWeightsQ4_K || format == kWeightsQ5_K) return Uvec4Ref(record).v;
    if (format == kWeightsIQ4_XS) return uvec4(Uvec2Ref(record).v, 0, 0);
    if (format == kWeightsQ6_K) {
        const uint64_t second = brick + record_offset(format) + kBrickRows * record_bytes(format) + row % kBrickRows / 2 * 4;
        return uvec4(UintRef(record + piece / 2 * 4).v, UintRef(second).v, 0, 0);
    }
    const uint entry_bytes = record_bytes(format) == 16 ? 4 : record_bytes(format) == 8 ? 2 : 0;
    return uvec4(UintRef(record + piece * entry_bytes / 4 * 4).v, 0, 0, 0);
}

PieceScale scale_of(uvec4 words, uint row, uint piece, const uint format) {
    PieceScale scale = PieceScale(0.0, 0.0, 0.0, fixed_zero_of(format));
    if (format == kWeightsQ8_0 || format == kWeightsQ4_0 || format == kWeightsQ5_0 || format == kWeightsIQ4_NL) {
        scale.first = half_of(words.x, piece % 2);
    } else if (format == kWeightsQ4_1 || format == kWeightsQ5_1) {
        const vec2 both = unpackHalf2x16(words.x);
        scale.first = both.x;
        scale.t = -both.y;
    } else if (format == kWeightsQ4_K || format == kWeightsQ5_K) {
        const vec2 d = unpackHalf2x16(words.x);
        const uvec3 bits = (words.yzw >> (4 * piece)) & 15u;
        scale.first = d.x * float(bits.x | (bits.z & 3u) << 4);
        scale.t = d.y * float(bits.y | (bits.z >> 2) << 4);
    } else if (format == kWeightsQ6_K) {
        const float d = half_of(words.y, row % 2);
        const int both = int(words.x << (16 * (1 - piece % 2)));
        scale.first = d * float(bitfieldExtract(both, 16, 8));
        scale.second = d * float(bitfieldExtract(both, 24, 8));
    } else if (format == kWeightsIQ4_XS) {
        const uint a = uint((uint64_t(words.y) << 32 | uint64_t(words.x)) >> (16 + 6 * piece)) & 63u;
        scale.first = half_of(words.x, 0) * float(int(a) - 32);
    } else if (format == kWeightsMXFP4) {
        const uint e = (words.x >> (8 * piece)) & 255u;
        scale.first = uintBitsToFloat(e < 2 ? 0x00200000u << e : (e - 1) << 23);  // the two smallest are subnormal
    } else if (format == kWeightsTable || format == kWeightsFP8) {
        scale.first = uintBitsToFloat(words.x);
    } else {
        scale.first = int(words.x) < 0 ? uintBitsToFloat(words.x << 16) : half_of(words.x, 0);
        scale.zero = (words.x >> 16) & 0x7fffu;
    }
    if (format != kWeightsQ6_K) scale.second = scale.first;
    return scale;
}

PieceScale piece_scale(uint64_t brick, uint row, uint piece, const uint format) {
    return scale_of(scale_words(brick, row, piece, format), row, piece, format);
}

const uvec4 kIQ4Table = uvec4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);  // i8[16]

float code_value(uint code, uint zero, uint64_t table, const uint format) {
    if (format == kWeightsIQ4_NL || format == kWeightsIQ4_XS) {
        const uvec2 half_table = code < 8 ? kIQ4Table.xy : kIQ4Table.zw;
        const uint word = (code & 4u) == 0 ? half_table.x : half_table.y;
        return float(bitfieldExtract(int(word), int(code & 3u) * 8, 8));
    }
    if (format == kWeightsMXFP4) {
        // 1 1.5 2 3 4 6 8 12 by their bits, without conversions or subnormal numbers. No packer writes the code of -0.
        const float steps = uintBitsToFloat(0x3f800000u + ((code & 7u) << 22)), magnitude = min(steps, 2.0 * steps - 2.0);
        return uintBitsToFloat(floatBitsToUint(magnitude) | (code & 8u) << 28);
    }
    if (format == kWeightsTable) return FloatRef(table + code * 4).v;
    if (format == kWeightsFP8) {
        const uint exponent = (code >> 3) & 15u, mantissa = code & 7u;
        const float magnitude = exponent == 0 ? float(mantissa) * 0.001953125 : uintBitsToFloat((exponent + 120) << 23 | mantissa << 20);
        return (code & 128u) != 0 ? -magnitude : magnitude;
    }
    return float(int(code) - int(zero));
}

// Loads the words of eight codes, number `eight` of four in the piece: at 8 bits xy, else x, and z the bits above four.
uvec3 code_words(uint64_t brick, uint row, uint piece, uint eight, const uint format) {
    const uint place = (piece / 4 * kBrickRows + row % kBrickRows) * 4 + piece % 4;
    if (has_8bit_codes(format)) return uvec3(Uvec2Ref(brick + eight / 2 * (high_offset(format) / 2) + place * 16 + eight % 2 * 8).v, 0);
    uvec3 words = uvec3(UintRef(brick + place * 16 + eight * 4).v, 0, 0);
    if (high_bits_of(format) == 1) words.z = UintRef(brick + high_offset(format) + place * 4).v >> (4 * eight);
    else if (high_bits_of(format) == 2) words.z = UintRef(brick + high_offset(format) + place * 8 + eight / 2 * 4).v >> (8 * (eight % 2));
    return words;
}

uvec4[2] codes_in(uvec3 words, const uint format) {
    if (has_8bit_codes(format)) {
        const uvec4 shifts = uvec4(0, 16, 8, 24);
        return uvec4[2]((uvec4(words.x) >> shifts) & 255u, (uvec4(words.y) >> shifts) & 255u);
    }
    uvec4 lo = (uvec4(words.x) >> uvec4(0, 16, 4, 20)) & 15u, hi = (uvec4(words.x) >> uvec4(8, 24, 12, 28)) & 15u;
    if (high_bits_of(format) == 1) {
        lo |= ((uvec4(words.z) >> uvec4(0, 16, 1, 17)) & 1u) << 4;
        hi |= ((uvec4(words.z) >> uvec4(2, 18, 3, 19)) & 1u) << 4;
    } else if (high_bits_of(format) == 2) {
        lo |= ((uvec4(words.z) >> uvec4(0, 16, 2, 18)) & 3u) << 4;
        hi |= ((uvec4(words.z) >> uvec4(4, 20, 6, 22)) & 3u) << 4;
    }
    return uvec4[2](lo, hi);
}

// The weights of eight codes, number `eight` of the piece that has this scale, in f32.
Eight numbers_in(uvec3 words, uint eight, PieceScale scale, uint64_t table, const uint format) {
    const uvec4 codes[2] = codes_in(words, format);
    const float s = eight < 2 ? scale.first : scale.second;
    vec4 numbers[2];
    [[unroll]] for (uint i = 0; i < 2; i++) {
        [[unroll]] for (uint j = 0; j < 4; j++) numbers[i][j] = s * code_value(codes[i][j], scale.zero, table, format) - scale.t;
    }
    return Eight(numbers[0], numbers[1]);
}

// Eight weights of a piece whose scale is known.
Eight piece_eight(uint64_t base, uint64_t brick, uint row, uint piece, uint eight, PieceScale scale, const uint weight) {
    const uint format = format_in(weight);
    const Eight e = numbers_in(code_words(brick, row, piece, eight, format), eight, scale, base - kPartTableBytes, format);
    return Eight(rounded_to(e.lo, rounding_in(weight)), rounded_to(e.hi, rounding_in(weight)));
}

// Weights 8 chunk .. + 7 of a row of a packed part.
Eight load8_packed(uint64_t base, uint row, uint chunk, uint stride, const uint weight) {
    const uint format = format_in(weight), column = chunk * 8;
    const uint64_t brick = brick_at(base, row, column, stride, format);
    const uint piece = column % brick_columns(format) / kPieceColumns;
    return piece_eight(base, brick, row, piece, chunk % 4, piece_scale(brick, row, piece, format), weight);
}

// The same of any format. base: row 0 of the matrix, or of the part.
Eight load8_weights(uint64_t base, uint row, uint chunk, uint stride, const uint weight) {
    if (is_packed_weight(weight)) return load8_packed(base, row, chunk, stride, weight);
    return load8(base + uint64_t(row) * stride * bytes_of(format_in(weight)), chunk, format_in(weight));
}
// Weights 4 chunk .. + 3.
vec4 load4_weights(uint64_t base, uint row, uint chunk, uint stride, const uint weight) {
    if (!is_packed_weight(weight)) return load4(base + uint64_t(row) * stride * bytes_of(format_in(weight)), chunk, format_in(weight));
    const Eight e = load8_packed(base, row, chunk / 2, stride, weight);
    return chunk % 2 == 0 ? e.lo : e.hi;
}
