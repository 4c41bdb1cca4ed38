// The rows of a micro-batch: whole examples one behind the other, without padding. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/kernels/train/train_rows.params.h"
#include "model/config/config.h"
#include "proto/base/ids.h"

namespace lorad::model {

struct TrainExample;

// Queries of one example and one head, and the keys up to the last of them.
struct ScoreRun {
    uint32_t first_row = 0;                   // of the example
    uint32_t first_query = 0, n_queries = 0;  // in the example
    uint32_t head = 0;
    uint32_t n_keys() const { return first_query + n_queries; }
};

// Runs that are computed side by side: no two add to the gradients of one head's keys. Waves follow each other, so
// these sums have one order.
struct ScoreWave {
    std::vector<ScoreRun> runs;
    uint32_t stride = 0;     // elements of a row of scores
    uint32_t n_queries = 0;  // of the longest run
    uint64_t n_elements() const;
};

// Rows and targets of one job, whose examples lie together.
struct MicroBatchPart {
    uint32_t first_row = 0, n_rows = 0;
    uint32_t first_target = 0, n_targets = 0;
};

struct MicroBatch {
    std::vector<MicroBatchPart> parts;  // one of each job
    std::vector<uint32_t> examples;     // indices among their job's
    std::vector<uint32_t> first_rows;   // of each
    std::vector<uint32_t> lengths;      // of each: its rows
    std::vector<uint32_t> tokens;       // [rows]
    std::vector<uint32_t> turns;        // [rows]: of the rope table
    struct RowKey {
        uint32_t example, position;
    };
    std::vector<RowKey> row_keys;  // [rows]: index among the examples of the job's step
    // Rows whose next token, or target, is looked at, in order.
    std::vector<uint32_t> target_rows;
    std::vector<gpu::TrainTarget> targets;
    std::vector<uint32_t> target_examples;  // place in `examples`
    // The distinct tokens, ascending, with the rows that each has.
    std::vector<gpu::TrainTokenRows> token_rows;
    std::vector<uint32_t> rows_by_token;
    std::vector<ScoreWave> waves;  // none where scores are never whole
    std::vector<gpu::TrainFlashTile> flash_tiles;

    uint32_t n_rows() const { return static_cast<uint32_t>(tokens.size()); }
};

struct MicroBatchLimits {
    uint32_t n_rows = 0;             // more only where one example has more
    uint64_t n_score_elements = 0;   // of a wave; more only where one run has more; 0: no waves
    uint32_t short_text_tokens = 0;  // model/config/rope.h
};

// Queries of a run of an example with so many tokens: all, or as many as keep a run's scores within some millions.
uint32_t run_queries(uint32_t n_tokens);

// Examples in their order, each micro-batch with as many as it has room for.
std::vector<MicroBatch> make_micro_batches(const ModelConfig& config, std::span<const TrainExample> examples,
                                           const MicroBatchLimits& limits);

struct TargetChunk {
    uint32_t first = 0, n_rows = 0;
};
// All target rows in order, at most so many at a time. sums_rows: a job's gradients are sums over a chunk's rows; then
// none of several chunks has rows of two jobs, and each job has the chunks that it has alone.
std::vector<TargetChunk> target_chunks(std::span<const MicroBatchPart> parts, uint32_t n_rows_max, bool sums_rows);

// The rows of several, one behind the other; a part of each.
MicroBatch join_micro_batches(const ModelConfig& config, std::span<const MicroBatch* const> batches,
                              uint64_t n_score_elements);

}  // namespace lorad::model
