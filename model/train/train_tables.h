// The lists that the kernels read of a micro-batch, as bytes with the places of each. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/train/micro_batch.h"
#include "model/train/train_memory.h"

namespace lorad::model {

// Bytes from the beginning; of a wave one list for each product of attention and its backward pass.
struct WaveTables {
    uint64_t scores = 0;                      // gpu::TrainScores[runs]
    uint64_t qk = 0, pv = 0;                  // gpu::TrainProductItem[runs]: S = q k^T, o = P v
    uint64_t dp = 0, dv = 0, dq = 0, dk = 0;  // dP = do v^T, dv = P^T do, dq = dS k, dk = dS^T q
};

struct TrainTables {
    std::vector<std::byte> bytes;
    uint64_t tokens = 0, turns = 0, row_keys = 0, target_rows = 0, targets = 0, token_rows = 0, rows_by_token = 0,
             flash_tiles = 0;
    uint64_t target_keys = 0;  // row_keys of target_rows
    std::vector<WaveTables> waves;
};

TrainTables make_train_tables(const ModelConfig& config, const TrainSizes& sizes, const MicroBatch& batch);

}  // namespace lorad::model
