#include "model/forward.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "model/forward_adapters.h"
#include "model/forward_attention.h"
#include "model/forward_outputs.h"

namespace lorad::model {
namespace {

using gpu::DeviceAddress;
using gpu::ScalarType;

// The recording of one step. Letters as in gpu/kernels/kernels.h: T rows, H hidden, Q/K heads, D head dim, F ffn, V vocabulary.
class Pass {
  public:
    Pass(gpu::Recorder& recorder, const ForwardContext& context, const StepPlan& plan)
        : recorder_(recorder), kernels_(context.kernels), config_(context.config), weights_(context.weights),
          scratch_(context.scratch), context_(context), plan_(plan), shape_(plan.shape), layout_(plan.shape),
          step_(context.scratch.step_state.address()), rows_(plan.shape.row_bucket), x_(context.scratch.x.address()),
          attention_(context.scratch.attention.address()), method_(plan.shape.method), adapters_(recorder, context, plan.shape) {}

    void record() {
        const OutputPass outputs(recorder_, context_, plan_);
        if (shape_.part == StepPart::kDraw) {
            outputs.choose_by_rules();
            return;
        }
        if (shape_.changes) outputs.last_tokens();  // beside embed
        embed();
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
        Input qkv_input = input_of(plan_.layers[0].qkv, scratch_.xn);
        norm_first(qkv_input);
        for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
            const LayerWeights& w = weights_.layers[layer];
            const LayerPlan& plan = plan_.layers[layer];
            const bool is_last = layer + 1 == config_.n_layers;

            // Attention: x += o(attention(rope(qkv(norm(x)))))
            const Product qkv = linear(layer, kQkv, w.qkv, qkv_input);
            if (is_last && shape_.output_bucket == 0) {  // nobody reads more of it than its keys and values
                attention.keep(layer, consumer(qkv), split_stride(w.qkv, qkv.plan));
                return;
            }
            const bool in_blocks = plan.o_input == InputForm::kBlocks;
            attention.attend(layer, consumer(qkv), split_stride(w.qkv, qkv.plan), in_blocks ? std::optional(plan.o.x_order) : std::nullopt);
            if (plan.keeps_rows) keep_rows_with_outputs(w.o, plan);
            Input gate_up_input = input_of(plan.gate_up, scratch_.xn);
            if (plan.o_residual) {
                residual(w.o, *plan.o_residual, attention_, w.o_bias, w.post_attention_norm, gate_up_input);
            } else {
                const Product o = linear(layer, kO, w.o, attention_input(w.o, plan));
                add_norm(layer, gpu::kLoraO, o, w.o, w.o_bias,
                         {w.post_attention_norm.address(), context_.slot_norms(shape_, layer, LoraTable::Norm::kPostAttention), w.gate_up.type, gate_up_input});
            }

            // MLP: x += down(act(gate(norm(x))) * up(norm(x)))
            const Input down_input = input_of(plan.down, scratch_.act);
            if (plan.is_gated) {
                gated_product(layer, w, gate_up_input, down_input);
            } else {
                const Product gate_up = linear(layer, kGateUp, w.gate_up, gate_up_input);
                gated_act(layer, w, gate_up, down_input);
            }
            // The norm that follows belongs to the next layer; after the last one only rows with an output are normed.
            if (!is_last) qkv_input = input_of(plan_.layers[layer + 1].qkv, scratch_.xn);
            if (plan.down_residual) {
                residual(w.down, *plan.down_residual, down_input.of_product(), w.down_bias, weights_.layers[layer + 1].input_norm, qkv_input);
                continue;
            }
            const Product down = linear(layer, kDown, w.down, down_input);
            add_norm(layer, gpu::kLoraDown, down, w.down, w.down_bias, is_last ? NextNorm() : input_norm(layer + 1, qkv_input));
        }
    }

    // From here on the step has no other rows than those whose next token is wanted.
    void keep_rows_with_outputs(const Matrix& o, const LayerPlan& plan) {
        // Both go where the queries were; slack rows of the first are read.
        const uint64_t kept_attention_bytes = (uint64_t{shape_.output_bucket} + gpu::kSlackRows) * o.k_stride * sizeof(float);
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
    // Header and rows of those that are worked on.
    DeviceAddress rows_state() const {
        static_assert(offsetof(gpu::StepHeader, n_rows) == 0);
        return step_ + rows_header_;
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
        kernels_.persistent.decode_layers(recorder_, decode_params(0, config_.n_layers), decode_layers_shape(config_, weights_, shape_.attention_splits, lora, shape_.lora_type));
        if (shape_.output_bucket > 0) recorder_.barrier();
    }

    // Attention by dispatches of its own, what lies between those of two layers by one, which record_behind(layer) records.
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
                                   decode_layers_shape(config_, weights_, shape_.attention_splits), act_type(weights_.layers[layer].o.type));
        });
    }

    // A few rows.
    void layers_between() {
        attend_and([&](uint32_t layer) {
            const LayerWeights& w = weights_.layers[layer];
            const LayerWeights* next = layer + 1 < config_.n_layers ? &weights_.layers[layer + 1] : nullptr;
            kernels_.persistent.decode_rows(recorder_,
                                 {.n_rows = rows_state(),
                                  .o = address_of(w.o),
                                  .gate_up = address_of(w.gate_up),
                                  .down = address_of(w.down),
                                  .qkv = next != nullptr ? address_of(next->qkv) : 0,
                                  .attention = attention_,
                                  .stream = x_,
                                  .xn = scratch_.xn.address(),
                                  .act = scratch_.act.address(),
                                  .y = scratch_.y.address(),
                                  .norms = scratch_.norms.address(),
                                  .sync = context_.decode_rows->sync(),
                                  .given_up = context_.decode_rows->given_up_address(),
                                  .post_attention_norm = w.post_attention_norm.address(),
                                  .next_norm = next != nullptr ? next->input_norm.address() : 0,
                                  .o_bias = address_of(w.o_bias),
                                  .down_bias = address_of(w.down_bias),
                                  .eps = config_.rms_norm_eps,
                                  .max_polls = 0},
                                 decode_rows_shape(config_, weights_));
        });
    }

    gpu::DecodeLayersParams decode_params(uint32_t first_layer, uint32_t n_layers) const {
        return {.step = step_,
                .layers = context_.decode_table(shape_.weight_set) + first_layer * sizeof(gpu::DecodeLayer),
                .block_tables = step_ + layout_.block_tables,
                .rope = context_.rope_table,
                .x = scratch_.x.address(),
                .channels = context_.decode_layers->channels(),
                .sync = context_.decode_layers->sync(),
                .given_up = context_.decode_layers->given_up_address(),
                .n_layers = n_layers,
                .max_polls = 0,
                .eps = config_.rms_norm_eps,
                .scale = attention_scale(config_),
                .lora_table = context_.lora_table.address(),
                .lora_slot_stride = context_.lora_slot_stride(),
                .pad = 0};
    }

    // A recorded product of the layer's input.
    struct Product {
        gpu::MatmulPlan plan;
        bool has_adapters = false;  // its sums include what the rows' adapters add
    };

    // How a product is to be done, and what it reads: in rows, in blocks (gpu/kernels/products/activation_blocks.h) or, where adapters' shrinks read the rows, both.
    struct Input {
        gpu::MatmulPlan plan;
        DeviceAddress rows = 0, blocks = 0;
        uint32_t norm_tiles = 0;  // of residual(), which the norm's factors are still to be found from; 0: they are in it

        DeviceAddress of_product() const { return blocks != 0 ? blocks : rows; }
    };
    Input input_of(const gpu::MatmulPlan& plan, const gpu::Buffer& buffer) const {
        if (!plan.x_in_blocks) return {.plan = plan, .rows = buffer.address()};
        const bool reads_rows = shape_.has_adapters() && method_ != AdapterMethod::kJoined;
        return {.plan = plan, .rows = reads_rows ? buffer.address() : 0, .blocks = blocks_of(buffer)};
    }

    // Of o, in the form that it is planned for.
    Input attention_input(const Matrix& o, const LayerPlan& plan) {
        if (plan.o_input == InputForm::kRows) return {.plan = plan.o, .rows = attention_};
        const DeviceAddress blocks = blocks_of(scratch_.attention);
        if (plan.o_input == InputForm::kArranged) {
            kernels_.products.arrange_blocks(recorder_, {.n_rows = rows_state(), .rows = attention_, .blocks = blocks, .stride = o.k_stride, .pad = 0}, rows_, plan.o.x_order);
            recorder_.barrier();
        }
        return {.plan = plan.o, .rows = attention_, .blocks = blocks};
    }

    // The norm that comes with the sum of a residual; without gamma there is none.
    struct NextNorm {
        DeviceAddress gamma = 0;
        DeviceAddress slot_norms = 0;
        ScalarType weight_type = ScalarType::kF32;  // of the matrix that reads its result,
        Input to = {};                              // from here
    };
    NextNorm input_norm(uint32_t layer, const Input& to) const {
        const LayerWeights& w = weights_.layers[layer];
        return {w.input_norm.address(), context_.slot_norms(shape_, layer, LoraTable::Norm::kInput), w.qkv.type, to};
    }

    uint32_t hidden_stride() const { return gpu::padded(config_.hidden_size); }
    uint32_t q_stride() const { return gpu::padded(config_.q_size()); }
    uint32_t ffn_stride() const { return gpu::padded(config_.intermediate_size); }
    template <typename MatrixOrVector>
    DeviceAddress address_of(const MatrixOrVector& weights) const {
        return context_.address_of(weights, shape_.weight_set);
    }
    ScalarType act_type(ScalarType weight_type) const { return kernels_.act_type(weight_type); }
    gpu::ConsumerShape consumer(const Product& product) const {
        return {.rows = rows_,
                .n_splits = product.plan.n_splits,
                .lora = product.has_adapters ? gpu::LoraLevel::kNone : shape_.lora,
                .few_runs = method_ == AdapterMethod::kFewRuns,
                .whole_rows = product.plan.whole_rows};
    }

    void embed() {
        if (shape_.extras) {
            embed_extras();
            return;
        }
        kernels_.rows.embed(recorder_,
                       {.step = step_,
                        .table = weights_.embedding.buffer.address(),
                        .sampled = scratch_.sampled.address(),
                        .x = scratch_.x.address(),
                        .hidden = config_.hidden_size,
                        .table_stride = weights_.embedding.k_stride,
                        .x_stride = hidden_stride(),
                        .vocab = config_.vocab_size,
                        .scale = 1.0f},
                       weights_.embedding.type, shape_.row_bucket);
        recorder_.barrier();
    }

    void embed_extras() {
        kernels_.lora.embed_extras(recorder_,
                              {.step = step_,
                               .uses = step_ + layout_.uses,
                               .extras = context_.lora_table.extras_address(),
                               .table = weights_.embedding.buffer.address(),
                               .sampled = scratch_.sampled.address(),
                               .x = scratch_.x.address(),
                               .hidden = config_.hidden_size,
                               .table_stride = weights_.embedding.k_stride,
                               .x_stride = hidden_stride(),
                               .vocab = config_.vocab_size,
                               .scale = 1.0f,
                               .pad = 0},
                              weights_.embedding.type, shape_.row_bucket);
        recorder_.barrier();
    }

    void norm_first(const Input& to) {
        const NextNorm first = input_norm(0, {});
        kernels_.rows.rms_norm(recorder_,
                          {.n_rows = step_ + offsetof(gpu::StepHeader, n_rows),
                           .x = scratch_.x.address(),
                           .gamma = first.gamma,
                           .y = scratch_.xn.address(),
                           .y_blocks = to.blocks,
                           .logit_rows = 0,
                           .step = step_,
                           .slot_norms = first.slot_norms,
                           .norms = plan_.defers_norms ? scratch_.norms.address() : 0,
                           .hidden = config_.hidden_size,
                           .x_stride = hidden_stride(),
                           .y_stride = hidden_stride(),
                           .eps = config_.rms_norm_eps},
                          act_type(first.weight_type), shape_.row_bucket, to.plan.x_order);
        recorder_.barrier();
    }

    // The base matrix product and, beside it without a barrier, the adapters' shrink, with expanded the expand behind both; or the shrink, with joined adapters
    // also lora_join, and after it the product with the adapters.
    Product linear(uint32_t layer, LoraGroup group, const Matrix& w, const Input& x) {
        const gpu::MatmulPlan& plan = x.plan;
        const gpu::MatmulParams product = product_params(w, x.of_product(), scratch_.y, plan);
        if (method_ == AdapterMethod::kJoined) {
            CHECK(kernels_.products.joins_adapters(plan));
            adapters_.join(layer, group, x.blocks, w, rows_);
            kernels_.products.matmul_joined(recorder_, adapters_.with_joined(product, group), plan, gpu::kLoraGroupModules[group]);
            recorder_.barrier();
            return {plan, true};
        }
        if (method_ == AdapterMethod::kLongRuns && kernels_.products.adds_adapters(plan)) {
            adapters_.shrink(layer, group, x.rows, w, rows_, gpu::ShrinkPlace::kFirst);
            recorder_.barrier();
            kernels_.products.matmul_with_adapters(recorder_, adapters_.with_adapters(product, layer, group), plan);
            recorder_.barrier();
            return {plan, true};
        }
        const gpu::ShrinkPlace place = gpu::shrink_place(plan);
        if (place == gpu::ShrinkPlace::kFirst) adapters_.shrink(layer, group, x.rows, w, rows_, place);
        if (x.norm_tiles > 0) kernels_.products.matmul_deferred(recorder_, behind_residual(product), plan, x.norm_tiles);
        else kernels_.products.matmul(recorder_, product, plan, next_weights(layer, group));
        if (place == gpu::ShrinkPlace::kBehindProduct) adapters_.shrink(layer, group, x.rows, w, rows_, place);
        recorder_.barrier();
        if (method_ != AdapterMethod::kExpanded) return {plan, false};
        adapters_.expand(layer, group, w);
        recorder_.barrier();
        return {plan, true};
    }

    // What the product behind this group's reads. Without adapters asking for it gains nothing (docs/PERFORMANCE.md, "Addresses of what comes next").
    gpu::PagesAhead next_weights(uint32_t layer, LoraGroup group) const {
        if (shape_.lora == gpu::LoraLevel::kNone) return {};
        const LayerWeights& w = weights_.layers[layer];
        switch (group) {
            case kQkv: return pages_of(w.o);
            case kO: return pages_of(w.gate_up);
            case kGateUp: return pages_of(w.down);
            case kDown: return pages_of(layer + 1 < config_.n_layers ? weights_.layers[layer + 1].qkv : weights_.output());
        }
        return {};
    }
    gpu::PagesAhead pages_of(const Matrix& w) const { return gpu::pages_of(address_of(w), uint64_t{w.n_padded} * w.row_bytes()); }

    void gated_product(uint32_t layer, const LayerWeights& w, const Input& x, const Input& act) {
        const gpu::MatmulPlan& plan = x.plan;
        gpu::MatmulParams product = product_params(w.gate_up, x.of_product(), scratch_.act, plan);
        product.y = act.rows;
        product.y_blocks = act.blocks;
        product.n = config_.intermediate_size;
        product.y_stride = ffn_stride();
        if (method_ == AdapterMethod::kJoined) {
            adapters_.join(layer, kGateUp, x.blocks, w.gate_up, rows_);
            kernels_.products.matmul_gated_joined(recorder_, adapters_.with_joined(product, kGateUp), plan, gpu::kLoraGroupModules[kGateUp], act.plan.x_order);
        } else if (method_ == AdapterMethod::kGatedProduct) {
            kernels_.products.matmul_gated_lora(recorder_,
                                       {.product = product,
                                        .x_rows = x.rows,
                                        .lora_layer = context_.lora_layer(layer),
                                        .low = scratch_.low.address(),
                                        .sync = context_.gated_lora->sync(),
                                        .given_up = context_.gated_lora->given_up_address(),
                                        .lora_slot_stride = context_.lora_slot_stride(),
                                        .max_polls = 0,
                                        .ahead = next_weights(layer, kGateUp)},
                                       plan, act.plan.x_order);
        } else if (shape_.has_adapters()) {
            adapters_.shrink(layer, kGateUp, x.rows, w.gate_up, rows_, gpu::ShrinkPlace::kFirst);
            recorder_.barrier();
            kernels_.products.matmul_gated_with_adapters(recorder_, adapters_.with_adapters(product, layer, kGateUp), plan, gpu::Activation::kSilu, act.plan.x_order);
        } else if (x.norm_tiles > 0) {
            kernels_.products.matmul_gated_deferred(recorder_, behind_residual(product), plan, x.norm_tiles, gpu::Activation::kSilu);
        } else {
            kernels_.products.matmul_gated(recorder_, product, plan, gpu::Activation::kSilu, act.plan.x_order);
        }
        recorder_.barrier();
    }

    gpu::MatmulParams product_params(const Matrix& w, DeviceAddress x, const gpu::Buffer& y, const gpu::MatmulPlan& plan) const {
        return matmul_params(w, address_of(w), x, y, plan, rows_state());
    }

    // Of o or down, in front of the norm with these weights, whose result goes to `next`.
    void residual(const Matrix& w, const gpu::ResidualPlan& plan, DeviceAddress input, const Vector& bias, const Vector& gamma, Input& next) {
        next.norm_tiles = plan.n_tiles;
        kernels_.products.matmul_residual(recorder_,
                                 {.n_rows = rows_state(),
                                  .w = address_of(w),
                                  .x = input,
                                  .bias = address_of(bias),
                                  .stream = x_,
                                  .gamma = gamma.address(),
                                  .xn = next.rows,
                                  .norms = scratch_.norms.address(),
                                  .w_stride = w.k_stride,
                                  .stream_stride = hidden_stride(),
                                  .xn_stride = hidden_stride(),
                                  .pad = 0},
                                 plan);
        recorder_.barrier();
    }
    gpu::MatmulDeferredParams behind_residual(const gpu::MatmulParams& product) const {
        return {.product = product, .norms = scratch_.norms.address(), .hidden = config_.hidden_size, .eps = config_.rms_norm_eps};
    }

    void add_norm(uint32_t layer, uint32_t module, const Product& product, const Matrix& w, const Vector& bias,
                  const NextNorm& norm) {
        kernels_.rows.add_norm(recorder_,
                          {.step = rows_state(),
                           .y = scratch_.y.address(),
                           .bias = address_of(bias),
                           .low = scratch_.low.address(),
                           .lora_layer = context_.lora_layer(layer),
                           .uses = step_ + layout_.uses,
                           .x = x_,
                           .gamma = norm.gamma,
                           .slot_norms = norm.slot_norms,
                           .xn = norm.to.rows,
                           .xn_blocks = norm.to.blocks,
                           .lora_slot_stride = context_.lora_slot_stride(),
                           .lora_module = module,
                           .hidden = config_.hidden_size,
                           .y_stride = w.n_padded,
                           .split_stride = split_stride(w, product.plan),
                           .x_stride = hidden_stride(),
                           .xn_stride = hidden_stride(),
                           .eps = config_.rms_norm_eps},
                          consumer(product), act_type(norm.weight_type), norm.to.plan.x_order);
        recorder_.barrier();
    }

    void gated_act(uint32_t layer, const LayerWeights& w, const Product& product, const Input& act) {
        kernels_.rows.gated_act(recorder_,
                           {.step = rows_state(),
                            .y = scratch_.y.address(),
                            .bias = address_of(w.gate_up_bias),
                            .low = scratch_.low.address(),
                            .lora_layer = context_.lora_layer(layer),
                            .uses = step_ + layout_.uses,
                            .act = act.rows,
                            .act_blocks = act.blocks,
                            .lora_slot_stride = context_.lora_slot_stride(),
                            .ffn = config_.intermediate_size,
                            .y_stride = w.gate_up.n_padded,
                            .split_stride = split_stride(w.gate_up, product.plan),
                            .act_stride = ffn_stride()},
                           consumer(product), gpu::Activation::kSilu, act_type(w.down.type), act.plan.x_order);
        recorder_.barrier();
    }

    gpu::Recorder& recorder_;
    gpu::KernelSet& kernels_;
    const ModelConfig& config_;
    const ModelWeights& weights_;
    const Scratch& scratch_;
    const ForwardContext& context_;
    const StepPlan& plan_;
    const StepShape& shape_;
    const StepLayout layout_;
    const DeviceAddress step_;

    // Of the rows that are worked on, see keep_rows_with_outputs().
    uint32_t rows_;
    DeviceAddress x_, attention_;
    bool has_all_rows_ = true;
    uint64_t rows_header_ = 0;  // where the step state has their header, with their number in front
    AdapterMethod method_;
    AdapterPass adapters_;
};

}  // namespace

Status record_forward(gpu::Recorder& recorder, const ForwardContext& context, const StepPlan& plan) {
    Pass(recorder, context, plan).record();
    return context.kernels.status();
}

}  // namespace lorad::model
