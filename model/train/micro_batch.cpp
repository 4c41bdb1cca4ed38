#include "model/train/micro_batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "model/train/trainer.h"
#include "proto/base/rounding.h"

namespace lorad::model {
namespace {

constexpr uint64_t kRunElements = uint64_t{1} << 22;
constexpr uint32_t kRunAlign = 64;
constexpr size_t kRunsMax = 32768;  // workgroups of a dispatch along z

void add_example(MicroBatch& batch, const TrainExample& example, uint32_t index, uint32_t short_text_tokens) {
    const uint32_t first_row = batch.n_rows();
    const auto place = static_cast<uint32_t>(batch.examples.size());
    const auto n_tokens = static_cast<uint32_t>(example.tokens.size());
    const uint32_t rope_begin = n_tokens > short_text_tokens ? short_text_tokens : 0;
    batch.examples.push_back(index);
    batch.first_rows.push_back(first_row);
    batch.lengths.push_back(n_tokens);
    for (uint32_t t = 0; t < n_tokens; ++t) {
        batch.tokens.push_back(static_cast<uint32_t>(example.tokens[t]));
        batch.turns.push_back(rope_begin + t);
        batch.row_keys.push_back({index, t});
        const bool has_targets = !example.targets.empty();
        if (!has_targets && (t == 0 || example.weights[t] == 0.0f)) continue;
        const bool has_ratio = !example.sampled.empty();
        const TokenId target = has_targets ? example.targets[t] : example.tokens[t];
        batch.target_rows.push_back(first_row + t - (has_targets ? 0 : 1));
        batch.targets.push_back({static_cast<uint32_t>(target), example.weights[t],
                                 has_ratio ? example.sampled[t] : 0.0f, has_ratio ? 1u : 0u});
        batch.target_examples.push_back(place);
    }
}

void list_rows_by_token(MicroBatch& batch) {
    batch.rows_by_token.resize(batch.n_rows());
    std::iota(batch.rows_by_token.begin(), batch.rows_by_token.end(), 0u);
    std::ranges::stable_sort(batch.rows_by_token, {}, [&](uint32_t row) { return batch.tokens[row]; });
    for (uint32_t i = 0; i < batch.n_rows(); ++i) {
        const uint32_t token = batch.tokens[batch.rows_by_token[i]];
        if (batch.token_rows.empty() || batch.token_rows.back().token != token)
            batch.token_rows.push_back({token, i, 0});
        ++batch.token_rows.back().n;
    }
}

void list_flash_tiles(MicroBatch& batch) {
    for (size_t place = 0; place < batch.examples.size(); ++place) {
        const uint32_t n_tokens = batch.lengths[place];
        for (uint32_t begin = 0; begin < n_tokens; begin += gpu::kFlashRows)
            batch.flash_tiles.push_back({batch.first_rows[place], n_tokens, begin, 0});
    }
}

// Round r has each example's run r of every head, which all add to gradients of their own.
void plan_waves(MicroBatch& batch, const ModelConfig& config, uint64_t n_elements_max) {
    uint32_t n_rounds = 0;
    for (size_t place = 0; place < batch.examples.size(); ++place)
        n_rounds = std::max(n_rounds, ceil_div(batch.lengths[place], run_queries(batch.lengths[place])));
    for (uint32_t round = 0; round < n_rounds; ++round) {
        ScoreWave wave;
        uint64_t n_rows = 0;
        for (size_t place = 0; place < batch.examples.size(); ++place) {
            const uint32_t n_tokens = batch.lengths[place], at_once = run_queries(n_tokens);
            if (uint64_t{round} * at_once >= n_tokens) continue;
            for (uint32_t head = 0; head < config.n_heads; ++head) {
                const ScoreRun run{.first_row = batch.first_rows[place],
                                   .first_query = round * at_once,
                                   .n_queries = std::min(at_once, n_tokens - round * at_once),
                                   .head = head};
                const uint32_t stride = round_up(run.n_keys(), kRunAlign);
                const bool is_full = (n_rows + run.n_queries) * std::max(wave.stride, stride) > n_elements_max ||
                                     wave.runs.size() == kRunsMax;
                if (!wave.runs.empty() && is_full) {
                    batch.waves.push_back(std::exchange(wave, {}));
                    n_rows = 0;
                }
                wave.runs.push_back(run);
                wave.stride = std::max(wave.stride, stride);
                wave.n_queries = std::max(wave.n_queries, run.n_queries);
                n_rows += run.n_queries;
            }
        }
        if (!wave.runs.empty()) batch.waves.push_back(std::move(wave));
    }
}

void finish_lists(MicroBatch& batch, const ModelConfig& config, uint64_t n_score_elements) {
    list_rows_by_token(batch);
    if (n_score_elements != 0) plan_waves(batch, config, n_score_elements);
    list_flash_tiles(batch);
}

}  // namespace

uint64_t ScoreWave::n_elements() const {
    uint64_t n_rows = 0;
    for (const ScoreRun& run : runs) n_rows += run.n_queries;
    return n_rows * stride;
}

uint32_t run_queries(uint32_t n_tokens) {
    if (uint64_t{n_tokens} * n_tokens <= kRunElements) return n_tokens;
    return std::max(kRunAlign, static_cast<uint32_t>(kRunElements / n_tokens) / kRunAlign * kRunAlign);
}

std::vector<MicroBatch> make_micro_batches(const ModelConfig& config, std::span<const TrainExample> examples,
                                           const MicroBatchLimits& limits) {
    std::vector<MicroBatch> batches;
    for (uint32_t i = 0; i < examples.size(); ++i) {
        const size_t n_tokens = examples[i].tokens.size();
        if (batches.empty() || batches.back().n_rows() + n_tokens > limits.n_rows) batches.emplace_back();
        add_example(batches.back(), examples[i], i, limits.short_text_tokens);
    }
    for (MicroBatch& batch : batches) {
        batch.parts = {{.n_rows = batch.n_rows(), .n_targets = static_cast<uint32_t>(batch.targets.size())}};
        finish_lists(batch, config, limits.n_score_elements);
    }
    return batches;
}

std::vector<TargetChunk> target_chunks(std::span<const MicroBatchPart> parts, uint32_t n_rows_max, bool sums_rows) {
    std::vector<TargetChunk> chunks;
    const auto add = [&](uint32_t begin, uint32_t end) {
        for (uint32_t first = begin; first < end; first += n_rows_max)
            chunks.push_back({first, std::min(n_rows_max, end - first)});
    };
    const uint32_t n_targets = parts.empty() ? 0 : parts.back().first_target + parts.back().n_targets;
    if (n_targets <= n_rows_max || !sums_rows) {
        add(0, n_targets);
        return chunks;
    }
    for (const MicroBatchPart& part : parts) add(part.first_target, part.first_target + part.n_targets);
    return chunks;
}

MicroBatch join_micro_batches(const ModelConfig& config, std::span<const MicroBatch* const> batches,
                              uint64_t n_score_elements) {
    MicroBatch joined;
    for (const MicroBatch* batch : batches) {
        const uint32_t first_row = joined.n_rows();
        const auto first_target = static_cast<uint32_t>(joined.targets.size()),
                   first_place = static_cast<uint32_t>(joined.examples.size());
        const auto append = [](auto& to, const auto& from, uint32_t begin) {
            for (const auto& value : from) to.push_back(value + begin);
        };
        joined.parts.push_back(
            {first_row, batch->n_rows(), first_target, static_cast<uint32_t>(batch->targets.size())});
        append(joined.examples, batch->examples, 0);
        append(joined.first_rows, batch->first_rows, first_row);
        append(joined.lengths, batch->lengths, 0);
        append(joined.tokens, batch->tokens, 0);
        append(joined.turns, batch->turns, 0);
        append(joined.target_rows, batch->target_rows, first_row);
        append(joined.target_examples, batch->target_examples, first_place);
        joined.row_keys.insert(joined.row_keys.end(), batch->row_keys.begin(), batch->row_keys.end());
        joined.targets.insert(joined.targets.end(), batch->targets.begin(), batch->targets.end());
    }
    finish_lists(joined, config, n_score_elements);
    return joined;
}

}  // namespace lorad::model
