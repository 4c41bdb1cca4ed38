// The expand half of LoRA, fused into the kernels that consume a matmul's result.
//
// delta[n] = scale * sum_r B[n][r] * low[t][m][r] for four neighbouring outputs n of one row t. Rows that share an
// adapter find B in the cache; keeping it in registers for several rows was slower on every device measured. Needs
// common.glsl and the constants kRankSteps (steps of 8 ranks whose loads are in flight together) and kExchange.
//
// kExchange: four lanes that own 16 neighbouring outputs compute every fourth one each and swap results, so that the
// lanes of a load read neighbouring rows of B. All four must be active and of one module: n_out a multiple of 16.
#extension GL_KHR_shader_subgroup_shuffle : require

const uint64_t kModuleBytes = 64;

LoraModule lora_module(uint64_t lora_layer, uint slot, uint slot_stride, uint module) {
    if (slot == kNoSlot) return LoraModule(0, 0, 0, 0.0, 0, 0, 0, 0, uint64_t[2](0, 0));
    return ModuleRef(lora_layer + (uint64_t(slot) * slot_stride + module) * kModuleBytes).v;
}

// sum_r b[c][r] * v[r]; type is a literal, so that no load waits behind a branch.
vec4 expand(const uint64_t b[4], uint64_t v, uint rank8, const uint type) {
    vec4 delta = vec4(0.0);
    for (uint r = 0; r < rank8; r += kRankSteps) {
        Eight e[kRankSteps][4];
        [[unroll]] for (uint s = 0; s < kRankSteps; s++) {
            [[unroll]] for (uint c = 0; c < 4; c++) e[s][c] = load8(b[c], min(r + s, rank8 - 1), type);
        }
        [[unroll]] for (uint s = 0; s < kRankSteps; s++) {
            if (r + s < rank8) {
                Eight part = load8(v, r + s, 0);
                [[unroll]] for (uint c = 0; c < 4; c++) delta[c] = dot8(e[s][c], part, delta[c]);
            }
        }
    }
    return delta;
}

// Element c of lane q goes to element q of lane c, in each four lanes.
vec4 transposed(vec4 d, uint q) {
    bool odd = (q & 1u) != 0;
    vec2 got = subgroupShuffleXor(odd ? d.xz : d.yw, 1);
    d = odd ? vec4(got.x, d.y, got.y, d.w) : vec4(d.x, got.x, d.z, got.y);
    bool high = (q & 2u) != 0;
    got = subgroupShuffleXor(high ? d.xy : d.zw, 2);
    return high ? vec4(got, d.zw) : vec4(d.xy, got);
}

// B low for the outputs n..n+3. low: the row's shrink result for this module; n_out: rows of B. The module's rank is
// not 0.
vec4 lora_delta(LoraModule m, uint64_t low, uint n, uint n_out) {
    uint lane = gl_LocalInvocationIndex % 4;
    uint n_first = kExchange != 0 ? n - 3 * lane : n;  // n - 4 lane + lane
    uint n_step = kExchange != 0 ? 4 : 1;
    uint rank8 = (m.rank + 7) / 8;
    uint64_t row_bytes = uint64_t(rank8 * 8 * bytes_of(m.type));
    uint64_t b[4];
    [[unroll]] for (uint c = 0; c < 4; c++) b[c] = m.b + uint64_t(min(n_first + c * n_step, n_out - 1)) * row_bytes;
    vec4 delta;
    if (m.type == 0) {
        delta = expand(b, low, rank8, 0);
    } else if (m.type == 1) {
        delta = expand(b, low, rank8, 1);
    } else {
        delta = expand(b, low, rank8, 2);
    }
    return kExchange != 0 ? transposed(delta, lane) : delta;
}

// acc + the module's delta for the outputs n..n+3.
vec4 add_lora(vec4 acc, LoraModule m, uint64_t low, uint n, uint n_out) {
    if (m.rank == 0) return acc;
    return fma(lora_delta(m, low, n, n_out), vec4(m.scale), acc);
}

// Level kFull. Which module of the table, and where its shrink results lie.
struct LoraPlace {
    uint64_t uses;        // StepUse[]
    uint64_t lora_layer;
    uint64_t low;
    uint slot_stride;
    uint module;
    uint index, n_modules;  // of the group
};

// values[n..n+3] of an array as long as the module has outputs, which may begin anywhere.
vec4 load_outputs(uint64_t values, uint n, uint n_out) {
    vec4 v;
    [[unroll]] for (uint c = 0; c < 4; c++) v[c] = FloatRef(values + uint64_t(min(n + c, n_out - 1)) * 4).v;
    return v;
}

// acc + what all adapters of row t add to the outputs n..n+3, in the order of the row's list. base: the base module's
// result without its bias. One plain use gives the bits of add_lora.
vec4 add_lora_uses(vec4 acc, vec4 base, LoraPlace place, StepRow row, uint t, uint n, uint n_out) {
    for (uint u = 0; u < row.n_uses; u++) {
        StepUse use = UseRef(place.uses + uint64_t(row.use_begin + u) * 16).v;
        LoraModule m = lora_module(place.lora_layer, use.slot, place.slot_stride, place.module);
        vec4 scale = vec4(m.scale * use.scale);
        if (m.gain != 0) {
            vec4 gain = load_outputs(m.gain, n, n_out);
            acc = fma((gain - 1.0) * use.scale, base, acc);
            scale *= gain;
        }
        if (m.bias != 0) acc = fma(load_outputs(m.bias, n, n_out), vec4(use.scale), acc);
        if (m.rank == 0) continue;
        uint64_t low = low_row(place.low, use.low_offset + t, place.index, place.n_modules);
        acc = fma(lora_delta(m, low, n, n_out), scale, acc);
    }
    return acc;
}
