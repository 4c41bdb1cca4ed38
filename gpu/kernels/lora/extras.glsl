// Reading SlotExtras and a row's uses. Needs common.glsl and extras.params.h.
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer ExtrasRef { SlotExtras v; };

ExtrasRef slot_extras(uint64_t extras, uint slot) { return ExtrasRef(extras + uint64_t(slot) * 112); }
StepUse row_use(uint64_t uses, StepRow row, uint i) { return UseRef(uses + uint64_t(row.use_begin + i) * 16).v; }

// sum_r b[n + c][r] * v[r] for c = 0..3, v in v_type; rows of b from n_out on read the last one.
vec4 low_rank_product(uint64_t b, uint type, uint rank, uint n, uint n_out, uint64_t v, uint v_type) {
    uint rank8 = (rank + 7) / 8;
    uint64_t row_bytes = uint64_t(rank8 * 8 * bytes_of(type));
    vec4 sum = vec4(0.0);
    for (uint r = 0; r < rank8; r++) {
        Eight part = load8(v, r, v_type);
        for (uint c = 0; c < 4; c++) sum[c] = dot8(load8(b + min(n + c, n_out - 1) * row_bytes, r, type), part, sum[c]);
    }
    return sum;
}
