// Part of decode_layers.comp, with LORA: what the row's adapter adds to the products. A x is made by single workgroups, a part of one rank each, and told to
// all others while these are at the base product; each then adds B A x to its own rows. The row has one adapter at most, as it is (LoraLevel::kPlain).
const uint kModuleWords = 8;  // of 64 bits, of a LoraModule
shared uint64_t lora_words[2][kLoraModules * kModuleWords];  // of the current layer and the next
shared float lows[3 * kDecodeRankMax];  // A x of the product's modules, one behind the other

// Parts of a rank: so many words of 16 bytes as there are threads.
uint low_parts(const uint k) { return (k / 8 + kThreads - 1) / kThreads; }

const uint kLowChannel = kPartialsChannel + kQHeads * kSplits * (kHeadDim + 2);
// Words of the channel for each product, [rank][part], one module behind the other: as many as that with most can have (lows_max() in decode_layers.cpp).
uint lows_max() {
    return kDecodeRankMax * max(max(3 * low_parts(kHiddenStride), low_parts(kQStride)), low_parts(kFfnStride));
}

// Groups of modules that share the input of a product.
const uint kLowQkv = 0, kLowO = 1, kLowGateUp = 2, kLowDown = 3;
uint first_module(const uint group) { return group == kLowQkv ? kLoraQ : group == kLowO ? kLoraO : group == kLowGateUp ? kLoraGate : kLoraDown; }
uint modules_of(const uint group) { return group == kLowQkv ? 3 : group == kLowGateUp ? 2 : 1; }
uint low_place(const uint group) { return kLowChannel + group * lows_max(); }

void fetch_lora(uint l, uint slot) {
    if (gl_LocalInvocationIndex >= kLoraModules * kModuleWords || l >= p.n_layers) return;
    uint64_t word = 0;
    if (slot != kNoSlot) word = LongRef(p.lora_table + (uint64_t(slot) * p.lora_slot_stride + l * kLoraModules) * (kModuleWords * 8) + gl_LocalInvocationIndex * 8).v;
    lora_words[l % 2][gl_LocalInvocationIndex] = word;
}

uint64_t module_word(uint l, uint module, uint word) { return lora_words[l % 2][module * kModuleWords + word]; }
uint rank_of(uint l, uint module) { return uint(module_word(l, module, 2)); }
float scale_of(uint l, uint module) { return uintBitsToFloat(uint(module_word(l, module, 2) >> 32)); }
uint type_of(uint l, uint module) { return uint(module_word(l, module, 3)); }

uint ranks_of(uint l, const uint group) {
    uint ranks = 0;
    [[unroll]] for (uint m = 0; m < modules_of(group); m++) ranks += rank_of(l, first_module(group) + m);
    return ranks;
}

uint n_lows(uint l, const uint group, const uint k) { return ranks_of(l, group) * low_parts(k); }

// Words of A that this thread multiplies for the workgroup's first part: the second is of f32 alone. Asked for before the product's own, so that these are
// not waited for.
uvec4 a_words[2];
uint a_type;
// Those with least else to do are last: what attention has is the first ones'.
uint first_low() { return kWorkgroups - 1 - own_part; }

void fetch_a(uint l, const uint group, const uint k, uint low) {
    uint64_t at = p.lora_table;  // something, if there is nothing to do
    a_type = 1;
    if (low < n_lows(l, group, k)) {
        uint rank = low / low_parts(k), module = first_module(group);
        [[unroll]] for (uint m = 0; m + 1 < modules_of(group); m++) {
            const uint of_this = rank_of(l, first_module(group) + m);
            if (module == first_module(group) + m && rank >= of_this) {
                rank -= of_this;
                module++;
            }
        }
        a_type = type_of(l, module);
        const uint word = min(low % low_parts(k) * kThreads + gl_LocalInvocationIndex, k / 8 - 1);
        at = module_word(l, module, 0) + (uint64_t(rank) * k + word * 8) * bytes_of(a_type);
    }
    a_words[0] = Words(at).v;
    a_words[1] = Words(at + (a_type == 0 ? 16 : 0)).v;
}

// With the input staged.
void say_lows(uint l, const uint group, const uint k, uint epoch) {
    const uint n = n_lows(l, group, k);
    for (uint low = first_low(); low < n; low += kWorkgroups) {
        if (low != first_low()) {
            barrier();  // the sums before have been read
            fetch_a(l, group, k, low);
        }
        const uint word = low % low_parts(k) * kThreads + gl_LocalInvocationIndex;
        float sum = 0.0;
        if (word < k / 8) {
            Eight a = a_type == 0 ? Eight(uintBitsToFloat(a_words[0]), uintBitsToFloat(a_words[1])) : unpack8(a_words[0], a_type);
            sum = dot8(a, unpack8(staged[word], kType), 0.0);
        }
        sum = workgroup_sum(sum);
        if (gl_LocalInvocationIndex == 0) say(low_place(group) + low, floatBitsToUint(sum), epoch);
    }
}

// Before the barrier behind the product.
void hear_lows(uint l, const uint group, const uint k, uint epoch) {
    const uint ranks = ranks_of(l, group), parts = low_parts(k);
    for (uint r = gl_LocalInvocationIndex; r < ranks; r += kThreads) {
        const uint place = low_place(group) + r * parts;
        float sum = 0.0;
        for (uint part = 0; part < parts; part++) sum += hear_float(place + part, epoch);
        lows[r] = sum;
    }
}

// What module number m of a group adds to its row n.
float low_delta(uint l, const uint group, uint m, uint n) {
    const uint module = first_module(group) + m, rank = rank_of(l, module), type = type_of(l, module);
    uint first = 0;
    [[unroll]] for (uint before = 0; before + 1 < modules_of(group); before++) first += before < m ? rank_of(l, first_module(group) + before) : 0;
    const uint64_t b = module_word(l, module, 1) + uint64_t(n) * ((rank + 7) / 8 * 8 * bytes_of(type));
    float delta = 0.0;
    for (uint r8 = 0; r8 * 8 < rank; r8++) {
        const Eight e = load8(b, r8, type);
        [[unroll]] for (uint i = 0; i < 8; i++) {
            const uint r = r8 * 8 + i;
            if (r < rank) delta = fma(i < 4 ? e.lo[i % 4] : e.hi[i % 4], lows[first + r], delta);
        }
    }
    return delta * scale_of(l, module);
}
