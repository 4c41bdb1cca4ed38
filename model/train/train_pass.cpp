#include "model/train/train_pass.h"

#include <cmath>

#include "gpu/kernels/kernel_options.h"

namespace lorad::model {
namespace {

using gpu::DeviceAddress;
using gpu::TrainDirection;
using gpu::TrainMatrix;

constexpr uint64_t kFloat = sizeof(float);

}  // namespace

void TrainPass::shadows(gpu::Recorder& recorder, const TrainSlot& slot) const {
    if (!slot.sizes.shadows) return;
    kernels_.round_items(
        recorder,
        {.items = slot.shadow_items.address(), .n_items = slot.n_shadow_items, .n_quads = slot.n_shadow_quads},
        sizes_.act_type);
    kernels_.barrier(recorder);
}

void TrainPass::inverse_norms(gpu::Recorder& recorder, const TrainSlot& slot) const {
    if (slot.sizes.n_norms == 0) return;
    constexpr uint32_t kOne = 0x3f800000u;
    recorder.fill(slot.inverse_norms, 0, slot.sizes.n_norms * kFloat, kOne);
    kernels_.barrier(recorder);
    for (const TrainLayer& layer : slot.model.layers) {
        for (const TrainGroup& group : layer.groups) {
            if (!group.has_magnitudes()) continue;
            const gpu::TrainMatrix w = plain(recorder, *group.w);
            if (group.w->is_packed()) kernels_.barrier(recorder);
            for (const TrainPart& part : group.parts) {
                if (!part.has_magnitude) continue;
                const TrainedPairPlaces& pair = slot.parameters->layout().linears[*part.linear];
                kernels_.weight_norm(
                    recorder,
                    {.from = w.address + part.begin * group.w->row_bytes(),
                     .a = slot.parameters->value(pair.a),
                     .b = slot.parameters->value(pair.b),
                     .gain = slot.inverse_norms.address() + slot.sizes.norm_begins[*part.linear] * kFloat,
                     .rank = pair.rank,
                     .type = static_cast<uint32_t>(gpu::ScalarType::kF32),
                     .scale = pair.scale,
                     .n = part.n,
                     .stride = group.w->k_stride,
                     .first_row = 0},
                    group.w->type);
            }
            if (group.w->is_packed()) kernels_.barrier(recorder);  // the next matrix takes the place
        }
    }
    kernels_.barrier(recorder);
}

void TrainPass::embed(gpu::Recorder& recorder, const TrainRows& rows) const {
    const TrainParameters& parameters = context_.parameters;
    const Matrix& base = context_.weights.embedding;
    const bool is_trained = context_.model.embedding.has_value();
    gpu::WeightKind kind(base.type);
    TrainMatrix table{base.buffer.address(), base.k_stride, base.type};
    if (is_trained) {
        table = parameters.matrix(parameters.layout().wholes[*context_.model.embedding]);
        kind = table.type;
    } else if (base.is_packed()) {
        // A matrix by itself has one part.
        table.address = base.address_of(base.parts.front());
        kind = {base.parts.front().format, base.type};
    }
    const uint32_t n_rows = rows.batch.n_rows();
    const DeviceAddress tokens = rows.tables_at + rows.tables.tokens;
    kernels_.embed(recorder,
                   {.table = table.address,
                    .tokens = tokens,
                    .x = stream(0),
                    .hidden = config_.hidden_size,
                    .table_stride = table.stride,
                    .x_stride = sizes_.hidden_stride,
                    .pad = 0},
                   kind, false, n_rows);
    const TrainedPairPlaces& pair = parameters.layout().embedding;
    if (pair.rank != 0) {
        const TrainMatrix low{context_.buffers.embedding_low.address(), round_up(pair.rank, 8)};
        kernels_.embed(recorder,
                       {.table = parameters.value(pair.a),
                        .tokens = tokens,
                        .x = low.address,
                        .hidden = pair.rank,
                        .table_stride = pair.a.stride,
                        .x_stride = low.stride,
                        .pad = 0},
                       gpu::ScalarType::kF32, true, n_rows);
        kernels_.barrier(recorder);
        kernels_.product(recorder, {.a = low,
                                    .b = parameters.matrix(pair.b),
                                    .c = {stream(0), sizes_.hidden_stride},
                                    .m = n_rows,
                                    .n = config_.hidden_size,
                                    .k = pair.rank,
                                    .alpha = pair.scale,
                                    .adds = true});
    }
    kernels_.barrier(recorder);
}

void TrainPass::embed_backward(gpu::Recorder& recorder, const TrainRows& rows) const {
    const TrainParameters& parameters = context_.parameters;
    const TrainMatrix dx{context_.buffers.dstream.address(), sizes_.hidden_stride};
    gpu::TrainEmbedBackwardParams params{.tokens = rows.tables_at + rows.tables.token_rows,
                                         .rows = rows.tables_at + rows.tables.rows_by_token,
                                         .dx = dx.address,
                                         .dtable = 0,
                                         .hidden = config_.hidden_size,
                                         .x_stride = dx.stride,
                                         .table_stride = 0,
                                         .pad = 0};
    const auto n_tokens = static_cast<uint32_t>(rows.batch.token_rows.size());
    if (context_.model.embedding) {
        const TrainedPlace& place = parameters.layout().wholes[*context_.model.embedding];
        params.dtable = parameters.gradient(place);
        params.table_stride = place.stride;
        kernels_.embed_backward(recorder, params, false, n_tokens);
    }
    const TrainedPairPlaces& pair = parameters.layout().embedding;
    if (pair.rank != 0) {
        const uint32_t n_rows = rows.batch.n_rows();
        const TrainMatrix low{context_.buffers.embedding_low.address(), round_up(pair.rank, 8)},
            dlow{low.address + uint64_t{sizes_.n_rows} * low.stride * kFloat, low.stride};
        kernels_.product(recorder, {.a = dx,
                                    .b = parameters.matrix(pair.b),
                                    .c = dlow,
                                    .b_is_n_major = true,
                                    .m = n_rows,
                                    .n = pair.rank,
                                    .k = config_.hidden_size,
                                    .alpha = pair.scale});
        kernels_.barrier(recorder);
        kernels_.product(recorder, {.a = dx,
                                    .b = low,
                                    .c = parameters.gradient_matrix(pair.b),
                                    .a_is_m_major = true,
                                    .b_is_n_major = true,
                                    .m = config_.hidden_size,
                                    .n = pair.rank,
                                    .k = n_rows,
                                    .alpha = pair.scale,
                                    .adds = true});
        params.dx = dlow.address;
        params.dtable = parameters.gradient(pair.a);
        params.hidden = pair.rank;
        params.x_stride = dlow.stride;
        params.table_stride = pair.a.stride;
        kernels_.embed_backward(recorder, params, true, n_tokens);
    }
    kernels_.barrier(recorder);
}

void TrainPass::layer(gpu::Recorder& recorder, const TrainRows& rows, uint32_t layer) const {
    const LayerAt here = at(layer);
    layer_to_down(recorder, rows, layer, here, true);
    finish(recorder,
           group(rows, here, layer, kTrainDown, kept(context_.buffers.act.address(), sizes_.ffn_stride),
                 {here.down_sums, sizes_.hidden_stride}),
           {stream(layer + 1), sizes_.hidden_stride}, {here.middle, sizes_.hidden_stride});
}

// Attention: middle = x + o(attention(rope(qkv(norm(x))))). MLP up to the input of down, and down's sums.
void TrainPass::layer_to_down(gpu::Recorder& recorder, const TrainRows& rows, uint32_t layer, const LayerAt& here,
                              bool with_down) const {
    const LayerWeights& w = context_.weights.layers[layer];
    const TrainLayer& trained = context_.model.layers[layer];
    const uint32_t n_rows = rows.batch.n_rows();
    norm(recorder, stream(layer), gamma(w.input_norm, trained.input_norm), here.normed, n_rows);
    const GroupAt qkv = group(rows, here, layer, kTrainQkv, kept(here.normed, sizes_.hidden_stride),
                              {here.qkv_sums, sizes_.qkv_stride});
    product(recorder, qkv);
    finish(recorder, qkv, {here.qkv, sizes_.qkv_stride}, {});
    kernels_.heads(recorder, TrainDirection::kForward, heads_params(rows, layer, here),
                   config_.n_heads + (sizes_.has_flash ? 2 : 1) * config_.n_kv_heads, config_.head_dim,
                   config_.rope.rotary_dim, n_rows, sizes_.has_flash ? sizes_.act_type : gpu::ScalarType::kF32);
    kernels_.barrier(recorder);
    attend(recorder, rows, layer, here);
    const GroupAt o = group(rows, here, layer, kTrainO, {here.attention, sizes_.attention_stride},
                            {here.o_sums, sizes_.hidden_stride});
    product(recorder, o);
    finish(recorder, o, {here.middle, sizes_.hidden_stride}, {stream(layer), sizes_.hidden_stride});

    norm(recorder, here.middle, gamma(w.ffn_norm, trained.post_attention_norm), here.middle_normed, n_rows);
    const bool has_sums = sizes_.act_type != gpu::ScalarType::kF32;
    const TrainMatrix sums{has_sums ? context_.buffers.gate_up_sums.address() : here.gate_up_sums,
                           sizes_.gate_up_stride};
    const GroupAt gate_up =
        group(rows, here, layer, kTrainGateUp, kept(here.middle_normed, sizes_.hidden_stride), sums);
    product(recorder, gate_up);
    if (has_sums && gate_up.group.has_magnitudes()) keep_gate_up_sums(recorder, here, sums, n_rows);
    finish(recorder, gate_up, has_sums ? sums : TrainMatrix{here.gate_up, sizes_.gate_up_stride}, {});
    act(recorder, here, has_sums ? sums.address : 0, n_rows);
    const GroupAt down = group(rows, here, layer, kTrainDown, kept(context_.buffers.act.address(), sizes_.ffn_stride),
                               {here.down_sums, sizes_.hidden_stride});
    if (with_down) product(recorder, down);
}

// They are scaled in place.
void TrainPass::keep_gate_up_sums(gpu::Recorder& recorder, const LayerAt& here, const TrainMatrix& sums,
                                  uint32_t n_rows) const {
    kernels_.round(recorder,
                   {.from = sums.address,
                    .to = here.gate_up_sums,
                    .columns = 2 * config_.intermediate_size,
                    .from_stride = sums.stride,
                    .to_stride = sizes_.gate_up_stride,
                    .factor = 1.0f},
                   sizes_.act_type, n_rows);
    kernels_.barrier(recorder);
}

void TrainPass::act(gpu::Recorder& recorder, const LayerAt& here, DeviceAddress sums, uint32_t n_rows) const {
    kernels_.act(recorder, TrainDirection::kForward,
                 {.y = here.gate_up,
                  .h = context_.buffers.act.address(),
                  .dy = 0,
                  .sums = sums,
                  .ffn = config_.intermediate_size,
                  .y_stride = sizes_.gate_up_stride,
                  .h_stride = sizes_.ffn_stride,
                  .rows = n_rows},
                 sizes_.act_type);
    kernels_.barrier(recorder);
}

void TrainPass::layer_backward(gpu::Recorder& recorder, const TrainRows& rows, uint32_t layer) const {
    const LayerWeights& w = context_.weights.layers[layer];
    const TrainLayer& trained = context_.model.layers[layer];
    const TrainBuffers& buffers = context_.buffers;
    const LayerAt here = at(layer);
    const uint32_t n_rows = rows.batch.n_rows();
    const GroupAt down = group(rows, here, layer, kTrainDown, kept(buffers.act.address(), sizes_.ffn_stride),
                               {here.down_sums, sizes_.hidden_stride});
    if (sizes_.keeps(layer, config_.n_layers)) {
        act(recorder, here, 0, n_rows);
    } else {
        // Down's low rows are read again, and with magnitudes its sums.
        layer_to_down(recorder, rows, layer, here, down.group.has_magnitudes());
        if (!down.group.has_magnitudes()) lows(recorder, down);
    }
    const TrainMatrix dstream{buffers.dstream.address(), sizes_.hidden_stride},
        dsums{buffers.dsums.address(), sizes_.hidden_stride};
    const TrainMatrix dact{buffers.dact.address(), sizes_.ffn_stride},
        dgate_up = kept(buffers.dgate_up.address(), sizes_.gate_up_stride);
    const TrainMatrix dnormed{buffers.dnormed.address(), sizes_.hidden_stride},
        dattention{buffers.dattention.address(), sizes_.attention_stride};

    group_backward(recorder, down, dstream, dsums, dact);
    kernels_.act(recorder, TrainDirection::kBackward,
                 {.y = here.gate_up,
                  .h = dact.address,
                  .dy = dgate_up.address,
                  .sums = 0,
                  .ffn = config_.intermediate_size,
                  .y_stride = sizes_.gate_up_stride,
                  .h_stride = sizes_.ffn_stride,
                  .rows = n_rows},
                 sizes_.act_type);
    kernels_.barrier(recorder);
    const GroupAt gate_up = group(rows, here, layer, kTrainGateUp, kept(here.middle_normed, sizes_.hidden_stride),
                                  kept(here.gate_up_sums, sizes_.gate_up_stride));
    group_backward(recorder, gate_up, dgate_up, dgate_up, dnormed);
    norm_backward(recorder, here.middle, gamma(w.ffn_norm, trained.post_attention_norm), trained.post_attention_norm,
                  n_rows);

    const GroupAt o = group(rows, here, layer, kTrainO, {here.attention, sizes_.attention_stride},
                            {here.o_sums, sizes_.hidden_stride});
    group_backward(recorder, o, dstream, dsums, dattention);
    attend_backward(recorder, rows, layer, here);

    const bool ends_here = layer == context_.first_trained_layer && !context_.model.trains_embedding();
    const bool wants_input = !ends_here || trained.input_norm.has_value();
    const TrainMatrix dqkv{buffers.dqkv.address(), sizes_.qkv_stride};
    const GroupAt qkv = group(rows, here, layer, kTrainQkv, kept(here.normed, sizes_.hidden_stride),
                              {here.qkv_sums, sizes_.qkv_stride});
    group_backward(recorder, qkv, dqkv, dqkv, wants_input ? dnormed : TrainMatrix{});
    if (wants_input)
        norm_backward(recorder, stream(layer), gamma(w.input_norm, trained.input_norm), trained.input_norm, n_rows);
}

TrainPass::LayerAt TrainPass::at(uint32_t layer) const {
    const uint32_t set_idx = sizes_.set_of(layer, config_.n_layers);
    const DeviceAddress set = context_.buffers.sets[set_idx].address();
    const LayerPlaces& places = sizes_.places;
    const DeviceAddress sums = context_.buffers.sums.address();
    const DeviceAddress qkv_sums = sizes_.keeps_qkv ? set + places.qkv_sums : context_.buffers.qkv_sums.address(),
                        qkv = sizes_.keeps_qkv ? set + places.qkv : qkv_sums;
    return {set + places.normed,
            qkv_sums,
            qkv,
            set + places.turned,
            set + places.lse,
            set + places.attention,
            sizes_.has_magnitudes[kTrainO] ? set + places.o_sums : sums,
            set + places.middle,
            set + places.middle_normed,
            set + places.gate_up_sums,
            set + places.gate_up,
            sizes_.has_magnitudes[kTrainDown] ? set + places.down_sums : sums,
            set_idx};
}

DeviceAddress TrainPass::stream(uint32_t layer) const {
    return context_.buffers.streams.address() + uint64_t{layer} * sizes_.n_rows * sizes_.hidden_stride * kFloat;
}

DeviceAddress TrainPass::gamma(const Vector& base, const std::optional<uint32_t>& trained) const {
    return trained ? context_.parameters.value(context_.parameters.layout().wholes[*trained]) : base.address();
}

void TrainPass::norm(gpu::Recorder& recorder, DeviceAddress x, DeviceAddress gamma, DeviceAddress y,
                     uint32_t n_rows) const {
    kernels_.norm(recorder, TrainDirection::kForward,
                  {.x = x,
                   .gamma = gamma,
                   .y = y,
                   .hidden = config_.hidden_size,
                   .x_stride = sizes_.hidden_stride,
                   .y_stride = sizes_.hidden_stride,
                   .eps = config_.rms_norm_eps},
                  n_rows, sizes_.act_type);
    kernels_.barrier(recorder);
}

void TrainPass::norm_backward(gpu::Recorder& recorder, DeviceAddress x, DeviceAddress gamma,
                              const std::optional<uint32_t>& trained, uint32_t n_rows) const {
    const DeviceAddress terms = trained ? context_.buffers.terms.address() : 0;
    kernels_.norm(recorder, TrainDirection::kBackward,
                  {.x = x,
                   .gamma = gamma,
                   .dy = context_.buffers.dnormed.address(),
                   .dx = context_.buffers.dstream.address(),
                   .terms = terms,
                   .hidden = config_.hidden_size,
                   .x_stride = sizes_.hidden_stride,
                   .y_stride = sizes_.hidden_stride,
                   .eps = config_.rms_norm_eps},
                  n_rows);
    kernels_.barrier(recorder);
    if (!trained) return;
    kernels_.column_sums(recorder, {.to = context_.parameters.gradient(context_.parameters.layout().wholes[*trained]),
                                    .a = terms,
                                    .n_columns = config_.hidden_size,
                                    .n_parts = 1,
                                    .rows = n_rows,
                                    .a_stride = sizes_.hidden_stride,
                                    .b_stride = 0,
                                    .scale = 1.0f});
    kernels_.barrier(recorder);
}

gpu::TrainHeadsParams TrainPass::heads_params(const TrainRows& rows, uint32_t layer, const LayerAt& here) const {
    const LayerWeights& w = context_.weights.layers[layer];
    const TrainLayer& trained = context_.model.layers[layer];
    return {.y = here.qkv,
            .turned = here.turned,
            .rope = context_.buffers.rope.address(),
            .turns = rows.tables_at + rows.tables.turns,
            .q_gamma = config_.qk_norm ? gamma(w.q_norm, trained.q_norm) : 0,
            .k_gamma = config_.qk_norm ? gamma(w.k_norm, trained.k_norm) : 0,
            .n_q_heads = config_.n_heads,
            .y_stride = sizes_.qkv_stride,
            .turned_stride = sizes_.has_flash ? sizes_.qkv_stride : sizes_.turned_stride,
            .eps = config_.rms_norm_eps,
            .n_turned_heads = config_.n_heads + config_.n_kv_heads,
            .pad = 0};
}

}  // namespace lorad::model
