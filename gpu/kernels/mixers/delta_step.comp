// delta_step: the gated delta rule (Yang et al. 2024, equation 10), over the rows of each run, for each value head with
// a state S [Dk][Dv]
//   S = e^g S;  d = beta (v - S^T k);  S += k d^T;  o = S^T q
// Without kCorrects d = beta v: the recurrence of Mamba 2 (Dao and Gu 2024), with beta = dt, k = B, q = C, v = x.
// Value head h reads key head floor(h key_heads / value_heads). All f32.
// Rows are taken in blocks of kBlock, whose products with the state are those with the state in front of the block
// (the chunked form of Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule", section 3): with D_i
// the decay of rows 0..i together, R_ij that of rows j+1..i, and one triangle of numbers for each block,
//   d_i = beta_i (v_i - D_i S^T k_i - sum_{j<i} R_ij (k_j . k_i) d_j);  o_i = D_i S^T q_i + sum_{j<=i} R_ij (k_j . q_i)
//   d_j;  S = D_last S + sum_j R_last,j k_j d_j^T
// With blocks of one row a row's bits do not depend on how its sequence is cut into runs. Decays are only ever
// multiplied, so that none is lost beside another.
// kLanes neighbouring threads have four columns of S, each some of their elements; columns need nothing of one another.
// grid (ceil(Dv / columns of a workgroup), value heads, runs); moves S in once for each run and out once and for each
// of its saves, 4 (2 Dk + Dv) bytes in and 4 Dv out for a row and head.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/mixers/delta_step.params.h"
#include "gpu/kernels/mixers/state_runs.glsl"

layout(constant_id = 1) const uint kKeyHeads = 1;
layout(constant_id = 2) const uint kValueHeads = 1;
layout(constant_id = 3) const uint kKeySize = 16;
layout(constant_id = 4) const uint kValueSize = 16;
layout(constant_id = 5) const uint kCorrects = 1;
layout(constant_id = 6) const uint kBlock = 1;  // rows
layout(constant_id = 7) const uint kStage = 4;  // rows that are staged at once, a multiple of kBlock
layout(constant_id = 8) const uint kLanes = 4;  // 4, 8, 16 or 32, of one subgroup
layout(push_constant, scalar) uniform Push { DeltaStepParams p; };

const uint kThreads = gl_WorkGroupSize.x;
const uint kChunks = (kKeySize + 15) / 16 * 4;  // of four elements of a column, as the state has them
const uint kPer = (kChunks + kLanes - 1) / kLanes;
const uint kRowChunks = kPer * kLanes;
const uint kOwn = 4;  // columns of a thread
const uint kColumns = kThreads / kLanes * kOwn;
const uint kKeys = kKeyHeads * kKeySize;
const uint kChannels = 2 * kKeys + kValueHeads * kValueSize;
const uint kPairLanes = 4;  // that make one product of a block's triangle
const uint kPairs = kStage * kBlock;

shared vec4 q_rows[kStage * kRowChunks];
shared vec4 k_rows[kStage * kRowChunks];
shared float v_rows[kStage * kColumns];
shared float decays[kStage];
shared float betas[kStage];
shared float triangle[kPairs];  // [row][row of its block]: j <= i R_ij (k_j . q_i), beyond the diagonal R_ji (k_i . k_j)

// The next stage, on its way.
const uint kHeldKeys = (kStage * kRowChunks + kThreads - 1) / kThreads;
const uint kHeldValues = (kStage * kColumns + kThreads - 1) / kThreads;
vec4 held_q[kHeldKeys], held_k[kHeldKeys];
float held_v[kHeldValues];
float held_decay, held_beta;

float dot4(vec4 a, vec4 b, float acc) {
    acc = fma(a.x, b.x, acc);
    acc = fma(a.y, b.y, acc);
    acc = fma(a.z, b.z, acc);
    return fma(a.w, b.w, acc);
}

vec4 key_chunk(uint64_t row, uint chunk) {
    const uint first = chunk * 4;
    if (kKeySize % 4 == 0) return first < kKeySize ? load4_f32(row, first, kKeys % 4 == 0 && p.c_stride % 4 == 0) : vec4(0.0);
    vec4 value = vec4(0.0);
    for (uint i = 0; i < 4; i++) {
        if (first + i < kKeySize) value[i] = FloatRef(row + (first + i) * 4).v;
    }
    return value;
}

// Rows first .. first + kStage - 1 of the run, those behind its last as this one.
void fetch(StateRun run, uint first, uint head, uint first_column) {
    const uint thread = gl_LocalInvocationIndex, key_head = head * kKeyHeads / kValueHeads;
    [[unroll]] for (uint i = 0; i < kHeldKeys; i++) {
        const uint at = i * kThreads + thread;
        const uint row_idx = min(first + min(at / kRowChunks, kStage - 1), run.n_rows - 1);
        const uint64_t row = p.c + (uint64_t(run.row_begin + row_idx) * p.c_stride + key_head * kKeySize) * 4;
        held_q[i] = key_chunk(row, at % kRowChunks);
        held_k[i] = key_chunk(row + kKeys * 4, at % kRowChunks);
    }
    [[unroll]] for (uint i = 0; i < kHeldValues; i++) {
        const uint at = i * kThreads + thread;
        const uint row_idx = min(first + min(at / kColumns, kStage - 1), run.n_rows - 1);
        const uint column = min(first_column + at % kColumns, kValueSize - 1);
        held_v[i] = FloatRef(p.c + (uint64_t(run.row_begin + row_idx) * p.c_stride + 2 * kKeys + head * kValueSize + column) * 4).v;
    }
    const uint64_t gates = p.c + (uint64_t(run.row_begin + min(first + min(thread, kStage - 1), run.n_rows - 1)) * p.c_stride + kChannels + head) * 4;
    held_decay = FloatRef(gates).v;
    held_beta = FloatRef(gates + kValueHeads * 4).v;
}

// What was fetched; rows from `count` on leave a state as it is.
void put(uint count) {
    const uint thread = gl_LocalInvocationIndex;
    [[unroll]] for (uint i = 0; i < kHeldKeys; i++) {
        const uint at = i * kThreads + thread;
        if (at < kStage * kRowChunks) {
            const bool is_there = at / kRowChunks < count;
            q_rows[at] = is_there ? held_q[i] : vec4(0.0);
            k_rows[at] = is_there ? held_k[i] : vec4(0.0);
        }
    }
    [[unroll]] for (uint i = 0; i < kHeldValues; i++) {
        const uint at = i * kThreads + thread;
        if (at < kStage * kColumns) v_rows[at] = at / kColumns < count ? held_v[i] : 0.0;
    }
    if (thread < kStage) {
        decays[thread] = thread < count ? exp(held_decay) : 1.0;
        betas[thread] = thread < count ? held_beta : 0.0;
    }
}

// The triangles of a stage's blocks.
void make_triangles() {
    const uint lane = gl_LocalInvocationIndex % kPairLanes;
    for (uint first = 0; first < kPairs; first += kThreads / kPairLanes) {
        const uint pair = first + gl_LocalInvocationIndex / kPairLanes;
        const uint row = min(pair, kPairs - 1) / kBlock, other = row / kBlock * kBlock + pair % kBlock;
        const bool is_query = other <= row;
        float sum = 0.0;
        for (uint chunk = lane; chunk < kChunks; chunk += kPairLanes) {
            sum = dot4(k_rows[other * kRowChunks + chunk], is_query ? q_rows[row * kRowChunks + chunk] : k_rows[row * kRowChunks + chunk], sum);
        }
        sum += subgroupShuffleXor(sum, 1);
        sum += subgroupShuffleXor(sum, 2);
        for (uint m = min(row, other) + 1; m <= max(row, other); m++) sum *= decays[m];
        if (lane == 0 && pair < kPairs) triangle[pair] = sum;
    }
}

vec4 s[kOwn * kPer];  // of the state: [column][chunk]

// One block, whose first row is `row` of the stage; `to` is where the first row's result for the thread's own columns
// goes, n_there of the block's rows have one.
void take_block(uint row, uint lane, uint own_column, bool is_there, uint64_t to, uint n_there) {
    float known[kBlock * kOwn], seen[kBlock * kOwn];
    [[unroll]] for (uint i = 0; i < kBlock * kOwn; i++) known[i] = seen[i] = 0.0;
    [[unroll]] for (uint i = 0; i < kPer; i++) {
        [[unroll]] for (uint r = 0; r < kBlock; r++) {
            const uint at = (row + r) * kRowChunks + i * kLanes + lane;
            const vec4 q = q_rows[at];
            [[unroll]] for (uint c = 0; c < kOwn; c++) seen[r * kOwn + c] = dot4(s[c * kPer + i], q, seen[r * kOwn + c]);
            if (kCorrects != 0) {
                const vec4 k = k_rows[at];
                [[unroll]] for (uint c = 0; c < kOwn; c++) known[r * kOwn + c] = dot4(s[c * kPer + i], k, known[r * kOwn + c]);
            }
        }
    }
    // Each quarter of the lanes comes to have the sums of one column: its own one.
    const bool upper = (lane & (kLanes / 2)) != 0, odd = (lane & (kLanes / 4)) != 0;
    float own_known[kBlock], own_seen[kBlock];
    [[unroll]] for (uint r = 0; r < kBlock; r++) {
        const vec4 a = vec4(seen[r * kOwn], seen[r * kOwn + 1], seen[r * kOwn + 2], seen[r * kOwn + 3]);
        const vec2 half_sum = (upper ? a.zw : a.xy) + subgroupShuffleXor(upper ? a.xy : a.zw, kLanes / 2);
        own_seen[r] = (odd ? half_sum.y : half_sum.x) + subgroupShuffleXor(odd ? half_sum.x : half_sum.y, kLanes / 4);
        if (kCorrects != 0) {
            const vec4 b = vec4(known[r * kOwn], known[r * kOwn + 1], known[r * kOwn + 2], known[r * kOwn + 3]);
            const vec2 half_known = (upper ? b.zw : b.xy) + subgroupShuffleXor(upper ? b.xy : b.zw, kLanes / 2);
            own_known[r] = (odd ? half_known.y : half_known.x) + subgroupShuffleXor(odd ? half_known.x : half_known.y, kLanes / 4);
        }
    }
    [[unroll]] for (uint mask = kLanes / 8; mask > 0; mask /= 2) {
        [[unroll]] for (uint r = 0; r < kBlock; r++) {
            own_seen[r] += subgroupShuffleXor(own_seen[r], mask);
            if (kCorrects != 0) own_known[r] += subgroupShuffleXor(own_known[r], mask);
        }
    }
    float d[kBlock];
    float decay = 1.0;
    [[unroll]] for (uint r = 0; r < kBlock; r++) {
        decay *= decays[row + r];
        float value = v_rows[(row + r) * kColumns + own_column];
        if (kCorrects != 0) {
            value = fma(-decay, own_known[r], value);
            [[unroll]] for (uint j = 0; j < r; j++) value = fma(-triangle[(row + j) * kBlock + r], d[j], value);
        }
        d[r] = betas[row + r] * value;
        float o = decay * own_seen[r];
        [[unroll]] for (uint j = 0; j <= r; j++) o = fma(triangle[(row + r) * kBlock + j], d[j], o);
        if (is_there && r < n_there && r % (kLanes / 4) == lane % (kLanes / 4)) FloatRef(to + uint64_t(r) * p.to_stride * 4).v = o;
    }
    // What each row adds, decayed to the block's end, of all four columns.
    vec4 added[kBlock];
    float rest = 1.0;
    [[unroll]] for (uint i = 0; i < kBlock; i++) {
        const uint r = kBlock - 1 - i;
        const float own = rest * d[r], other = subgroupShuffleXor(own, kLanes / 4);
        const vec2 two = odd ? vec2(other, own) : vec2(own, other), others = subgroupShuffleXor(two, kLanes / 2);
        added[r] = upper ? vec4(others, two) : vec4(two, others);
        rest *= decays[row + r];
    }
    [[unroll]] for (uint i = 0; i < kOwn * kPer; i++) s[i] *= decay;
    [[unroll]] for (uint r = 0; r < kBlock; r++) {
        [[unroll]] for (uint i = 0; i < kPer; i++) {
            const vec4 k = k_rows[(row + r) * kRowChunks + i * kLanes + lane];
            [[unroll]] for (uint c = 0; c < kOwn; c++) s[c * kPer + i] = fma(k, vec4(added[r][c]), s[c * kPer + i]);
        }
    }
}

void store_state(uint slot, uint head, uint column, uint lane) {
    const uint64_t state = p.state + (uint64_t(slot) * p.slot_stride + uint64_t(head) * kValueSize * (kChunks * 4)) * 4;
    [[unroll]] for (uint c = 0; c < kOwn; c++) {
        if (column + c >= kValueSize) break;
        [[unroll]] for (uint i = 0; i < kPer; i++) {
            if (i * kLanes + lane < kChunks) store4(state + uint64_t(column + c) * (kChunks * 16), i * kLanes + lane, s[c * kPer + i], 0);
        }
    }
}

void main() {
    const uint head = gl_WorkGroupID.y;
    if (gl_WorkGroupID.z >= HeaderRef(p.step).v.n_state_runs) return;
    const StateRun run = run_at(p.runs, gl_WorkGroupID.z);
    const uint thread = gl_LocalInvocationIndex, lane = thread % kLanes;
    const uint first_column = gl_WorkGroupID.x * kColumns, in_group = thread / kLanes * kOwn;
    const uint own = in_group + lane / (kLanes / 4);  // of the workgroup's columns
    fetch(run, 0, head, first_column);
    [[unroll]] for (uint i = 0; i < kOwn * kPer; i++) {
        const uint column = min(first_column + in_group + i / kPer, kValueSize - 1), chunk = i % kPer * kLanes + lane;
        s[i] = run.from == kNoState || chunk >= kChunks
                   ? vec4(0.0)
                   : load4(p.state + (uint64_t(run.from) * p.slot_stride + (uint64_t(head) * kValueSize + column) * (kChunks * 4)) * 4, chunk, 0);
    }
    uint first = 0;
    while (first < run.n_rows) {
        // Stages end where a state is saved.
        uint count = min(kStage, run.n_rows - first);
        [[unroll]] for (uint save = 0; save < kStateSaves; save++) {
            if (run.saves[save].n_rows > first) count = min(count, run.saves[save].n_rows - first);
        }
        barrier();  // the stage before has been read
        put(count);
        barrier();
        const uint next = first + count;
        if (next < run.n_rows) fetch(run, next, head, first_column);
        make_triangles();
        barrier();
        for (uint row = 0; row < count; row += kBlock) {
            const uint64_t to = p.to + (uint64_t(run.row_begin + first + row) * p.to_stride + head * kValueSize + first_column + own) * 4;
            take_block(row, lane, own, first_column + own < kValueSize, to, count - row);
        }
        [[unroll]] for (uint save = 0; save < kStateSaves; save++) {
            if (run.saves[save].n_rows == next) store_state(run.saves[save].to, head, first_column + in_group, lane);
        }
        first = next;
    }
    store_state(run.to, head, first_column + in_group, lane);
}
