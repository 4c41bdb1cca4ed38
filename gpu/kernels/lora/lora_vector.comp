// lora_vector: y = W x + scale B (A x) for one row, in one dispatch
//   W [n][k], A [rank][k], B [n][rank8]  WEIGHT_TYPE;  x [k], y [n]  ACT_TYPE
// grid (ceil(n / kGroupRows), with SHARED rounded up to a power of two). Each workgroup computes kGroupRows elements of
// y. It needs all of A x:
//   without SHARED  every workgroup computes it beside its rows of W, reading all of A
//   with SHARED     the workgroups compute some elements of it each and tell them the others, a value and the number of
//                   the dispatch in one 64-bit word. After its rows of W a workgroup looks for the words, kPolls times
//                   at most. If one is missing, it computes A x itself, to the same bits: nothing ever depends on
//                   another workgroup's progress. Each workgroup counts dispatches by itself.
// A row's sum over k is cut into kSlices, one subgroup's work each, joined in order through shared memory. kParts
// neighbouring threads share a row of B; they join by shuffles where a subgroup holds two rows' threads (lanes are
// numbered as threads are, here as in the other kernels), else through shared memory.
// Moves W, B and, with SHARED and when nobody is late, A once.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
#ifdef SHARED
#extension GL_EXT_shader_atomic_int64 : require
#extension GL_KHR_memory_scope_semantics : require
#endif
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/lora/lora_vector.params.h"

layout(constant_id = 1) const uint kWeightType = 0;
layout(constant_id = 2) const uint kActType = 0;
layout(constant_id = 3) const uint kK = 64;
layout(constant_id = 4) const uint kRank = 8;
layout(constant_id = 5) const uint kGroupRows = 4;
// threads that share one row of B; kGroupRows * kParts <= workgroup size
layout(constant_id = 6) const uint kParts = 1;
layout(constant_id = 7) const uint kWithBase = 0;
layout(constant_id = 8) const uint kSlices = 1;  // of k
layout(constant_id = 9) const uint kRowsAtOnce = 1;    // of A and W whose words a subgroup loads at once
layout(constant_id = 10) const uint kStepsAtOnce = 1;  // and how many words of each row a lane
layout(constant_id = 11) const uint kPolls = 1;
layout(push_constant, scalar) uniform Push { LoraVectorParams p; };

const uint kThreads = gl_WorkGroupSize.x;
const uint kChunks = kK / 8;
const uint kAllRows = kRank + (kWithBase != 0 ? kGroupRows : 0);  // A's rows, then this workgroup's of W
const uint kRankChunks = (kRank + 7) / 8;
const uint kPerPart = (kRankChunks + kParts - 1) / kParts;
shared float sums[kSlices * kAllRows];
shared float low[kRankChunks * 8];
shared float parts[kGroupRows * kParts];

uint first_row() { return gl_WorkGroupID.x * kGroupRows; }
// The end of this workgroup's rows of A and W.
uint rows_end() { return kWithBase == 0 ? kRank : kRank + min(kGroupRows, max(p.n, first_row()) - first_row()); }

// Eight elements as they lie in memory, so that they need few registers on their way.
struct Words {
    uvec4 lo, hi;
};

Words load_words(uint64_t at, uint chunk, const uint type) {
    at += uint64_t(chunk) * (type == 0 ? 32 : 16);
    return Words(Uvec4Ref(at).v, type == 0 ? Uvec4Ref(at + 16).v : uvec4(0));
}

// This lane's eight elements of the chunks that begin there, one for each lane; zeros behind k. Where all is f32 they
// are two fours that lie a four of every lane apart, so that neighbours load neighbouring 16 bytes.
Words load_own(uint64_t at, uint begin, const uint type, bool whole) {
    Words w = Words(uvec4(0), uvec4(0));
    if (kWeightType == 0 && kActType == 0) {
        uint four = begin * 2 + gl_SubgroupInvocationID;
        if (whole || four < kChunks * 2) w.lo = Uvec4Ref(at + uint64_t(four) * 16).v;
        four += gl_SubgroupSize;
        if (whole || four < kChunks * 2) w.hi = Uvec4Ref(at + uint64_t(four) * 16).v;
    } else if (whole || begin + gl_SubgroupInvocationID < kChunks) {
        w = load_words(at, begin + gl_SubgroupInvocationID, type);
    }
    return w;
}

Eight eight_of(Words w, const uint type) { return type == 0 ? Eight(uintBitsToFloat(w.lo), uintBitsToFloat(w.hi)) : unpack8(w.lo, type); }

// This thread's words of B, a part of a row.
uint b_row() { return gl_LocalInvocationIndex / kParts; }
uint b_part() { return gl_LocalInvocationIndex % kParts; }
Words b_words[kPerPart];
bool asked_for_b = false;

void ask_for_b() {
    if (asked_for_b) return;
    asked_for_b = true;
    for (uint c = 0; c < kPerPart; c++) {
        uint chunk = b_part() + c * kParts;
        b_words[c] = Words(uvec4(0), uvec4(0));
        if (b_row() < kGroupRows && first_row() + b_row() < p.n && chunk < kRankChunks) {
            b_words[c] = load_words(p.b, (first_row() + b_row()) * kRankChunks + chunk, kWeightType);
        }
    }
}

uint64_t weights_of(uint row) {
    uint64_t matrix = row < kRank ? p.a : p.w;
    return matrix + uint64_t(row < kRank ? row : first_row() + row - kRank) * kK * bytes_of(kWeightType);
}

// Computes one slice of k for kRowsAtOnce rows: first, first + stride, ... before end. All is loaded before anything is
// used; a row's bits do not depend on the other rows.
void slice_sums(uint slice, uint first, uint stride, uint end, out float result[kRowsAtOnce]) {
    uint64_t weights[kRowsAtOnce];
    [[unroll]] for (uint u = 0; u < kRowsAtOnce; u++) {
        weights[u] = weights_of(min(first + u * stride, end - 1));
        result[u] = 0.0;
    }
    uint apart = gl_SubgroupSize * kSlices;
    bool whole = kChunks % (apart * kStepsAtOnce) == 0;
    for (uint begin = slice * gl_SubgroupSize; begin < kChunks; begin += apart * kStepsAtOnce) {
        Words v[kStepsAtOnce], w[kStepsAtOnce * kRowsAtOnce];
        [[unroll]] for (uint s = 0; s < kStepsAtOnce; s++) {
            v[s] = load_own(p.x, begin + s * apart, kActType, whole);
            [[unroll]] for (uint u = 0; u < kRowsAtOnce; u++) {
                w[s * kRowsAtOnce + u] = Words(uvec4(0), uvec4(0));
                if (u == 0 || first + u * stride < end) w[s * kRowsAtOnce + u] = load_own(weights[u], begin + s * apart, kWeightType, whole);
            }
        }
        // By subgroups with rows of A, behind the words that are waited for first. The branch has its worth, too: where
        // there is none, NVIDIA's compiler puts the loads above off to their use, which was up to 1 us
        // (docs/PERFORMANCE.md, "Loads that stay where they are").
        ask_for_b();
        [[unroll]] for (uint s = 0; s < kStepsAtOnce; s++) {
            Eight x = eight_of(v[s], kActType);
            [[unroll]] for (uint u = 0; u < kRowsAtOnce; u++) result[u] = dot8(eight_of(w[s * kRowsAtOnce + u], kWeightType), x, result[u]);
        }
    }
    // All rows' shuffles run side by side: subgroupAdd() finds the active lanes for each row.
    for (uint lanes = gl_SubgroupSize / 2; lanes > 0; lanes /= 2) {
        [[unroll]] for (uint u = 0; u < kRowsAtOnce; u++) result[u] += subgroupShuffleXor(result[u], lanes);
    }
}

// Rows first, first + stride, ... before end: this subgroup's slices of them. A team is kSlices subgroups, or all where
// they are fewer.
uint n_teams() { return max(gl_NumSubgroups / kSlices, 1); }
uint my_team() { return gl_SubgroupID / kSlices; }

void compute_rows(uint first, uint stride, uint end) {
    if (my_team() >= n_teams()) return;
    for (uint slice = gl_SubgroupID % kSlices; slice < kSlices; slice += gl_NumSubgroups) {
        for (uint row = first; row < end; row += stride * kRowsAtOnce) {
            float result[kRowsAtOnce];
            slice_sums(slice, row, stride, end, result);
            if (!subgroupElect()) continue;
            [[unroll]] for (uint u = 0; u < kRowsAtOnce; u++) {
                if (row + u * stride < end) sums[slice * kAllRows + row + u * stride] = result[u];
            }
        }
    }
}

// A row's slices, in order.
float joined(uint row) {
    float sum = 0.0;
    for (uint slice = 0; slice < kSlices; slice++) sum += sums[slice * kAllRows + row];
    return sum;
}

void join_low() {
    for (uint r = gl_LocalInvocationIndex; r < kRankChunks * 8; r += kThreads) low[r] = r < kRank ? joined(r) : 0.0;
}

#ifdef SHARED
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer CountRef { uint v; };
layout(buffer_reference, scalar, buffer_reference_align = 8) coherent buffer ChannelRef { uint64_t v; };
shared uint dispatch_epoch;
shared uint is_late;

uint64_t channel(uint row) { return p.low + kLoraVectorCountBytes + uint64_t(row) * 8; }

// A workgroup counts the dispatches with a grid of this size, a power of two; all others count the same. The number of
// the dispatch has that size in it and is never 0, what the memory holds at first. It comes again after 2^27 dispatches
// of this size; a row's word is of one of those by then.
uint count_dispatch() {
    CountRef own = CountRef(p.low + (gl_NumWorkGroups.x + gl_WorkGroupID.x) * 4);
    uint count = own.v;
    own.v = count + 1;
    return count << 5 | (findMSB(gl_NumWorkGroups.x) + 1);
}

// Publishes this workgroup's part of A x. Meanwhile a subgroup that does not begin with a row of A loads the number of
// the dispatch.
void publish_low() {
    const uint kAsks = kThreads - 1;
    uint epoch = 0;
    if (gl_LocalInvocationIndex == kAsks) epoch = count_dispatch();
    uint first = my_team() * gl_NumWorkGroups.x + gl_WorkGroupID.x, stride = n_teams() * gl_NumWorkGroups.x;
    compute_rows(first, stride, kRank);
    ask_for_b();
    if (gl_LocalInvocationIndex == kAsks) {
        dispatch_epoch = epoch;
        is_late = 0;
    }
    barrier();
    for (uint row = gl_WorkGroupID.x + gl_LocalInvocationIndex * gl_NumWorkGroups.x; row < kRank; row += kThreads * gl_NumWorkGroups.x) {
        uint64_t word = uint64_t(floatBitsToUint(joined(row))) | (uint64_t(dispatch_epoch) << 32);
        atomicStore(ChannelRef(channel(row)).v, word, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
    }
}

// Takes all elements of A x.
void take_low() {
    const uint epoch = dispatch_epoch;
    uint polls = 0;
    for (uint row = gl_LocalInvocationIndex; row < kRankChunks * 8; row += kThreads) {
        uint64_t word = 0;
        if (row < kRank) {
            do {
                // A number never is 0: the condition keeps the load from being moved up in front of the number's. A
                // word that is loaded so soon is not there yet and has to be loaded once more.
                if (epoch != 0) word = atomicLoad(ChannelRef(channel(row)).v, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
            } while (uint(word >> 32) != epoch && ++polls < kPolls);
            if (uint(word >> 32) != epoch) {
                is_late = 1;
                break;
            }
        }
        low[row] = uintBitsToFloat(uint(word));
    }
    barrier();
    if (is_late == 0) return;
    compute_rows(my_team(), n_teams(), kRank);
    barrier();
    join_low();
    barrier();
}
#endif

// Elements i and i + 1 of this workgroup, of an even i: 16-bit elements are written in pairs.
void write_pair(uint i, vec2 delta) {
    const uint n = first_row() + i;
    if (n >= p.n) return;
    vec2 result = delta * p.scale;
    if (kWithBase != 0) result += vec2(joined(kRank + i), joined(kRank + i + 1));
    if (n + 1 >= p.n) result.y = 0.0;
    if (kActType == 0) {
        Vec2Ref(p.y + uint64_t(n) * 4).v = result;
    } else {
        UintRef(p.y + uint64_t(n) * 2).v = pack_pair(result, kActType);
    }
}

void write_rows(uint row, uint part, float sum) {
    if (kParts * 2 <= gl_SubgroupSize) {
        [[unroll]] for (uint lanes = 1; lanes < kParts; lanes *= 2) sum += subgroupShuffleXor(sum, lanes);
        const float next = subgroupShuffleXor(sum, kParts);
        if (row < kGroupRows && row % 2 == 0 && part == 0) write_pair(row, vec2(sum, next));
        return;
    }
    if (row < kGroupRows) parts[row * kParts + part] = sum;
    barrier();
    for (uint i = gl_LocalInvocationIndex * 2; i < kGroupRows; i += kThreads * 2) {
        vec2 delta = vec2(0.0);
        for (uint j = 0; j < kParts; j++) delta += vec2(parts[i * kParts + j], parts[(i + 1) * kParts + j]);
        write_pair(i, delta);
    }
}

void main() {
#ifdef SHARED
    publish_low();
    if (first_row() >= p.n) return;  // here to make the grid a power of two
    if (kWithBase != 0) {
        // Goes from the last team on: the first ones have rows of A.
        compute_rows(kRank + n_teams() - 1 - min(my_team(), n_teams() - 1), n_teams(), rows_end());
    }
    take_low();
#else
    compute_rows(my_team(), n_teams(), rows_end());
    ask_for_b();
    barrier();
    join_low();
    barrier();
#endif
    float sum = 0.0;
    for (uint c = 0; b_row() < kGroupRows && c < kPerPart; c++) {
        uint chunk = b_part() + c * kParts;
        if (chunk >= kRankChunks) break;
        Eight v = Eight(vec4(low[chunk * 8], low[chunk * 8 + 1], low[chunk * 8 + 2], low[chunk * 8 + 3]),
                        vec4(low[chunk * 8 + 4], low[chunk * 8 + 5], low[chunk * 8 + 6], low[chunk * 8 + 7]));
        sum = dot8(eight_of(b_words[c], kWeightType), v, sum);
    }
    write_rows(b_row(), b_part(), sum);
}
