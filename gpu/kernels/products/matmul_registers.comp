// matmul by blocks of y in registers: y[s][t][n] = sum over the k range of split s of x[t][k] * w[n][k]
//   w  [n_padded][w_stride]  WEIGHT_TYPE, or a packed part (weight_format.h), of which no columns of y beyond n are
//       written
//   x  [T][x_stride]         ACT_TYPE
//   y  [S][T][y_stride]      f32
// A thread takes EACH_N x EACH_T elements of y, LANES_N x LANES_T threads a tile of them. A workgroup has SLICES times
// as many threads, and each of these groups TILE_K of the SLICES * TILE_K elements of k that lie in shared memory at
// once; their sums meet at the end. Loads of the next k are under way while these are multiplied, with two buffers
// behind one barrier. Rows lie in shared memory as in memory, in words of 16 bytes, each row's in an order of its own
// (w_swizzle, x_swizzle), so that lanes that ask for one word of neighbouring rows ask different banks.
// With one slice a row's sums go by k alone: no bit depends on the tile.
//
// With SHORT_SUMS two f16 multiply and add at once (f16vec2). SHORT neighbouring elements of k are summed so, even and
// odd ones apart, then added in f32. SHORT elements of a row of x have a power of two that makes the largest of them
// 1 to 2, and are multiplied by it before they are rounded: short sums of weights up to 65504 / (2 * SHORT) are finite
// whatever x is, and no bits are lost below f16's range. Without SHORT_SUMS all is f32.
// grid (ceil(T / (LANES_T * EACH_T)), ceil(n_padded / (LANES_N * EACH_N)), S)
#version 460
#extension GL_GOOGLE_include_directive : require
#ifdef SHORT_SUMS
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/formats/weights.glsl"
#include "gpu/kernels/products/matmul.params.h"

layout(constant_id = 1) const uint kWeightType = 0;
layout(constant_id = 2) const uint kActType = 0;
layout(constant_id = 3) const uint kLanesN = 16;
layout(constant_id = 4) const uint kLanesT = 16;
layout(constant_id = 5) const uint kEachN = 8;
layout(constant_id = 6) const uint kEachT = 8;
layout(constant_id = 7) const uint kTileK = 16;
layout(constant_id = 8) const uint kSlices = 1;
layout(constant_id = 9) const uint kBuffers = 2;  // 1 or 2
layout(constant_id = 10) const uint kGroupN = 8;  // of 32 neighbouring threads, those along n; divides kLanesN
layout(constant_id = 11) const uint kShort = 16;  // 16, 32 or 64; divides kTileK
layout(push_constant, scalar) uniform Push { MatmulParams p; };

const bool kPacked = (kWeightType & ((1u << kWeightRoundShift) - 1u)) >= kWeightsQ8_0;
const uint kRawWeight = kPacked ? 0 : kWeightType;
const uint kThreads = gl_WorkGroupSize.x;
const uint kTileN = kLanesN * kEachN, kTileT = kLanesT * kEachT, kTileRows = kTileN + kTileT;
#ifdef SHORT_SUMS
const uint kEightWords = 1;
#else
const uint kEightWords = 2;
#endif
const uint kEights = kTileK / 8;  // of a row in a slice
const uint kWords = kEights * kEightWords;
const uint kStagedEights = kEights * kSlices;  // of a row at once
const uint kLoadsW = (kTileN * kStagedEights + kThreads - 1) / kThreads, kLoadsX = (kTileT * kStagedEights + kThreads - 1) / kThreads;
const uint kBufferWords = kSlices * kTileRows * kWords;
const uint kWordsMask = (kWords < 8 ? kWords : 8) - 1;
shared uvec4 tile[kBuffers * kBufferWords];
#ifdef SHORT_SUMS
const uint kShorts = kTileK / kShort;
shared float x_scale[kBuffers * kSlices * kShorts * kTileT];
#endif

// Eight elements as they lie in memory; hi is of f32 alone.
struct Raw {
    uvec4 lo, hi;
};
Raw raw_of(Eight e) { return Raw(floatBitsToUint(e.lo), floatBitsToUint(e.hi)); }
Eight eight_of(Raw raw, const uint type) {
    return type == 0 ? Eight(uintBitsToFloat(raw.lo), uintBitsToFloat(raw.hi)) : unpack8(raw.lo, type);
}
Raw load_raw(uint64_t base, uint chunk, const uint type) {
    if (type != 0) return Raw(Uvec4Ref(base + uint64_t(chunk) * 16).v, uvec4(0));
    const uint64_t at = base + uint64_t(chunk) * 32;
    return Raw(Uvec4Ref(at).v, Uvec4Ref(at + 16).v);
}

Raw next_w[kLoadsW], next_x[kLoadsX];
uint w_chunk[kLoadsW], x_chunk[kLoadsX];  // the first of the split in its row; of packed weights the row
uint n_chunks;                            // of the split

uint w_swizzle(uint row) { return (kWords < 8 ? row * kWords / 8 : row) & kWordsMask; }
uint x_swizzle(uint lane_t) { return lane_t & kWordsMask; }
uint w_word(uint slice, uint row, uint word) { return (slice * kTileRows + row) * kWords + (word ^ w_swizzle(row)); }
uint x_word(uint slice, uint row, uint word) { return (slice * kTileRows + kTileN + row) * kWords + (word ^ x_swizzle(row / kEachT)); }

// Of n_units eights of a step, row after row, number i that this thread loads; more threads than eights load the last.
uint unit_of(const uint i, const uint n_units) {
    const uint unit = gl_LocalInvocationIndex + i * kThreads;
    return n_units % kThreads == 0 ? unit : min(unit, n_units - 1);
}
// Steps may be longer than what k is a multiple of: then the last eight again.
uint chunk_of(uint step_idx, uint e) {
    const uint chunk = step_idx * kStagedEights + e;
    return kStagedEights > 8 ? min(chunk, n_chunks - 1) : chunk;
}

void fetch(uint step_idx, uint first_chunk) {
    [[unroll]] for (uint i = 0; i < kLoadsW; i++) {
        const uint chunk = chunk_of(step_idx, unit_of(i, kTileN * kStagedEights) % kStagedEights);
        if (kPacked) next_w[i] = raw_of(load8_packed(p.w, w_chunk[i], first_chunk + chunk, p.w_stride, kWeightType));
        else next_w[i] = load_raw(p.w, w_chunk[i] + chunk, kRawWeight);
    }
    [[unroll]] for (uint i = 0; i < kLoadsX; i++)
        next_x[i] = load_raw(p.x, x_chunk[i] + chunk_of(step_idx, unit_of(i, kTileT * kStagedEights) % kStagedEights), kActType);
}

float greatest(Eight e) {
    const vec4 most = max(abs(e.lo), abs(e.hi));
    return max(max(most.x, most.y), max(most.z, most.w));
}

void put(uint step_idx, uint buffer_idx) {
    const uint first_word = buffer_idx * kBufferWords;
    [[unroll]] for (uint i = 0; i < kLoadsW; i++) {
        const uint unit = gl_LocalInvocationIndex + i * kThreads, row = unit / kStagedEights, e = unit % kStagedEights;
        if (kTileN * kStagedEights % kThreads != 0 && row >= kTileN) continue;
        const uint slice = e / kEights, word = e % kEights * kEightWords;
        const bool is_there = kStagedEights <= 8 || step_idx * kStagedEights + e < n_chunks;
#ifdef SHORT_SUMS
        const uvec4 halves = kRawWeight == 1 ? next_w[i].lo : pack8(eight_of(next_w[i], kRawWeight), 1);
        tile[first_word + w_word(slice, row, word)] = is_there ? halves : uvec4(0);
#else
        const Eight w = eight_of(next_w[i], kRawWeight);
        tile[first_word + w_word(slice, row, word)] = is_there ? floatBitsToUint(w.lo) : uvec4(0);
        tile[first_word + w_word(slice, row, word + 1)] = is_there ? floatBitsToUint(w.hi) : uvec4(0);
#endif
    }
    [[unroll]] for (uint i = 0; i < kLoadsX; i++) {
        const uint unit = gl_LocalInvocationIndex + i * kThreads, row = unit / kStagedEights, e = unit % kStagedEights;
        const bool is_mine = kTileT * kStagedEights % kThreads == 0 || row < kTileT;
        const uint slice = e / kEights, word = e % kEights * kEightWords;
        Eight x = eight_of(next_x[i], kActType);
#ifdef SHORT_SUMS
        float most = greatest(x);
        [[unroll]] for (uint lanes = 1; lanes < kShort / 8; lanes *= 2) most = max(most, subgroupShuffleXor(most, lanes));
        const uint exponent = min(floatBitsToUint(most) & 0x7f800000u, 0x7e800000u);
        const float up = uintBitsToFloat(0x7f000000u - exponent);
        if (is_mine) {
            tile[first_word + x_word(slice, row, word)] = pack8(Eight(x.lo * up, x.hi * up), 1);
            if (e % (kShort / 8) == 0) x_scale[((buffer_idx * kSlices + slice) * kShorts + e % kEights / (kShort / 8)) * kTileT + row] = uintBitsToFloat(exponent);
        }
#else
        if (is_mine) {
            tile[first_word + x_word(slice, row, word)] = floatBitsToUint(x.lo);
            tile[first_word + x_word(slice, row, word + 1)] = floatBitsToUint(x.hi);
        }
#endif
    }
}

float acc[kEachN * kEachT];

// Two elements of k at once with SHORT_SUMS, else one.
#ifdef SHORT_SUMS
#define SUM f16vec2
SUM sums[kEachN * kEachT];
SUM add_product(uint w, uint x, SUM sum) { return fma(unpackFloat2x16(w), unpackFloat2x16(x), sum); }
#else
#define SUM float
#define sums acc
SUM add_product(uint w, uint x, SUM sum) { return fma(uintBitsToFloat(w), uintBitsToFloat(x), sum); }
#endif

// A word of each row and column. Neighbouring instructions add to different sums, and have the same element of w.
void multiply_word(uint first_word, uint slice, uint lane_n, uint lane_t, const uint word) {
    uvec4 x[kEachT];
    const uint x_at = first_word + (slice * kTileRows + kTileN + lane_t * kEachT) * kWords + (word ^ x_swizzle(lane_t));
    [[unroll]] for (uint j = 0; j < kEachT; j++) x[j] = tile[x_at + j * kWords];
    const uint w_at = first_word + (slice * kTileRows + lane_n) * kWords;
    [[unroll]] for (uint i = 0; i < kEachN; i++) {
        // A thread's columns have one turn: kLanesN is a multiple of 8.
        const uvec4 w = tile[w_at + i * kLanesN * kWords + (word ^ w_swizzle(lane_n))];
        [[unroll]] for (uint part = 0; part < 4; part++) {
            [[unroll]] for (uint j = 0; j < kEachT; j++) sums[i * kEachT + j] = add_product(w[part], x[j][part], sums[i * kEachT + j]);
        }
    }
}

void multiply(uint buffer_idx, uint slice, uint lane_n, uint lane_t) {
    const uint first_word = buffer_idx * kBufferWords;
#ifdef SHORT_SUMS
    [[unroll]] for (uint part = 0; part < kShorts; part++) {
        [[unroll]] for (uint i = 0; i < kEachN * kEachT; i++) sums[i] = f16vec2(0.0);
        [[unroll]] for (uint c = 0; c < kShort / 8; c++) multiply_word(first_word, slice, lane_n, lane_t, part * (kShort / 8) + c);
        [[unroll]] for (uint j = 0; j < kEachT; j++) {
            const float scale = x_scale[((buffer_idx * kSlices + slice) * kShorts + part) * kTileT + lane_t * kEachT + j];
            [[unroll]] for (uint i = 0; i < kEachN; i++) {
                const f16vec2 sum = sums[i * kEachT + j];
                acc[i * kEachT + j] = fma(float(sum.x + sum.y), scale, acc[i * kEachT + j]);
            }
        }
    }
#else
    [[unroll]] for (uint c = 0; c < kWords; c++) multiply_word(first_word, slice, lane_n, lane_t, c);
#endif
}

// The slices' sums, in order, into those of the first; through the tiles' memory, four sums of a thread in a word.
void join_slices(uint slice, uint place) {
    const uint n_places = kLanesN * kLanesT;
    for (uint other = 1; other < kSlices; other++) {
        barrier();
        if (slice == other) {
            [[unroll]] for (uint i = 0; i < kEachN * kEachT / 4; i++)
                tile[i * n_places + place] = floatBitsToUint(vec4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]));
        }
        barrier();
        if (slice == 0) {
            [[unroll]] for (uint i = 0; i < kEachN * kEachT / 4; i++) {
                const vec4 more = uintBitsToFloat(tile[i * n_places + place]);
                [[unroll]] for (uint j = 0; j < 4; j++) acc[4 * i + j] += more[j];
            }
        }
    }
}

void main() {
    const uint n_rows = UintRef(p.n_rows).v;
    const uint t0 = gl_WorkGroupID.x * kTileT, n0 = gl_WorkGroupID.y * kTileN, split = gl_WorkGroupID.z;
    if (t0 >= n_rows) return;
    const uint n_end = kPacked ? p.n : (p.n + 63) / 64 * 64;
    const uint first_chunk = split * p.k_per_split / 8, row_chunks = p.w_stride / 8;
    n_chunks = min(p.k_per_split / 8, row_chunks - first_chunk);
    [[unroll]] for (uint i = 0; i < kLoadsW; i++) {
        const uint unit = unit_of(i, kTileN * kStagedEights), row = min(n0 + unit / kStagedEights, n_end - 1);
        w_chunk[i] = kPacked ? row : row * row_chunks + first_chunk;
    }
    [[unroll]] for (uint i = 0; i < kLoadsX; i++) {
        const uint unit = unit_of(i, kTileT * kStagedEights), row = min(t0 + unit / kStagedEights, n_rows - 1);
        x_chunk[i] = row * row_chunks + first_chunk;
    }

    const uint n_places = kLanesN * kLanesT, slice = gl_LocalInvocationIndex / n_places, place = gl_LocalInvocationIndex % n_places;
    const uint group = place / 32, in_group = place % 32, groups_n = kLanesN / kGroupN;
    const uint lane_n = in_group % kGroupN + group % groups_n * kGroupN, lane_t = in_group / kGroupN + group / groups_n * (32 / kGroupN);
    [[unroll]] for (uint i = 0; i < kEachN * kEachT; i++) acc[i] = 0.0;
    const uint n_steps = (n_chunks + kStagedEights - 1) / kStagedEights;
    fetch(0, first_chunk);
    for (uint step_idx = 0; step_idx < n_steps; step_idx++) {
        const uint buffer_idx = kBuffers == 2 ? step_idx & 1 : 0;
        put(step_idx, buffer_idx);
        barrier();
        // No branch: the last step loads itself again. Loads behind a branch cost registers.
        fetch(min(step_idx + 1, n_steps - 1), first_chunk);
        multiply(buffer_idx, slice, lane_n, lane_t);
        if (kBuffers == 1) barrier();
    }
    if (kSlices > 1) join_slices(slice, place);
    if (slice != 0) return;
    [[unroll]] for (uint j = 0; j < kEachT; j++) {
        const uint t = t0 + lane_t * kEachT + j;
        if (t >= n_rows) break;
        const uint64_t y = p.y + (uint64_t(split) * p.split_stride + uint64_t(t) * p.y_stride + n0 + lane_n) * 4;
        [[unroll]] for (uint i = 0; i < kEachN; i++) {
            if (n0 + lane_n + i * kLanesN < n_end) FloatRef(y + i * kLanesN * 4).v = acc[i * kEachT + j];
        }
    }
}
