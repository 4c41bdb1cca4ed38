// Part of decode_layers.comp: q, k and v of the row, attention over the cache, and where the context is cut the joining
// of its parts.
// ---- Attention: one workgroup for each query head and split of the context ----

// Each subgroup attends to tokens of its own: four lanes for a token's score, and teams of lanes that have all elements
// of a head for its value.
// Subgroups meet only when all tokens are done.
const uint kSubTokens = kLanes / 4;               // of a tile, for each subgroup
const uint kTileTokens = kSubgroups * kSubTokens;
const uint kHeadChunks = kHeadDim / 8;            // words of 16 bytes
const uint kTeamLanes = kHeadChunks < kLanes ? kHeadChunks : kLanes;
const uint kTeams = kLanes / kTeamLanes;          // of a subgroup
const uint kKeyChunks = (kHeadChunks + 3) / 4;    // of a token, for each lane of its four
const uint kValueChunks = (kHeadChunks + kTeamLanes - 1) / kTeamLanes;
const uint kValueTokens = (kSubTokens + kTeams - 1) / kTeams;  // of a tile, for each team
const bool kTileAhead = kHeadDim <= 128;  // two tiles of larger heads would take all registers
shared vec4 head_q[kHeadDim / 4];  // turned and scaled
shared float head_kv[2][kHeadDim];  // the row's own, rounded as the cache rounds
shared float head_raw[3][kHeadDim];
#ifndef FAMILIES
shared float head_inverse[2];  // of q and k, where they are normed
#endif
shared float tops[kSubgroups], totals[kSubgroups];
const uint kPreparing = (3 * kHeadDim + kThreads - 1) / kThreads;
vec2 rotations[kPreparing];  // cos, sin of this thread's elements of q and k; the same for all of Llama's layers

uint64_t token_address(uint64_t kv, uint64_t table, uint token, uint plane, uint kv_head) {
    uint block = UintRef(table + uint64_t(token / kBlockTokens) * 4).v;
    return kv + (uint64_t((block * 2 + plane) * kKvHeads + kv_head) * kBlockTokens + token % kBlockTokens) * (kHeadDim * 2);
}

// Subgroup 0 for q, the last one for k; the same subgroup where there is only one.
void norm_heads(uint64_t q_gamma, uint64_t k_gamma) {
    for (uint which = 0; which < 2; which++) {
        if (gl_SubgroupID != (which == 0 ? 0 : kSubgroups - 1) || (which == 0 ? q_gamma : k_gamma) == 0) continue;
        float squares = 0.0;
        for (uint i = gl_SubgroupInvocationID; i < kHeadDim; i += kLanes) squares = fma(head_raw[which][i], head_raw[which][i], squares);
        squares = lanes_sum(squares);
        if (gl_SubgroupInvocationID == 0) head_inverse[which] = inversesqrt(squares / float(kHeadDim) + p.eps);
    }
}

float normed(uint which, uint d, uint64_t gamma) {
    return gamma == 0 ? head_raw[which][d] : head_raw[which][d] * head_inverse[which] * FloatRef(gamma + d * 4).v;
}

void fetch_rotations(uint64_t rope, uint turn) {
    const uint kHalf = kRotaryDim / 2;
    [[unroll]] for (uint j = 0; j < kPreparing; j++) {
        uint d = (gl_LocalInvocationIndex + j * kThreads) % kHeadDim;
        rotations[j] = Vec2Ref(rope + (uint64_t(turn) * kHalf + (d < kHalf ? d : min(d - kHalf, kHalf - 1))) * 8).v;
    }
}

#ifdef FAMILIES
float capped(float score) { return kSoftcap == 0.0 ? score : kSoftcap * tanh(clamp(score / kSoftcap, -15.0, 15.0)); }

float query_scale(uint position) {
    return kPositionBeta == 0.0 ? p.scale : p.scale * (1.0 + kPositionBeta * log(1.0 + floor(float(position) / float(kPositionOriginal))));
}

// Of the layer; where nothing is turned, turns by nothing.
void fetch_rotations_of(uint64_t rope, uint turn) {
    fetch_rotations(rope != 0 ? rope : p.rope, turn);
    [[unroll]] for (uint j = 0; j < kPreparing; j++) rotations[j] = rope != 0 ? rotations[j] : vec2(1.0, 0.0);
}
#else
#define capped(score) score
#define query_scale(position) p.scale
#endif

// Rope rotates element i < rotary_dim / 2 with element i + rotary_dim / 2.
float rotated(uint which, uint d, uint64_t gamma, vec2 turn) {
    float own = normed(which, d, gamma);
    if (d >= kRotaryDim) return own;
    const uint kHalf = kRotaryDim / 2;
    float other = normed(which, d < kHalf ? d + kHalf : d - kHalf, gamma);
    return d < kHalf ? fma(own, turn.x, -(other * turn.y)) : fma(own, turn.x, other * turn.y);
}

// Compilers may take a conversion there and back for none, so it goes through a sum with a zero that they do not know.
float rounded_f16(float value) { return unpackHalf2x16(packHalf2x16(vec2(value, 0.0)) + never).x; }

void keep_attention(uint head, uint i, vec4 value, uint epoch) {
    uint place = kAttentionChannel + (head * kHeadDim + i * 4) / 2;
    say(place, pack_pair(value.xy, kType), epoch);
    say(place + 1, pack_pair(value.zw, kType), epoch);
}

#ifdef FAMILIES
// Where one head's q, k and v have more elements than there are threads: all of a thread's are asked for at once, as one
// behind the other takes a trip to memory each.
void hear_head(uint head, uint kv_head, uint epoch) {
    uint places[kPlacesMax];
    uint64_t words[kPlacesMax];
    [[unroll]] for (uint j = 0; j < kPreparing; j++) {
        uint i = gl_LocalInvocationIndex + j * kThreads;
        uint which = min(i / kHeadDim, 2);
        places[j] = kQkvChannel + (which == 0 ? head : kQHeads + (which - 1) * kKvHeads + kv_head) * kHeadDim + i % kHeadDim;
    }
    hear_places(words, places, kPreparing, epoch);
    [[unroll]] for (uint j = 0; j < kPreparing; j++) {
        uint i = gl_LocalInvocationIndex + j * kThreads;
        if (i < 3 * kHeadDim) head_raw[i / kHeadDim][i % kHeadDim] = uintBitsToFloat(uint(words[j]));
    }
}
#endif

// q, k and v of this row for one head; the head that is the first of its group also writes the cache.
void prepare_head(uint l, StepRow row, uint head, bool writes, uint epoch) {
    uint kv_head = head / (kQHeads / kKvHeads);
#ifdef FAMILIES
    hear_head(head, kv_head, epoch);
#else
    [[unroll]] for (uint j = 0; j < kPreparing; j++) {
        uint i = gl_LocalInvocationIndex + j * kThreads;
        uint which = i / kHeadDim;
        if (which >= 3) continue;
        uint column = (which == 0 ? head : kQHeads + (which - 1) * kKvHeads + kv_head) * kHeadDim + i % kHeadDim;
        uint place = kQkvChannel + column;
        head_raw[which][i % kHeadDim] = uintBitsToFloat(hear(look(place), place, epoch));
    }
#endif
    barrier();
    uint64_t q_gamma = layer_words[l % 2][kQNorm], k_gamma = layer_words[l % 2][kKNorm];
#ifdef FAMILIES
    if (kWideQkNorms != 0) {
        norm_wide(epoch);
        q_gamma += head * (kHeadDim * 4);
        k_gamma += kv_head * (kHeadDim * 4);
    } else
#endif
    if ((q_gamma | k_gamma) != 0) {
        norm_heads(q_gamma, k_gamma);
        barrier();
    }
    [[unroll]] for (uint j = 0; j < kPreparing; j++) {
        uint i = gl_LocalInvocationIndex + j * kThreads;
        uint which = i / kHeadDim, d = i % kHeadDim;
        if (which == 0) head_q[d / 4][d % 4] = rotated(0, d, q_gamma, rotations[j]) * query_scale(row.position);
        if (which == 1) head_kv[0][d] = rounded_f16(rotated(1, d, k_gamma, rotations[j]));
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

// What a lane needs of its subgroup's tokens of one tile.
struct Tile {
    uvec4 keys[8];    // kKeyChunks, of its four's token
    uvec4 values[8];  // kValueTokens * kValueChunks
};

Tile fetch_tile(uint64_t kv, uint64_t table, uint tile, uint end, uint kv_head) {
    Tile fetched;
    [[unroll]] for (uint c = 0; c < 8; c++) fetched.keys[c] = fetched.values[c] = uvec4(0);
    uint first = tile + gl_SubgroupID * kSubTokens, lane = gl_SubgroupInvocationID;
    if (first >= end) return fetched;
    uint64_t key = token_address(kv, table, min(first + lane / 4, end - 1), 0, kv_head);
    [[unroll]] for (uint c = 0; c < kKeyChunks; c++) {
        uint chunk = c * 4 + lane % 4;
        if (kHeadChunks % 4 == 0 || chunk < kHeadChunks) fetched.keys[c] = Words(key + chunk * 16).v;
    }
    [[unroll]] for (uint i = 0; i < kValueTokens; i++) {
        uint64_t value = token_address(kv, table, min(first + lane / kTeamLanes + i * kTeams, end - 1), 1, kv_head);
        [[unroll]] for (uint c = 0; c < kValueChunks; c++) {
            uint chunk = c * kTeamLanes + lane % kTeamLanes;
            if (kHeadChunks % kTeamLanes == 0 || chunk < kHeadChunks) fetched.values[i * kValueChunks + c] = Words(value + chunk * 16).v;
        }
    }
    return fetched;
}

// Of a unit of work: head and split; none where there is no such unit.
Tile fetch_first_tile(uint l, StepRow row, uint64_t table, uint unit) {
    Span span = span_of(l, row, unit / kQHeads);
    if (unit >= kQHeads * kSplits) span.end = span.begin;
    return fetch_tile(layer_words[l % 2][kKv], table, span.begin, span.end, unit % kQHeads / (kQHeads / kKvHeads));
}

// A lane's part of what its subgroup has attended to.
struct Attended {
    float top, total;          // the same top in all lanes; parts of the total
    vec4 lo[4], hi[4];         // kValueChunks; parts of the sums, by teams
};

float score_sum(float part) {
    part += subgroupShuffleXor(part, 1);
    return part + subgroupShuffleXor(part, 2);
}

// The row's own token, which only one subgroup counts.
void attend_to_self(inout Attended a) {
    uint lane = gl_SubgroupInvocationID;
    float score = 0.0;
    [[unroll]] for (uint c = 0; c < kKeyChunks; c++) {
        uint chunk = c * 4 + lane % 4;
        if (kHeadChunks % 4 != 0 && chunk >= kHeadChunks) continue;
        [[unroll]] for (uint e = 0; e < 8; e++) score = fma(head_q[chunk * 2 + e / 4][e % 4], head_kv[0][chunk * 8 + e], score);
    }
    a.top = capped(score_sum(score));
    a.total = lane == 0 ? 1.0 : 0.0;
    if (lane >= kTeamLanes) return;
    [[unroll]] for (uint c = 0; c < kValueChunks; c++) {
        uint chunk = c * kTeamLanes + lane;
        if (kHeadChunks % kTeamLanes != 0 && chunk >= kHeadChunks) continue;
        [[unroll]] for (uint e = 0; e < 4; e++) {
            a.lo[c][e] = head_kv[1][chunk * 8 + e];
            a.hi[c][e] = head_kv[1][chunk * 8 + 4 + e];
        }
    }
}

// The subgroup has at least one token in this tile.
void attend_to_tile(inout Attended a, Tile fetched, uint n_tokens) {
    uint lane = gl_SubgroupInvocationID;
    float score = 0.0;
    [[unroll]] for (uint c = 0; c < kKeyChunks; c++) {
        uint chunk = c * 4 + lane % 4;
        if (kHeadChunks % 4 != 0 && chunk >= kHeadChunks) continue;
        score = dot8(unpack8(fetched.keys[c], 1), Eight(head_q[chunk * 2], head_q[chunk * 2 + 1]), score);
    }
    score = capped(score_sum(score));
    if (lane / 4 >= n_tokens) score = kMinusInf;
    float new_top = max(a.top, lanes_max(score));
    float weight = exp(score - new_top), fade = exp(a.top - new_top);
    a.top = new_top;
    a.total = fma(a.total, fade, lane % 4 == 0 ? weight : 0.0);
    [[unroll]] for (uint c = 0; c < kValueChunks; c++) {
        a.lo[c] *= fade;
        a.hi[c] *= fade;
    }
    [[unroll]] for (uint i = 0; i < kValueTokens; i++) {
        uint token = lane / kTeamLanes + i * kTeams;
        float share = subgroupShuffle(weight, min(token, kSubTokens - 1) * 4);
        if (token >= kSubTokens) share = 0.0;
        [[unroll]] for (uint c = 0; c < kValueChunks; c++) {
            Eight value = unpack8(fetched.values[i * kValueChunks + c], 1);
            a.lo[c] = fma(value.lo, vec4(share), a.lo[c]);
            a.hi[c] = fma(value.hi, vec4(share), a.hi[c]);
        }
    }
}

// Adds up what teams have, in the lanes of the first one, and leaves it in `staged` for all subgroups to be joined.
void keep_attended(Attended a) {
    uint lane = gl_SubgroupInvocationID;
    a.total = lanes_sum(a.total);
    if (lane == 0) {
        tops[gl_SubgroupID] = a.top;
        totals[gl_SubgroupID] = a.total;
    }
    [[unroll]] for (uint c = 0; c < kValueChunks; c++) {
        vec4 lo = a.lo[c], hi = a.hi[c];
        [[unroll]] for (uint team = 1; team < kTeams; team++) {
            uint from = min(lane + team * kTeamLanes, kLanes - 1);
            lo += subgroupShuffle(a.lo[c], from);
            hi += subgroupShuffle(a.hi[c], from);
        }
        uint chunk = c * kTeamLanes + lane;
        if (lane < kTeamLanes && chunk < kHeadChunks) {
            staged[(gl_SubgroupID * kHeadChunks + chunk) * 2] = floatBitsToUint(lo);
            staged[(gl_SubgroupID * kHeadChunks + chunk) * 2 + 1] = floatBitsToUint(hi);
        }
    }
}

// The first subgroup, after a barrier: all subgroups' sums, which are said to others.
void join_subgroups(uint head, uint split, uint epoch) {
    float top = kMinusInf, total = 0.0;
    [[unroll]] for (uint s = 0; s < kSubgroups; s++) top = max(top, tops[s]);
    float shift = top == kMinusInf ? 0.0 : top;  // a part of the context without tokens
    [[unroll]] for (uint s = 0; s < kSubgroups; s++) total = fma(totals[s], exp(tops[s] - shift), total);
    for (uint i = gl_SubgroupInvocationID; i < kHeadDim / 4; i += kLanes) {
        vec4 sum = vec4(0.0);
        [[unroll]] for (uint s = 0; s < kSubgroups; s++) {
            sum = fma(uintBitsToFloat(staged[s * kHeadChunks * 2 + i]), vec4(exp(tops[s] - shift)), sum);
        }
        if (kSplits == 1) {
            keep_attention(head, i, sum / total, epoch);
            continue;
        }
        uint place = kPartialsChannel + (head * kSplits + split) * (kHeadDim + 2);
        if (i == 0) {
            say(place, floatBitsToUint(top), epoch);
            say(place + 1, floatBitsToUint(total), epoch);
        }
        for (uint c = 0; c < 4; c++) say(place + 2 + i * 4 + c, floatBitsToUint(sum[c]), epoch);
    }
}

void attend(uint l, StepRow row, uint64_t table, uint head, uint split, Tile fetched, uint epoch) {
    uint kv_head = head / (kQHeads / kKvHeads);
    uint64_t kv = layer_words[l % 2][kKv];
    Span span = span_of(l, row, split);
    IF_FAMILIES(fetch_rotations_of(layer_words[l % 2][kRope], row.rope_begin + row.position));
    Tile next;
    if (kTileAhead) next = fetch_tile(kv, table, span.begin + kTileTokens, span.end, kv_head);
    prepare_head(l, row, head, split == 0 && head % (kQHeads / kKvHeads) == 0, epoch);
    Attended a;
    a.top = kMinusInf;
    a.total = 0.0;
    [[unroll]] for (uint c = 0; c < kValueChunks; c++) a.lo[c] = a.hi[c] = vec4(0.0);
    if (split == kSplits - 1 && gl_SubgroupID == kSubgroups - 1) attend_to_self(a);  // the subgroup with fewest tokens
    for (uint tile = span.begin; tile + gl_SubgroupID * kSubTokens < span.end; tile += kTileTokens) {
        attend_to_tile(a, fetched, span.end - tile - gl_SubgroupID * kSubTokens);
        // Two tiles are on their way while one is used.
        if (kTileAhead) fetched = next;
        uint after = kTileAhead ? 2 * kTileTokens : kTileTokens;
        Tile later = fetch_tile(kv, table, tile + after, span.end, kv_head);
        if (kTileAhead) next = later;
        else fetched = later;
    }
    keep_attended(a);
    barrier();
    if (gl_SubgroupID == 0) join_subgroups(head, split, epoch);
    barrier();
}

// attention = sum over splits of exp(max_s - max) result_s / sum over splits of exp(max_s - max) sum_s. A thread has two
// elements and asks for all that it needs of a few splits at once; the threads that speak.
void combine(uint head, uint epoch) {
    const uint kSplitsAtOnce = kSplits < 4 ? kSplits : 4;  // which divides the splits, both being powers of two
    for (uint i = gl_LocalInvocationIndex; i < kHeadDim / 2; i += kSpeakers) {
        float top = kMinusInf, total = 0.0;
        vec2 sum = vec2(0.0);
        for (uint first = 0; first < kSplits; first += kSplitsAtOnce) {
            uint places[kPlacesMax];
            uint64_t words[kPlacesMax];
            [[unroll]] for (uint s = 0; s < kSplitsAtOnce; s++) {
                const uint part = kPartialsChannel + (head * kSplits + first + s) * (kHeadDim + 2);
                places[s * 4] = part;
                places[s * 4 + 1] = part + 1;
                places[s * 4 + 2] = part + 2 + i * 2;
                places[s * 4 + 3] = part + 3 + i * 2;
            }
            hear_places(words, places, kSplitsAtOnce * 4, epoch);
            float new_top = top;
            [[unroll]] for (uint s = 0; s < kSplitsAtOnce; s++) new_top = max(new_top, uintBitsToFloat(uint(words[s * 4])));
            const float shift = new_top == kMinusInf ? 0.0 : new_top;  // of parts without tokens
            const float fade = exp(top - shift);
            total *= fade;
            sum *= fade;
            [[unroll]] for (uint s = 0; s < kSplitsAtOnce; s++) {
                const float share = exp(uintBitsToFloat(uint(words[s * 4])) - shift);
                total = fma(uintBitsToFloat(uint(words[s * 4 + 1])), share, total);
                sum = fma(vec2(uintBitsToFloat(uint(words[s * 4 + 2])), uintBitsToFloat(uint(words[s * 4 + 3]))), vec2(share), sum);
            }
            top = new_top;
        }
        say(kAttentionChannel + head * (kHeadDim / 2) + i, pack_pair(sum / total, kType), epoch);
    }
}
