// Part of decode_layers.comp, with LORA: what the row's adapter adds to the products. A x is made by single workgroups,
// a part of one rank each, and told to all others while these are at the base product; each then adds B A x to its own
// rows. The row has one adapter at most, as it is (LoraLevel::kPlain).
const uint kModuleWords = 8;  // of 64 bits, of a LoraModule
shared uint64_t lora_words[2][kLoraModules * kModuleWords];  // of the current layer and the next
// A x of the product's modules, kDecodeRankMax (a multiple of 16) for each, zeros behind a module's rank
shared vec4 lows[3 * kDecodeRankMax / 4];

// Parts of a rank: so many words of 16 bytes as there are threads.
uint low_parts(const uint k) { return (k / 8 + kThreads - 1) / kThreads; }
const uint kPartsMax = (kStaged + kThreads - 1) / kThreads;

// Words of the channel for each product, [rank][part], one module behind the other: as many as that with most can have
// (lows_max() in decode_layers.cpp).
uint lows_max() {
    return kDecodeRankMax * max(max(3 * low_parts(kHiddenStride), low_parts(kQStride)), low_parts(kFfnStride));
}
const uint kLowChannel = kPartialsChannel + kQHeads * kSplits * (kHeadDim + 2);

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
// A constant leaves out what other types would need: 8 of 148 KB at 7B, where a step takes 3 % less
// (docs/PERFORMANCE.md).
uint type_of(uint l, uint module) { return kLoraType != kAnyLoraType ? kLoraType : uint(module_word(l, module, 3)); }

uint ranks_of(uint l, const uint group) {
    uint ranks = 0;
    [[unroll]] for (uint m = 0; m < modules_of(group); m++) ranks += rank_of(l, first_module(group) + m);
    return ranks;
}

uint n_lows(uint l, const uint group, const uint k) { return ranks_of(l, group) * low_parts(k); }

// Words of A that this thread multiplies for the workgroup's first part: the second is of f32 alone. Asked for before
// the product's own, so that these are not waited for.
uvec4 a_words[2];
uint a_type;
// Those with least else to do are last: what attention has is the first ones'.
uint first_low() { return kWorkgroups - 1 - own_part; }

void fetch_a(uint l, const uint group, const uint k, uint low) {
    uint64_t at = p.lora_table;  // something, if there is nothing to do
    a_type = kLoraType != kAnyLoraType ? kLoraType : 1;
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

// ---- B A x, a thread for each row of the product ----

// Words of 16 bytes of a row of B that a thread asks for at once. More, or before A x is heard, makes the program
// longer, and slower (docs/PERFORMANCE.md).
const uint kBAtOnce = 2;

// sum + the row's words from `word` on times the fours of A x from `four` on. Behind an odd number of words comes the
// last one once more: there A x is zero.
float add_b(uint64_t at, uint n_words, uint word, uint four, const uint type, float sum) {
    uvec4 words[kBAtOnce];
    [[unroll]] for (uint w = 0; w < kBAtOnce; w++) words[w] = Words(at + min(word + w, n_words - 1) * 16).v;
    [[unroll]] for (uint w = 0; w < kBAtOnce; w++) {
        const uint first = four + (word + w) * (type == 0 ? 1 : 2);
        if (type == 0) sum += dot(uintBitsToFloat(words[w]), lows[first]);
        else sum = dot8(unpack8(words[w], type), Eight(lows[first], lows[first + 1]), sum);
    }
    return sum;
}

// What the adapter adds to row i of the workgroup's.
float row_delta(uint l, const uint group, uint i) {
    uint n = row0 + i, index = 0;  // of the module's rows, and which one of the group
    if (group == kLowQkv) {
        const uint n_kv = kKvHeads * kHeadDim;
        index = n < kQ ? 0 : n < kQ + n_kv ? 1 : 2;
        n -= index == 0 ? 0 : kQ + (index - 1) * n_kv;
    }
    if (group == kLowGateUp) {
        index = i < half_rows ? 0 : 1;
        n = min(n - index * half_rows, kFfn - 1);
    }
    const uint module = first_module(group) + index, type = type_of(l, module);
    const uint n_words = (rank_of(l, module) + 7) / 8 * (type == 0 ? 2 : 1), four = index * kDecodeRankMax / 4;
    const uint64_t at = module_word(l, module, 1) + uint64_t(n) * (n_words * 16);
    float sum = 0.0;
    for (uint word = 0; word < n_words; word += kBAtOnce) {
        if (type == 0) sum = add_b(at, n_words, word, four, 0, sum);
        else if (type == 1) sum = add_b(at, n_words, word, four, 1, sum);
        else sum = add_b(at, n_words, word, four, 2, sum);
    }
    return sum * scale_of(l, module);
}

void hear_lows(uint l, const uint group, const uint parts, uint epoch) {
    for (uint i = gl_LocalInvocationIndex; i < modules_of(group) * kDecodeRankMax; i += kThreads) {
        const uint index = i / kDecodeRankMax, r = i % kDecodeRankMax;
        uint place = low_place(group) + r * parts;
        [[unroll]] for (uint m = 0; m + 1 < modules_of(group); m++) place += m < index ? rank_of(l, first_module(group) + m) * parts : 0;
        float sum = 0.0;
        if (r < rank_of(l, first_module(group) + index)) {
            uint64_t words[kPartsMax];
            [[unroll]] for (uint part = 0; part < parts; part++) words[part] = look(place + part);
            [[unroll]] for (uint part = 0; part < parts; part++) sum += uintBitsToFloat(hear(words[part], place + part, epoch));
        }
        lows[i / 4][i % 4] = sum;
    }
}

// Adds B A x to the sums of the product, which is done; a barrier must follow. most, tile_rows: as in multiply().
void add_adapter(uint l, const uint group, const uint most, const uint k, const uint tile_rows, uint epoch) {
    hear_lows(l, group, low_parts(k), epoch);
    barrier();
    for (uint i = gl_LocalInvocationIndex; i < n_rows; i += kThreads) partials[first_part(i, most, k, tile_rows)] += row_delta(l, group, i);
}
