// Part of decode_layers.comp: the input of each product, from memory or from the channels into `staged`: the residual
// stream under its norm, activations, what attention gave.
// ---- Inputs of products ----

void pad_staged(const uint k) {
    for (uint i = k / 8 + gl_LocalInvocationIndex; i < steps_of(k) * kLanes; i += kThreads) staged[i] = uvec4(0);
}

// Elements 2 i and 2 i + 1.
void stage_pair(uint i, uint pair) { staged[i / 4][i % 4] = pair; }

vec2 gamma[kPairs];

void fetch_gamma(uint64_t at) {
    [[unroll]] for (uint j = 0; j < kPairs; j++) {
        gamma[j] = Vec2Ref(at + min(j * kThreads + gl_LocalInvocationIndex, kHiddenStride / 2 - 1) * 8).v;
    }
}

// staged = x * rsqrt(mean(x^2) + eps) * gamma, which was fetched before; x from the channel, in the first layer from
// memory. Of gate and up the rest of the first words is asked for when x is there. With norms of what a part gives the
// channel has that, and x is the stream with it added.
void stage_norm(bool is_first, uint epoch, const bool is_gate_up) {
    const uint kLast = kHidden / 2 - 1;
    uint64_t words[kHeardMax];
    if (!is_first) hear_all(words, kPairs * 2, 2, kXChannel, gl_LocalInvocationIndex, kThreads - 1, kLast, epoch);
    vec2 x[kPairs];
    float squares = 0.0;
    [[unroll]] for (uint j = 0; j < kPairs; j++) {
        uint i = j * kThreads + gl_LocalInvocationIndex;
        if (is_first) x[j] = Vec2Ref(p.x + min(i, kLast) * 8).v;
        else x[j] = vec2(uintBitsToFloat(uint(words[j * 2])), uintBitsToFloat(uint(words[j * 2 + 1])));
        if (i > kLast) x[j] = vec2(0.0);
        squares = fma(x[j].y, x[j].y, fma(x[j].x, x[j].x, squares));
    }
    if (is_gate_up) load_ahead(most_gate_up_rows(), kHiddenStride, kRowsApart, kFfnStepsFirst, kFfnStepsAhead);
    IF_FAMILIES(if (kNormsAfter != 0 && !is_first) squares = add_to_stream(x, squares));
    float inverse = kNormsBefore != 0 ? inversesqrt(workgroup_sum(squares) / float(kHidden) + p.eps) : 1.0;
    [[unroll]] for (uint j = 0; j < kPairs; j++) {
        uint i = j * kThreads + gl_LocalInvocationIndex;
        if (i < kHiddenStride / 2) stage_pair(i, pack_pair(kNormsBefore != 0 ? x[j] * inverse * gamma[j] : x[j], kType));
    }
    pad_staged(kHiddenStride);
    barrier();
}

// n pairs from a channel, then zeros up to k elements.
void stage_channel(uint channel, const uint n, const uint k, uint epoch) {
    const uint n_rounds = ((k / 2 + kThreads - 1) / kThreads + kAtOnce - 1) / kAtOnce;
    const uint at_once = (k / 2 + kThreads * n_rounds - 1) / (kThreads * n_rounds);  // as equal as they come
    for (uint begin = gl_LocalInvocationIndex; begin < k / 2; begin += kThreads * at_once) {
        uint64_t words[kHeardMax];
        hear_all(words, at_once, 1, channel, begin, ((n_rounds - 1) * at_once + 1) * kThreads - 1, n - 1, epoch);
        [[unroll]] for (uint j = 0; j < at_once; j++) {
            uint i = begin + j * kThreads;
            if (i < k / 2) stage_pair(i, i < n ? uint(words[j]) : 0);
        }
    }
    pad_staged(k);
    barrier();
}
