// decode_layers: every layer of a step of one row in one dispatch
//   x         [H]  f32: in the embedding, out the residual stream behind the last layer
//   kv        [block][K|V][K][kBlockTokens][D]  f16, the row's own K and V are written
//   channels  u64: what workgroups tell each other, 32 bits of value below 32 bits of epoch
// One workgroup for each multiprocessor, all of them at work at once. There are no barriers between them: a value and
// the epoch in which it was said are one 64-bit word, so a reader asks for the word until its epoch is the wanted one
// (the LL protocol of NCCL). Each has its first weights of the next product in registers before it waits. Nobody waits
// for ever: after max_polls questions a workgroup goes on with what there is, waits for nothing more and says so in
// given_up at its end, and so do all that depend on it.
// Nothing is said over before everybody has read it: a workgroup says something in every product, and only when it has
// heard all others.
// The order of sums depends on the number of workgroups and subgroups, not on timing.
// With AFFINITY a multiprocessor has the same rows of the matrices in each step, see take_part(); otherwise they go by
// the workgroup's number.
// With BEHIND_ATTENTION it is one layer from o on, and q, k and v of the next: what lies between the attentions of two
// layers, which have dispatches of their own behind a long context.
//   attention [Q]  of the weights' type or f32, the input, or with splits partials as in attention_combine.comp, which
//       are joined here
//   y [Q + 2K]     f32, q, k and v without bias, not behind the last layer
// With LORA the row's adapter is added to the products, see decode_lora.glsl.
// grid (workgroups); moves every weight once.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_atomic_int64 : require
#extension GL_KHR_memory_scope_semantics : require
#ifdef AFFINITY
#extension GL_NV_shader_sm_builtins : require
#extension GL_KHR_shader_subgroup_ballot : require
#endif
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/rows/activation.glsl"
#include "gpu/kernels/persistent/decode_layers.params.h"

layout(constant_id = 1) const uint kType = 1;  // 1 f16, 2 bf16
layout(constant_id = 2) const uint kHidden = 64;
layout(constant_id = 3) const uint kQHeads = 1;
layout(constant_id = 4) const uint kKvHeads = 1;
layout(constant_id = 5) const uint kHeadDim = 64;
layout(constant_id = 6) const uint kRotaryDim = 64;
layout(constant_id = 7) const uint kFfn = 64;
layout(constant_id = 8) const uint kSplits = 1;   // of the context
layout(constant_id = 9) const uint kLanes = 32;   // of a subgroup
// words of shared memory: the longest input of a product, or the sums of attention
layout(constant_id = 10) const uint kStaged = 64;
layout(constant_id = 11) const uint kPartials = 64;  // rows of a workgroup and subgroups
layout(constant_id = 12) const uint kOwnRows = 64;   // rows of a workgroup in o and down
layout(constant_id = 13) const uint kWorkgroups = 1;
// threads; one subgroup where a workgroup's subgroups run one after the other between barriers
layout(constant_id = 14) const uint kSpeakers = 32;
#ifdef BEHIND_ATTENTION
layout(constant_id = 15) const uint kAttentionType = 0;
layout(push_constant, scalar) uniform Push { DecodeBehindParams behind; };
#define p behind.layers
#else
#ifdef LORA
layout(constant_id = 15) const uint kLoraType = kAnyLoraType;  // of all matrices of the row's adapter; kAnyLoraType: its modules say theirs
#endif
layout(push_constant, scalar) uniform Push { DecodeLayersParams p; };
#endif

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words { uvec4 v; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer LongRef { uint64_t v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer SyncRef { DecodeSync v; };
layout(buffer_reference, scalar, buffer_reference_align = 8) coherent buffer ChannelRef { uint64_t v; };

const uint kThreads = gl_WorkGroupSize.x;
const uint kSubgroups = kThreads / kLanes;
const uint kQ = kQHeads * kHeadDim;
// Rows of matrices are as long as their input rounded up to 64, the rest of them zero.
const uint kHiddenStride = (kHidden + 63) / 64 * 64;
const uint kQStride = (kQ + 63) / 64 * 64;
const uint kFfnStride = (kFfn + 63) / 64 * 64;
const uint kQkv = (kQHeads + 2 * kKvHeads) * kHeadDim;
const float kMinusInf = -1.0 / 0.0;

shared uvec4 staged[kStaged];      // input of the product; in attention the teams' sums
shared float partials[kPartials];  // of product rows: see row_sum()
shared uint given_up;
#ifdef BEHIND_ATTENTION
shared uint in_vain;  // a dispatch before this one gave up
#endif

// ---- Sums over lanes ----

// By shuffles: subgroupAdd() asks each time which lanes are there, which costs more than the sum in what is done once
// for each layer.
float lanes_sum(float value) {
    [[unroll]] for (uint lanes = kLanes / 2; lanes > 0; lanes /= 2) value += subgroupShuffleXor(value, lanes);
    return value;
}

float lanes_max(float value) {
    [[unroll]] for (uint lanes = kLanes / 2; lanes > 0; lanes /= 2) value = max(value, subgroupShuffleXor(value, lanes));
    return value;
}

shared float subgroup_sums[kSubgroups];

// The same value in every thread. All threads must call it; a second call needs a barrier() between.
float workgroup_sum(float value) {
    value = lanes_sum(value);
    if (gl_SubgroupInvocationID == 0) subgroup_sums[gl_SubgroupID] = value;
    barrier();
    float total = 0.0;
    [[unroll]] for (uint s = 0; s < kSubgroups; s++) total += subgroup_sums[s];
    return total;
}

// ---- Layers ----

// What DecodeLayer says of the current layer and the next, by its 64-bit words.
const uint kQkvWeights = 0, kQkvBias = 1, kOWeights = 2, kOBias = 3, kGateUpWeights = 4, kGateUpBias = 5, kDownWeights = 6, kDownBias = 7,
           kInputNorm = 8, kPostNorm = 9, kQNorm = 10, kKNorm = 11, kKv = 12, kWindow = 13, kLayerWords = 14;
shared uint64_t layer_words[2][kLayerWords];

void fetch_layer(uint l) {
    if (gl_LocalInvocationIndex < kLayerWords && l < p.n_layers) {
        layer_words[l % 2][gl_LocalInvocationIndex] = LongRef(p.layers + uint64_t(l) * (kLayerWords * 8) + gl_LocalInvocationIndex * 8).v;
    }
}

// ---- Channels ----

// Places in the channels, in words.
const uint kXChannel = 0;
const uint kQkvChannel = kXChannel + kHidden;
const uint kAttentionChannel = kQkvChannel + kQkv;        // two elements in a word
const uint kActChannel = kAttentionChannel + kQ / 2;      // two elements in a word
const uint kPartialsChannel = kActChannel + kFfnStride / 2;  // [Q][splits][2 + D]: max, sum, result

void say(uint place, uint value, uint epoch) {
    atomicStore(ChannelRef(p.channels + place * 8).v, uint64_t(value) | (uint64_t(epoch) << 32), gl_ScopeDevice, gl_StorageSemanticsNone,
                gl_SemanticsRelaxed);
}

uint64_t look_from(uint64_t word) { return atomicLoad(ChannelRef(word).v, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed); }
uint64_t look(uint place) { return look_from(p.channels + place * 8); }

// The word, which was looked at before, once it is of this epoch.
uint hear(uint64_t word, uint place, uint epoch) {
    uint polls = 0;
    while (uint(word >> 32) != epoch) {
        word = look(place);
        if (++polls > p.max_polls || given_up != 0) {
            given_up = 1;
            break;
        }
    }
    return uint(word);
}

float hear_float(uint place, uint epoch) { return uintBitsToFloat(hear(look(place), place, epoch)); }

// Each thread hears several words, runs of `per` neighbours that lie kThreads runs apart: thread 3 of 512 with per = 2
// words 6, 7, 1030, 1031, ...
const uint kPairs = (kHiddenStride / 2 + kThreads - 1) / kThreads;  // of the residual stream
const uint kAtOnce = 10;
const uint kHeardMax = kPairs * 2 > kAtOnce ? kPairs * 2 : kAtOnce;

// Word i of the thread whose first run is `run` and first word is at `first`. With `inside` no thread's run lies behind
// the last one, and the address is that of the first word and a constant.
uint64_t look_at(const uint i, const uint per, const bool inside, uint64_t first, uint channel, uint run, uint last_run) {
    if (!inside) return look(channel + min(run + i / per * kThreads, last_run) * per + i % per);
    return look_from(first + (i / per * kThreads * per + i % per) * 8);
}

// This thread's n words, once all are of this epoch. While the first is missing nothing else is asked for, so those who
// still multiply keep the memory for themselves; then all that is missing at once, as one trip for each word in turn
// takes longer than what is waited for.
// No thread's first run is beyond most_run.
void hear_all(out uint64_t words[kHeardMax], const uint n, const uint per, uint channel, uint run, const uint most_run, const uint last_run, uint epoch) {
    const uint64_t first = p.channels + (channel + run * per) * 8;
    [[unroll]] for (uint i = 0; i < n; i++) words[i] = look_at(i, per, most_run + i / per * kThreads <= last_run, first, channel, run, last_run);
    uint polls = 0;
    for (;;) {
        bool all_there = uint(words[0] >> 32) == epoch;
        if (all_there) {
            [[unroll]] for (uint i = 1; i < n; i++) {
                if (uint(words[i] >> 32) == epoch) continue;
                words[i] = look_at(i, per, most_run + i / per * kThreads <= last_run, first, channel, run, last_run);
                all_there = false;
            }
        } else {
            words[0] = look_at(0, per, most_run <= last_run, first, channel, run, last_run);
        }
        if (all_there) break;
        if (++polls > p.max_polls || given_up != 0) {
            given_up = 1;
            break;
        }
    }
}

// Who has given up goes on, with what happens to be there: leaving in the midst of it all would cost everybody, every
// time.
void leave(uint epochs) {
    if (gl_LocalInvocationIndex != 0) return;
    SyncRef sync = SyncRef(p.sync);
    if (given_up != 0) {
        UintRef(p.given_up).v = 1;
#ifdef BEHIND_ATTENTION
        sync.v.given_up = 1;
#endif
    }
    if (atomicAdd(sync.v.left, 1u) != kWorkgroups - 1) return;
    sync.v.epoch += epochs;
    sync.v.left = 0;
}

// ---- Parts of the products ----

#ifdef AFFINITY
uint own_part;
shared uint taken_part;  // own_part, from the thread that took it

// Which multiprocessor runs which workgroup changes from dispatch to dispatch. A part stays with its multiprocessor,
// because neighbours share a cache of address translations: it holds the pages of their parts, not those of all weights
// (docs/PERFORMANCE.md). Only speed depends on affinity: `taken` sees to it that nobody has a part twice.
void take_part(uint epoch) {
    SyncRef sync = SyncRef(p.sync);
    uint multiprocessor = min(gl_SMIDNV, kDecodeAffinities - 1);
    uint affinity = sync.v.affinity[multiprocessor];
    uint part = affinity != 0 && affinity <= kWorkgroups ? affinity - 1 : gl_WorkGroupID.x;
    for (uint tries = 0; atomicExchange(sync.v.taken[part], epoch + 1) == epoch + 1; tries++) {
        // All are taken only if a dispatch ended in this epoch, which then did not advance: see the return in main().
        if (tries == kWorkgroups) {
            given_up = 1;
            break;
        }
        part = part + 1 == kWorkgroups ? 0 : part + 1;
    }
    if (affinity != part + 1) sync.v.affinity[multiprocessor] = part + 1;
    taken_part = part;
}
#else
#define own_part gl_WorkGroupID.x
#endif

#include "gpu/kernels/persistent/decode_products.glsl"

#ifdef LORA
#include "gpu/kernels/persistent/decode_lora.glsl"
#define IF_LORA(what) what
#else
#define IF_LORA(what)
#endif

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
// memory. Of gate and up the rest of the first words is asked for when x is there.
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
    float inverse = inversesqrt(workgroup_sum(squares) / float(kHidden) + p.eps);
    [[unroll]] for (uint j = 0; j < kPairs; j++) {
        uint i = j * kThreads + gl_LocalInvocationIndex;
        if (i < kHiddenStride / 2) stage_pair(i, pack_pair(x[j] * inverse * gamma[j], kType));
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

#ifdef BEHIND_ATTENTION
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
#endif

#include "gpu/kernels/persistent/decode_attention.glsl"

#ifdef BEHIND_ATTENTION
// The same where its parts are not joined yet: a subgroup has all parts of four elements, each lane some, and asks for
// all of them at once. Before a part of the matrices is taken, so by the workgroup's number, and the subgroups first
// that have nothing to do with that.
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
#endif

// ---- What becomes of a product's rows, after a barrier ----

float bias_of(uint64_t bias, uint row) { return bias == 0 ? 0.0 : FloatRef(bias + row * 4).v; }

void keep_qkv(uint l, uint first, uint rows, uint epoch) {
    for (uint i = gl_LocalInvocationIndex; i < rows; i += kSpeakers) {
        const uint row = first + i;
        float sum = row_sum(i, most_rows(kQkv), kHiddenStride, kQkvTile) + bias_of(layer_words[l % 2][kQkvBias], row);
        say(kQkvChannel + row, floatBitsToUint(sum), epoch);
    }
}

// This workgroup's rows of the residual stream are the same for o and down.
shared float own_x[kOwnRows];

void add_to_x(uint l, const bool is_down, uint first, uint rows, const uint k, const uint tile_rows, uint epoch) {
    for (uint i = gl_LocalInvocationIndex; i < rows; i += kSpeakers) {
        own_x[i] += row_sum(i, most_rows(kHidden), k, tile_rows) + bias_of(layer_words[l % 2][is_down ? kDownBias : kOBias], first + i);
        say(kXChannel + first + i, floatBitsToUint(own_x[i]), epoch);
    }
}

float gated(uint l, uint first, uint i, uint half_count) {
    const uint64_t bias = layer_words[l % 2][kGateUpBias];
    float gate = row_sum(i, most_gate_up_rows(), kHiddenStride, kRowsApart) + bias_of(bias, first + i);
    float up = row_sum(half_count + i, most_gate_up_rows(), kHiddenStride, kRowsApart) + bias_of(bias, kFfn + first + i);
    return activate(gate, kSilu) * up;
}

void keep_act(uint l, uint first, uint half_count, uint epoch) {
    for (uint i = gl_LocalInvocationIndex * 2; i < half_count; i += kSpeakers * 2) {
        vec2 pair = vec2(0.0);
        if (first + i < kFfn) pair.x = gated(l, first, i, half_count);
        if (first + i + 1 < kFfn) pair.y = gated(l, first, i + 1, half_count);
        say(kActChannel + (first + i) / 2, pack_pair(pair, kType), epoch);
    }
}

// The first loads of q, k and v, of the layer in this half of layer_words.
void begin_qkv(uint half_idx) {
    IF_LORA(fetch_a(half_idx, kLowQkv, kHiddenStride, first_low()));
    begin_product(layer_words[half_idx][kQkvWeights], kQkv, kHiddenStride, kQkvTile, kQkvStepsAhead);
    fetch_gamma(layer_words[half_idx][kInputNorm]);
}

void main() {
    StepRow row = step_row(p.step, 0).v;
    uint64_t table = p.block_tables + uint64_t(row.block_table) * 4;
    never = p.max_polls >> 31;  // see decode_products.glsl
    bool speaks = gl_LocalInvocationIndex < kSpeakers;
    uint epoch = UintRef(p.sync).v;
#ifdef BEHIND_ATTENTION
    if (gl_LocalInvocationIndex == 0) {
        given_up = in_vain = SyncRef(p.sync).v.given_up;
        if (in_vain != 0) UintRef(p.given_up).v = 1;
    }
    fetch_layer(0);
    fetch_layer(1);
    if (kSplits > 1 && speaks) say_attention(epoch + 1);
#else
    if (gl_LocalInvocationIndex == 0) given_up = 0;
    fetch_layer(0);
    IF_LORA(fetch_lora(0, row.adapter_slot));
    fetch_rotations(row.rope_begin + row.position);
#endif
#ifdef AFFINITY
    if (gl_LocalInvocationIndex == 0) take_part(epoch);
    barrier();
    own_part = subgroupBroadcastFirst(taken_part);
#else
    barrier();
#endif
#ifdef BEHIND_ATTENTION
    // A step has as many dispatches as layers: they must not wait in vain one after the other. Without leave(), so
    // epoch and count of those who left mean nothing from then on, and the host does not use them again.
    if (in_vain != 0) return;
#endif
    uint first_x = share_begin(kHidden / kRowsApart, own_part) * kRowsApart;
    uint end_x = share_begin(kHidden / kRowsApart, own_part + 1) * kRowsApart;
    for (uint i = gl_LocalInvocationIndex; first_x + i < end_x && speaks; i += kSpeakers) own_x[i] = FloatRef(p.x + (first_x + i) * 4).v;
#ifdef BEHIND_ATTENTION
#define N_LAYERS 1  // that the loop goes round; p.n_layers says whether there is a next one
#else
#define N_LAYERS p.n_layers
    begin_qkv(0);
#endif
    for (uint l = 0; l < N_LAYERS; l++) {
        uint first, rows;  // of the product that was done last
        uint now = l % 2;

#ifdef BEHIND_ATTENTION
        epoch++;
        begin_product(layer_words[now][kOWeights], kHidden, kQStride, kOTile, kOStepsAhead);
        if (kSplits > 1) stage_channel(kAttentionChannel, kQ / 2, kQStride, epoch);
        else stage_attention();
#else
        stage_norm(l == 0, epoch, false);
        epoch++;
        fetch_layer(l + 1);
        IF_LORA(fetch_lora(l + 1, row.adapter_slot));
        IF_LORA(say_lows(l, kLowQkv, kHiddenStride, epoch));
        multiply(most_rows(kQkv), kHiddenStride, kQkvTile, kQkvStepsAhead);
        IF_LORA(add_adapter(l, kLowQkv, most_rows(kQkv), kHiddenStride, kQkvTile, epoch));
        first = row0, rows = n_rows;
        Tile tile = fetch_first_tile(l, row, table, own_part);
        barrier();
        if (speaks) keep_qkv(l, first, rows, epoch);

        for (uint unit = own_part; unit < kQHeads * kSplits; unit += kWorkgroups) {
            if (unit != own_part) tile = fetch_first_tile(l, row, table, unit);
            attend(l, row, table, unit % kQHeads, unit / kQHeads, tile, epoch);
        }
        if (kSplits > 1) {
            for (uint head = own_part; head < kQHeads && gl_SubgroupID == 0; head += kWorkgroups) combine(head, epoch);
        }
        IF_LORA(fetch_a(l, kLowO, kQStride, first_low()));
        begin_product(layer_words[now][kOWeights], kHidden, kQStride, kOTile, kOStepsAhead);
        stage_channel(kAttentionChannel, kQ / 2, kQStride, epoch);
#endif
        IF_LORA(say_lows(l, kLowO, kQStride, epoch));
        multiply(most_rows(kHidden), kQStride, kOTile, kOStepsAhead);
        IF_LORA(add_adapter(l, kLowO, most_rows(kHidden), kQStride, kOTile, epoch));
        first = row0, rows = n_rows;
        barrier();
        // First what others wait for: begin_gate_up() waits itself until its addresses are translated.
        if (speaks) add_to_x(l, false, first, rows, kQStride, kOTile, epoch);
        IF_LORA(fetch_a(l, kLowGateUp, kHiddenStride, first_low()));
        begin_gate_up(layer_words[now][kGateUpWeights]);
        fetch_gamma(layer_words[now][kPostNorm]);

        stage_norm(false, epoch, true);
        IF_LORA(say_lows(l, kLowGateUp, kHiddenStride, epoch));
        multiply(most_gate_up_rows(), kHiddenStride, kRowsApart, kFfnStepsAhead);
        IF_LORA(add_adapter(l, kLowGateUp, most_gate_up_rows(), kHiddenStride, kRowsApart, epoch));
        first = row0, rows = half_rows;
        barrier();
        if (speaks) keep_act(l, first, rows, epoch);
        IF_LORA(fetch_a(l, kLowDown, kFfnStride, first_low()));
        begin_product(layer_words[now][kDownWeights], kHidden, kFfnStride, kRowsApart, kFfnStepsFirst);

        stage_channel(kActChannel, kFfnStride / 2, kFfnStride, epoch);
        load_ahead(most_rows(kHidden), kFfnStride, kRowsApart, kFfnStepsFirst, kFfnStepsAhead);
        IF_LORA(say_lows(l, kLowDown, kFfnStride, epoch));
        multiply(most_rows(kHidden), kFfnStride, kRowsApart, kFfnStepsAhead);
        IF_LORA(add_adapter(l, kLowDown, most_rows(kHidden), kFfnStride, kRowsApart, epoch));
        first = row0, rows = n_rows;
        // Behind the last layer the same addresses again, for nothing.
        uint next = l + 1 < p.n_layers ? 1 - now : now;
#ifndef LORA
        begin_qkv(next);
#endif
        barrier();
        epoch++;
        if (speaks) add_to_x(l, true, first, rows, kFfnStride, kRowsApart, epoch);
#ifdef LORA  // where this kernel was measured; before what is said, as without adapters, it was not
        begin_qkv(next);
#endif
    }
    for (uint i = gl_LocalInvocationIndex; first_x + i < end_x && speaks; i += kSpeakers) FloatRef(p.x + (first_x + i) * 4).v = own_x[i];
#ifdef BEHIND_ATTENTION
    if (p.n_layers > 1) {
        stage_norm(false, epoch, false);
        multiply(most_rows(kQkv), kHiddenStride, kQkvTile, kQkvStepsAhead);
        barrier();
        for (uint i = gl_LocalInvocationIndex; i < n_rows && speaks; i += kSpeakers) {
            FloatRef(behind.y + (row0 + i) * 4).v = row_sum(i, most_rows(kQkv), kHiddenStride, kQkvTile);
        }
    }
#endif
    barrier();
    leave(2 * N_LAYERS);
}
