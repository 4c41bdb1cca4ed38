// head_rows: products of adapters' rows with the logit rows that use them
//   MODE 0  logits[i][n] = head_table[n] . x[i]             rows whose adapter has an output layer of its own
//   MODE 1  logits[i][token_ids[n]] = token_rows[n] . x[i]  rows whose adapter has rows of a tied output layer
//   MODE 2  low[i][u][n] = head_a of use u [n] . x[i]       all uses; zeros up to the rank rounded up to 8
// A subgroup computes one n after the other; matrices are read once for up to kGroup neighbouring rows that share one.
// grid (any number, groups of rows), MODE 2: (any number, rows * kStepUsesMax). Rows without these extras cost one
// look.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/lora/extras.params.h"
#include "gpu/kernels/lora/extras.glsl"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kMode = 0;
layout(push_constant, scalar) uniform Push { HeadExtrasParams p; };

const uint kGroup = kMode == 2 ? 1 : 4;

// Rows to multiply with; n = 0: none.
struct Source {
    uint64_t rows;
    uint64_t ids;
    uint n;
    uint type;
};

Source source_of(uint i, uint use_idx) {
    StepRow row = step_row(p.step, LogitRowRef(p.logit_rows + uint64_t(i) * 8).v.row).v;
    if (kMode == 2) {
        if (use_idx >= row.n_uses) return Source(0, 0, 0, 0);
        ExtrasRef e = slot_extras(p.extras, row_use(p.uses, row, use_idx).slot);
        return Source(e.v.head_a, 0, e.v.head_rank, e.v.head_lora_type);
    }
    if (row.extras_slot == kNoSlot) return Source(0, 0, 0, 0);
    ExtrasRef e = slot_extras(p.extras, row.extras_slot);
    if (kMode == 0) return Source(e.v.head_table, 0, e.v.head_table != 0 ? p.vocab : 0, e.v.head_type);
    bool has = e.v.tokens_in_head != 0 && e.v.head_table == 0;
    return Source(e.v.token_rows, e.v.token_ids, has ? e.v.n_tokens : 0, 0);
}

// The place of product n of logit row i.
FloatRef place_of(Source source, uint i, uint use_idx, uint n) {
    if (kMode == 2) return FloatRef(p.low + (uint64_t(i * kStepUsesMax + use_idx) * kMaxRank + n) * 4);
    uint column = kMode == 1 ? UintRef(source.ids + uint64_t(n) * 4).v : n;
    return FloatRef(p.logits + (uint64_t(i) * p.logits_stride + column) * 4);
}

void main() {
    uint n_rows = UintRef(p.step + 4).v;  // StepHeader.n_logit_rows
    uint first = kMode == 2 ? gl_WorkGroupID.y / kStepUsesMax : gl_WorkGroupID.y * kGroup;
    uint use_idx = kMode == 2 ? gl_WorkGroupID.y % kStepUsesMax : 0;
    if (first >= n_rows) return;
    uint count = min(kGroup, n_rows - first);
    Source sources[kGroup];
    for (uint j = 0; j < kGroup; j++) sources[j] = source_of(first + min(j, count - 1), use_idx);

    uint subgroup = gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID;
    uint n_subgroups = gl_NumWorkGroups.x * gl_NumSubgroups;
    uint n_chunks = (p.k + 7) / 8;
    for (uint j = 0; j < count; j++) {
        Source source = sources[j];
        bool done = source.n == 0;
        for (uint other = 0; other < j; other++) done = done || sources[other].rows == source.rows;
        if (done) continue;
        uint64_t x[kGroup];
        for (uint m = 0; m < kGroup; m++) x[m] = p.x + uint64_t(first + min(m, count - 1)) * p.x_stride * bytes_of(kActType);
        uint64_t row_bytes = uint64_t(p.x_stride * bytes_of(source.type));
        for (uint n = subgroup; n < source.n; n += n_subgroups) {
            float acc[kGroup];
            for (uint m = 0; m < kGroup; m++) acc[m] = 0.0;
            for (uint chunk = gl_SubgroupInvocationID; chunk < n_chunks; chunk += gl_SubgroupSize) {
                Eight w = load8(source.rows + n * row_bytes, chunk, source.type);
                for (uint m = 0; m < kGroup; m++) acc[m] = dot8(w, load8(x[m], chunk, kActType), acc[m]);
            }
            for (uint m = j; m < count; m++) {
                float sum = subgroupAdd(acc[m]);
                if (sources[m].rows == source.rows && sources[m].n != 0 && subgroupElect()) place_of(source, first + m, use_idx, n).v = sum;
            }
        }
        if (kMode == 2 && subgroup == 0 && subgroupElect()) {
            for (uint n = source.n; n < (source.n + 7) / 8 * 8; n++) place_of(source, first, use_idx, n).v = 0.0;
        }
    }
}
