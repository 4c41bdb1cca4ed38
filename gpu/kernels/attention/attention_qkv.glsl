// Part of attention_group.comp: queries of a KV head's group, key and value of one row from the sums of their product:
// what qkv_post makes of them. A thread has eight elements of a head; rope's partners lie in the same subgroup.
layout(constant_id = 7) const uint kSumSplits = 1;
layout(constant_id = 8) const uint kHasBias = 0;
layout(constant_id = 9) const uint kHasNorm = 0;
layout(constant_id = 10) const uint kRotaryDim = 64;

const uint kParts = (kGroup + 2) * kKvWords;  // words of the queries, the key and the value
const uint kRounds = (kParts + kThreads - 1) / kThreads;
const uint kHalfWords = kRotaryDim / 16;  // words whose partners come so many later

shared uvec4 own[2][kKvWords];  // key and value of the row
uvec4 own_word(uint plane, uint word) { return own[plane][word]; }

// The first word of a part in the sums: the query heads of the group, then key and value.
uint first_word(uint part, uint kv_head) {
    const uint kQHeads = kKvHeads * kGroup;
    const uint head = part < kGroup ? kv_head * kGroup + part : part == kGroup ? kQHeads + kv_head : kQHeads + kKvHeads + kv_head;
    return head * kKvWords;
}

Eight split_sum(uint64_t sums, uint word) {
    Eight parts[kSumSplits];  // all loads before the first use
    [[unroll]] for (uint s = 0; s < kSumSplits; s++) parts[s] = load8(sums + uint64_t(s) * p.split_stride * 4, word, 0);
    Eight e = parts[0];
    [[unroll]] for (uint s = 1; s < kSumSplits; s++) e = Eight(e.lo + parts[s].lo, e.hi + parts[s].hi);
    if (kHasBias != 0) {
        const Eight bias = load8(p.bias, word, 0);
        e = Eight(e.lo + bias.lo, e.hi + bias.hi);
    }
    return e;
}

// Cos and sin of the word's eight elements.
struct Rotation {
    Eight cosines, sines;
};
Rotation rotation_at(uint rotation, uint word) {
    const uint64_t at = p.rope + (uint64_t(rotation) * (kRotaryDim / 2) + word % kHalfWords * 8) * 8;
    const vec4 a = Vec4Ref(at).v, b = Vec4Ref(at + 16).v, c = Vec4Ref(at + 32).v, d = Vec4Ref(at + 48).v;
    return Rotation(Eight(vec4(a.xz, b.xz), vec4(c.xz, d.xz)), Eight(vec4(a.yw, b.yw), vec4(c.yw, d.yw)));
}

// All threads of a head call it together.
Eight normed(Eight e, uint64_t gamma, uint word) {
    float squares = sum_squares4(e.hi, sum_squares4(e.lo, 0.0));
    [[unroll]] for (uint step = 1; step < kKvWords; step *= 2) squares += subgroupShuffleXor(squares, step);
    const float inverse = inversesqrt(squares / float(kHeadDim) + p.eps);
    const Eight weights = load8(gamma, word, 0);
    return Eight(e.lo * inverse * weights.lo, e.hi * inverse * weights.hi);
}

// Likewise.
Eight rotated(Eight e, Rotation rotation, uint word) {
    const bool is_first = word < kHalfWords;
    const uint lane = gl_SubgroupInvocationID - word + (is_first ? word + kHalfWords : word - kHalfWords) % kKvWords;
    Eight other = Eight(subgroupShuffle(e.lo, lane), subgroupShuffle(e.hi, lane));
    if (word >= 2 * kHalfWords) return e;
    if (is_first) other = Eight(-other.lo, -other.hi);
    return Eight(fma(e.lo, rotation.cosines.lo, other.lo * rotation.sines.lo), fma(e.hi, rotation.cosines.hi, other.hi * rotation.sines.hi));
}

Eight summed[kRounds];  // this thread's words

void load_sums(uint t, uint kv_head) {
    const uint64_t row = p.sums + uint64_t(t) * p.sums_stride * 4;
    [[unroll]] for (uint round = 0; round < kRounds; round++) {
        const uint i = min(round * kThreads + gl_LocalInvocationIndex, kParts - 1);
        summed[round] = split_sum(row, first_word(i / kKvWords, kv_head) + i % kKvWords);
    }
}

// Queries go to queries[]; with has_own key and value to own[] and to the cache. The caller's barrier is between this
// and their use.
void put_parts(Rotation rotation, uint kv_head, uint kv_slot, bool has_own) {
    const uint word = gl_LocalInvocationIndex % kKvWords;  // in each round
    [[unroll]] for (uint round = 0; round < kRounds; round++) {
        const uint i = round * kThreads + gl_LocalInvocationIndex, part = i / kKvWords;
        Eight e = summed[round];
        if (part <= kGroup) {
            if (kHasNorm != 0) e = normed(e, part < kGroup ? p.q_gamma : p.k_gamma, word);
            e = rotated(e, rotation, word);
        }
        const uvec4 words = pack8(e, 1);
        if (part < kGroup) {
            queries[part * kKvStride + word] = words;
        } else if (i < kParts && has_own) {
            const uint plane = part - kGroup;
            own[plane][word] = words;
            const uint line = ((kv_slot / kBlockTokens * 2 + plane) * kKvHeads + kv_head) * kBlockTokens + kv_slot % kBlockTokens;
            Uvec4Ref(p.kv + uint64_t(line) * (kHeadDim * 2) + word * 16).v = words;
        }
    }
}
