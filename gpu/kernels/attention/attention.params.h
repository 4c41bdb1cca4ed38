#ifndef LORAD_GPU_KERNELS_ATTENTION_PARAMS_H
#define LORAD_GPU_KERNELS_ATTENTION_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct AttentionParams {
    uint64_t step;          // StepHeader, StepRow[]
    uint64_t block_tables;  // u32[], ragged; StepRow.block_table is an index into it
    uint64_t q;             // [t][q_stride] f32
    uint64_t kv;            // this layer's cache: f16 [block][K|V][kv_head][kBlockTokens][D]
    uint64_t y;             // [t][y_stride] of the activation type; Q*D..y_stride-1 are written with zeros
    uint64_t partials;      // with splits: f32, attention_partial_bytes(); else unused
    uint64_t tiles;         // attention_tiles: AttentionTile[]
    uint64_t single_rows;   // attention: u32[] the rows to compute; 0: all of the step
    uint32_t q_stride;
    uint32_t y_stride;
    uint32_t window;       // row p sees max(0, p - window + 1)..p; 0: everything up to p
    float scale;           // on q . k
    float softcap;         // 0: none; else s = softcap * tanh(s / softcap)
    uint32_t n_splits;     // of attention_combine; filled in by the launcher
    uint64_t y_fragments;  // y once more in fragments (activation_fragments.h), or 0
    uint64_t sinks;        // attention: f32 [Q], one more score of each head, which gives no value; or 0
};
INTEROP_SIZE(AttentionParams, 104);

INTEROP_END

#endif
