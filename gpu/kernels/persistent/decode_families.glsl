// Part of decode_layers.comp, with FAMILIES: what other families' layers have beside the parts of Llama's, as constants
// say. Small things stand where Llama's do: activations, caps of scores, a rope of the layer's own, the blocks of layers
// with a window. Here is what needs a whole row before it can go on.
// ---- Norms of what o and down give ----

// Nobody can add a product's rows to the residual stream before the norm of them all is known. So everybody hears what
// the product gave, and keeps the whole stream: a thread the elements that it stages.
vec2 stream[kPairs];
vec2 after_gamma[kPairs];

void fetch_stream() {
    const uint kLast = kHidden / 2 - 1;
    [[unroll]] for (uint j = 0; j < kPairs; j++) {
        uint i = j * kThreads + gl_LocalInvocationIndex;
        stream[j] = Vec2Ref(p.x + min(i, kLast) * 8).v;
        if (i > kLast) stream[j] = vec2(0.0);
    }
}

void fetch_after_gamma(uint64_t at) {
    [[unroll]] for (uint j = 0; j < kPairs; j++) {
        after_gamma[j] = Vec2Ref(at + min(j * kThreads + gl_LocalInvocationIndex, kHiddenStride / 2 - 1) * 8).v;
    }
}

shared float more_sums[kSubgroups];

// workgroup_sum() with a place of its own, so that no barrier is needed between one and the other.
float another_workgroup_sum(float value) {
    value = lanes_sum(value);
    if (gl_SubgroupInvocationID == 0) more_sums[gl_SubgroupID] = value;
    barrier();
    float total = 0.0;
    [[unroll]] for (uint s = 0; s < kSubgroups; s++) total += more_sums[s];
    return total;
}

// x, what a part gave with the sum of its squares in this thread, becomes the stream with its norm added. Returns the
// sum of squares of that.
float add_to_stream(inout vec2 x[kPairs], float squares) {
    const float inverse = inversesqrt(another_workgroup_sum(squares) / float(kHidden) + p.eps) * kMultiplier;
    float sum = 0.0;
    [[unroll]] for (uint j = 0; j < kPairs; j++) {
        stream[j] = fma(x[j] * inverse, after_gamma[j], stream[j]);
        x[j] = stream[j];
        sum = fma(x[j].y, x[j].y, fma(x[j].x, x[j].x, sum));
    }
    return sum;
}

// Elements first..end - 1; multiples of kRowsApart.
void keep_stream(uint first, uint end) {
    [[unroll]] for (uint j = 0; j < kPairs; j++) {
        uint i = j * kThreads + gl_LocalInvocationIndex;
        if (i * 2 >= first && i * 2 < end) Vec2Ref(p.x + i * 8).v = stream[j];
    }
}

// ---- Norms of queries and keys over all heads ----

shared float head_inverse[2];  // of q and k

float squares_of(uint channel, const uint n, uint epoch) {
    const uint n_rounds = ((n + kThreads - 1) / kThreads + kAtOnce - 1) / kAtOnce;
    const uint at_once = (n + kThreads * n_rounds - 1) / (kThreads * n_rounds);
    float squares = 0.0;
    for (uint begin = gl_LocalInvocationIndex; begin < n; begin += kThreads * at_once) {
        uint64_t words[kHeardMax];
        hear_all(words, at_once, 1, channel, begin, ((n_rounds - 1) * at_once + 1) * kThreads - 1, n - 1, epoch);
        [[unroll]] for (uint j = 0; j < at_once; j++) {
            float value = begin + j * kThreads < n ? uintBitsToFloat(uint(words[j])) : 0.0;
            squares = fma(value, value, squares);
        }
    }
    return squares;
}

// Ends with a barrier.
void norm_wide(uint epoch) {
    const uint kKvSize = kKvHeads * kHeadDim;
    const float q = workgroup_sum(squares_of(kQkvChannel, kQ, epoch));
    const float k = another_workgroup_sum(squares_of(kQkvChannel + kQ, kKvSize, epoch));
    if (gl_LocalInvocationIndex == 0) {
        head_inverse[0] = inversesqrt(q / float(kQ) + p.eps);
        head_inverse[1] = inversesqrt(k / float(kKvSize) + p.eps);
    }
    barrier();
}
