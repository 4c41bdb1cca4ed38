// Part of decode_layers.comp: q, k and v of the row, attention over the cache, and where the context is cut the joining of its parts.
// ---- Attention: one workgroup for each query head and split of the context ----

const uint kQuads = kThreads / 4;
const uint kTeamLanes = kHeadDim / 8;
const uint kTeams = kThreads / kTeamLanes;            // tokens whose values are added at once
const uint kPerTeam = (kQuads + kTeams - 1) / kTeams;  // of a tile of kQuads tokens
const uint kChunksPerLane = (kTeamLanes + 3) / 4;
const bool kTileAhead = kHeadDim <= 128;  // two tiles of larger heads would take all registers
shared vec4 head_q[kHeadDim / 4];  // turned and scaled
shared float head_kv[2][kHeadDim];  // the row's own, rounded as the cache rounds
shared float head_raw[3][kHeadDim];
const uint kPreparing = (3 * kHeadDim + kThreads - 1) / kThreads;
vec2 turns[kPreparing];  // cos, sin of this thread's elements of q and k; the same for all layers
shared float weights[kQuads];

uint64_t token_address(uint64_t kv, uint64_t table, uint token, uint plane, uint kv_head) {
    uint block = UintRef(table + uint64_t(token / kBlockTokens) * 4).v;
    return kv + (uint64_t((block * 2 + plane) * kKvHeads + kv_head) * kBlockTokens + token % kBlockTokens) * (kHeadDim * 2);
}

float normed(uint which, uint d, uint64_t gamma) {
    if (gamma == 0) return head_raw[which][d];
    float squares = 0.0;
    for (uint i = 0; i < kHeadDim; i++) squares = fma(head_raw[which][i], head_raw[which][i], squares);
    return head_raw[which][d] * inversesqrt(squares / float(kHeadDim) + p.eps) * FloatRef(gamma + d * 4).v;
}

void fetch_turns(uint position) {
    const uint kHalf = kRotaryDim / 2;
    [[unroll]] for (uint j = 0; j < kPreparing; j++) {
        uint d = (gl_LocalInvocationIndex + j * kThreads) % kHeadDim;
        turns[j] = Vec2Ref(p.rope + (uint64_t(position) * kHalf + (d < kHalf ? d : min(d - kHalf, kHalf - 1))) * 8).v;
    }
}

// Rope turns element i < rotary_dim / 2 with element i + rotary_dim / 2.
float turned(uint which, uint d, uint64_t gamma, vec2 turn) {
    float own = normed(which, d, gamma);
    if (d >= kRotaryDim) return own;
    const uint kHalf = kRotaryDim / 2;
    float other = normed(which, d < kHalf ? d + kHalf : d - kHalf, gamma);
    return d < kHalf ? fma(own, turn.x, -(other * turn.y)) : fma(own, turn.x, other * turn.y);
}

float rounded_f16(float value) { return unpackHalf2x16(packHalf2x16(vec2(value, 0.0))).x; }

void keep_attention(uint head, uint i, vec4 value, uint epoch) {
    uint place = kAttentionChannel + (head * kHeadDim + i * 4) / 2;
    say(place, pack_pair(value.xy, kType), epoch);
    say(place + 1, pack_pair(value.zw, kType), epoch);
}

// q, k and v of this row for one head; the head that is the first of its group also writes the cache.
void prepare_head(uint l, StepRow row, uint head, bool writes, uint epoch) {
    uint kv_head = head / (kQHeads / kKvHeads);
    [[unroll]] for (uint j = 0; j < kPreparing; j++) {
        uint i = gl_LocalInvocationIndex + j * kThreads;
        uint which = i / kHeadDim;
        if (which >= 3) continue;
        uint column = (which == 0 ? head : kQHeads + (which - 1) * kKvHeads + kv_head) * kHeadDim + i % kHeadDim;
        uint place = kQkvChannel + column;
        head_raw[which][i % kHeadDim] = uintBitsToFloat(hear(look(place), place, epoch));
    }
    barrier();
    [[unroll]] for (uint j = 0; j < kPreparing; j++) {
        uint i = gl_LocalInvocationIndex + j * kThreads;
        uint which = i / kHeadDim, d = i % kHeadDim;
        if (which == 0) head_q[d / 4][d % 4] = turned(0, d, layer_words[l % 2][kQNorm], turns[j]) * p.scale;
        if (which == 1) head_kv[0][d] = rounded_f16(turned(1, d, layer_words[l % 2][kKNorm], turns[j]));
        if (which == 2) head_kv[1][d] = rounded_f16(head_raw[2][d]);
    }
    barrier();
    if (!writes) return;
    uint64_t kv = layer_words[l % 2][kKv];
    for (uint i = gl_LocalInvocationIndex; i < kHeadDim; i += kThreads) {
        uint plane = i / (kHeadDim / 2), d = i % (kHeadDim / 2) * 2;
        uint64_t line = uint64_t((row.kv_slot / kBlockTokens * 2 + plane) * kKvHeads + kv_head) * kBlockTokens + row.kv_slot % kBlockTokens;
        UintRef(kv + line * (kHeadDim * 2) + d * 2).v = packHalf2x16(vec2(head_kv[plane][d], head_kv[plane][d + 1]));
    }
}

// The largest value of a workgroup, the same in every thread; a barrier lies between two calls.
float workgroup_max(float value) {
    value = subgroupMax(value);
    if (subgroupElect()) reduce_slots[gl_SubgroupID] = value;
    barrier();
    for (uint i = 0; i < kSubgroups; i++) value = max(value, reduce_slots[i]);
    return value;
}

struct Span {
    uint begin, end;  // tokens of the cache
};

Span span_of(uint l, StepRow row, uint split) {
    uint end = row.position;  // the row's own token is known already
    uint window = uint(layer_words[l % 2][kWindow]);
    uint begin = window != 0 && end + 1 > window ? end + 1 - window : 0;
    uint share = (end - begin + kSplits - 1) / kSplits;
    begin = min(begin + split * share, end);
    return Span(begin, min(begin + share, end));
}

// What a thread needs of one tile, kQuads tokens.
struct Tile {
    uvec4 keys[8];  // of its quad's token; kChunksPerLane of them
    uvec4 values[9];  // kPerTeam
};

Tile fetch_tile(uint64_t kv, uint64_t table, uint tile, uint end, uint kv_head) {
    Tile fetched;
    [[unroll]] for (uint c = 0; c < 8; c++) fetched.keys[c] = uvec4(0);
    [[unroll]] for (uint i = 0; i < 9; i++) fetched.values[i] = uvec4(0);
    if (tile >= end) return fetched;
    uint thread = gl_LocalInvocationIndex;
    uint64_t key = token_address(kv, table, min(tile + thread / 4, end - 1), 0, kv_head);
    [[unroll]] for (uint c = 0; c < kChunksPerLane; c++) {
        uint chunk = c * 4 + thread % 4;
        if (kTeamLanes % 4 == 0 || chunk < kTeamLanes) fetched.keys[c] = Words(key + chunk * 16).v;
    }
    [[unroll]] for (uint i = 0; i < kPerTeam; i++) {
        uint token = min(tile + thread / kTeamLanes + i * kTeams, end - 1);
        fetched.values[i] = Words(token_address(kv, table, token, 1, kv_head) + thread % kTeamLanes * 16).v;
    }
    return fetched;
}

// Of a unit of work: head and split; none where there is no such unit.
Tile fetch_first_tile(uint l, StepRow row, uint64_t table, uint unit) {
    Span span = span_of(l, row, unit / kQHeads);
    if (unit >= kQHeads * kSplits) span.end = span.begin;
    return fetch_tile(layer_words[l % 2][kKv], table, span.begin, span.end, unit % kQHeads / (kQHeads / kKvHeads));
}

// Teams of one subgroup add up by shuffles where lanes of the same elements are a power of two apart.
bool joins_teams() { return kTeamLanes < kLanes && (kTeamLanes & (kTeamLanes - 1)) == 0; }

void attend(uint l, StepRow row, uint64_t table, uint head, uint split, Tile fetched, uint epoch) {
    uint kv_head = head / (kQHeads / kKvHeads);
    uint64_t kv = layer_words[l % 2][kKv];
    prepare_head(l, row, head, split == 0 && head % (kQHeads / kKvHeads) == 0, epoch);
    uint thread = gl_LocalInvocationIndex;
    Span span = span_of(l, row, split);
    uint quad = thread / 4, quad_lane = thread % 4;
    uint team = thread / kTeamLanes, team_lane = thread % kTeamLanes;
    float top = kMinusInf, total = 0.0;
    vec4 lo = vec4(0.0), hi = vec4(0.0);
    if (split == kSplits - 1) {
        float score = 0.0;
        [[unroll]] for (uint c = 0; c < kChunksPerLane; c++) {
            uint chunk = c * 4 + quad_lane;
            if (kTeamLanes % 4 != 0 && chunk >= kTeamLanes) continue;
            [[unroll]] for (uint e = 0; e < 8; e++) score = fma(head_q[chunk * 2 + e / 4][e % 4], head_kv[0][chunk * 8 + e], score);
        }
        score += subgroupShuffleXor(score, 1);
        score += subgroupShuffleXor(score, 2);
        top = score;
        if (thread == 0) total = 1.0;
        if (team == 0) {
            for (uint c = 0; c < 4; c++) {
                lo[c] = head_kv[1][team_lane * 8 + c];
                hi[c] = head_kv[1][team_lane * 8 + 4 + c];
            }
        }
    }
    for (uint tile = span.begin; tile < span.end; tile += kQuads) {
        uint n_tokens = min(kQuads, span.end - tile);
        Tile next;
        if (kTileAhead) next = fetch_tile(kv, table, tile + kQuads, span.end, kv_head);  // on its way while this one is used
        float score = 0.0;
        [[unroll]] for (uint c = 0; c < kChunksPerLane; c++) {
            uint chunk = c * 4 + quad_lane;
            if (kTeamLanes % 4 != 0 && chunk >= kTeamLanes) continue;
            score = dot8(unpack8(fetched.keys[c], 1), Eight(head_q[chunk * 2], head_q[chunk * 2 + 1]), score);
        }
        score += subgroupShuffleXor(score, 1);
        score += subgroupShuffleXor(score, 2);
        if (quad >= n_tokens) score = kMinusInf;
        float new_top = max(top, workgroup_max(score));
        float weight = exp(score - new_top);
        float fade = exp(top - new_top);
        top = new_top;
        total *= fade;
        lo *= fade;
        hi *= fade;
        if (quad_lane == 0) {
            weights[quad] = weight;
            total += weight;
        }
        barrier();
        if (team < kTeams) {
            [[unroll]] for (uint i = 0; i < kPerTeam; i++) {
                uint token = team + i * kTeams;
                if (token >= n_tokens) continue;
                Eight value = unpack8(fetched.values[i], 1);
                lo = fma(value.lo, vec4(weights[token]), lo);
                hi = fma(value.hi, vec4(weights[token]), hi);
            }
        }
        if (kTileAhead) fetched = next;
        else fetched = fetch_tile(kv, table, tile + kQuads, span.end, kv_head);
    }
    barrier();
    total = subgroupAdd(total);
    if (subgroupElect()) reduce_slots[gl_SubgroupID] = total;
    uint place = team;
    if (joins_teams()) {
        [[unroll]] for (uint m = kTeamLanes; m < kLanes; m *= 2) {
            lo += subgroupShuffleXor(lo, m);
            hi += subgroupShuffleXor(hi, m);
        }
        place = gl_SubgroupID;
    }
    if (joins_teams() ? gl_SubgroupInvocationID < kTeamLanes : team < kTeams) {
        staged[(place * kTeamLanes + team_lane) * 2] = floatBitsToUint(lo);
        staged[(place * kTeamLanes + team_lane) * 2 + 1] = floatBitsToUint(hi);
    }
    barrier();
    if (gl_SubgroupID == 0) {
        uint n_sums = joins_teams() ? kSubgroups : kTeams;
        float sum_weights = 0.0;
        for (uint i = 0; i < kSubgroups; i++) sum_weights += reduce_slots[i];
        for (uint i = gl_SubgroupInvocationID; i < kHeadDim / 4; i += kLanes) {
            vec4 sum = vec4(0.0);
            for (uint m = 0; m < n_sums; m++) sum += uintBitsToFloat(staged[m * kTeamLanes * 2 + i]);
            if (kSplits == 1) {
                keep_attention(head, i, sum / sum_weights, epoch);
            } else {
                uint place = kPartialsChannel + (head * kSplits + split) * (kHeadDim + 2);
                if (i == 0) {
                    say(place, floatBitsToUint(top), epoch);
                    say(place + 1, floatBitsToUint(sum_weights), epoch);
                }
                for (uint c = 0; c < 4; c++) say(place + 2 + i * 4 + c, floatBitsToUint(sum[c]), epoch);
            }
        }
    }
    barrier();
}

float hear_float(uint place, uint epoch) { return uintBitsToFloat(hear(look(place), place, epoch)); }

// attention = sum over splits of exp(max_s - max) result_s / sum over splits of exp(max_s - max) sum_s; the first subgroup.
void combine(uint head, uint epoch) {
    for (uint i = gl_SubgroupInvocationID; i < kHeadDim / 4; i += kLanes) {
        uint line = kPartialsChannel + head * kSplits * (kHeadDim + 2);
        float top = kMinusInf, total = 0.0;
        for (uint s = 0; s < kSplits; s++) top = max(top, hear_float(line + s * (kHeadDim + 2), epoch));
        vec4 sum = vec4(0.0);
        for (uint s = 0; s < kSplits; s++) {
            uint part = line + s * (kHeadDim + 2);
            float share = exp(hear_float(part, epoch) - top);
            for (uint c = 0; c < 4; c++) sum[c] = fma(hear_float(part + 2 + i * 4 + c, epoch), share, sum[c]);
            total = fma(hear_float(part + 1, epoch), share, total);
        }
        keep_attention(head, i, sum / total, epoch);
    }
}
