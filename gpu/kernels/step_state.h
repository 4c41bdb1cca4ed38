// Everything that differs from step to step, in device memory. Recordings hold only addresses and shapes.
//
// Layout of the step-state buffer: StepHeader, then StepRow[row bucket] right behind it (kernels find both through one
// address), then in any order LogitRow[], LoraSegment[], StepUse[], StackedGroup[kLoraGroups],
// StackedWindow[kLoraGroups][tiles], AttentionTile[], the rows in no tile (u32[]) and the ragged block tables (u32[]),
// each at an address of its own. Rows beyond n_rows may hold anything: no kernel reads them.
#ifdef __cplusplus
#pragma once
#endif
#ifndef LORAD_GPU_KERNELS_STEP_STATE_H
#define LORAD_GPU_KERNELS_STEP_STATE_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

INTEROP_CONST kBlockTokens = 64;      // tokens in one KV block
INTEROP_CONST kMaxRank = 512;         // floats of one row and module in the shrink result
INTEROP_CONST kNoSlot = 0xffffffffu;  // StepRow.adapter_slot: no adapter
INTEROP_CONST kNoReadback = 0xffffffffu;
INTEROP_CONST kLoraModules = 7;       // of a layer of attention and a dense feed-forward: q, k, v, o, gate, up, down
INTEROP_CONST kMaxSegmentRows = 16;   // rows of one LoraSegment
INTEROP_CONST kHeaderBytes = 416;     // of StepHeader
INTEROP_CONST kRowBytes = 48;         // of StepRow
INTEROP_CONST kStepUsesMax = 8;       // adapters of one row
INTEROP_CONST kShrinkRanks = 4;       // ranks of one unit of ShrinkDispatch.grid
INTEROP_CONST kShrinkPieceRanks = 2;  // and of one piece of work that workgroups take in turns
// rows of one AttentionTile; a kernel that takes more says so: AttentionPlanner::attention_tile_rows
INTEROP_CONST kAttentionTileRows = 64;

// Module numbers inside a LoRA table entry, and where each group of lora_shrink starts.
INTEROP_CONST kLoraQ = 0;
INTEROP_CONST kLoraK = 1;
INTEROP_CONST kLoraV = 2;
INTEROP_CONST kLoraO = 3;
INTEROP_CONST kLoraGate = 4;
INTEROP_CONST kLoraUp = 5;
INTEROP_CONST kLoraDown = 6;
INTEROP_CONST kLoraGroups = 4;     // of modules of such a layer that share an input: q k v, o, gate up, down
INTEROP_CONST kShrinkGroups = 16;  // of all modules that a model may have
#ifdef __cplusplus
inline constexpr uint32_t kLoraGroupModules[kLoraGroups] = {3, 1, 2, 1};
#endif

// The work of lora_shrink for one group: shrink_dispatch() in lora/lora_kernels.h. Either member may be dispatched.
struct ShrinkDispatch {
    uint32_t grid[3];         // units of ranks, segments, modules
    uint32_t stride_grid[3];  // workgroups that take the grid's pieces in turns, 1, 1
};
INTEROP_SIZE(ShrinkDispatch, 24);

struct StepHeader {
    uint32_t n_rows;
    uint32_t n_logit_rows;
    uint32_t n_segments;
    uint32_t n_single_rows;  // rows in no AttentionTile, in recordings with tiles
    ShrinkDispatch shrink[kShrinkGroups];
    uint32_t tile_grid[3];  // of attention_tiles: query heads, tiles, splits
    uint32_t n_state_runs;  // in recordings of models with recurrent state
};
INTEROP_SIZE(StepHeader, kHeaderBytes);

struct StepRow {
    int32_t token;  // >= 0: token id; < 0: the previous step's sampled id number ~token
    uint32_t position;
    uint32_t kv_slot;       // block * kBlockTokens + offset: where this row's K and V go
    uint32_t block_table;   // index of the sequence's first entry in the ragged block table
    uint32_t adapter_slot;  // row of the LoRA table of the first use, or kNoSlot
    uint32_t use_begin;     // its uses are StepUse[use_begin .. use_begin + n_uses)
    uint32_t n_uses;
    uint32_t extras_slot;  // of the only use if that adapter changes more than the linear modules, or kNoSlot
    uint32_t rope_begin;   // where its sequence's positions begin in the table of cos and sin
    // the first two entries of its sequence's block table, so that no kernel waits for the table to read what they
    // hold;
    uint32_t first_blocks[2];
    // of one that has one block, that one twice
    // index of its StateRun, of models with recurrent state; kernels load the first four fields at once, and the last
    // four
    uint32_t state_run;
#ifdef __cplusplus
    // `blocks` holds n_blocks numbers, at least one, and lies at `table` in the block table.
    void set_blocks(uint32_t table, const uint32_t* blocks, uint32_t n_blocks) {
        block_table = table;
        first_blocks[0] = blocks[0];
        first_blocks[1] = blocks[n_blocks > 1 ? 1 : 0];
    }
#endif
};
INTEROP_SIZE(StepRow, kRowBytes);

// Neighbouring rows of one sequence at neighbouring positions, and the slots of its recurrent state: where they go on
// from, and where the state behind the last of them is kept. Both may be one. A step has one run of a sequence at most.
// States on its way that are kept beside that one go to slots that no run of the step goes on from.
INTEROP_CONST kNoState = 0xffffffffu;  // StateRun.from: the rows are a sequence's first
INTEROP_CONST kStateSaves = 2;         // of a run
struct StateSave {
    uint32_t n_rows;  // the state behind this many rows of the run; 0: none
    uint32_t to;
};
INTEROP_SIZE(StateSave, 8);
struct StateRun {
    uint32_t row_begin;
    uint32_t n_rows;
    uint32_t from;
    uint32_t to;
    StateSave saves[kStateSaves];
};
INTEROP_SIZE(StateRun, 32);

// A row whose logits are wanted. logits row i of the step belongs to LogitRow i.
struct LogitRow {
    uint32_t row;
    uint32_t readback;  // row of the host's logits buffer to copy to, or kNoReadback
};
INTEROP_SIZE(LogitRow, 8);

// One adapter of a row. Consecutive rows with the same adapters share one list of uses.
struct StepUse {
    uint32_t slot;        // row of the LoRA table
    float scale;          // of the request, on top of the module's
    uint32_t low_offset;  // the shrink result of row t is row low_offset + t (modulo 2^32)
    uint32_t pad;
};
INTEROP_SIZE(StepUse, 16);

// Consecutive rows and one adapter that all of them use. A row is in as many segments as it has uses.
struct LoraSegment {
    uint32_t row_begin;
    uint32_t n_rows;  // 1..kMaxSegmentRows
    uint32_t slot;
    // row of the shrink result for row_begin; of a step with stacked adapters its number, and rows are of one block
    uint32_t low_begin;
};
INTEROP_SIZE(LoraSegment, 16);

// LoraModule[slot][layer][modules of a layer] on the device. With c the scale of the request the module adds
//   c * ((gain - 1) * base + gain * scale * B A x + bias)      base: what the base module gives, without its bias
struct LoraModule {
    uint64_t a;     // [rank][k_stride of the module's base matrix], padding zero
    uint64_t b;     // [n][rank rounded up to 8], padding zero
    uint32_t rank;  // 0: this adapter does not change the module
    float scale;
    uint32_t type;  // of a and b: 0 f32, 1 f16, 2 bf16
    uint32_t pad;
    uint64_t gain;  // [n] f32, or 0: 1 everywhere
    uint64_t bias;  // [n] f32, or 0
    uint64_t pad2[2];
};
INTEROP_SIZE(LoraModule, 64);

// Neighbouring rows of one sequence, at neighbouring positions, whose attention is computed together.
struct AttentionTile {
    uint32_t row_begin;
    uint32_t n_rows;  // 1..AttentionPlanner::attention_tile_rows
};
INTEROP_SIZE(AttentionTile, 8);

// Adapters stacked on a product (AdapterMethod::kStacked): y = x w^T + low b^T, where b has the B of all of a step's
// adapters side by side, of one group of modules, and low what they get from each row, zero where a row has another
// adapter. Both are of the weights' type. In units of 16 columns, blocks: 16 ranks of one module of one adapter, once
// for each product of their parts that is needed to keep more of f32 than the type has.
// of b and low for each module of the group: the room for all adapters together
INTEROP_CONST kStackedModuleColumns = 512;
INTEROP_CONST kStackedStep = 64;         // columns that a product takes at once
INTEROP_CONST kStackedTileRows = 128;    // of low, which have one window
INTEROP_CONST kStackedBlocksMax = 96;    // of three modules
INTEROP_CONST kStackedAdaptersMax = 16;  // with two products each

// Which product of parts: of the leading parts of B and low in the weights' type, of B's and what low's leaves, or of
// what B's leaves and low's. The last is left out for an adapter of that type. f16 keeps less of what is below its
// smallest normal number, 6e-5: of a B of 1e-4 2e-4 is lost, of 1e-5 2e-3.
INTEROP_CONST kStackedLeads = 0;
INTEROP_CONST kStackedLowRest = 1;
INTEROP_CONST kStackedBRest = 2;

struct StackedBlock {
    uint32_t slot;  // kNoSlot: none, zeros
    uint32_t what;  // the first rank, module of the group << 16, part << 24
};
INTEROP_SIZE(StackedBlock, 8);

// The first of an adapter's blocks: [module][16 ranks][part].
struct StackedAdapter {
    uint32_t first_block;
    uint32_t rank_blocks;  // for each module
    uint32_t parts;
    uint32_t pad;
};
INTEROP_SIZE(StackedAdapter, 16);

struct StackedGroup {
    uint32_t n_blocks;  // a multiple of four
    uint32_t pad[3];
    StackedAdapter adapters[kStackedAdaptersMax];  // by number; a LoraSegment has its adapter's in low_begin
    StackedBlock blocks[kStackedBlocksMax];
};
INTEROP_SIZE(StackedGroup, 1040);

// The steps of kStackedStep columns that the adapters of kStackedTileRows rows have.
struct StackedWindow {
    uint32_t begin;
    uint32_t n;
};
INTEROP_SIZE(StackedWindow, 8);

// The result of sample_argmax for one logit row.
struct SampleResult {
    int32_t token;  // argmax, lowest index on ties; -1 if any logit is not finite
    float max_logit;
    float log_sum_exp;  // natural logarithm of sum exp(logit)
    uint32_t pad;
};
INTEROP_SIZE(SampleResult, 16);

INTEROP_END

#endif
