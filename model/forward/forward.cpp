#include "model/forward/forward.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

#include "model/forward/forward_attention.h"
#include "model/forward/forward_embed.h"
#include "model/forward/forward_experts.h"
#include "model/forward/forward_outputs.h"

namespace lorad::model {
namespace {

// The recording of one step.
class Pass : private ExpertParts {
  public:
    Pass(gpu::Recorder& recorder, const ForwardContext& context, const StepPlan& plan)
        : ExpertParts(recorder, context, plan) {}

    void record() {
        const OutputPass outputs(recorder_, context_, plan_);
        if (shape_.part == StepPart::kDraw) {
            outputs.choose_by_rules();
            return;
        }
        if (shape_.changes) outputs.last_tokens();  // beside embed
        clear_counts();                             // beside embed
        record_embedding(recorder_, context_, shape_);
        switch (shape_.schedule) {
            case LayerSchedule::kSeparate: layers(); break;
            case LayerSchedule::kOneDispatch: decode_layers(); break;
            case LayerSchedule::kApart: layers_apart(); break;
            case LayerSchedule::kBetween: layers_between(); break;
        }
        if (shape_.output_bucket > 0) outputs.sample(x_, has_all_rows_);
    }

  private:
    void layers() {
        const AttentionPass attention(recorder_, context_, shape_);
        Input mixer_input = input_of(plan_.layers[0].qkv, scratch_.xn);
        if (weights_.ple_model.n != 0) per_layer_inputs();
        norm_first(mixer_input);
        for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
            Input ffn_input;
            if (!mix(layer, attention, mixer_input, ffn_input)) return;
            feed_forward(layer, ffn_input, mixer_input);
        }
    }

    // x += o(mixer(norm(x))), and the norm in front of the feed-forward, whose result is its input. False: nobody reads
    // more of the step than what the layer keeps.
    bool mix(uint32_t layer, const AttentionPass& attention, const Input& input, Input& ffn_input) {
        const LayerWeights& w = weights_.layers[layer];
        const LayerPlan& plan = plan_.layers[layer];
        const Mixer mixer = facts_[layer].mixer;
        const bool keeps_only = layer + 1 == config_.n_layers && shape_.output_bucket == 0;
        const Product in = linear(layer, input_group_of(mixer), w.qkv, input);
        switch (mixer) {
            case Mixer::kAttention: attend(layer, attention, in, keeps_only); break;
            case Mixer::kDeltaNet: mix_delta(layer, in, keeps_only); break;
            case Mixer::kShortConv: mix_conv(layer, in, keeps_only); break;
            case Mixer::kMamba: mix_mamba(layer, in, keeps_only); break;
        }
        if (keeps_only) return false;
        if (plan.keeps_rows) keep_rows_with_outputs(w.o, plan);
        ffn_input = input_of(plan.gate_up, scratch_.xn);
        if (plan.o.ends_in_stream()) {
            residual(w.o, plan.o, attention_, w.o_bias, w.ffn_norm, ffn_input);
        } else {
            const LoraGroup group = output_group_of(mixer);
            const Product o = linear(layer, group, w.o, attention_input(w.o, plan));
            add_norm(layer, group, o, w.o, w.o_bias, w.mixer_after_norm, ffn_norm(layer, ffn_input));
        }
        return true;
    }

    void attend(uint32_t layer, const AttentionPass& attention, Product qkv, bool keeps_only) {
        const LayerWeights& w = weights_.layers[layer];
        const LayerPlan& plan = plan_.layers[layer];
        const bool is_gated = facts_[layer].attention.output_gate;
        if (is_gated) qkv = sum_up(layer, kQkv, qkv, w.qkv, w.qkv_bias);
        if (keeps_only) {
            attention.keep(layer, consumer(qkv), split_stride(w.qkv, qkv.plan));
            return;
        }
        const bool in_fragments = plan.o_input == InputForm::kFragments;
        attention.attend(layer, consumer(qkv), split_stride(w.qkv, qkv.plan),
                         in_fragments ? std::optional(plan.o.x_order) : std::nullopt);
        if (is_gated) gate_attention(layer);
    }

    // x += down(act(gate(norm(x))) * up(norm(x))), and the norm in front of the next layer, whose result is its input.
    void feed_forward(uint32_t layer, const Input& input, Input& next_input) {
        const LayerWeights& w = weights_.layers[layer];
        const LayerPlan& plan = plan_.layers[layer];
        if (facts_[layer].ffn.kind == FeedForward::kExperts) {
            close(layer, experts(layer, input), hidden_rows_, no_bias_, next_input);
            return;
        }
        const Input down_input = input_of(plan.down, scratch_.act);
        if (plan.gate_up.is_gated()) {
            gated_product(layer, w, input, down_input);
        } else {
            const Product gate_up = linear(layer, kGateUp, w.gate_up, input);
            gated_act(layer, w, gate_up, down_input);
        }
        if (plan.down.ends_in_stream()) {
            next_input = input_of(plan_.layers[layer + 1].qkv, scratch_.xn);
            residual(w.down, plan.down, down_input.of_product(), w.down_bias, weights_.layers[layer + 1].input_norm,
                     next_input);
            return;
        }
        const Product down = linear(layer, kDown, w.down, down_input);
        if (facts_[layer].ffn.kind == FeedForward::kDenseAndExperts)
            close(layer, with_experts(layer, down), hidden_rows_, no_bias_, next_input);
        else
            close(layer, down, w.down, w.down_bias, next_input);
    }

    // Adds the feed-forward's result to the residual stream. The norm that follows is the next layer's; after the last
    // only rows with an output are normed.
    void close(uint32_t layer, const Product& sum, const Matrix& down, const Vector& bias, Input& next_input) {
        const LayerWeights& w = weights_.layers[layer];
        const bool is_last = layer + 1 == config_.n_layers;
        if (!is_last) next_input = input_of(plan_.layers[layer + 1].qkv, scratch_.xn);
        const NextNorm next = is_last ? NextNorm() : input_norm(layer + 1, next_input);
        if (facts_[layer].per_layer_input == 0) {
            add_norm(layer, kDown, sum, down, bias, w.ffn_after_norm, next);
            return;
        }
        const Input gate_input = input_of(plan_.layers[layer].ple_gate, scratch_.xn);
        add_norm(layer, kDown, sum, down, bias, w.ffn_after_norm, {.weight_type = w.ple_gate.type, .to = gate_input});
        per_layer_part(layer, gate_input, next);
    }

    // From here on the step has only the rows whose next token is wanted.
    void keep_rows_with_outputs(const Matrix& o, const LayerPlan& plan) {
        // Both go where the queries were; slack rows of the first are read.
        const uint64_t kept_attention_bytes =
            (uint64_t{shape_.output_bucket} + gpu::kSlackRows) * o.k_stride * sizeof(float);
        const DeviceAddress kept_attention = scratch_.q.address(), kept_x = kept_attention + kept_attention_bytes;
        gather(attention_, kept_attention, o.k_stride * gpu::bytes_of(act_type(o.type)));
        gather(x_, kept_x, hidden_stride() * sizeof(float));
        recorder_.barrier();
        attention_ = kept_attention;
        x_ = kept_x;
        rows_ = plan.rows;
        method_ = plan.method;
        has_all_rows_ = false;
        if (shape_.lora == gpu::LoraLevel::kNone) {
            rows_header_ = offsetof(gpu::StepHeader, n_logit_rows);  // nothing but their number is read of it
            return;
        }
        rows_header_ = layout_.kept;
        adapters_.keep_rows();
    }

    void gather(DeviceAddress from, DeviceAddress to, size_t row_bytes) {
        kernels_.rows.gather_rows(recorder_,
                                  {.n_rows = step_ + offsetof(gpu::StepHeader, n_logit_rows),
                                   .logit_rows = step_ + layout_.logit_rows,
                                   .from = from,
                                   .to = to,
                                   .n_words = static_cast<uint32_t>(row_bytes / 16),
                                   .pad = 0},
                                  shape_.output_bucket);
    }

    // All layers by one dispatch, for one row.
    void decode_layers() {
        const bool lora = shape_.lora != gpu::LoraLevel::kNone;
        kernels_.persistent.decode_layers(
            recorder_, decode_params(0, config_.n_layers),
            decode_layers_shape(config_, weights_, shape_.attention_splits, lora, shape_.lora_type));
        if (shape_.output_bucket > 0) recorder_.barrier();
    }

    // Attention by dispatches of its own, what lies between those of two layers by one, which record_behind(layer)
    // records.
    template <typename RecordBehind>
    void attend_and(const RecordBehind& record_behind) {
        const AttentionPass attention(recorder_, context_, shape_);
        norm_first({});
        const Matrix& first_qkv = weights_.layers[0].qkv;
        Product qkv = linear(0, kQkv, first_qkv, input_of(plan_.layers.front().qkv, scratch_.xn));
        for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
            attention.attend(layer, consumer(qkv), split_stride(weights_.layers[layer].qkv, qkv.plan));
            record_behind(layer);
            recorder_.barrier();
            qkv.plan.n_splits = 1;
        }
    }

    // One row behind a long context.
    void layers_apart() {
        attend_and([&](uint32_t layer) {
            kernels_.persistent.decode_behind(recorder_,
                                              {.layers = decode_params(layer, std::min(2u, config_.n_layers - layer)),
                                               .attention = scratch_.attention.address(),
                                               .partials = scratch_.attention_partials.address(),
                                               .y = scratch_.y.address()},
                                              decode_layers_shape(config_, weights_, shape_.attention_splits),
                                              act_type(weights_.layers[layer].o.type));
        });
    }

    // A few rows.
    void layers_between() {
        attend_and([&](uint32_t layer) {
            const LayerWeights& w = weights_.layers[layer];
            const LayerWeights* next = layer + 1 < config_.n_layers ? &weights_.layers[layer + 1] : nullptr;
            if (w.o.is_packed()) {
                between_packed(layer, w, next);
                return;
            }
            auto params = between_params<gpu::DecodeRowsParams>(w, next);
            params.o = address_of(w.o);
            params.gate_up = address_of(w.gate_up);
            params.down = address_of(w.down);
            params.qkv = next != nullptr ? address_of(next->qkv) : 0;
            kernels_.persistent.decode_rows(recorder_, params, decode_rows_shape(config_, weights_));
        });
    }

    void between_packed(uint32_t layer, const LayerWeights& w, const LayerWeights* next) {
        auto params = between_params<gpu::DecodeBricksParams>(w, next);
        params.y_stride = next != nullptr ? next->qkv.n_padded : 0;
        point_at_bricks(weights_, layer, params);
        kernels_.persistent.decode_bricks(recorder_, params,
                                          *decode_bricks_shape(config_, weights_, layer, shape_.row_bucket));
    }

    // Without the matrices.
    template <typename Params>
    Params between_params(const LayerWeights& w, const LayerWeights* next) const {
        return {.n_rows = rows_state(),
                .attention = attention_,
                .stream = x_,
                .xn = scratch_.xn.address(),
                .act = scratch_.act.address(),
                .y = scratch_.y.address(),
                .norms = scratch_.norms.address(),
                .sync = context_.decode_rows->sync(),
                .given_up = context_.decode_rows->given_up().address(),
                .post_attention_norm = w.ffn_norm.address(),
                .next_norm = next != nullptr ? next->input_norm.address() : 0,
                .o_bias = address_of(w.o_bias),
                .down_bias = address_of(w.down_bias),
                .eps = config_.rms_norm_eps};
    }

    gpu::DecodeLayersParams decode_params(uint32_t first_layer, uint32_t n_layers) const {
        return {.step = step_,
                .layers = context_.decode_table(shape_.weight_set) + first_layer * sizeof(gpu::DecodeLayer),
                .block_tables = step_ + layout_.block_tables,
                .rope = context_.rope_tables.tables,
                .x = scratch_.x.address(),
                .channels = context_.decode_layers->channels(),
                .sync = context_.decode_layers->sync(),
                .given_up = context_.decode_layers->given_up().address(),
                .n_layers = n_layers,
                .max_polls = 0,
                .eps = config_.rms_norm_eps,
                .scale = facts_[0].attention.scale,
                .lora_table = context_.lora_table.address(),
                .lora_slot_stride = context_.lora_slot_stride(),
                .window_step = shape_.window_rows ? static_cast<uint32_t>(layout_.window_header) : 0};
    }
};

}  // namespace

Status record_forward(gpu::Recorder& recorder, const ForwardContext& context, const StepPlan& plan) {
    Pass(recorder, context, plan).record();
    return context.kernels.status();
}

}  // namespace lorad::model
