#include "model/step/step_plan.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "gpu/kernels/launch.h"
#include "model/config/topology.h"
#include "model/forward/scratch.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

// Rows from which on a product by warpgroups saves more than it costs to arrange its input.
constexpr uint32_t kArrangedRowsMin = 128;

// Beside Llama's layers (topology.h), where norms are deferred.
constexpr uint32_t kDeferredNormsSupport = kFeatureRopeByLayer | kFeatureOddPairs | kFeaturePositionScale |
                                           kFeatureSoftcap | kFeatureEmbedScale | kFeatureScoreScale | kFeatureLogits;
gpu::MatmulPlan plan_product_in(const gpu::ProductPlanner& products, const Matrix& w, const ProductUse& use,
                                uint32_t splits_max, bool is_packed) {
    if (!is_packed)
        return products.plan_matmul(w.n, w.k, w.type, use.rows, splits_max, use.may_be_in_blocks, use.adds_long_runs,
                                    use.leaves_room);
    gpu::PackedShape shape{.n = w.n, .k = w.k, .type = w.type, .formats = 0, .align = w.n};
    for (const MatrixPart& part : w.parts) {
        shape.formats |= 1u << gpu::number_of(part.format);
        shape.align = std::gcd(std::gcd(shape.align, part.row_begin), part.n);
    }
    return products.plan_packed(shape, {.rows = use.rows,
                                        .max_splits = splits_max,
                                        .may_be_in_blocks = use.may_be_in_blocks,
                                        .adds_adapters = use.adds_long_runs,
                                        .leaves_room = use.leaves_room,
                                        .may_unpack = use.may_unpack});
}

class PlanMaker {
  public:
    PlanMaker(const gpu::KernelPlanner& kernels, const ModelConfig& config, const ModelWeights& weights,
              const MergedWeights* merged, const StepShape& shape)
        : kernels_(kernels),
          config_(config),
          weights_(weights),
          merged_(merged),
          shape_(shape),
          plan_{.shape = shape} {}

    StepPlan plan() {
        if (shape_.part == StepPart::kDraw) return plan_;
        plan_.defers_norms = shape_.schedule == LayerSchedule::kBetween ||
                             (shape_.schedule == LayerSchedule::kSeparate && may_defer_norms());
        if (shape_.schedule == LayerSchedule::kSeparate) {
            for (uint32_t layer = 0; layer < config_.n_layers; ++layer) plan_.layers.push_back(plan_layer(layer));
        } else if (shape_.schedule != LayerSchedule::kOneDispatch) {
            plan_.layers.push_back({.qkv = product(weights_.layers.front().qkv, of_step(false))});
        }
        if (weights_.ple_model.n != 0) plan_.ple_model = product(weights_.ple_model, of_step(false));
        if (shape_.output_bucket > 0) plan_output();
        return std::move(plan_);
    }

  private:
    struct Rows {
        uint32_t n = 0;
        AdapterMethod method = AdapterMethod::kConsumers;
    };
    ProductUse use_of(const Rows& rows, bool may_be_in_blocks) const {
        return {.rows = rows.n,
                .may_be_in_blocks = may_be_in_blocks,
                .adds_long_runs = rows.method == AdapterMethod::kLongRuns,
                .leaves_room = shape_.has_adapters() && rows.method != AdapterMethod::kJoined};
    }
    ProductUse of_step(bool may_be_in_blocks) const {
        return use_of({shape_.row_bucket, shape_.method}, may_be_in_blocks);
    }
    gpu::MatmulPlan product(const Matrix& w, const ProductUse& use) const {
        return plan_product(kernels_.products, w, use, is_packed(w, merged_));
    }

    LayerPlan plan_layer(uint32_t layer) const {
        const LayerFacts facts = config_.layer(layer);
        const LayerWeights& w = weights_.layers[layer];
        LayerPlan plan{.qkv = product(w.qkv, of_step(true)), .rows = shape_.row_bucket, .method = shape_.method};
        if (layer + 1 == config_.n_layers) {
            if (shape_.output_bucket == 0) return plan;  // nobody reads more of it than its keys and values
            plan.keeps_rows = keeps_rows_with_outputs();
        }
        if (plan.keeps_rows) {
            plan.rows = shape_.output_bucket;
            plan.method = AdapterMethod::kConsumers;
        }
        const Rows rows{plan.rows, plan.method};
        plan_o(facts, w, rows, plan);
        const std::optional<gpu::MatmulPlan> gated = gated_product(facts, w, rows);
        plan.is_gated = gated.has_value();
        if (facts.ffn.kind == FeedForward::kExperts) {
            plan_experts(w, rows, plan);
            return plan;
        }
        plan.gate_up = gated ? *gated : product(w.gate_up, use_of(rows, true));
        // gated_act on matrices writes rows alone
        const bool act_may_be_in_blocks = plan.is_gated || rows.method != AdapterMethod::kFewRuns;
        plan.down = product(w.down, use_of(rows, act_may_be_in_blocks));
        if (facts.ffn.kind == FeedForward::kDenseAndExperts) plan.router = product(w.router, use_of(rows, false));
        if (w.ple_gate.n != 0) {
            plan.ple_gate = product(w.ple_gate, use_of(rows, false));
            plan.ple_projection = product(w.ple_projection, use_of(rows, false));
        }
        if (plan_.defers_norms && !plan.keeps_rows) {
            plan.o_residual = residual(w.o);
            if (layer + 1 < config_.n_layers) plan.down_residual = residual(w.down);
        }
        return plan;
    }

    // The router and the experts read rows.
    void plan_experts(const LayerWeights& w, const Rows& rows, LayerPlan& plan) const {
        plan.router = product(w.router, use_of(rows, false));
        if (w.shared_gate.n != 0) plan.shared_gate = product(w.shared_gate, use_of(rows, false));
        if (w.gate_up.n == 0) return;
        plan.gate_up = product(w.gate_up, use_of(rows, false));
        plan.down = product(w.down, use_of(rows, false));
    }

    // Attention may write blocks for it; if it writes rows, these may be arranged.
    void plan_o(const LayerFacts& facts, const LayerWeights& w, const Rows& rows, LayerPlan& plan) const {
        const bool shrink_reads_rows = shape_.has_adapters() && rows.method != AdapterMethod::kJoined;
        const bool may_have_blocks = facts.mixer == Mixer::kAttention && !facts.attention.output_gate &&
                                     attention_writes_blocks(facts.attention) && !plan.keeps_rows &&
                                     !plan_.defers_norms && (!shrink_reads_rows || !shape_.lone_rows);
        if (may_have_blocks) {
            plan.o = product(w.o, use_of(rows, true));
            plan.o_input = InputForm::kBlocks;
            if (plan.o.x_in_blocks) return;
        }
        plan.o = product(w.o, use_of(rows, false));
        plan.o_input = InputForm::kRows;
        if (rows.n < kArrangedRowsMin || plan.keeps_rows) return;
        const gpu::MatmulPlan arranged = product(w.o, use_of(rows, true));
        if (arranged.variant != gpu::MatmulVariant::kWarpgroup) return;
        plan.o = arranged;
        plan.o_input = InputForm::kArranged;
    }

    bool attention_writes_blocks(const AttentionFacts& attention) const {
        if (shape_.lone_rows) return shape_.attention_splits == 1;
        return !shape_.tiles && kernels_.attention.attends_in_blocks(attention_shape(attention, shape_),
                                                                     kernels_.act_type(weights_.layers.front().o.type));
    }

    // Of gate_up and the activation in one product, where that can be and is faster.
    std::optional<gpu::MatmulPlan> gated_product(const LayerFacts& facts, const LayerWeights& w,
                                                 const Rows& rows) const {
        if (facts.ffn.clamp_limit != 0.0f || facts.ffn.kind != FeedForward::kDense) return std::nullopt;
        if (address_of(w.gate_up_bias, merged_) != 0 || w.gate_up_bias.n != 0 ||
            kernels_.act_type(w.down.type) != w.gate_up.type)
            return std::nullopt;
        const gpu::ProductPlanner& products = kernels_.products;
        const bool long_runs = rows.method == AdapterMethod::kLongRuns;
        const ProductUse use{.rows = rows.n,
                             .may_be_in_blocks = true,
                             .adds_long_runs = long_runs,
                             .leaves_room = use_of(rows, true).leaves_room};
        const std::optional<gpu::MatmulPlan> plan = plan_gated_product(
            products, w.gate_up, facts.ffn.size, use, kProductSplitsMax, is_packed(w.gate_up, merged_));
        if (!plan) return std::nullopt;
        // Programs of warpgroups know SiLU alone.
        const bool is_silu = facts.ffn.activation == gpu::Activation::kSilu;
        if (!is_silu && plan->variant == gpu::MatmulVariant::kWarpgroup) return std::nullopt;
        // What only writes blocks needs a reader of blocks.
        if (plan->variant == gpu::MatmulVariant::kWarpgroup && !product(w.down, use_of(rows, true)).x_in_blocks)
            return std::nullopt;
        if (!shape_.has_adapters()) return plan;
        switch (rows.method) {
            case AdapterMethod::kGatedProduct:
                return products.gates_lora(*plan, facts.ffn.size, w.gate_up.k) ? plan : std::nullopt;
            case AdapterMethod::kJoined: return products.joins_adapters(*plan) ? plan : std::nullopt;
            case AdapterMethod::kLongRuns: return products.adds_adapters_gated(*plan) ? plan : std::nullopt;
            case AdapterMethod::kConsumers:
            case AdapterMethod::kFewRuns:
            case AdapterMethod::kExpanded: return std::nullopt;
        }
        return std::nullopt;
    }

    std::optional<gpu::ResidualPlan> residual(const Matrix& w) const {
        return is_packed(w, merged_) ? std::nullopt
                                     : kernels_.products.plan_residual(w.n, w.k, w.type, shape_.row_bucket);
    }

    // Whether o and down end in the residual stream, and the products behind them apply the norms' factors: no dispatch
    // between them then.
    bool may_defer_norms() const {
        if (shape_.has_adapters() || shape_.extras || !topology_of(config_).has_only(kDeferredNormsSupport))
            return false;
        // What one matrix' product writes another one's reads, also across layers.
        const gpu::ScalarType type = weights_.layers[0].qkv.type;
        return std::ranges::all_of(weights_.layers, [&](const LayerWeights& w) {
            const bool has_one_type =
                std::ranges::all_of(products_of(w), [&](const Matrix* matrix) { return matrix->type == type; });
            const std::optional<gpu::MatmulPlan> gated =
                gated_product(config_.layer(0), w, {shape_.row_bucket, shape_.method});
            return has_one_type && residual(w.o) && residual(w.down) &&
                   kernels_.products.may_follow_residual(gated ? *gated : product(w.gate_up, of_step(false))) &&
                   kernels_.products.may_follow_residual(product(w.qkv, of_step(false)));
        });
    }

    // Where that saves much: nobody reads what the last layer would make of a prompt's other rows. What is kept goes
    // where the queries were.
    bool keeps_rows_with_outputs() const {
        const uint64_t n_outputs = shape_.output_bucket;
        const bool have_room = n_outputs * gpu::padded(config_.hidden_size) <=
                               (shape_.row_bucket - n_outputs) * weights_.layers.back().o.k_stride;
        return StepLayout::may_keep_rows(shape_) && have_room &&
               config_.layer(config_.n_layers - 1).per_layer_input == 0;
    }

    void plan_output() {
        const Matrix& head = weights_.output();
        if (!shape_.needs_logits() && !head.is_packed() && !topology_of(config_).has(kFeatureLogits)) {
            if (const auto argmax =
                    kernels_.products.plan_argmax(config_.vocab_size, head.k, head.type, shape_.output_bucket)) {
                plan_.output = *argmax;
                plan_.output_is_argmax = true;
                return;
            }
        }
        plan_.output = plan_product_in(kernels_.products, head,
                                       {.rows = shape_.output_bucket, .may_be_in_blocks = true, .may_unpack = false}, 1,
                                       head.is_packed());
    }

    const gpu::KernelPlanner& kernels_;
    const ModelConfig& config_;
    const ModelWeights& weights_;
    const MergedWeights* const merged_;
    const StepShape& shape_;
    StepPlan plan_;
};

constexpr std::array<std::string_view, 6> kMethodNames = {"their consumers",
                                                          "the activation on matrices, their consumers otherwise",
                                                          "the products, for long runs",
                                                          "a dispatch of its own",
                                                          "more k of the products",
                                                          "the product of gate and up, other consumers"};
constexpr std::array<std::string_view, 4> kScheduleNames = {"separate dispatches", "one dispatch for all layers",
                                                            "attention apart, the rest of two layers in one dispatch",
                                                            "attention apart, what lies between in one dispatch"};
constexpr std::array<std::string_view, 3> kLevelNames = {"none", "one for each row",
                                                         "several for each row, scales, gains or biases"};

std::string text_of(const gpu::MatmulPlan& plan) {
    std::string text = gpu::describe(plan);
    if (plan.unpacks) text += ", unpacked";
    if (gpu::is_packed(plan.packed)) text += ", packed";
    if (plan.n_splits > 1) text += format(", k in {} parts", plan.n_splits);
    return text;
}

}  // namespace

gpu::MatmulPlan plan_product(const gpu::ProductPlanner& products, const Matrix& w, const ProductUse& use,
                             bool is_packed) {
    return plan_product_in(products, w, use, kProductSplitsMax, is_packed);
}

std::optional<gpu::MatmulPlan> plan_gated_product(const gpu::ProductPlanner& products, const Matrix& gate_up,
                                                  uint32_t ffn, const ProductUse& use, uint32_t max_splits,
                                                  bool is_packed) {
    if (is_packed && !plan_product(products, gate_up, use, true).unpacks) return std::nullopt;
    std::optional<gpu::MatmulPlan> plan = products.plan_gated(ffn, gate_up.k, gate_up.type, use.rows, max_splits,
                                                              use.may_be_in_blocks, use.adds_long_runs);
    if (plan) plan->unpacks = is_packed;
    return plan;
}

StepPlan plan_step(const gpu::KernelPlanner& kernels, const ModelConfig& config, const ModelWeights& weights,
                   const MergedWeights* merged, const StepShape& shape) {
    return PlanMaker(kernels, config, weights, merged, shape).plan();
}

std::string describe(const StepPlan& plan, const ModelConfig& config) {
    const StepShape& shape = plan.shape;
    std::string text = format("rows: up to {}, {} of them with an output\n", shape.row_bucket, shape.output_bucket);
    text += format("layers: {}\n", kScheduleNames[static_cast<size_t>(shape.schedule)]);
    text += format("attention: {}, context in {} {}\n",
                   shape.tiles       ? format("tiles of {} rows, {} single rows", shape.tile_rows, shape.single_bucket)
                   : shape.lone_rows ? "from the sums of q, k and v"
                                     : "row by row",
                   shape.attention_splits, shape.attention_splits == 1 ? "part" : "parts");
    text += format("adapters: {}", kLevelNames[static_cast<size_t>(shape.lora)]);
    if (shape.has_adapters()) text += format("; added by {}", kMethodNames[static_cast<size_t>(shape.method)]);
    text += shape.extras ? "; some change embedding, norms or output\n" : "\n";
    std::string last;
    for (uint32_t layer = 0; layer < plan.layers.size(); ++layer) {
        const LayerPlan& of = plan.layers[layer];
        std::string products = format("  qkv      {}\n", text_of(of.qkv));
        if (shape.schedule == LayerSchedule::kSeparate && of.o.rows > 0) {
            constexpr std::array<std::string_view, 3> kForms = {"", ", from attention in blocks", ", blocks arranged"};
            products += of.o_residual
                            ? std::string("  o        into the residual stream\n")
                            : format("  o        {}{}\n", text_of(of.o), kForms[static_cast<size_t>(of.o_input)]);
            products += format("  gate_up  {}{}\n", text_of(of.gate_up), of.is_gated ? ", with the activation" : "");
            products += of.down_residual ? std::string("  down     into the residual stream\n")
                                         : format("  down     {}\n", text_of(of.down));
            if (of.keeps_rows) products += format("  behind attention {} rows, those with an output\n", of.rows);
        }
        if (products != last) text += format("from layer {}:\n{}", layer, products);
        last = products;
    }
    if (shape.output_bucket > 0)
        text += format("output: {} x {}: {}{}\n", config.vocab_size, config.hidden_size, text_of(plan.output),
                       plan.output_is_argmax ? ", greatest logits alone" : "");
    return text;
}

}  // namespace lorad::model
