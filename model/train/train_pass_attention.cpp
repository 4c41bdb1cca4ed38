// Attention by products over whole scores, a wave of runs at a time (micro_batch.h), and its backward pass.
#include <algorithm>
#include <cmath>

#include "model/train/train_pass.h"

namespace lorad::model {
namespace {

using gpu::DeviceAddress;
using gpu::TrainDirection;
using gpu::TrainMatrix;

// The sizes of the largest of a wave's products.
struct WaveSizes {
    uint32_t n_queries = 0, n_keys = 0, n_runs = 0;
    explicit WaveSizes(const ScoreWave& wave)
        : n_queries(wave.n_queries), n_runs(static_cast<uint32_t>(wave.runs.size())) {
        for (const ScoreRun& run : wave.runs) n_keys = std::max(n_keys, run.n_keys());
    }
};

}  // namespace

void TrainPass::probabilities(gpu::Recorder& recorder, const TrainRows& rows, uint32_t layer, const LayerAt& here,
                              uint32_t wave_idx) const {
    const ScoreWave& wave = rows.batch.waves[wave_idx];
    const WaveTables& tables = rows.tables.waves[wave_idx];
    const WaveSizes sizes(wave);
    const TrainMatrix turned{here.turned, sizes_.turned_stride}, scores{context_.buffers.scores.address(), wave.stride};
    kernels_.product(recorder, {.a = turned,
                                .b = turned,
                                .c = scores,
                                .m = sizes.n_queries,
                                .n = sizes.n_keys,
                                .k = config_.head_dim,
                                .name = "q k",
                                .causal = gpu::kCausalScores,
                                .items = rows.tables_at + tables.qk,
                                .n_items = sizes.n_runs});
    kernels_.barrier(recorder);
    kernels_.softmax(recorder, TrainDirection::kForward, softmax_params(rows, layer, wave_idx), sizes.n_queries,
                     sizes.n_runs);
    kernels_.barrier(recorder);
}

gpu::TrainSoftmaxParams TrainPass::softmax_params(const TrainRows& rows, uint32_t layer, uint32_t wave_idx) const {
    return {.items = rows.tables_at + rows.tables.waves[wave_idx].scores,
            .scores = context_.buffers.scores.address(),
            .dscores = context_.buffers.dscores.address(),
            .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
            .window = config_.sliding_windows[layer],
            .zero_tile = kernels_.zero_tile(),
            .pad = 0};
}

gpu::TrainFlashParams TrainPass::flash_params(const TrainRows& rows, uint32_t layer, const LayerAt& here) const {
    const TrainBuffers& buffers = context_.buffers;
    return {.tiles = rows.tables_at + rows.tables.flash_tiles,
            .heads = here.turned,
            .o = here.attention,
            .lse = here.lse,
            .dout = buffers.rounded.address(),
            .dots = buffers.dots.address(),
            .dq = buffers.dturned.address(),
            .dk = buffers.dkeys.address(),
            .dv = buffers.dvalues.address(),
            .heads_stride = sizes_.qkv_stride,
            .o_stride = sizes_.attention_stride,
            .dq_stride = sizes_.turned_stride,
            .k_begin = config_.q_size(),
            .v_begin = config_.q_size() + config_.kv_size(),
            .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
            .window = config_.sliding_windows[layer],
            .n_tiles = static_cast<uint32_t>(rows.batch.flash_tiles.size())};
}

void TrainPass::attend(gpu::Recorder& recorder, const TrainRows& rows, uint32_t layer, const LayerAt& here) const {
    if (sizes_.has_flash) {
        kernels_.flash(recorder, TrainDirection::kForward, flash_params(rows, layer, here), config_.n_heads);
        kernels_.barrier(recorder);
        return;
    }
    for (uint32_t i = 0; i < rows.batch.waves.size(); ++i) {
        probabilities(recorder, rows, layer, here, i);
        const ScoreWave& wave = rows.batch.waves[i];
        const WaveSizes sizes(wave);
        kernels_.product(recorder, {.a = {context_.buffers.scores.address(), wave.stride},
                                    .b = {here.qkv, sizes_.qkv_stride},
                                    .c = {here.attention, sizes_.attention_stride},
                                    .b_is_n_major = true,
                                    .m = sizes.n_queries,
                                    .n = config_.head_dim,
                                    .k = sizes.n_keys,
                                    .name = "P v",
                                    .causal = gpu::kCausalQueries,
                                    .items = rows.tables_at + rows.tables.waves[i].pv,
                                    .n_items = sizes.n_runs});
        kernels_.barrier(recorder);
    }
}

// P again from q and k, then dP = do v^T, dv = P^T do, dS = P (dP - sum P dP), dq = dS k, dk = dS^T q, for each query
// head.
void TrainPass::attend_backward_by_waves(gpu::Recorder& recorder, const TrainRows& rows, uint32_t layer,
                                         const LayerAt& here) const {
    const TrainBuffers& buffers = context_.buffers;
    const uint32_t n_rows = rows.batch.n_rows();
    const TrainMatrix dattention{buffers.dattention.address(), sizes_.attention_stride},
        dturned{buffers.dturned.address(), sizes_.turned_stride};
    const TrainMatrix dkeys{buffers.dkeys.address(), sizes_.attention_stride},
        dvalues{buffers.dvalues.address(), sizes_.attention_stride};
    const TrainMatrix qkv{here.qkv, sizes_.qkv_stride}, turned{here.turned, sizes_.turned_stride};
    for (const gpu::Buffer* buffer : {&buffers.dkeys, &buffers.dvalues})
        recorder.fill(*buffer, 0, uint64_t{n_rows} * sizes_.attention_stride * sizeof(float), 0);
    kernels_.barrier(recorder);
    for (uint32_t i = 0; i < rows.batch.waves.size(); ++i) {
        probabilities(recorder, rows, layer, here, i);
        const ScoreWave& wave = rows.batch.waves[i];
        const WaveTables& tables = rows.tables.waves[i];
        const WaveSizes sizes(wave);
        const TrainMatrix scores{buffers.scores.address(), wave.stride},
            dscores{buffers.dscores.address(), wave.stride};
        const auto product = [&](gpu::TrainProduct what, uint64_t items) {
            what.items = rows.tables_at + items;
            what.n_items = sizes.n_runs;
            kernels_.product(recorder, what);
        };
        product({.a = dattention,
                 .b = qkv,
                 .c = dscores,
                 .m = sizes.n_queries,
                 .n = sizes.n_keys,
                 .k = config_.head_dim,
                 .name = "dP",
                 .causal = gpu::kCausalScores},
                tables.dp);
        product({.a = scores,
                 .b = dattention,
                 .c = dvalues,
                 .a_is_m_major = true,
                 .b_is_n_major = true,
                 .m = sizes.n_keys,
                 .n = config_.head_dim,
                 .k = sizes.n_queries,
                 .adds = true,
                 .name = "dv",
                 .causal = gpu::kCausalKeys},
                tables.dv);
        kernels_.barrier(recorder);
        kernels_.softmax(recorder, TrainDirection::kBackward, softmax_params(rows, layer, i), sizes.n_queries,
                         sizes.n_runs);
        kernels_.barrier(recorder);
        product({.a = dscores,
                 .b = turned,
                 .c = dturned,
                 .b_is_n_major = true,
                 .m = sizes.n_queries,
                 .n = config_.head_dim,
                 .k = sizes.n_keys,
                 .name = "dq",
                 .causal = gpu::kCausalQueries},
                tables.dq);
        product({.a = dscores,
                 .b = turned,
                 .c = dkeys,
                 .a_is_m_major = true,
                 .b_is_n_major = true,
                 .m = sizes.n_keys,
                 .n = config_.head_dim,
                 .k = sizes.n_queries,
                 .adds = true,
                 .name = "dk",
                 .causal = gpu::kCausalKeys},
                tables.dk);
        kernels_.barrier(recorder);
    }
}

// The same without whole scores: sum P dP is sum do o.
void TrainPass::attend_backward_by_flash(gpu::Recorder& recorder, const TrainRows& rows, uint32_t layer,
                                         const LayerAt& here) const {
    const TrainBuffers& buffers = context_.buffers;
    kernels_.dots(recorder,
                  {.o = here.attention,
                   .dout = buffers.dattention.address(),
                   .rounded = buffers.rounded.address(),
                   .dots = buffers.dots.address(),
                   .head_dim = config_.head_dim,
                   .stride = sizes_.attention_stride},
                  config_.n_heads, rows.batch.n_rows());
    kernels_.barrier(recorder);
    kernels_.flash(recorder, TrainDirection::kBackward, flash_params(rows, layer, here), config_.n_heads);
    kernels_.barrier(recorder);
}

// dattention -> dqkv; gradients of keys and values of the heads of a KV head are summed, and go through rope and norms
// of the heads.
void TrainPass::attend_backward(gpu::Recorder& recorder, const TrainRows& rows, uint32_t layer,
                                const LayerAt& here) const {
    const TrainBuffers& buffers = context_.buffers;
    const TrainLayer& trained = context_.model.layers[layer];
    const uint32_t n_rows = rows.batch.n_rows();
    const TrainMatrix dturned{buffers.dturned.address(), sizes_.turned_stride},
        dqkv{buffers.dqkv.address(), sizes_.qkv_stride};
    const TrainMatrix dkeys{buffers.dkeys.address(), sizes_.attention_stride},
        dvalues{buffers.dvalues.address(), sizes_.attention_stride};
    if (sizes_.has_flash)
        attend_backward_by_flash(recorder, rows, layer, here);
    else
        attend_backward_by_waves(recorder, rows, layer, here);
    const auto sum_heads = [&](const TrainMatrix& from, gpu::DeviceAddress to, uint32_t to_stride) {
        kernels_.sum_heads(recorder,
                           {.from = from.address,
                            .to = to,
                            .columns = config_.kv_size(),
                            .head_dim = config_.head_dim,
                            .n_group = config_.n_heads / config_.n_kv_heads,
                            .from_stride = from.stride,
                            .to_stride = to_stride,
                            .pad = 0},
                           n_rows);
    };
    sum_heads(dkeys, dturned.address + config_.q_size() * sizeof(float), dturned.stride);
    sum_heads(dvalues, dqkv.address + (config_.q_size() + config_.kv_size()) * sizeof(float), dqkv.stride);
    kernels_.barrier(recorder);
    gpu::TrainHeadsParams heads = heads_params(rows, layer, here);
    heads.turned = dturned.address;
    heads.turned_stride = dturned.stride;
    heads.dy = dqkv.address;
    const bool trains_norms = trained.q_norm || trained.k_norm;
    if (trains_norms) heads.terms = buffers.terms.address();
    kernels_.heads(recorder, TrainDirection::kBackward, heads, config_.n_heads + config_.n_kv_heads, config_.head_dim,
                   config_.rope.rotary_dim, n_rows);
    kernels_.barrier(recorder);
    if (!trains_norms) return;
    const auto sum = [&](const std::optional<uint32_t>& norm, uint32_t first_column, uint32_t n_heads) {
        if (!norm) return;
        kernels_.column_sums(recorder, {.to = context_.parameters.gradient(context_.parameters.layout().wholes[*norm]),
                                        .a = buffers.terms.address() + first_column * sizeof(float),
                                        .n_columns = config_.head_dim,
                                        .n_parts = n_heads,
                                        .rows = n_rows,
                                        .a_stride = sizes_.turned_stride,
                                        .b_stride = 0,
                                        .scale = 1.0f});
    };
    sum(trained.q_norm, 0, config_.n_heads);
    sum(trained.k_norm, config_.q_size(), config_.n_kv_heads);
    kernels_.barrier(recorder);
}

}  // namespace lorad::model
