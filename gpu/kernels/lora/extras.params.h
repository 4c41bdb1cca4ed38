// Adapters' changes outside of the seven linear modules: read in recordings that are made for them.
#ifndef LORAD_GPU_KERNELS_EXTRAS_PARAMS_H
#define LORAD_GPU_KERNELS_EXTRAS_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

// SlotExtras[slot] on the device. Addresses of 0: nothing, the base's. Types: 0 f32, 1 f16, 2 bf16.
struct SlotExtras {
    uint64_t embed_table;  // [vocab][hidden_stride], instead of the base's
    uint64_t embed_a;      // [vocab][embed_rank rounded up to 8]
    uint64_t embed_b;      // [hidden][embed_rank rounded up to 8]
    uint64_t token_ids;    // u32 [n_tokens], ascending
    uint64_t token_rows;   // f32 [n_tokens][hidden_stride]: the embedding's rows of these tokens
    uint64_t head_table;   // [vocab][hidden_stride], instead of the base's
    uint64_t head_a;       // [head_rank][hidden_stride]
    uint64_t head_b;       // [vocab][head_rank rounded up to 8]
    uint64_t head_bias;    // f32 [vocab], added
    uint32_t embed_type;
    uint32_t embed_rank;  // 0: no low-rank part
    uint32_t embed_lora_type;
    float embed_scale;
    uint32_t head_type;
    uint32_t head_rank;
    uint32_t head_lora_type;
    float head_scale;
    uint32_t n_tokens;
    uint32_t tokens_in_head;  // 1: token_rows are rows of the output layer too
};
INTEROP_SIZE(SlotExtras, 112);

struct EmbedExtrasParams {
    uint64_t step;    // StepHeader, StepRow[]
    uint64_t uses;    // StepUse[]
    uint64_t extras;  // SlotExtras[]
    uint64_t table;   // the base's, as in EmbedParams, like all that follows
    uint64_t sampled;
    uint64_t x;
    uint32_t hidden;
    uint32_t table_stride;
    uint32_t x_stride;
    uint32_t vocab;
    float scale;
    uint32_t pad;
};
INTEROP_SIZE(EmbedExtrasParams, 72);

struct HeadExtrasParams {
    uint64_t step;
    uint64_t logit_rows;  // LogitRow[]
    uint64_t uses;
    uint64_t extras;
    uint64_t x;       // [i][x_stride] of the activation type: what the output layer reads
    uint64_t logits;  // [i][logits_stride] f32, the base's on entry
    uint64_t low;     // [i][kStepUsesMax][kMaxRank] f32
    uint32_t k;
    uint32_t x_stride;  // elements; also of the adapters' matrices
    uint32_t logits_stride;
    uint32_t vocab;
};
INTEROP_SIZE(HeadExtrasParams, 72);

INTEROP_END

#endif
