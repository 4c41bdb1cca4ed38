// The expand half of LoRA, fused into the kernels that consume a matmul's result.
//
// delta[n] = scale * sum_r B[n][r] * low[t][m][r] for four neighbouring outputs n and kRowBlock rows at once: B is read once
// for all rows of the block that share an adapter. Needs kRowBlock and common.glsl.

const uint64_t kModuleBytes = 32;

LoraModule lora_module(uint64_t lora_layer, uint slot, uint slot_stride, uint module) {
    if (slot == kNoSlot) return LoraModule(0, 0, 0, 0.0, 0, 0);
    return ModuleRef(lora_layer + (uint64_t(slot) * slot_stride + module) * kModuleBytes).v;
}

const uint kSteps = 2;  // of 8 ranks, loaded together

// B[n + c][8 r .. 8 r + 7] for four rows and kSteps steps (the last one again beyond the rank). The type is asked once for all
// loads, so that they are in flight together.
void load_b(out Eight e[kSteps][4], const uint64_t b[4], uint r, uint rank8, uint type) {
    if (type == 0) {
        for (uint s = 0; s < kSteps; s++) {
            for (uint c = 0; c < 4; c++) e[s][c] = load8(b[c], min(r + s, rank8 - 1), 0);
        }
        return;
    }
    uvec4 words[kSteps][4];
    for (uint s = 0; s < kSteps; s++) {
        for (uint c = 0; c < 4; c++) words[s][c] = Uvec4Ref(b[c] + min(r + s, rank8 - 1) * 16).v;
    }
    if (type == 1) {
        for (uint s = 0; s < kSteps; s++) {
            for (uint c = 0; c < 4; c++) e[s][c] = unpack8(words[s][c], 1);
        }
    } else {
        for (uint s = 0; s < kSteps; s++) {
            for (uint c = 0; c < 4; c++) e[s][c] = unpack8(words[s][c], 2);
        }
    }
}

// Adds to acc[j] for the rows t0 + j. first: the module of slots[0]. low_index: of the module inside its group of n_low.
// n_out: rows of B.
void add_lora(inout vec4 acc[kRowBlock], const uint slots[kRowBlock], LoraModule first, uint t0, uint64_t lora_layer,
              uint slot_stride, uint module, uint64_t low, uint low_index, uint n_low, uint n, uint n_out) {
    uint done = 0;
    for (uint i = 0; i < kRowBlock; i++) {
        if (slots[i] == kNoSlot || ((done >> i) & 1u) != 0) continue;
        LoraModule m = i == 0 ? first : lora_module(lora_layer, slots[i], slot_stride, module);
        uint rank8 = (m.rank + 7) / 8;
        uint64_t row_bytes = uint64_t(rank8 * 8 * bytes_of(m.type));
        uint64_t b[4];
        for (uint c = 0; c < 4; c++) b[c] = m.b + uint64_t(min(n + c, n_out - 1)) * row_bytes;
        vec4 delta[kRowBlock];
        for (uint j = 0; j < kRowBlock; j++) delta[j] = vec4(0.0);
        for (uint r = 0; r < rank8; r += kSteps) {
            Eight e[kSteps][4];
            load_b(e, b, r, rank8, m.type);
            for (uint j = 0; j < kRowBlock; j++) {
                if (slots[j] != slots[i]) continue;
                uint64_t v = low + uint64_t((t0 + j) * n_low + low_index) * (kMaxRank * 4);
                for (uint s = 0; s < kSteps; s++) {
                    if (r + s >= rank8) break;
                    Eight part = load8(v, r + s, 0);
                    for (uint c = 0; c < 4; c++) delta[j][c] = dot8(e[s][c], part, delta[j][c]);
                }
            }
        }
        for (uint j = 0; j < kRowBlock; j++) {
            if (slots[j] != slots[i]) continue;
            acc[j] = fma(delta[j], vec4(m.scale), acc[j]);
            done |= 1u << j;
        }
    }
}
