#ifndef LORAD_GPU_KERNELS_DECODE_LAYERS_PARAMS_H
#define LORAD_GPU_KERNELS_DECODE_LAYERS_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

// One layer's addresses. Matrices [n_padded][k_stride] of one 16-bit type, rows as in model/weights/weights.h; vectors
// f32, or 0 where there is none.
struct DecodeLayer {
    uint64_t qkv, qkv_bias;
    uint64_t o, o_bias;
    uint64_t gate_up, gate_up_bias;
    uint64_t down, down_bias;
    uint64_t input_norm, post_attention_norm;
    uint64_t q_norm, k_norm;       // [D], or of all heads
    uint64_t kv;                   // f16 [block][K|V][kv_head][kBlockTokens][D]
    uint32_t window;               // as in AttentionParams
    uint32_t in_window_group;      // its blocks are those of window_step; this and what follows with families alone
    uint64_t o_after, down_after;  // norms of what o and down give
    uint64_t rope;                 // as in QkvPostParams; 0: nothing is turned
};
INTEROP_SIZE(DecodeLayer, 136);

INTEROP_CONST kDecodeRankMax = 64;  // of a module of the row's adapter
INTEROP_CONST kAnyLoraType = 3;     // otherwise the type of all the adapter's matrices, as in LoraModule
// multiprocessors and parts; where parts are more, they go by the workgroup's number
INTEROP_CONST kDecodeAffinities = 1024;

// Between dispatches: how often a value has been said in any place of the channels, so that what is said next is told
// from what lies there.
struct DecodeSync {
    uint32_t epoch;
    uint32_t left;  // workgroups that are done; zero between dispatches, but for decode_behind that gave up
    // by number of multiprocessor: 1 + the part of all matrices that it had last; 0: none yet
    uint32_t affinity[kDecodeAffinities];
    uint32_t taken[kDecodeAffinities];  // by part: 1 + the epoch of the dispatch that took it last
    uint32_t given_up;                  // decode_behind: a dispatch gave up, and no workgroup begins any more
};
INTEROP_SIZE(DecodeSync, 8204);

struct DecodeLayersParams {
    uint64_t step;          // StepHeader, StepRow[]
    uint64_t layers;        // DecodeLayer[n_layers]
    uint64_t block_tables;  // as in AttentionParams
    uint64_t rope;          // as in QkvPostParams; with families each layer says its own
    uint64_t x;             // [H] f32: the embedding, then what the last layer gives
    uint64_t channels;      // u64[decode_channel_words()], all zero before the first dispatch
    uint64_t sync;          // DecodeSync
    uint64_t given_up;      // u32, set to 1 if workgroups waited in vain; the result means nothing then
    uint32_t n_layers;
    uint32_t max_polls;  // for one value; less than 2^31
    float eps;
    float scale;                // on q . k
    uint64_t lora_table;        // LoraModule[slot][layer][kLoraModules]; with adapters
    uint32_t lora_slot_stride;  // modules of a slot
    // bytes from `step` to the header and row with the blocks of the layers in the window's group; 0: there are none
    uint32_t window_step;
};
INTEROP_SIZE(DecodeLayersParams, 96);

// Of what lies between the attentions of two layers: layers.layers is the first of them, layers.n_layers 2, or 1 behind
// the last attention.
struct DecodeBehindParams {
    DecodeLayersParams layers;
    uint64_t attention;  // [Q] of the weights' type or f32; without splits
    uint64_t partials;   // as in AttentionParams; with splits
    uint64_t y;          // [Q + 2K] f32: q, k and v of the second layer, without bias
};
INTEROP_SIZE(DecodeBehindParams, 120);

INTEROP_END

#endif
