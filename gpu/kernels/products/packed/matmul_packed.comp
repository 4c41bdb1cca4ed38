// y[split][t][n] = sum over the split's k of x[t][k] * w[n][k] on KHR cooperative matrices, w a packed part
// (weight_format.h), 16-bit x of one type (macro ELEMENT), f32 sums.
// Weights are rounded to ELEMENT; of integer codes so are scales and minima before, the codes less their zero point are
// exact.
// A subgroup has BANDS bands of 16 rows of w, whose codes go from memory straight into registers, 16 bytes a lane, and
// become elements of A matrices there: lane 4 g + t has of rows g and g + 8 the columns 32 t .. + 31 of each 128, of
// which matrix j of eight takes columns 4 j .. + 3. x is staged in shared memory as lanes want it, so that k is
// permuted alike in A and B. What of a matrix a lane holds is NVIDIA's (activation_fragments.h); a test at the start
// shows whether a device has these.
// Grid: (tiles of ROWS rows of x, splits, tiles of w rows). Bytes: the part once per tile of rows, x once per workgroup
// from the caches.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#ifdef BF16
#extension GL_EXT_bfloat16 : require
#define ELEMENT bfloat16_t
#else
#define ELEMENT float16_t
#endif
#include "gpu/kernels/element_pairs.glsl"
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/formats/weights.glsl"
#include "gpu/kernels/products/matmul.params.h"

layout(constant_id = 1) const uint kWeight = kWeightsQ8_0;
layout(constant_id = 2) const uint BANDS = 1;    // of a subgroup
layout(constant_id = 3) const uint ROWS = 8;     // of x in a tile: 8, or a multiple of 16
layout(constant_id = 4) const uint STEPS = 4;    // of 128 columns that are staged at once
layout(constant_id = 5) const uint STRIDE = 128; // w_stride and x_stride, a multiple of 128
layout(constant_id = 6) const uint HELD = 2;     // steps whose codes are on their way, a divisor of STEPS
layout(constant_id = 7) const uint X_ROWS = 8;   // that there may be
layout(push_constant, scalar) uniform Push { MatmulParams params; };

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words { uvec4 data[]; };

const uint kStepColumns = 128;
const uint kRowBlocks = ROWS / 8;
const uint kMatRows = (ROWS + 15) / 16;  // matrices along the rows of x
// a lane's 16 bytes each, and two more so that stores fall into different banks
const uint kQuarterWords = 34;
const uint kStageWords = kRowBlocks * STEPS * 4 * kQuarterWords;
const uint kXLoads = ROWS * 16 * STEPS / gl_WorkGroupSize.x;
const uint kLaneRows = 2 * BANDS;

shared uvec4 stage[2 * kStageWords];

uvec4 x_held[kXLoads];
uvec4 codes[HELD * kLaneRows * 2];
uvec2 high[HELD * kLaneRows];
uvec4 scales[HELD * kLaneRows];

coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> acc[BANDS * kMatRows];

uint lane_group() { return gl_SubgroupInvocationID / 4; }
uint lane_piece() { return gl_SubgroupInvocationID % 4; }

// The place in the stage of x's 16 bytes number `word` of a row of `row_words`.
uint stage_place(uint row, uint word) {
    const uint step = word / 16, within = word % 16;
    return (((row / 8) * STEPS + step) * 4 + within % 4) * kQuarterWords + row % 8 * 4 + within / 4;
}

void fetch_x(uint row0, uint first_column) {
    [[unroll]] for (uint i = 0; i < kXLoads; ++i) {
        const uint at = i * gl_WorkGroupSize.x + gl_LocalInvocationIndex, row = min(row0 + at / (16 * STEPS), X_ROWS - 1);
        x_held[i] = Words(params.x + 2 * (uint64_t(row) * STRIDE + first_column)).data[at % (16 * STEPS)];
    }
}
void put_x(uint which) {
    [[unroll]] for (uint i = 0; i < kXLoads; ++i) {
        const uint at = i * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
        stage[which * kStageWords + stage_place(at / (16 * STEPS), at % (16 * STEPS))] = x_held[i];
    }
}

// The bricks of each band at the beginning of k.
uint64_t bands_at[BANDS];

void fetch_w(const uint place, uint step) {
    const uint format = format_in(kWeight), halves = brick_columns(format) / kStepColumns;
    const uint half_idx = step % halves, piece = half_idx * 4 + lane_piece();
    [[unroll]] for (uint b = 0; b < BANDS; ++b) {
        const uint64_t brick = bands_at[b] + step / halves * brick_bytes(format);
        [[unroll]] for (uint r = 0; r < 2; ++r) {
            const uint row = lane_group() + r * 8, slot = place * kLaneRows + b * 2 + r;
            const uint at = (half_idx * kBrickRows + row) * 4 + lane_piece();
            codes[slot * 2] = Words(brick).data[at];
            if (has_8bit_codes(format)) codes[slot * 2 + 1] = Words(brick + high_offset(format) / 2).data[at];
            if (high_bits_of(format) == 1) high[slot] = uvec2(UintRef(brick + high_offset(format) + at * 4).v, 0);
            if (high_bits_of(format) == 2) high[slot] = Uvec2Ref(brick + high_offset(format) + at * 8).v;
            scales[slot] = scale_words(brick, row, piece, format);
        }
    }
}

// Columns 4 j .. + 3 of a lane's row: two pairs of codes, 16 bits apart in each word.
uvec2 code_pairs(uint slot, const uint j) {
    const uint format = format_in(kWeight);
    if (has_8bit_codes(format)) {
        const uint word = codes[slot * 2 + j / 4][j % 4];
        return uvec2(word, word >> 8) & 0x00ff00ffu;
    }
    const uint word = codes[slot * 2][j / 2] >> (8 * (j % 2));
    uvec2 pairs = uvec2(word, word >> 4) & 0x000f000fu;
    if (high_bits_of(format) == 1) {
        const uint bits = high[slot].x >> (2 * j);  // 4 (j / 2) + 2 (j % 2)
        pairs |= (uvec2(bits, bits >> 1) & 0x00010001u) << 4;
    } else if (high_bits_of(format) == 2) {
        const uint bits = high[slot][j / 4] >> (8 * (j / 2 % 2) + 4 * (j % 2));
        pairs |= (uvec2(bits, bits >> 2) & 0x00030003u) << 4;
    }
    return pairs;
}

// Two weights.
PAIR weights_of(uint pair, float s, float t, uint zero) {
    const uint format = format_in(kWeight);
#ifndef BF16
    if (has_integer_codes(format)) {
        const PAIR c = pair_of(pair | 0x64006400u) - PAIR(float16_t(1024.0 + float(zero)));  // 1024 + code, exact
        const PAIR scaled = c * PAIR(float16_t(s));
        if (has_minimum(format)) return fma(c, PAIR(float16_t(s)), PAIR(float16_t(-t)));
        return scaled;
    }
#endif
    if (has_integer_codes(format)) {
        // 2^23 + code
        const vec2 c = uintBitsToFloat(uvec2(pair & 0xffffu, pair >> 16) | 0x4b000000u) - (8388608.0 + float(zero));
        return PAIR(ELEMENT(c.x * s - t), ELEMENT(c.y * s - t));
    }
    const uint64_t table = params.w - kPartTableBytes;
    return PAIR(ELEMENT(s * code_value(pair & 0xffffu, zero, table, format)), ELEMENT(s * code_value(pair >> 16, zero, table, format)));
}

// A step's products: the codes at `place`, and x of this step in the stage.
void multiply(const uint place, uint step, uint which, const uint staged_step) {
    const uint format = format_in(kWeight), halves = brick_columns(format) / kStepColumns;
    const uint piece = step % halves * 4 + lane_piece();
    PieceScale scale[kLaneRows];
    [[unroll]] for (uint r = 0; r < kLaneRows; ++r) scale[r] = scale_of(scales[place * kLaneRows + r], lane_group() + r % 2 * 8, piece, format);
    [[unroll]] for (uint quarter = 0; quarter < 4; ++quarter) {
        uvec4 x[kRowBlocks];
        [[unroll]] for (uint i = 0; i < kRowBlocks; ++i)
            x[i] = stage[which * kStageWords + ((i * STEPS + staged_step) * 4 + quarter) * kQuarterWords + gl_SubgroupInvocationID];
        [[unroll]] for (uint part = 0; part < 2; ++part) {
            const uint j = quarter * 2 + part;
            coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a[BANDS];
            [[unroll]] for (uint b = 0; b < BANDS; ++b) {
                [[unroll]] for (uint r = 0; r < 2; ++r) {
                    const uint lane_row = b * 2 + r;
                    const uvec2 pairs = code_pairs(place * kLaneRows + lane_row, j);
                    const float s = j < 4 ? scale[lane_row].first : scale[lane_row].second;
                    const PAIR p0 = weights_of(pairs.x, s, scale[lane_row].t, scale[lane_row].zero), p1 = weights_of(pairs.y, s, scale[lane_row].t, scale[lane_row].zero);
                    a[b][r * 4] = p0.x;
                    a[b][r * 4 + 1] = p0.y;
                    a[b][r * 4 + 2] = p1.x;
                    a[b][r * 4 + 3] = p1.y;
                }
            }
            [[unroll]] for (uint i = 0; i < kMatRows; ++i) {
                coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> m;
                [[unroll]] for (uint r = 0; r < 2; ++r) {
                    const uvec4 of_row = 2 * i + r < kRowBlocks ? x[min(2 * i + r, kRowBlocks - 1)] : uvec4(0);
                    const PAIR p0 = pair_of(of_row[part * 2]), p1 = pair_of(of_row[part * 2 + 1]);
                    m[r * 4] = p0.x;
                    m[r * 4 + 1] = p0.y;
                    m[r * 4 + 2] = p1.x;
                    m[r * 4 + 3] = p1.y;
                }
                [[unroll]] for (uint b = 0; b < BANDS; ++b) acc[b * kMatRows + i] = coopMatMulAdd(a[b], m, acc[b * kMatRows + i]);
            }
        }
    }
}

void main() {
    const uint row0 = gl_WorkGroupID.x * ROWS;
    // The first rows are always there.
    if (row0 > 0 && row0 >= UintRef(params.n_rows).v) return;
    const uint format = format_in(kWeight);
    const uint first_step = gl_WorkGroupID.y * params.k_per_split / kStepColumns;
    const uint n_steps = min(params.k_per_split / kStepColumns, STRIDE / kStepColumns - first_step);
    const uint n0 = (gl_WorkGroupID.z * gl_NumSubgroups + gl_SubgroupID) * BANDS * kBrickRows;
    [[unroll]] for (uint b = 0; b < BANDS; ++b) {
        const uint band = min(n0 / kBrickRows + b, params.n / kBrickRows - 1);
        bands_at[b] = params.w + uint64_t(band) * bricks_per_row(format, STRIDE) * brick_bytes(format);
    }
    [[unroll]] for (uint i = 0; i < BANDS * kMatRows; ++i) acc[i] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
    fetch_x(row0, first_step * kStepColumns);
    const uint last = first_step + n_steps - 1;
    [[unroll]] for (uint h = 0; h < HELD; ++h) fetch_w(h, min(first_step + h, last));
    put_x(0);
    barrier();
    for (uint begin = 0; begin < n_steps; begin += STEPS) {
        const uint which = begin / STEPS % 2;
        const bool has_more = begin + STEPS < n_steps;
        if (has_more) fetch_x(row0, (first_step + begin + STEPS) * kStepColumns);
        [[unroll]] for (uint s = 0; s < STEPS; ++s) {
            if (begin + s < n_steps) {
                const uint step = first_step + begin + s;
                multiply(s % HELD, step, which, s);
                fetch_w(s % HELD, min(step + HELD, last));
            }
        }
        if (has_more) put_x(1 - which);
        barrier();
    }
    // Element e of a matrix: row g or g + 8 of w, row 2t, 2t + 1, 2t + 8 or 2t + 9 of x.
    const uint64_t y = params.y + 4 * uint64_t(gl_WorkGroupID.y) * params.split_stride;
    [[unroll]] for (uint b = 0; b < BANDS; ++b) {
        const uint n = n0 + b * kBrickRows;
        if (n >= params.n) return;
        [[unroll]] for (uint i = 0; i < kMatRows; ++i) {
            [[unroll]] for (uint e = 0; e < 8; ++e) {
                const uint in_tile = i * 16 + lane_piece() * 2 + e % 2 + e / 2 % 2 * 8, row = row0 + in_tile;
                if (in_tile < ROWS && row < X_ROWS) FloatRef(y + 4 * (uint64_t(row) * params.y_stride + n + lane_group() + e / 4 * 8)).v = acc[b * kMatRows + i][e];
            }
        }
    }
}
