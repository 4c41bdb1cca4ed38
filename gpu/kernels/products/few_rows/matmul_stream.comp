// matmul of up to 8 rows: y[s][t][n] = sum over the k range of split s of x[t][k] * w[n][k]
//   w  [n_padded][w_stride]  WEIGHT_TYPE, plain, 16 bits
//   x  [T][x_stride]         ACT_TYPE
//   y  [S][T][y_stride]      f32
// w goes from memory straight into registers: LANES_K neighbouring threads have a row's k, two words of 16 bytes each
// in a step, and EACH_N neighbouring rows of w each. x lies in shared memory, STAGED_K elements of each row at once, of
// which each thread brings 16; two buffers behind one barrier.
//
// With SHORT_SUMS two f16 multiply and add at once: a thread's 16 elements of a step, even and odd ones apart, then
// added in f32. These elements of a row of x have a power of two that makes the largest of them 1 to 2, as in
// matmul_registers.comp.
// grid (ceil(T / COLS), ceil(n_padded / columns), S)
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
#ifdef SHORT_SUMS
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/products/matmul.params.h"

layout(constant_id = 1) const uint kWeightType = 1;
layout(constant_id = 2) const uint kActType = 0;
layout(constant_id = 3) const uint kCols = 8;    // rows of x
layout(constant_id = 4) const uint kEachN = 4;
layout(constant_id = 5) const uint kLanesK = 8;  // 4 or 8, at most a subgroup's lanes
layout(constant_id = 6) const uint kSlots = 1;   // steps whose words of w are under way; divides those of a stage
layout(push_constant, scalar) uniform Push { MatmulParams p; };

const uint kThreads = gl_WorkGroupSize.x;
const uint kColumns = kThreads / kLanesK * kEachN;
const uint kStepK = kLanesK * 16;
const uint kStagedK = kThreads * 16 / kCols;  // a multiple of kStepK
const uint kSteps = kStagedK / kStepK;        // of a stage
#ifdef SHORT_SUMS
const uint kEightWords = 1;
#else
const uint kEightWords = 2;
#endif
const uint kBufferWords = kSteps * 2 * kCols * kLanesK * kEightWords;
shared uvec4 staged[2 * kBufferWords];
#ifdef SHORT_SUMS
const uint kBufferScales = kSteps * kCols * kLanesK;
shared float scales[2 * kBufferScales];
#endif

// The place of a word of row t of x: thread lane_k's first or second one of a step.
uint word_place(uint step_idx, uint half_idx, uint t, uint lane_k) {
    return (((step_idx * 2 + half_idx) * kCols + t) * kLanesK + lane_k) * kEightWords;
}

uint n_chunks, first_chunk;  // of the split
Eight next_x[2];

// Of the stage, the 16 elements that this thread brings.
void fetch_x(uint stage_idx, uint n_rows, uint t0) {
    const uint t = gl_LocalInvocationIndex / (kStagedK / 16), unit = gl_LocalInvocationIndex % (kStagedK / 16);
    const uint64_t row = p.x + uint64_t(min(t0 + t, n_rows - 1)) * p.x_stride * bytes_of(kActType);
    [[unroll]] for (uint h = 0; h < 2; h++) {
        const uint chunk = (stage_idx * kSteps + unit / kLanesK) * (2 * kLanesK) + h * kLanesK + unit % kLanesK;
        next_x[h] = load8(row, first_chunk + min(chunk, n_chunks - 1), kActType);
        if (chunk >= n_chunks) next_x[h] = Eight(vec4(0.0), vec4(0.0));
    }
}

float greatest(Eight e) {
    const vec4 most = max(abs(e.lo), abs(e.hi));
    return max(max(most.x, most.y), max(most.z, most.w));
}

void put_x(uint buffer_idx) {
    const uint t = gl_LocalInvocationIndex / (kStagedK / 16), unit = gl_LocalInvocationIndex % (kStagedK / 16);
    const uint step_idx = unit / kLanesK, lane_k = unit % kLanesK;
#ifdef SHORT_SUMS
    const uint exponent = min(floatBitsToUint(max(greatest(next_x[0]), greatest(next_x[1]))) & 0x7f800000u, 0x7e800000u);
    const float up = uintBitsToFloat(0x7f000000u - exponent);
    scales[buffer_idx * kBufferScales + (step_idx * kCols + t) * kLanesK + lane_k] = uintBitsToFloat(exponent);
    [[unroll]] for (uint h = 0; h < 2; h++)
        staged[buffer_idx * kBufferWords + word_place(step_idx, h, t, lane_k)] = pack8(Eight(next_x[h].lo * up, next_x[h].hi * up), 1);
#else
    [[unroll]] for (uint h = 0; h < 2; h++) {
        const uint at = buffer_idx * kBufferWords + word_place(step_idx, h, t, lane_k);
        staged[at] = floatBitsToUint(next_x[h].lo);
        staged[at + 1] = floatBitsToUint(next_x[h].hi);
    }
#endif
}

uint64_t w_row[kEachN];
uvec4 w[kEachN * 2], next_w[kSlots * kEachN * 2];  // of this step, and of those that follow

void fetch_w(const uint slot, uint step_idx, uint lane_k) {
    [[unroll]] for (uint h = 0; h < 2; h++) {
        const uint chunk = min(step_idx * (2 * kLanesK) + h * kLanesK + lane_k, n_chunks - 1);
        [[unroll]] for (uint i = 0; i < kEachN; i++) next_w[(slot * kEachN + i) * 2 + h] = Uvec4Ref(w_row[i] + uint64_t(chunk) * 16).v;
    }
}

float acc[kEachN * kCols];

#ifdef SHORT_SUMS
void multiply(uint buffer_idx, uint step_idx, uint lane_k) {
    [[unroll]] for (uint j = 0; j < kCols; j++) {
        f16vec2 sums[kEachN];
        [[unroll]] for (uint i = 0; i < kEachN; i++) sums[i] = f16vec2(0.0);
        [[unroll]] for (uint h = 0; h < 2; h++) {
            const uvec4 x = staged[buffer_idx * kBufferWords + word_place(step_idx, h, j, lane_k)];
            [[unroll]] for (uint part = 0; part < 4; part++) {
                [[unroll]] for (uint i = 0; i < kEachN; i++)
                    sums[i] = fma(unpackFloat2x16(w[2 * i + h][part]), unpackFloat2x16(x[part]), sums[i]);
            }
        }
        const float scale = scales[buffer_idx * kBufferScales + (step_idx * kCols + j) * kLanesK + lane_k];
        [[unroll]] for (uint i = 0; i < kEachN; i++) acc[i * kCols + j] = fma(float(sums[i].x + sums[i].y), scale, acc[i * kCols + j]);
    }
}
#else
void multiply(uint buffer_idx, uint step_idx, uint lane_k) {
    [[unroll]] for (uint h = 0; h < 2; h++) {
        Eight eights[kEachN];
        [[unroll]] for (uint i = 0; i < kEachN; i++) eights[i] = unpack8(w[2 * i + h], kWeightType);
        [[unroll]] for (uint j = 0; j < kCols; j++) {
            const uint at = buffer_idx * kBufferWords + word_place(step_idx, h, j, lane_k);
            const Eight x = Eight(uintBitsToFloat(staged[at]), uintBitsToFloat(staged[at + 1]));
            [[unroll]] for (uint i = 0; i < kEachN; i++) acc[i * kCols + j] = dot8(eights[i], x, acc[i * kCols + j]);
        }
    }
}
#endif

void main() {
    const uint n_rows = UintRef(p.n_rows).v;
    const uint t0 = gl_WorkGroupID.x * kCols, n0 = gl_WorkGroupID.y * kColumns, split = gl_WorkGroupID.z;
    if (t0 >= n_rows) return;
    const uint n_end = (p.n + 63) / 64 * 64, row_chunks = p.w_stride / 8;
    first_chunk = split * p.k_per_split / 8;
    n_chunks = min(p.k_per_split / 8, row_chunks - first_chunk);
    const uint lane_k = gl_LocalInvocationIndex % kLanesK, own_n = n0 + gl_LocalInvocationIndex / kLanesK * kEachN;
    [[unroll]] for (uint i = 0; i < kEachN; i++)
        w_row[i] = p.w + (uint64_t(min(own_n + i, n_end - 1)) * row_chunks + first_chunk) * 16;
    [[unroll]] for (uint i = 0; i < kEachN * kCols; i++) acc[i] = 0.0;

    const uint n_steps = (n_chunks + 2 * kLanesK - 1) / (2 * kLanesK), n_stages = (n_steps + kSteps - 1) / kSteps;
    fetch_x(0, n_rows, t0);
    [[unroll]] for (uint slot = 0; slot < kSlots; slot++) fetch_w(slot, slot, lane_k);
    put_x(0);
    barrier();
    for (uint stage_idx = 0; stage_idx < n_stages; stage_idx++) {
        const uint buffer_idx = stage_idx & 1;
        // No branch: the last stage loads itself again. Of steps behind the last one x is zero.
        fetch_x(min(stage_idx + 1, n_stages - 1), n_rows, t0);
        [[unroll]] for (uint step_idx = 0; step_idx < kSteps; step_idx++) {
            const uint slot = step_idx % kSlots;
            [[unroll]] for (uint i = 0; i < kEachN * 2; i++) w[i] = next_w[slot * kEachN * 2 + i];
            fetch_w(slot, stage_idx * kSteps + step_idx + kSlots, lane_k);
            multiply(buffer_idx, step_idx, lane_k);
        }
        put_x(buffer_idx ^ 1);
        barrier();
    }

    [[unroll]] for (uint j = 0; j < kCols; j++) {
        const bool is_mine = lane_k == j % kLanesK && t0 + j < n_rows;
        const uint64_t y = p.y + (uint64_t(split) * p.split_stride + uint64_t(t0 + j) * p.y_stride + own_n) * 4;
        // One loop for all rows and columns is not unrolled everywhere, and then acc lies in memory.
        [[unroll]] for (uint i = 0; i < kEachN; i++) {
            float sum = acc[i * kCols + j];
            [[unroll]] for (uint lanes = 1; lanes < kLanesK; lanes *= 2) sum += subgroupShuffleXor(sum, lanes);
            if (is_mine && own_n + i < n_end) FloatRef(y + i * 4).v = sum;
        }
    }
}
