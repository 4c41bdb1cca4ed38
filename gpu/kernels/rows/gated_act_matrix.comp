// gated_act on KHR cooperative matrices, for rows that share adapters with their neighbours: act[t][f] =
// activation(gate) * up as in gated_act.comp, with what the adapters add as products of matrices, added in another
// order.
//   y    [S][T][y_stride]   f32: gate 0..F-1, up F..2F-1; no bias
//   act  [T][act_stride]    ELEMENT; F a multiple of 64
//   B    [F][rank8]         any type; of another type than ELEMENT it is cut into two parts of that type, as low always
//       is: see matmul_adapters.glsl
// Workgroup: 32 rows and, for each subgroup, 16 columns of both gate and up. The rows of one adapter are a run; B and
// low of one run at a time are staged, low with zeros for the rows of others, while the next one's are fetched. A run
// is two products more for each matrix of its rows, so few runs are fast: has_few_runs() in
// model/exec/executor_shapes.cpp. grid (F / columns, ceil(T / 32)).
// Moves 8 S F bytes in and 2 F out for each row, and a run's B once for each 32 rows.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/rows/activation.glsl"
#include "gpu/kernels/rows/gated_act.params.h"
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
layout(constant_id = 2) const uint kSubgroups = 4;
layout(constant_id = 3) const uint kActivation = 0;  // an Activation
layout(constant_id = 4) const uint kSplits = 1;
// this and the next: literals, so that the alignment of rows is known
layout(constant_id = 5) const uint kFfn = 64;
layout(constant_id = 6) const uint kStride = 128;    // y_stride
layout(constant_id = 7) const uint kWholeRows = 0;   // the first rows' sums are all in split 0; whole tiles
layout(push_constant, scalar) uniform Push { GatedActParams p; };

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats { float data[]; };

const uint kRows = 32, kRowMats = kRows / 16;
const uint kColumns = kSubgroups * 16;
// Pitches in words of 16 bytes, padded so that eight rows of a matrix load fall into different banks.
const uint kPitch = 5;                           // of 16 ranks in two parts
const uint kResultPitch = kColumns / 4 + 1;      // of a row of results, f32
const uint kLowWords = 2 * kRows * kPitch, kResultWords = kRows * kResultPitch;

struct Run {
    uint begin, end;  // rows of the tile
};
struct Module {
    uint64_t b;
    uint rank8, type;
    float scale;
};

shared uvec4 stage[kLowWords > kResultWords ? kLowWords : kResultWords];
shared uvec4 b_stage[2 * kColumns * kPitch];
shared Run runs[kRows];
shared Module modules[kRows * 2];  // gate and up of each run
shared uint slots[kRows];
shared uint begins, ends, rank_max, converts;  // converts: some B is of another type than ELEMENT

// A thread loads these words of B and of low for a run, and puts them into shared memory behind the next barrier.
const uint kThreads = kSubgroups * SUBGROUP;
const uint kBWords = 2 * kColumns * 2, kLowPieces = 2 * kRows * 2;
const uint kBLoads = (kBWords + kThreads - 1) / kThreads, kLowLoads = (kLowPieces + kThreads - 1) / kThreads;
uvec4 held_b[kBLoads], held_b_hi[kBLoads];  // hi: elements 4..7 of f32
Eight held_low[kLowLoads];

coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> acc[2 * kRowMats];  // [gate, up][rows]

// The tile's runs; returns how many. own_slot: of the row with this thread's number.
uint find_runs(uint own_slot, uint n_rows) {
    const uint i = gl_LocalInvocationIndex;
    if (i == 0) begins = ends = rank_max = converts = 0;
    if (i < kRows) slots[i] = i < n_rows ? own_slot : kNoSlot;
    barrier();
    const bool is_row = i < kRows && slots[min(i, kRows - 1)] != kNoSlot;
    const bool first = is_row && (i == 0 || slots[i - 1] != slots[i]), last = is_row && (i + 1 == kRows || slots[i + 1] != slots[i]);
    LoraModule found[2];
    if (first) {
        [[unroll]] for (uint m = 0; m < 2; m++) found[m] = ModuleRef(p.lora_layer + (uint64_t(slots[i]) * p.lora_slot_stride + kLoraGate + m) * 64).v;
        atomicOr(begins, 1u << i);
        atomicMax(rank_max, max(found[0].rank, found[1].rank));
        [[unroll]] for (uint m = 0; m < 2; m++) if (found[m].rank != 0 && found[m].type != kType) converts = 1;
    }
    if (last) atomicOr(ends, 1u << i);
    barrier();
    const uint before = (1u << i % kRows) - 1;
    if (first) {
        const uint run = bitCount(begins & before);
        runs[run].begin = i;
        [[unroll]] for (uint m = 0; m < 2; m++) modules[run * 2 + m] = Module(found[m].b, (found[m].rank + 7) / 8 * 8, found[m].type, found[m].scale);
    }
    if (last) runs[bitCount(ends & before)].end = i + 1;
    return bitCount(begins);
}

// Pieces of 8 ranks of a run's modules, gate and up, for a column of B or a row of low.
struct Piece {
    uint m, line, word;
};
Piece piece_of(uint i, const uint n_lines) { return Piece(i / 2 / n_lines, i / 2 % n_lines, i % 2); }

// Ranks r0.. of B and of low for one run, into registers. No branch around a load: what is not wanted is read as well,
// from an address that there is; a module without ranks has that of low. All threads.
void fetch(uint row0, uint column0, uint run, uint r0, const bool convert) {
    [[unroll]] for (uint l = 0; l < kBLoads; l++) {
        const Piece piece = piece_of(min(l * kThreads + gl_LocalInvocationIndex, kBWords - 1), kColumns);
        const Module module = modules[run * 2 + piece.m];
        const uint r = min(r0 + piece.word * 8, max(module.rank8, 8) - 8);
        const uint64_t b = module.rank8 == 0 ? p.low : module.b + uint64_t(((column0 + piece.line) * module.rank8 + r) * bytes_of(module.type));
        held_b[l] = Uvec4Ref(b).v;
        if (convert) held_b_hi[l] = Uvec4Ref(b + (module.type == 0 && module.rank8 != 0 ? 16 : 0)).v;
    }
    [[unroll]] for (uint l = 0; l < kLowLoads; l++) {
        const Piece piece = piece_of(min(l * kThreads + gl_LocalInvocationIndex, kLowPieces - 1), kRows);
        const uint r = min(r0 + piece.word * 8, max(modules[run * 2 + piece.m].rank8, 8) - 8);
        held_low[l] = load8(p.low + uint64_t((row0 + piece.line) * 2 + piece.m) * (kMaxRank * 4), r / 8, 0);
    }
}

void put_parts(Eight e, out uvec4 main_part, out uvec4 rest) {
    e = Eight(bounded(e.lo, kType), bounded(e.hi, kType));
    const Eight lead = Eight(leading(e.lo, kType), leading(e.hi, kType));
    main_part = pack8(lead, kType);
    rest = pack8(Eight(e.lo - lead.lo, e.hi - lead.hi), kType);
}

// Puts the loaded words into shared memory.
void put(uint run, uint r0, const bool convert) {
    [[unroll]] for (uint l = 0; l < kBLoads; l++) {
        const uint i = l * kThreads + gl_LocalInvocationIndex;
        if (kBWords % kThreads != 0 && i >= kBWords) break;
        const Piece piece = piece_of(i, kColumns);
        const Module module = modules[run * 2 + piece.m];
        uvec4 main_part = held_b[l], rest = uvec4(0);
        if (convert && module.type != kType) {
            Eight e = unpack8(held_b[l], module.type);
            if (module.type == 0) e = Eight(uintBitsToFloat(held_b[l]), uintBitsToFloat(held_b_hi[l]));
            put_parts(e, main_part, rest);
        }
        const bool is_there = r0 + piece.word * 8 < module.rank8;
        const uint at = (piece.m * kColumns + piece.line) * kPitch + piece.word;
        b_stage[at] = is_there ? main_part : uvec4(0);
        if (convert) b_stage[at + 2] = is_there ? rest : uvec4(0);
    }
    [[unroll]] for (uint l = 0; l < kLowLoads; l++) {
        const uint i = l * kThreads + gl_LocalInvocationIndex;
        if (kLowPieces % kThreads != 0 && i >= kLowPieces) break;
        const Piece piece = piece_of(i, kRows);
        const Module module = modules[run * 2 + piece.m];
        const bool is_there = piece.line >= runs[run].begin && piece.line < runs[run].end && r0 + piece.word * 8 < module.rank8;
        uvec4 main_part, rest;
        put_parts(Eight(held_low[l].lo * module.scale, held_low[l].hi * module.scale), main_part, rest);
        const uint at = (piece.m * kRows + piece.line) * kPitch + piece.word;
        stage[at] = is_there ? main_part : uvec4(0);
        stage[at + 2] = is_there ? rest : uvec4(0);
    }
}

// acc += low B for one module of the run that is staged.
void add_module(Run run, uint m, const bool convert) {
    coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b, b_rest;
    const uint b_at = (m * kColumns + gl_SubgroupID * 16) * kPitch;
    coopMatLoad(b, b_stage, b_at, kPitch, gl_CooperativeMatrixLayoutColumnMajor);
    if (convert) coopMatLoad(b_rest, b_stage, b_at + 2, kPitch, gl_CooperativeMatrixLayoutColumnMajor);
    [[unroll]] for (uint i = 0; i < kRowMats; i++) {
        if (run.begin >= i * 16 + 16 || run.end <= i * 16) continue;
        const uint at = (m * kRows + i * 16) * kPitch, sum = m * kRowMats + i;
        coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a, a_rest;
        coopMatLoad(a, stage, at, kPitch, gl_CooperativeMatrixLayoutRowMajor);
        coopMatLoad(a_rest, stage, at + 2, kPitch, gl_CooperativeMatrixLayoutRowMajor);
        acc[sum] = coopMatMulAdd(a, b, acc[sum]);
        acc[sum] = coopMatMulAdd(a_rest, b, acc[sum]);
        if (convert) acc[sum] = coopMatMulAdd(a, b_rest, acc[sum]);
    }
}

void load_sums(uint row0, uint n0) {
    [[unroll]] for (uint m = 0; m < 2; m++) {
        [[unroll]] for (uint i = 0; i < kRowMats; i++) {
            const uint at = m * kRowMats + i;
            const uint64_t y = p.y + (uint64_t(row0 + i * 16) * kStride + m * kFfn + n0) * 4;
            coopMatLoad(acc[at], Floats(y).data, 0, kStride, gl_CooperativeMatrixLayoutRowMajor);
            for (uint s = 1; s < kSplits && row0 >= kWholeRows; s++) {
                coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> part;
                coopMatLoad(part, Floats(y + uint64_t(s) * p.split_stride * 4).data, 0, kStride, gl_CooperativeMatrixLayoutRowMajor);
                acc[at] = acc[at] + part;
            }
        }
    }
}

// Through shared memory, so that rows of act are written in long pieces, and only those that there are.
void store_results(uint row0, uint n_rows, uint column0) {
    barrier();
    [[unroll]] for (uint i = 0; i < kRowMats; i++) {
        coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> gate = acc[i];
        const coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> up = acc[kRowMats + i];
        for (uint e = 0; e < gate.length(); ++e) gate[e] = activate(gate[e], kActivation) * up[e];
        coopMatStore(gate, stage, i * 16 * kResultPitch + gl_SubgroupID * 4, kResultPitch, gl_CooperativeMatrixLayoutRowMajor);
    }
    barrier();
    const uint kWords = kColumns / 8;
    for (uint i = gl_LocalInvocationIndex; i < n_rows * kWords; i += gl_WorkGroupSize.x) {
        const uint row = i / kWords, word = i % kWords, at = row * kResultPitch + word * 2;
        const Eight e = Eight(uintBitsToFloat(stage[at]), uintBitsToFloat(stage[at + 1]));
        Uvec4Ref(p.act + 2 * (uint64_t(row0 + row) * p.act_stride + column0 + word * 8)).v = pack8(e, kType);
    }
}

// All runs of the tile. convert: a literal.
void add_runs(uint row0, uint column0, uint n_runs, const bool convert) {
    const uint ranks = rank_max;
    fetch(row0, column0, 0, 0, convert);
    for (uint r0 = 0, run = 0; r0 < ranks;) {
        barrier();
        put(run, r0, convert);
        const bool is_last = run + 1 == n_runs;
        const uint next_run = is_last ? 0 : run + 1, next_r0 = is_last ? r0 + 16 : r0;
        if (next_r0 < ranks) fetch(row0, column0, next_run, next_r0, convert);
        barrier();
        [[unroll]] for (uint m = 0; m < 2; m++) add_module(runs[run], m, convert);
        run = next_run;
        r0 = next_r0;
    }
}

void main() {
    const uint row0 = gl_WorkGroupID.y * kRows, column0 = gl_WorkGroupID.x * kColumns;
    // There is room for rows beyond the last one: their slots need not wait for it.
    const uint own_slot = step_row(p.step, row0 + min(gl_LocalInvocationIndex, kRows - 1)).v.adapter_slot;
    const uint n_all = step_n_rows(p.step);
    if (row0 >= n_all) return;
    const uint n_rows = min(n_all - row0, kRows);
    load_sums(row0, column0 + gl_SubgroupID * 16);
    const uint n_runs = find_runs(own_slot, n_rows);
    barrier();
    if (n_runs > 0) {
        if (converts != 0) {
            add_runs(row0, column0, n_runs, true);
        } else {
            add_runs(row0, column0, n_runs, false);
        }
    }
    store_results(row0, n_rows, column0);
}
