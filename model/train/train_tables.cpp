#include "model/train/train_tables.h"

#include <cstring>
#include <span>

#include "proto/base/rounding.h"

namespace lorad::model {
namespace {

class TableWriter {
  public:
    explicit TableWriter(std::vector<std::byte>& bytes) : bytes_(bytes) {}
    template <typename T>
    uint64_t add(const std::vector<T>& values) {
        const size_t begin = round_up(bytes_.size(), size_t{16});
        const auto from = std::as_bytes(std::span(values));
        bytes_.resize(begin + from.size());
        if (!from.empty()) std::memcpy(bytes_.data() + begin, from.data(), from.size());
        return begin;
    }

  private:
    std::vector<std::byte>& bytes_;
};

}  // namespace

TrainTables make_train_tables(const ModelConfig& config, const TrainSizes& sizes, const MicroBatch& batch) {
    TrainTables tables;
    TableWriter writer(tables.bytes);
    tables.tokens = writer.add(batch.tokens);
    tables.turns = writer.add(batch.turns);
    tables.row_keys = writer.add(batch.row_keys);
    tables.target_rows = writer.add(batch.target_rows);
    tables.targets = writer.add(batch.targets);
    std::vector<MicroBatch::RowKey> target_keys;
    for (const uint32_t row : batch.target_rows) target_keys.push_back(batch.row_keys[row]);
    tables.target_keys = writer.add(target_keys);
    tables.token_rows = writer.add(batch.token_rows);
    tables.rows_by_token = writer.add(batch.rows_by_token);
    tables.flash_tiles = writer.add(batch.flash_tiles);
    const uint32_t n_group = config.n_heads / config.n_kv_heads, head_dim = config.head_dim;
    for (const ScoreWave& wave : batch.waves) {
        std::vector<gpu::TrainScores> scores;
        std::vector<gpu::TrainProductItem> qk, pv, dp, dv, dq, dk;
        uint64_t at = 0;
        for (const ScoreRun& run : wave.runs) {
            const uint64_t kv_head = run.head / n_group, first = run.first_row, first_query = first + run.first_query;
            const uint64_t q = first_query * sizes.turned_stride + uint64_t{run.head} * head_dim;
            const uint64_t k = first * sizes.turned_stride + config.q_size() + kv_head * head_dim;
            const uint64_t v = first * sizes.qkv_stride + config.q_size() + config.kv_size() + kv_head * head_dim;
            // where its keys' and values' own gradients are
            const uint64_t of_head = first * sizes.attention_stride + uint64_t{run.head} * head_dim;
            const uint64_t o = first_query * sizes.attention_stride + uint64_t{run.head} * head_dim;
            scores.push_back({at, run.n_queries, run.n_keys(), wave.stride, run.first_query});
            qk.push_back({q, k, at, run.n_queries, run.n_keys(), head_dim, run.first_query});
            pv.push_back({at, v, o, run.n_queries, head_dim, run.n_keys(), run.first_query});
            dp.push_back({o, v, at, run.n_queries, run.n_keys(), head_dim, run.first_query});
            dv.push_back({at, o, of_head, run.n_keys(), head_dim, run.n_queries, run.first_query});
            dq.push_back({at, k, q, run.n_queries, head_dim, run.n_keys(), run.first_query});
            dk.push_back({at, q, of_head, run.n_keys(), head_dim, run.n_queries, run.first_query});
            at += uint64_t{run.n_queries} * wave.stride;
        }
        tables.waves.push_back({writer.add(scores), writer.add(qk), writer.add(pv), writer.add(dp), writer.add(dv),
                                writer.add(dq), writer.add(dk)});
    }
    return tables;
}

}  // namespace lorad::model
