// lora_shrink on KHR cooperative matrices, for steps of many rows: low[i][m][r] = sum_k A_m(slot)[r][k] * x[t][k], as
// in lora_shrink.comp, with the same segments and results, and with ShrinkDispatch.grid as its grid; the sums are added
// in another order.
//   x    [T][STRIDE]     16-bit, the matrices' own type (macro BF16, else f16)
//   A    [rank][STRIDE]  any type; of another type than x it is cut into two parts of x's type, whose products are both
//                        added: exact for f16 beside bf16, 16 bits and more otherwise
// Workgroup: 16 ranks of one module for one segment. Four neighbours in the grid have the same ones: as many of them
// share k as `parts` has room for sums of all, which the last of them to arrive adds in order; else the first has all
// of it. Each subgroup takes every kSubgroups-th piece of 64 k through its own part of the shared memory, the next
// piece's 16-byte loads in flight; their sums are added in order.
// With STACKED x is in fragments by rows, of which each segment has rows of one; results go to the adapters' blocks of
// stacked_low, times the module's scale and in parts (StackedGroup, step_state.h), zero beyond the module's ranks.
// Moves one segment's x and 16 rows of A for each workgroup, mostly from the cache.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/kernels/lora/lora_shrink.params.h"
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#ifdef BF16
#extension GL_EXT_bfloat16 : require
#define ELEMENT bfloat16_t
const uint kType = 2;
#else
#define ELEMENT float16_t
const uint kType = 1;
#endif

layout(constant_id = 1) const uint SUBGROUP = 32;
layout(constant_id = 2) const uint STRIDE = 64;  // x_stride: literal, so that one base address serves all loads
layout(constant_id = 3) const uint STACKED = 0;
layout(push_constant, scalar) uniform Push { LoraShrinkParams p; };

layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer PartSum { float value; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Arrivals { uint value; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer GroupRef { StackedGroup v; };

const uint kRows = kMaxSegmentRows;  // 16, as a block has
const uint kFragmentLanes = kFragmentBytes / 16;
const uint kRanks = 16;
const uint kStepK = 64;
const uint kWords = kStepK / 8;   // 16-byte words of one row in one step
const uint kPitch = kWords + 1;   // of a row in shared memory: eight rows of a matrix load fall into different banks
const uint kSubgroups = gl_WorkGroupSize.x / SUBGROUP;
const uint kLoads = kRows * kWords / SUBGROUP;  // words of x, and pieces of 8 elements of A, for each lane
const uint kLoadRows = SUBGROUP / kWords;
const float kRestScale = 2048.0;                // of the second part of A, so that it is no subnormal f16
const uint kPart = (kRows + kRanks) * kPitch;   // a subgroup's shared words: x, then A

shared uvec4 stage[kSubgroups * kPart];
shared float sums[kSubgroups * kRows * kRanks];

uvec4 held_x[kLoads], held_a[kLoads], held_a_hi[kLoads];  // the next step; a_hi: elements 4..7 of f32
uint64_t a_row[kLoads], x_row[kLoads];                      // this lane's rows
bool has_x[kLoads];
uint part_idx, n_parts;  // this workgroup's part of k
uint parts_max;          // of any sum: of the last ranks there may be fewer

shared uint arrived;

// The step at k into registers.
void fetch(uint k, const uint type) {
    uint chunk = k / 8 + gl_SubgroupInvocationID % kWords;
    [[unroll]] for (uint i = 0; i < kLoads; i++) {
        held_x[i] = uvec4(0);
        if (STACKED != 0) held_x[i] = Uvec4Ref(x_row[i] + uint64_t(k) * (kFragmentBytes / kFragmentColumns)).v;
        else if (has_x[i]) held_x[i] = Uvec4Ref(x_row[i] + uint64_t(chunk) * 16).v;
        if (type == 0) {
            held_a[i] = Uvec4Ref(a_row[i] + uint64_t(chunk) * 32).v;
            held_a_hi[i] = Uvec4Ref(a_row[i] + uint64_t(chunk) * 32 + 16).v;
        } else {
            held_a[i] = Uvec4Ref(a_row[i] + uint64_t(chunk) * 16).v;
        }
    }
}

// 16 bytes of a fragment: two pairs of columns of two rows (activation_fragments.h).
void stage_fragment_words(uint part, uint i) {
    const uint piece = gl_SubgroupInvocationID + i * SUBGROUP, row = piece % kFragmentLanes / 4, word = piece / kFragmentLanes * 2;
    stage[part + row * kPitch + word][piece % 4] = held_x[i].x;
    stage[part + (row + 8) * kPitch + word][piece % 4] = held_x[i].y;
    stage[part + row * kPitch + word + 1][piece % 4] = held_x[i].z;
    stage[part + (row + 8) * kPitch + word + 1][piece % 4] = held_x[i].w;
}

// Eight elements of A as they are.
Eight unpacked(uvec4 lo, uvec4 hi, const uint type) {
    return type == 0 ? Eight(uintBitsToFloat(lo), uintBitsToFloat(hi)) : unpack8(lo, type);
}

// A x over this subgroup's steps, into its part of `sums` as [row][rank]; type is a literal, so that no load waits
// behind a branch.
void multiply(const uint type) {
    coopmat<float, gl_ScopeSubgroup, kRanks, kRows, gl_MatrixUseAccumulator> acc =
        coopmat<float, gl_ScopeSubgroup, kRanks, kRows, gl_MatrixUseAccumulator>(0.0);
    coopmat<float, gl_ScopeSubgroup, kRanks, kRows, gl_MatrixUseAccumulator> acc_rest = acc;
    const uint part = gl_SubgroupID * kPart;
    const uint at = part + gl_SubgroupInvocationID / kWords * kPitch + gl_SubgroupInvocationID % kWords;
    const uint parts = type == kType ? 1 : 2;
    const uint turn = n_parts * kSubgroups * kStepK;
    uint k = (part_idx * kSubgroups + gl_SubgroupID) * kStepK;
    if (k < STRIDE) fetch(k, type);
    // Every subgroup takes as many turns: some devices make one barrier of all subgroups' own barriers.
    for (uint begin = 0; begin < STRIDE; begin += turn, k += turn) {
        const bool inside = k < STRIDE;
        uvec4 rest[kLoads];
        subgroupBarrier();  // the step before has been read
        [[unroll]] for (uint i = 0; i < kLoads; i++) {
            if (STACKED != 0) stage_fragment_words(part, i);
            else stage[at + i * kLoadRows * kPitch] = held_x[i];
            uvec4 words = held_a[i];
            if (parts == 2) {
                Eight whole = unpacked(held_a[i], held_a_hi[i], type);
                whole = Eight(bounded(whole.lo, kType), bounded(whole.hi, kType));
                Eight first = Eight(leading(whole.lo, kType), leading(whole.hi, kType));
                words = pack8(first, kType);
                rest[i] = pack8(Eight((whole.lo - first.lo) * kRestScale, (whole.hi - first.hi) * kRestScale), kType);
            }
            stage[at + (kRows + i * kLoadRows) * kPitch] = words;
        }
        if (k + turn < STRIDE) fetch(k + turn, type);
        [[unroll]] for (uint pass = 0; pass < parts; pass++) {
            if (pass == 1) {
                subgroupBarrier();
                [[unroll]] for (uint i = 0; i < kLoads; i++) stage[at + (kRows + i * kLoadRows) * kPitch] = rest[i];
            }
            subgroupBarrier();
            if (!inside) continue;
            [[unroll]] for (uint j = 0; j < kStepK / 16; j++) {
                coopmat<ELEMENT, gl_ScopeSubgroup, kRanks, 16, gl_MatrixUseA> a;
                coopmat<ELEMENT, gl_ScopeSubgroup, 16, kRows, gl_MatrixUseB> b;
                coopMatLoad(a, stage, part + kRows * kPitch + j * 2, kPitch, gl_CooperativeMatrixLayoutRowMajor);
                coopMatLoad(b, stage, part + j * 2, kPitch, gl_CooperativeMatrixLayoutColumnMajor);
                if (pass == 0) {
                    acc = coopMatMulAdd(a, b, acc);
                } else {
                    acc_rest = coopMatMulAdd(a, b, acc_rest);
                }
            }
        }
    }
    if (parts == 2) acc = acc + acc_rest * (1.0 / kRestScale);
    coopMatStore(acc, sums, gl_SubgroupID * kRows * kRanks, kRanks, gl_CooperativeMatrixLayoutColumnMajor);
}

// The sum of a row and rank over this workgroup's subgroups.
float own_sum(uint i) {
    float sum = 0.0;
    for (uint s = 0; s < kSubgroups; s++) sum += sums[s * kRows * kRanks + i];
    return sum;
}

uint64_t part_at(uint sum_idx, uint part, uint i) {
    return p.parts + ((uint64_t(sum_idx) * parts_max + part) * kRows * kRanks + i) * 4;
}

// Returns true in the workgroup that arrives last, when all parts are there.
bool all_arrive(uint sum_idx, uint begin, uint end) {
    for (uint i = begin + gl_LocalInvocationIndex; i < end; i += gl_WorkGroupSize.x) PartSum(part_at(sum_idx, part_idx, i)).value = own_sum(i);
    // The parts are there for everybody before the arrival is told.
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeQueueFamily, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
    if (gl_LocalInvocationIndex == 0) {
        Arrivals arrivals = Arrivals(p.parts + (uint64_t(kShrinkAllPartsMax) * kRows * kRanks + sum_idx) * 4);
        arrived = atomicAdd(arrivals.value, 1u);
        if (arrived == n_parts - 1) arrivals.value = 0;
    }
    barrier();
    if (arrived != n_parts - 1) return false;
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeQueueFamily, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
    return true;
}

// The sum of a row and rank over all parts of k.
float whole_sum(uint sum_idx, uint i) {
    if (n_parts == 1) return own_sum(i);
    float parts[kShrinkPartsMax], sum = 0.0;
    [[unroll]] for (uint j = 0; j < kShrinkPartsMax; j++) parts[j] = j < n_parts ? PartSum(part_at(sum_idx, j, i)).value : 0.0;
    [[unroll]] for (uint j = 0; j < kShrinkPartsMax; j++) sum += parts[j];
    return sum;
}

// The first block of 16 ranks of a segment's adapter in stacked_low, and how many it has there; none: 0.
uvec2 stacked_blocks(LoraSegment segment, uint m_idx, uint block) {
    const StackedAdapter adapter = GroupRef(p.stacked).v.adapters[segment.low_begin];
    if (block >= adapter.rank_blocks) return uvec2(0);
    return uvec2(adapter.first_block + (m_idx * adapter.rank_blocks + block) * adapter.parts, adapter.parts);
}

// Two neighbouring ranks of a row, rank an even number of the block.
void store_stacked(uvec2 blocks, uint row, uint rank, vec2 pair) {
    const uint columns = p.n_modules * kStackedModuleColumns;
    const vec4 value = bounded(vec4(pair, 0.0, 0.0), kType), lead = leading(value, kType);
    for (uint part = 0; part < blocks.y; part++) {
        const vec2 words = part == kStackedLowRest ? value.xy - lead.xy : lead.xy;
        UintRef(p.stacked_low + fragment_offset(row, (blocks.x + part) * kFragmentColumns + rank, columns, kFragmentsByRows)).v = pack_pair(words, kType);
    }
}

void main() {
    const uint kNeighbours = kRanks / kShrinkRanks;
    const uint block = gl_WorkGroupID.x / kNeighbours, n_blocks = (gl_NumWorkGroups.x + kNeighbours - 1) / kNeighbours;
    const uint n_sums = n_blocks * gl_NumWorkGroups.y * gl_NumWorkGroups.z;
    part_idx = gl_WorkGroupID.x % kNeighbours;
    parts_max = p.parts != 0 ? clamp(kShrinkAllPartsMax / n_sums, 1, kShrinkPartsMax) : 1;
    n_parts = min(gl_NumWorkGroups.x - block * kNeighbours, parts_max);
    if (part_idx >= n_parts) return;
    uint r0 = block * kRanks;
    LoraSegment segment = SegmentRef(p.segments + uint64_t(gl_WorkGroupID.y) * 16).v;
    uint m_idx = gl_WorkGroupID.z;
    LoraModule m = ModuleRef(p.lora_layer + (uint64_t(segment.slot) * p.lora_slot_stride + p.first_module + m_idx) * 64).v;
    uint rank8 = (m.rank + 7) / 8 * 8;
    // The sums that are wanted, row by row; those of a block begin with its first row's.
    const uint first_row = STACKED != 0 ? segment.row_begin / kFragmentRows * kFragmentRows : segment.row_begin;
    const uint begin = (segment.row_begin - first_row) * kRanks, end = begin + segment.n_rows * kRanks;
    uvec2 blocks = uvec2(0);
    if (STACKED != 0) blocks = stacked_blocks(segment, m_idx, block);
    if (r0 >= rank8) {
        for (uint i = begin + gl_LocalInvocationIndex * 2; part_idx == 0 && i < end; i += gl_WorkGroupSize.x * 2) store_stacked(blocks, first_row + i / kRanks, i % kRanks, vec2(0.0));
        return;
    }

    [[unroll]] for (uint i = 0; i < kLoads; i++) {
        uint row = gl_SubgroupInvocationID / kWords + i * kLoadRows;
        has_x[i] = row < segment.n_rows;
        if (STACKED != 0) {
            const uint piece = gl_SubgroupInvocationID + i * SUBGROUP;
            x_row[i] = p.x + uint64_t(first_row) * STRIDE * 2 + piece / kFragmentLanes * kFragmentBytes + piece % kFragmentLanes * 16;
        } else {
            x_row[i] = p.x + uint64_t(segment.row_begin + row) * STRIDE * 2;
        }
        a_row[i] = m.a + uint64_t(min(r0 + row, m.rank - 1)) * STRIDE * bytes_of(m.type);
    }
    if (m.type == 0) {
        multiply(0);
    } else if (m.type == 1) {
        multiply(1);
    } else {
        multiply(2);
    }
    barrier();
    const uint sum_idx = (gl_WorkGroupID.y * gl_NumWorkGroups.z + m_idx) * n_blocks + block;
    if (n_parts > 1 && !all_arrive(sum_idx, begin, end)) return;
    if (STACKED != 0) {
        for (uint i = begin + gl_LocalInvocationIndex * 2; i < end; i += gl_WorkGroupSize.x * 2) {
            const uint r = r0 + i % kRanks;
            const vec2 pair = vec2(r < m.rank ? whole_sum(sum_idx, i) : 0.0, r + 1 < m.rank ? whole_sum(sum_idx, i + 1) : 0.0);
            store_stacked(blocks, first_row + i / kRanks, i % kRanks, pair * m.scale);
        }
        return;
    }
    for (uint i = begin + gl_LocalInvocationIndex; i < end; i += gl_WorkGroupSize.x) {
        const float sum = whole_sum(sum_idx, i);
        uint row = segment.low_begin + i / kRanks;
        uint r = r0 + i % kRanks;
        if (r < rank8) FloatRef(p.low + (uint64_t(row * p.n_modules + m_idx) * kMaxRank + r) * 4).v = r < m.rank ? sum : 0.0;
    }
}
