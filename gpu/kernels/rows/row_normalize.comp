// row_normalize, each row by itself, columns i in 0..C-1:
//   softmax     y[t][i] = exp(value x[t][i]) / sum over j of exp(value x[t][j]), exponents less the row's largest
//   layer norm  y[t][i] = (x[t][i] - mean) / sqrt(variance + value) * gamma[i] + beta[i]
//   RMS norm    y[t][i] = x[t][i] / sqrt(mean(x[t]^2) + value) * gamma[i]
//   x, y  [T][stride]  TYPE; columns C.. of y up to the next multiple of 4 are zeroed
// grid (T); one workgroup per row, which stays in registers; no barrier where it is one subgroup, else one. Moves C
// elements in and out.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/rows/row_normalize.params.h"

layout(constant_id = 1) const uint kType = 0;
layout(constant_id = 2) const uint kColumns = 64;
layout(constant_id = 3) const uint kOperation = 0;
layout(constant_id = 4) const uint kLanes = 32;  // of a subgroup
layout(push_constant, scalar) uniform Push { RowNormalizeParams p; };

const uint kSoftmax = 0;
const uint kLayerNorm = 1;
const uint kThreads = gl_WorkGroupSize.x;
const uint kSubgroups = kThreads / kLanes;
// A quad is four columns, a word the quads that 16 bytes of x hold.
const uint kQuads = (kColumns + 3) / 4;
const uint kWordQuads = kType == 0 ? 1 : 2;
const uint kWords = (kQuads + kWordQuads - 1) / kWordQuads;
const uint kPerThread = (kWords + kThreads - 1) / kThreads;
const uint kThreadQuads = kPerThread * kWordQuads;
const bool kWhole = kColumns % (kThreads * kWordQuads * 4) == 0;  // every thread has kThreadQuads full quads
const float kMinusInf = -1.0 / 0.0;
const float kLog2E = 1.44269504089;
shared float first_slots[kSubgroups];
shared float second_slots[kSubgroups];
shared float count_slots[kSubgroups];

uint word_of(uint i) { return i * kThreads + gl_LocalInvocationIndex; }
uint quad_of(uint i) { return word_of(i / kWordQuads) * kWordQuads + i % kWordQuads; }

// Columns behind the row's end take part in no sum and no maximum.
vec4 masked(vec4 v, uint quad, float other) {
    if (kWhole || quad * 4 + 4 <= kColumns) return v;
    return mix(vec4(other), v, lessThan(quad * 4 + uvec4(0, 1, 2, 3), uvec4(kColumns)));
}

float sum4(vec4 v) { return (v.x + v.y) + (v.z + v.w); }

void load_row(uint64_t x, out vec4 v[kThreadQuads]) {
    uvec4 words[kPerThread];
    [[unroll]] for (uint i = 0; i < kPerThread; i++) {
        words[i] = uvec4(0);
        if (kWhole || word_of(i) < kWords) words[i] = Uvec4Ref(x + uint64_t(word_of(i)) * 16).v;
    }
    [[unroll]] for (uint i = 0; i < kThreadQuads; i++) {
        uvec4 word = words[i / kWordQuads];
        uvec2 pair = i % kWordQuads == 0 ? word.xy : word.zw;
        v[i] = kType == 0 ? uintBitsToFloat(word) : vec4(unpack_pair(pair.x, kType), unpack_pair(pair.y, kType));
        v[i] = masked(v[i], quad_of(i), 0.0);
    }
}

void store_row(uint64_t y, vec4 v[kThreadQuads]) {
    [[unroll]] for (uint i = 0; i < kThreadQuads; i += kWordQuads) {
        uint quad = quad_of(i);
        if (!kWhole && quad >= kQuads) continue;
        vec4 first = masked(v[i], quad, 0.0);
        if (kWordQuads == 1 || (!kWhole && quad + 1 == kQuads)) {
            store4(y, quad, first, kType);
        } else {
            vec4 second = masked(v[i + kWordQuads - 1], quad + 1, 0.0);
            Uvec4Ref(y + uint64_t(quad) * 8).v = pack8(Eight(first, second), kType);
        }
    }
}

// Sums by shuffles: subgroupAdd() may first find the active lanes.
float lanes_sum(float value) {
    [[unroll]] for (uint lanes = 1; lanes < kLanes; lanes *= 2) value += subgroupShuffleXor(value, lanes);
    return value;
}

// Compares as integers, which are in the same order: NVIDIA's subgroups have one instruction for it. v is not NaN.
float lanes_max(float v) {
    const int bits = floatBitsToInt(v);
    const int top = subgroupMax(bits ^ ((bits >> 31) & 0x7fffffff));
    return intBitsToFloat(top ^ ((top >> 31) & 0x7fffffff));
}

// Each subgroup takes its own largest value out, so that one barrier is enough. Subgroups are joined in order.
void softmax(inout vec4 v[kThreadQuads]) {
    float factor = p.value * kLog2E;
    vec4 tops = vec4(kMinusInf);
    [[unroll]] for (uint i = 0; i < kThreadQuads; i++) {
        v[i] = masked(v[i] * factor, quad_of(i), kMinusInf);
        tops = max(tops, v[i]);
    }
    float top = lanes_max(max(max(tops.x, tops.y), max(tops.z, tops.w)));
    float shift = top == kMinusInf ? 0.0 : top;  // a subgroup whose columns are all masked, or beyond the row's end
    vec4 some = vec4(0.0);
    [[unroll]] for (uint i = 0; i < kThreadQuads; i++) {
        v[i] = exp2(v[i] - shift);
        some += v[i];
    }
    float sum = lanes_sum(sum4(some)), own = 1.0;
    if (kSubgroups > 1) {
        if (gl_SubgroupInvocationID == 0) {
            first_slots[gl_SubgroupID] = top;
            second_slots[gl_SubgroupID] = sum;
        }
        barrier();
        float row_top = kMinusInf;
        [[unroll]] for (uint i = 0; i < kSubgroups; i++) row_top = max(row_top, first_slots[i]);
        sum = 0.0;
        [[unroll]] for (uint i = 0; i < kSubgroups; i++) sum = fma(second_slots[i], exp2(first_slots[i] - row_top), sum);
        own = top == kMinusInf ? 0.0 : exp2(top - row_top);
    }
    float weight = own / sum;
    [[unroll]] for (uint i = 0; i < kThreadQuads; i++) v[i] *= weight;
}

// The row's sum of squares from those of its subgroups.
float join_squares(float squares) {
    if (kSubgroups == 1) return squares;
    if (gl_SubgroupInvocationID == 0) first_slots[gl_SubgroupID] = squares;
    barrier();
    float total = 0.0;
    [[unroll]] for (uint i = 0; i < kSubgroups; i++) total += first_slots[i];
    return total;
}

// The moments of some columns: how many, their mean, and the sum of squares about it.
struct Moments {
    float n, mean, squares;
};

// The moments of both together: squares about the common mean are those about each own one and, for each column, the
// square of the difference.
Moments joined(Moments a, Moments b) {
    if (a.n == 0.0) return b;
    if (b.n == 0.0) return a;
    const float n = a.n + b.n, off = b.mean - a.mean, share = b.n / n;
    return Moments(n, fma(off, share, a.mean), fma(off * off, a.n * share, a.squares + b.squares));
}

// Takes the mean out and returns the sum of squares of what is left. Each thread begins with its own columns, so the
// row's mean need not be known first.
float center(inout vec4 v[kThreadQuads]) {
    vec4 some = vec4(0.0);
    uint n_here = kWhole ? kThreadQuads * 4 : 0;
    [[unroll]] for (uint i = 0; i < kThreadQuads; i++) {
        some += v[i];
        if (!kWhole) n_here += min(max(quad_of(i) * 4, kColumns) == kColumns ? kColumns - quad_of(i) * 4 : 0, 4);
    }
    Moments all = Moments(float(n_here), sum4(some) / max(float(n_here), 1.0), 0.0);
    [[unroll]] for (uint i = 0; i < kThreadQuads; i++) all.squares = sum_squares4(masked(v[i] - all.mean, quad_of(i), 0.0), all.squares);
    [[unroll]] for (uint lanes = 1; lanes < kLanes; lanes *= 2) {
        const Moments other = Moments(kWhole ? all.n : subgroupShuffleXor(all.n, lanes), subgroupShuffleXor(all.mean, lanes), subgroupShuffleXor(all.squares, lanes));
        // Both lanes get the same bits.
        if (kWhole) {
            const float off = other.mean - all.mean;
            all = Moments(all.n * 2.0, (all.mean + other.mean) * 0.5, fma(off * off, all.n * 0.5, all.squares + other.squares));
        } else {
            all = (gl_SubgroupInvocationID & lanes) == 0 ? joined(all, other) : joined(other, all);
        }
    }
    if (kSubgroups > 1) {
        if (gl_SubgroupInvocationID == 0) {
            first_slots[gl_SubgroupID] = all.mean;
            second_slots[gl_SubgroupID] = all.squares;
            if (!kWhole) count_slots[gl_SubgroupID] = all.n;
        }
        barrier();
        if (kWhole) {  // as many columns each: no division waits for another
            float means = 0.0, squares = 0.0;
            [[unroll]] for (uint i = 0; i < kSubgroups; i++) means += first_slots[i];
            const float mean = means / float(kSubgroups);
            [[unroll]] for (uint i = 0; i < kSubgroups; i++) squares = fma((first_slots[i] - mean) * (first_slots[i] - mean), all.n, squares + second_slots[i]);
            all = Moments(float(kColumns), mean, squares);
        } else {
            all = Moments(0.0, 0.0, 0.0);
            [[unroll]] for (uint i = 0; i < kSubgroups; i++) all = joined(all, Moments(count_slots[i], first_slots[i], second_slots[i]));
        }
    }
    [[unroll]] for (uint i = 0; i < kThreadQuads; i++) v[i] -= all.mean;
    return all.squares;
}

void norm(inout vec4 v[kThreadQuads], const vec4 gamma[kThreadQuads], const vec4 beta[kThreadQuads]) {
    float squares = 0.0;
    if (kOperation == kLayerNorm) {
        squares = center(v);
    } else {
        vec4 some = vec4(0.0);
        [[unroll]] for (uint i = 0; i < kThreadQuads; i++) some = fma(v[i], v[i], some);
        squares = join_squares(subgroupAdd(sum4(some)));  // here the faster way by 0.1 us, at f16
    }
    float inverse = inversesqrt(squares / float(kColumns) + p.value);
    [[unroll]] for (uint i = 0; i < kThreadQuads; i++) v[i] = fma(v[i] * inverse, gamma[i], beta[i]);
}

void main() {
    uint t = gl_WorkGroupID.x;
    uint64_t x = p.x + uint64_t(t) * p.x_stride * bytes_of(kType);
    uint64_t y = p.y + uint64_t(t) * p.y_stride * bytes_of(kType);
    vec4 v[kThreadQuads];
    if (kOperation == kSoftmax) {
        load_row(x, v);
        softmax(v);
    } else {
        vec4 gamma[kThreadQuads], beta[kThreadQuads];  // on their way with the row
        [[unroll]] for (uint i = 0; i < kThreadQuads; i++) {
            bool there = kWhole || quad_of(i) < kQuads;
            gamma[i] = beta[i] = vec4(0.0);
            if (there) gamma[i] = load4(p.gamma, quad_of(i), 0);
            if (there && kOperation == kLayerNorm) beta[i] = load4(p.beta, quad_of(i), 0);
        }
        load_row(x, v);
        norm(v, gamma, beta);
    }
    store_row(y, v);
}
