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
// With LORA the row's adapter is added to the products, see decode_lora.glsl; with FAMILIES layers may have parts that
// Llama's lack, see decode_families.glsl.
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
#ifdef FAMILIES
layout(constant_id = 16) const uint kActivation = kSilu;
layout(constant_id = 17) const uint kNormsBefore = 1;  // of the inputs of qkv and of gate and up,
layout(constant_id = 18) const uint kNormsAfter = 0;   // and of what o and down give
layout(constant_id = 19) const uint kWideQkNorms = 0;  // over all heads of a row
layout(constant_id = 20) const float kSoftcap = 0.0;   // of scores; 0: not
layout(constant_id = 21) const float kMultiplier = 1.0;  // on what o and down give, after its norm
layout(constant_id = 22) const float kPositionBeta = 0.0;  // queries times 1 + beta ln(1 + floor(position / original)); 0: not
layout(constant_id = 23) const uint kPositionOriginal = 1;
#else
const uint kActivation = kSilu, kNormsBefore = 1, kNormsAfter = 0;
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
           kInputNorm = 8, kPostNorm = 9, kQNorm = 10, kKNorm = 11, kKv = 12, kWindow = 13, kOAfter = 14, kDownAfter = 15, kRope = 16, kLayerWords = 17;
shared uint64_t layer_words[2][kLayerWords];

void fetch_layer(uint l) {
    if (gl_LocalInvocationIndex < kLayerWords && l < p.n_layers) {
        layer_words[l % 2][gl_LocalInvocationIndex] = LongRef(p.layers + uint64_t(l) * (kLayerWords * 8) + gl_LocalInvocationIndex * 8).v;
    }
}

#include "gpu/kernels/persistent/decode_channels.glsl"

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

#ifdef FAMILIES
#include "gpu/kernels/persistent/decode_families.glsl"
#define IF_FAMILIES(what) what
#else
#define IF_FAMILIES(what)
#endif

#include "gpu/kernels/persistent/decode_inputs.glsl"
#include "gpu/kernels/persistent/decode_attention.glsl"
#ifdef BEHIND_ATTENTION
#include "gpu/kernels/persistent/decode_behind.glsl"
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

// This workgroup's rows of the residual stream are the same for o and down. Where they get a norm before they are added,
// what the product gave is said, and everybody adds it.
shared float own_x[kOwnRows];

void add_to_x(uint l, const bool is_down, uint first, uint rows, const uint k, const uint tile_rows, uint epoch) {
    for (uint i = gl_LocalInvocationIndex; i < rows; i += kSpeakers) {
        float sum = row_sum(i, most_rows(kHidden), k, tile_rows) + bias_of(layer_words[l % 2][is_down ? kDownBias : kOBias], first + i);
        IF_FAMILIES(if (kNormsAfter == 0) sum *= kMultiplier);
        own_x[i] = kNormsAfter != 0 ? sum : own_x[i] + sum;
        say(kXChannel + first + i, floatBitsToUint(own_x[i]), epoch);
    }
}

float gated(uint l, uint first, uint i, uint half_count) {
    const uint64_t bias = layer_words[l % 2][kGateUpBias];
    float gate = row_sum(i, most_gate_up_rows(), kHiddenStride, kRowsApart) + bias_of(bias, first + i);
    float up = row_sum(half_count + i, most_gate_up_rows(), kHiddenStride, kRowsApart) + bias_of(bias, kFfn + first + i);
    return activate(gate, kActivation) * up;
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
    if (kNormsBefore != 0) fetch_gamma(layer_words[half_idx][kInputNorm]);
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
#ifdef FAMILIES
    const StepRow window_row = step_row(p.step + p.window_step, 0).v;
    const uint full_slot = row.kv_slot;
#else
    fetch_rotations(p.rope, row.rope_begin + row.position);
#endif
#endif
    IF_FAMILIES(if (kNormsAfter != 0) fetch_stream());
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
#ifdef FAMILIES
        const bool in_window_group = uint(layer_words[now][kWindow] >> 32) != 0;
        row.kv_slot = in_window_group ? window_row.kv_slot : full_slot;
        table = p.block_tables + uint64_t(in_window_group ? window_row.block_table : row.block_table) * 4;
#endif
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
            for (uint head = own_part; head < kQHeads && speaks; head += kWorkgroups) combine(head, epoch);
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
        if (kNormsBefore != 0) fetch_gamma(layer_words[now][kPostNorm]);
        IF_FAMILIES(if (kNormsAfter != 0) fetch_after_gamma(layer_words[now][kOAfter]));

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
        IF_FAMILIES(if (kNormsAfter != 0) fetch_after_gamma(layer_words[now][kDownAfter]));
        epoch++;
        if (speaks) add_to_x(l, true, first, rows, kFfnStride, kRowsApart, epoch);
#ifdef LORA  // where this kernel was measured; before what is said, as without adapters, it was not
        begin_qkv(next);
#endif
    }
#ifdef FAMILIES
    if (kNormsAfter != 0) {
        stage_norm(false, epoch, false);
        keep_stream(first_x, end_x);
    }
#endif
    for (uint i = gl_LocalInvocationIndex; kNormsAfter == 0 && first_x + i < end_x && speaks; i += kSpeakers) {
        FloatRef(p.x + (first_x + i) * 4).v = own_x[i];
    }
#ifdef BEHIND_ATTENTION
    if (p.n_layers > 1) {
        if (kNormsAfter == 0) stage_norm(false, epoch, false);
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
