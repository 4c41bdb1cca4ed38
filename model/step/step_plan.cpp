#include "model/step/step_plan.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "gpu/kernels/launch.h"
#include "model/config/topology.h"
#include "model/forward/scratch.h"
#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::model {
namespace {

// Rows from which on a product by warpgroups saves more than it costs to arrange its input.
constexpr uint32_t kArrangedRowsMin = 128;

// Supported beside Llama's layers (topology.h) if norms are deferred.
constexpr uint32_t kDeferredNormsSupport = kFeatureRopeByLayer | kFeatureOddPairs | kFeaturePositionScale |
                                           kFeatureSoftcap | kFeatureEmbedScale | kFeatureScoreScale | kFeatureLogits;

// The form in which a product adds the adapters by this method, if it does.
gpu::AdapterForm form_of(AdapterMethod method) {
    switch (method) {
        case AdapterMethod::kLongRuns: return gpu::AdapterForm::kRuns;
        case AdapterMethod::kStacked: return gpu::AdapterForm::kStacked;
        case AdapterMethod::kGatedProduct:  // of gate and up alone
        case AdapterMethod::kConsumers:
        case AdapterMethod::kFewRuns:
        case AdapterMethod::kExpanded: break;
    }
    return gpu::AdapterForm::kApart;
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
    ProductUse use_of(const Rows& rows, bool may_be_in_fragments) const {
        return {.rows = rows.n,
                .may_be_in_fragments = may_be_in_fragments,
                .adapters = form_of(rows.method),
                .leaves_room = shape_.has_adapters() && rows.method != AdapterMethod::kStacked};
    }
    ProductUse of_step(bool may_be_in_fragments) const {
        return use_of({shape_.row_bucket, shape_.method}, may_be_in_fragments);
    }
    // Of a product that reads what one with kResidual has written, if the norm is deferred.
    static ProductUse behind(ProductUse use, bool norm_is_deferred) {
        use.norm_is_deferred = norm_is_deferred;
        return use;
    }
    gpu::MatmulPlan product(const Matrix& w, const ProductUse& use) const {
        return plan_sums(kernels_.products, product_of(w, use, is_packed(w, merged_)));
    }
    std::optional<gpu::MatmulPlan> find(const Matrix& w, const ProductUse& use) const {
        return kernels_.products.plan(product_of(w, use, is_packed(w, merged_)));
    }

    LayerPlan plan_layer(uint32_t layer) const {
        const LayerFacts facts = config_.layer(layer);
        const LayerWeights& w = weights_.layers[layer];
        const bool is_first = layer == 0, is_last = layer + 1 == config_.n_layers;
        LayerPlan plan{.qkv = product(w.qkv, behind(of_step(true), plan_.defers_norms && !is_first)),
                       .rows = shape_.row_bucket,
                       .method = shape_.method};
        if (is_last) {
            if (shape_.output_bucket == 0) return plan;  // nobody reads more of it than its keys and values
            plan.keeps_rows = keeps_rows_with_outputs();
        }
        if (plan.keeps_rows) {
            plan.rows = shape_.output_bucket;
            plan.method = AdapterMethod::kConsumers;
        }
        const Rows rows{plan.rows, plan.method};
        const bool o_ends_in_stream = plan_.defers_norms && !plan.keeps_rows;
        if (o_ends_in_stream)
            plan.o = *residual(w.o);
        else
            plan_o(facts, w, rows, plan);
        if (facts.ffn.kind == FeedForward::kExperts) {
            plan_experts(w, rows, plan);
            return plan;
        }
        const std::optional<gpu::MatmulPlan> gated = gated_product(facts, w, rows, o_ends_in_stream);
        plan.gate_up = gated ? *gated : product(w.gate_up, behind(use_of(rows, true), o_ends_in_stream));
        // gated_act on matrices writes rows alone
        const bool act_may_be_in_fragments = gated || rows.method != AdapterMethod::kFewRuns;
        plan.down =
            o_ends_in_stream && !is_last ? *residual(w.down) : product(w.down, use_of(rows, act_may_be_in_fragments));
        if (facts.ffn.kind == FeedForward::kDenseAndExperts) plan.router = product(w.router, use_of(rows, false));
        if (w.ple_gate.n != 0) {
            plan.ple_gate = product(w.ple_gate, use_of(rows, false));
            plan.ple_projection = product(w.ple_projection, use_of(rows, false));
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

    // Attention may write fragments for it; if it writes rows, these may be arranged.
    void plan_o(const LayerFacts& facts, const LayerWeights& w, const Rows& rows, LayerPlan& plan) const {
        const bool shrink_reads_rows = shape_.has_adapters() && rows.method != AdapterMethod::kStacked;
        const bool may_have_fragments = facts.mixer == Mixer::kAttention && !facts.attention.output_gate &&
                                        attention_writes_fragments(facts.attention) && !plan.keeps_rows &&
                                        !plan_.defers_norms && (!shrink_reads_rows || !shape_.lone_rows);
        if (may_have_fragments) {
            plan.o = product(w.o, use_of(rows, true));
            plan.o_input = InputForm::kFragments;
            if (plan.o.x_in_fragments) return;
        }
        plan.o = product(w.o, use_of(rows, false));
        plan.o_input = InputForm::kRows;
        if (rows.n < kArrangedRowsMin || plan.keeps_rows) return;
        const gpu::MatmulPlan arranged = product(w.o, use_of(rows, true));
        if (arranged.variant != gpu::MatmulVariant::kWarpgroup &&
            arranged.variant != gpu::MatmulVariant::kPackedWarpgroup)
            return;
        plan.o = arranged;
        plan.o_input = InputForm::kArranged;
    }

    bool attention_writes_fragments(const AttentionFacts& attention) const {
        return !shape_.tiles &&
               kernels_.attention.attends_in_fragments(attention_shape(attention, shape_),
                                                       kernels_.act_type(weights_.layers.front().o.type));
    }

    // Plans gate_up and the activation as one product if that is possible and faster and adds the step's adapters.
    std::optional<gpu::MatmulPlan> gated_product(const LayerFacts& facts, const LayerWeights& w, const Rows& rows,
                                                 bool norm_is_deferred) const {
        if (facts.ffn.clamp_limit != 0.0f || facts.ffn.kind != FeedForward::kDense) return std::nullopt;
        if (address_of(w.gate_up_bias, merged_) != 0 || w.gate_up_bias.n != 0) return std::nullopt;
        ProductUse use = behind(use_of(rows, true), norm_is_deferred);
        use.result = gpu::ProductResult::kGated;
        use.activation = facts.ffn.activation;
        if (rows.method == AdapterMethod::kGatedProduct) use.adapters = gpu::AdapterForm::kInside;
        if (shape_.has_adapters() && use.adapters == gpu::AdapterForm::kApart) return std::nullopt;
        const std::optional<gpu::MatmulPlan> plan = find(w.gate_up, use);
        // Its result has the type of its input.
        if (!plan || plan->act_type != kernels_.act_type(w.down.type)) return std::nullopt;
        // A product that reads the packed matrix as it is saves more than the activation's dispatch.
        use.result = gpu::ProductResult::kSums;
        if (plan->unpacks && !product(w.gate_up, use).unpacks) return std::nullopt;
        return plan->may_feed(product(w.down, use_of(rows, true))) ? plan : std::nullopt;
    }

    // Of a product that ends in the residual stream, which reads the matrix as it is.
    std::optional<gpu::MatmulPlan> residual(const Matrix& w) const {
        return find(
            w,
            {.rows = shape_.row_bucket, .may_unpack = false, .result = gpu::ProductResult::kResidual, .max_splits = 1});
    }

    // Returns true if o and down may end in the residual stream and the products behind them apply the norms' factors:
    // there is no dispatch between them then.
    bool may_defer_norms() const {
        if (shape_.has_adapters() || shape_.extras || !topology_of(config_).has_only(kDeferredNormsSupport))
            return false;
        // The output of one matrix' product is the input of another one's, also across layers.
        const gpu::ScalarType type = weights_.layers[0].qkv.type;
        return std::ranges::all_of(weights_.layers, [&](const LayerWeights& w) {
            const bool has_one_type =
                std::ranges::all_of(products_of(w), [&](const Matrix* matrix) { return matrix->type == type; });
            const ProductUse use = behind(of_step(false), true);
            return has_one_type && residual(w.o) && residual(w.down) && find(w.qkv, use) &&
                   (gated_product(config_.layer(0), w, {shape_.row_bucket, shape_.method}, true) ||
                    find(w.gate_up, use));
        });
    }

    // True if that saves much: nobody reads the last layer's result for a prompt's other rows. The kept rows go where
    // the queries were.
    bool keeps_rows_with_outputs() const {
        const uint64_t n_outputs = shape_.output_bucket;
        const bool have_room = n_outputs * gpu::padded(config_.hidden_size) <=
                               (shape_.row_bucket - n_outputs) * weights_.layers.back().o.k_stride;
        return StepLayout::may_keep_rows(shape_) && have_room &&
               config_.layer(config_.n_layers - 1).per_layer_input == 0;
    }

    void plan_output() {
        const Matrix& head = weights_.output();
        if (!shape_.needs_logits() && !topology_of(config_).has(kFeatureLogits)) {
            const gpu::Product greatest =
                output_product(head, shape_.output_bucket, gpu::ProductResult::kGreatest, config_);
            if (const std::optional<gpu::MatmulPlan> plan = kernels_.products.plan(greatest)) {
                plan_.output = *plan;
                return;
            }
        }
        plan_.output = plan_sums(kernels_.products,
                                 output_product(head, shape_.output_bucket, gpu::ProductResult::kSums, config_));
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

gpu::Product product_of(const Matrix& w, const ProductUse& use, bool is_packed) {
    gpu::Product product{.n = w.n,
                         .k = w.k,
                         .type = w.type,
                         .may_unpack = use.may_unpack,
                         .rows = use.rows,
                         .max_splits = use.max_splits,
                         .may_be_in_fragments = use.may_be_in_fragments,
                         .norm_is_deferred = use.norm_is_deferred,
                         .adapters = use.adapters,
                         .leaves_room = use.leaves_room,
                         .result = use.result,
                         .activation = use.activation};
    if (!is_packed) return product;
    product.align = w.n;
    for (const MatrixPart& part : w.parts) {
        product.formats |= 1u << gpu::number_of(part.format);
        product.align = std::gcd(std::gcd(product.align, part.row_begin), part.n);
    }
    return product;
}

gpu::MatmulPlan plan_sums(const gpu::ProductPlanner& products, gpu::Product product) {
    std::optional<gpu::MatmulPlan> plan = products.plan(product);
    if (!plan) {
        product.adapters = gpu::AdapterForm::kApart;
        plan = products.plan(product);
    }
    if (!plan) log_error("no implementation multiplies {} x {}: {}", product.n, product.k, products.explain(product));
    CHECK(plan);
    return *plan;
}

gpu::Product output_product(const Matrix& head, uint32_t rows, gpu::ProductResult result, const ModelConfig& config) {
    gpu::Product product = product_of(
        head, {.rows = rows, .may_be_in_fragments = true, .may_unpack = false, .result = result, .max_splits = 1},
        head.is_packed());
    if (result == gpu::ProductResult::kGreatest) product.n = config.vocab_size;
    return product;
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
            products += of.o.ends_in_stream()
                            ? std::string("  o        into the residual stream\n")
                            : format("  o        {}{}\n", text_of(of.o), kForms[static_cast<size_t>(of.o_input)]);
            products +=
                format("  gate_up  {}{}\n", text_of(of.gate_up), of.gate_up.is_gated() ? ", with the activation" : "");
            products += of.down.ends_in_stream() ? std::string("  down     into the residual stream\n")
                                                 : format("  down     {}\n", text_of(of.down));
            if (of.keeps_rows) products += format("  behind attention {} rows, those with an output\n", of.rows);
        }
        if (products != last) text += format("from layer {}:\n{}", layer, products);
        last = products;
    }
    if (shape.output_bucket > 0)
        text += format("output: {} x {}: {}{}\n", config.vocab_size, config.hidden_size, text_of(plan.output),
                       plan.output.result == gpu::ProductResult::kGreatest ? ", greatest logits alone" : "");
    return text;
}

}  // namespace lorad::model
