// The expand half of LoRA, fused into the kernels that consume a matmul's result.
//
// delta[n] = scale * sum_r B[n][r] * low[t][m][r] for four neighbouring outputs n and kRowBlock rows at once: B is read once
// for all rows of the block that share an adapter. Needs kRowBlock and common.glsl.

const uint64_t kModuleBytes = 32;

LoraModule lora_module(uint64_t lora_layer, uint slot, uint slot_stride, uint module) {
    return ModuleRef(lora_layer + uint64_t(slot) * slot_stride * kModuleBytes + uint64_t(module) * kModuleBytes).v;
}

// Adds to acc[j] for the rows t0 + j. low_index: of the module inside its group of n_low. n_out: rows of B.
void add_lora(inout vec4 acc[kRowBlock], const uint slots[kRowBlock], uint t0, uint64_t lora_layer, uint slot_stride,
              uint module, uint64_t low, uint low_index, uint n_low, uint n, uint n_out) {
    uint done = 0;
    for (uint i = 0; i < kRowBlock; i++) {
        if (slots[i] == kNoSlot || ((done >> i) & 1u) != 0) continue;
        LoraModule m = lora_module(lora_layer, slots[i], slot_stride, module);
        uint rank8 = (m.rank + 7) / 8;
        uint64_t row_bytes = uint64_t(rank8 * 8 * bytes_of(m.type));
        uint64_t b[4];
        for (uint c = 0; c < 4; c++) b[c] = m.b + uint64_t(min(n + c, n_out - 1)) * row_bytes;
        vec4 delta[kRowBlock];
        for (uint j = 0; j < kRowBlock; j++) delta[j] = vec4(0.0);
        for (uint r = 0; r < rank8; r++) {
            Eight e[4];
            for (uint c = 0; c < 4; c++) e[c] = load8(b[c], r, m.type);
            for (uint j = 0; j < kRowBlock; j++) {
                if (slots[j] != slots[i]) continue;
                Eight v = load8(low + uint64_t((t0 + j) * n_low + low_index) * (kMaxRank * 4), r, 0);
                for (uint c = 0; c < 4; c++) delta[j][c] = dot8(e[c], v, delta[j][c]);
            }
        }
        for (uint j = 0; j < kRowBlock; j++) {
            if (slots[j] != slots[i]) continue;
            acc[j] = fma(delta[j], vec4(m.scale), acc[j]);
            done |= 1u << j;
        }
    }
}
