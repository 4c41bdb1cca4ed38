// Part of decode_layers.comp, with BEHIND_ATTENTION: the input of o, which other dispatches gave.

// What other dispatches attended to.
void stage_attention() {
    for (uint i = gl_LocalInvocationIndex; i < kQStride / 2; i += kThreads) {
        uint pair = 0;
        if (i < kQ / 2) pair = kAttentionType == 0 ? pack_pair(Vec2Ref(behind.attention + i * 8).v, kType) : UintRef(behind.attention + i * 4).v;
        stage_pair(i, pair);
    }
    pad_staged(kQStride);
    barrier();
}

// Attention's result where its parts are not joined yet: a subgroup has all parts of four elements, each lane some, and
// asks for all of them at once. Before a part of the matrices is taken, so by the workgroup's number, and the subgroups
// first that have nothing to do with that.
void say_attention(uint epoch) {
    const uint kOfLane = (kSplits + kLanes - 1) / kLanes, kLineBytes = (kHeadDim + 4) * 4;
    const uint kSpeaking = kSpeakers / kLanes;
    for (uint quad = (kSpeaking - 1 - gl_SubgroupID) * kWorkgroups + gl_WorkGroupID.x; quad < kQ / 4; quad += kSpeaking * kWorkgroups) {
        const uint head = quad / (kHeadDim / 4), i = quad % (kHeadDim / 4);
        const uint64_t line = behind.partials + uint64_t(head * kSplits) * kLineBytes;
        vec2 marks[kOfLane];  // maximum and sum
        vec4 results[kOfLane];
        [[unroll]] for (uint j = 0; j < kOfLane; j++) {
            const uint64_t part = line + min(j * kLanes + gl_SubgroupInvocationID, kSplits - 1) * kLineBytes;
            marks[j] = Vec2Ref(part).v;
            results[j] = Vec4Ref(part + 16 + i * 16).v;
        }
        float top = marks[0].x;
        [[unroll]] for (uint j = 1; j < kOfLane; j++) top = max(top, marks[j].x);
        top = subgroupMax(top);
        float total = 0.0;
        vec4 sum = vec4(0.0);
        [[unroll]] for (uint j = 0; j < kOfLane; j++) {
            const float share = j * kLanes + gl_SubgroupInvocationID < kSplits ? exp(marks[j].x - top) : 0.0;
            total = fma(marks[j].y, share, total);
            sum = fma(results[j], vec4(share), sum);
        }
        total = subgroupAdd(total);
        sum = subgroupAdd(sum);
        if (subgroupElect()) keep_attention(head, i, sum / total, epoch);
    }
}
