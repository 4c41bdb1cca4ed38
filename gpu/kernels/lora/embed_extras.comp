// embed_extras: x[t] = scale * (row + sum_u use_u.scale * embed_scale_u * B_u A_u[token]) for rows whose adapters may
// change the embedding, and the base's row for all others
//   row    of token(t): the adapter's own for that token, else of its own table, else of the base's
//   table  [vocab][table_stride]  WEIGHT_TYPE or packed (weight_format.h);  x [T][x_stride] f32
// Replaced rows and tables come from the row's extras_slot, the sum is over all of its uses. Tokens are read as in
// embed.comp.
// grid (ceil(H / 4 / workgroup), T); four elements per thread; moves 2-4 H bytes in and 4 H out per row, and B of each
// use.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/formats/weights.glsl"
#include "gpu/kernels/lora/extras.params.h"
#include "gpu/kernels/lora/extras.glsl"

layout(constant_id = 1) const uint kWeightType = 0;
layout(push_constant, scalar) uniform Push { EmbedExtrasParams p; };

// Row of the token among the adapter's own, or 0.
uint64_t own_row(ExtrasRef e, uint token) {
    uint begin = 0, end = e.v.n_tokens;
    while (begin < end) {
        uint middle = (begin + end) / 2;
        if (UintRef(e.v.token_ids + uint64_t(middle) * 4).v < token) begin = middle + 1;
        else end = middle;
    }
    bool found = begin < e.v.n_tokens && UintRef(e.v.token_ids + uint64_t(begin) * 4).v == token;
    return found ? e.v.token_rows + uint64_t(begin) * p.table_stride * 4 : 0;
}

void main() {
    uint t = gl_WorkGroupID.y;
    uint chunk = gl_GlobalInvocationID.x;
    if (t >= step_n_rows(p.step) || chunk * 4 >= p.hidden) return;
    StepRow row = step_row(p.step, t).v;
    int token = row.token;
    if (token < 0) token = IntRef(p.sampled + uint64_t(~token) * 4).v;
    if (token < 0 || uint(token) >= p.vocab) token = 0;

    uint type = 0;
    uint64_t table = 0;  // of an adapter
    uint64_t own = 0;
    if (row.extras_slot != kNoSlot) {
        ExtrasRef e = slot_extras(p.extras, row.extras_slot);
        own = own_row(e, uint(token));
        if (e.v.embed_table != 0) {
            table = e.v.embed_table;
            type = e.v.embed_type;
        }
    }
    vec4 value;
    if (own != 0) value = load4(own, chunk, 0);
    else if (table != 0) value = load4(table + uint64_t(token) * p.table_stride * bytes_of(type), chunk, type);
    else value = load4_weights(p.table, uint(token), chunk, p.table_stride, kWeightType);
    for (uint i = 0; i < row.n_uses; i++) {
        StepUse use = row_use(p.uses, row, i);
        ExtrasRef e = slot_extras(p.extras, use.slot);
        uint rank = e.v.embed_rank;
        if (rank == 0) continue;
        uint lora_type = e.v.embed_lora_type;
        uint64_t a = e.v.embed_a + uint64_t(token) * ((rank + 7) / 8 * 8 * bytes_of(lora_type));
        vec4 delta = low_rank_product(e.v.embed_b, lora_type, rank, chunk * 4, p.hidden, a, lora_type);
        value = fma(delta, vec4(use.scale * e.v.embed_scale), value);
    }
    value *= p.scale;
    value = mix(vec4(0.0), value, lessThan(chunk * 4 + uvec4(0, 1, 2, 3), uvec4(p.hidden)));
    store4(p.x + uint64_t(t) * p.x_stride * 4, chunk, value, 0);
}
