#include "model/step/step_planner.h"

#include <algorithm>
#include <bit>

#include "model/forward/decode_layers.h"
#include "model/forward/decode_rows.h"
#include "model/forward/scratch.h"
#include "model/step/step_plan.h"
#include "proto/base/rounding.h"

namespace lorad::model {
namespace {

constexpr uint32_t kSingleBucketMin = 64;
constexpr uint32_t kLongRunRowsMin = 128;  // of a step: as many as the tiles of a product take
constexpr uint32_t kFewRunRowsMin = 64;
// The tile of gated_act_matrix with the most runs ends last, after about 2 us for each of them on an H200; without
// matrices 64 rows take 19 us and 128 rows 34, however many runs they are.
constexpr uint32_t kRowsPerRun = 10;
// of a step: with more a dispatch less is nothing, and each part of a context makes its queries again
constexpr uint32_t kLoneRowsMax = 128;

// How much of a step's work its adapters may be as more k of the products, of which each step costs a tile of rows as
// much as one of w. On an H200 that pays up to about a twelfth of all work; with long runs, whose products would be by
// KHR matrices, wherever it was measured, a fifth at the most, and of small models other things take the time.
constexpr double kStackedShareMax = 1.0 / 12, kStackedLongRunShareMax = 1.0;

// Beside Llama's layers (topology.h). Gated products with adapters know SiLU alone; what comes behind a product or is a
// parameter of attention does not concern either.
constexpr uint32_t kAroundProducts = kFeatureNormsAfter | kFeatureNoNormsBefore | kFeatureSoftcap |
                                     kFeatureRopeByLayer | kFeatureOddPairs | kFeaturePositionScale |
                                     kFeatureResidualMultiplier | kFeatureStreamScale | kFeatureEmbedScale |
                                     kFeatureScoreScale | kFeatureLogits;
constexpr uint32_t kStackingSupports = kAroundProducts, kGatingSupports = kAroundProducts;
constexpr uint32_t kLoneRowsSupport = kFeatureNormsAfter | kFeatureNoNormsBefore | kFeatureGelu | kFeatureClamps |
                                      kFeatureExperts | kFeatureResidualMultiplier | kFeatureStreamScale |
                                      kFeaturePerLayerInput | kFeatureEmbedScale | kFeatureScoreScale | kFeatureLogits;

}  // namespace

StepPlanner::StepPlanner(const gpu::KernelPlanner& kernels, const ModelConfig& config, const ModelWeights& weights,
                         const PlannerLimits& limits)
    : kernels_(kernels), config_(config), weights_(weights), limits_(limits), topology_(topology_of(config)) {
    for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
        const LayerFacts facts = config_.layer(layer);
        if (facts.mixer != Mixer::kAttention) continue;
        if (std::ranges::find(attentions_, facts.attention) == attentions_.end())
            attentions_.push_back(facts.attention);
        kv_heads_min_ =
            kv_heads_min_ == 0 ? facts.attention.n_kv_heads : std::min(kv_heads_min_, facts.attention.n_kv_heads);
        heads_max_ = std::max(heads_max_, facts.attention.n_heads);
    }
    kv_heads_min_ = std::max(kv_heads_min_, 1u);
    for (const uint32_t rows : buckets_up_to(limits_.n_rows_max)) {
        if (can_stack(rows)) stacked_buckets_.push_back(rows);
        if (can_gate(rows)) gated_buckets_.push_back(rows);
    }
}

bool StepPlanner::can_stack(uint32_t row_bucket) const {
    if (!topology_.has_only(kStackingSupports)) return false;
    const auto stacks = [&](const Matrix* w) {
        const ProductUse use{.rows = row_bucket, .may_be_in_fragments = true, .adapters = gpu::AdapterForm::kStacked};
        return w->type == weight_type() && kernels_.products.plan(product_of(*w, use, w->is_packed()));
    };
    return std::ranges::all_of(
        weights_.layers, [&](const LayerWeights& layer) { return std::ranges::all_of(products_of(layer), stacks); });
}

// Asks the same of each layer as gated_product() in step_plan.cpp.
bool StepPlanner::can_gate(uint32_t row_bucket) const {
    if (!limits_.waits_for_others || !topology_.has_only(kGatingSupports) || !has_one_type(weights_) ||
        has_gate_up_bias(weights_, nullptr))
        return false;
    return std::ranges::all_of(weights_.layers, [&](const LayerWeights& w) {
        const ProductUse down{.rows = row_bucket, .may_be_in_fragments = true, .leaves_room = true};
        const ProductUse gate_up{.rows = row_bucket,
                                 .may_be_in_fragments = true,
                                 .adapters = gpu::AdapterForm::kInside,
                                 .result = gpu::ProductResult::kGated};
        const gpu::ProductPlanner& products = kernels_.products;
        const gpu::MatmulPlan reader = plan_sums(products, product_of(w.down, down, w.down.is_packed()));
        const auto gated = products.plan(product_of(w.gate_up, gate_up, w.gate_up.is_packed()));
        return gated && reader.x_in_fragments && gated->may_feed(reader);
    });
}

bool StepPlanner::stacks_adapters(uint32_t row_bucket) const {
    return std::ranges::binary_search(stacked_buckets_, row_bucket);
}
bool StepPlanner::gates_adapters(uint32_t row_bucket) const {
    return std::ranges::binary_search(gated_buckets_, row_bucket);
}

bool StepPlanner::takes_argmax(uint32_t output_bucket) const {
    if (topology_.has(kFeatureLogits)) return false;  // the greatest logit is told as it is, not capped
    return output_bucket > 0 &&
           kernels_.products
               .plan(output_product(weights_.output(), output_bucket, gpu::ProductResult::kGreatest, config_))
               .has_value();
}

uint32_t StepPlanner::splits_for(uint32_t n_rows, uint32_t n_context) const {
    return std::bit_floor(kernels_.attention.plan_attention_splits(n_rows, kv_heads_min_, n_context));
}

uint32_t StepPlanner::decode_splits_for(uint32_t n_context) const {
    return std::min(kernels_.persistent.plan_decode_splits(decode_layers_shape(config_, weights_, 1), n_context),
                    kDecodeSplitsMax);
}

// For the rows outside of tiles as well: they share the place of the partial results.
uint32_t StepPlanner::tile_splits_for(const RowRuns& runs, uint32_t row_bucket, uint32_t n_context) const {
    const uint32_t tiles = kernels_.attention.plan_tile_splits(runs.n_tiles, heads_max_, n_context);
    const uint32_t singles = kernels_.attention.plan_attention_splits(runs.n_single_rows, kv_heads_min_, n_context);
    return std::bit_floor(std::min(std::max(tiles, singles),
                                   kernels_.attention.attention_splits_max(row_bucket, kv_heads_min_, n_context)));
}

// Layers that take none compute the rows one by one. 0: no layer takes any.
uint32_t StepPlanner::tile_rows_for(uint32_t row_bucket) const {
    uint32_t rows = 0;
    for (const AttentionFacts& attention : attentions_) {
        if (attention.n_heads != heads_max_) return 0;  // the tiles' grid is that of all layers
        if (!attends_by_tile(kernels_.attention, attention)) continue;
        const uint32_t of_layer = kernels_.attention.attention_tile_rows(attention.head_dim, row_bucket);
        rows = rows == 0 ? of_layer : std::min(rows, of_layer);
    }
    return rows;
}

TraitsWish StepPlanner::tile_request(uint32_t n_rows) const {
    const uint32_t row_bucket = bucket_for(n_rows);
    TraitsWish wish;
    wish.tile_rows = tile_rows_for(row_bucket);
    if (stacks_adapters(row_bucket)) wish.stacked_type = weight_type();
    return wish;
}

StepShape StepPlanner::shape_of(const BatchTraits& traits, ProgramSet programs, const MergedFacts& merged) const {
    StepShape shape;
    shape.row_bucket = bucket_for(traits.n_rows);
    shape.output_bucket = bucket_for(traits.n_outputs);
    shape.weight_set = traits.is_merged ? 1 : 0;
    shape.extras = traits.has_extras;
    // The kernels of the extras read the rows' uses, which the plain level does not write.
    shape.lora = shape.extras && traits.lora == gpu::LoraLevel::kPlain ? gpu::LoraLevel::kFull : traits.lora;
    shape.rules = traits.has_rules;
    shape.changes = traits.has_changes;
    shape.logprobs = traits.has_logprobs;
    shape.logits_to_host = traits.wants_logits && takes_argmax(shape.output_bucket);
    shape.part = traits.n_masks > 0 ? StepPart::kForward : StepPart::kWhole;
    if (topology_.has(kFeatureOtherMixers))
        shape.state_runs = std::min(shape.row_bucket, bucket_for(limits_.n_sequences_max));
    shape.window_rows = limits_.window_rows;
    plan_attention(traits, shape);
    plan_schedule(traits, programs, merged, shape);
    shape.method = method_for(traits, programs, shape);
    if (shape.is_stacked()) shape.stacked_type = weight_type();
    shape.lone_rows = shape.schedule != LayerSchedule::kOneDispatch && traits.has_lone_rows && takes_lone_rows(shape);
    return shape;
}

void StepPlanner::plan_attention(const BatchTraits& traits, StepShape& shape) const {
    shape.attention_splits = splits_for(shape.row_bucket, traits.n_context);
    shape.tiles = traits.runs.n_tiles > 0;
    if (!shape.tiles) return;
    shape.tile_rows = tile_rows_for(shape.row_bucket);
    shape.attention_splits = tile_splits_for(traits.runs, shape.row_bucket, traits.n_context);
    // Few classes, so that few recordings are made.
    const uint32_t n_singles = traits.runs.n_single_rows;
    shape.single_bucket =
        n_singles == 0 ? 0
                       : std::max(bucket_for(n_singles), std::min(kSingleBucketMin, bucket_for(limits_.n_rows_max)));
}

void StepPlanner::plan_schedule(const BatchTraits& traits, ProgramSet programs, const MergedFacts& merged,
                                StepShape& shape) const {
    const bool is_base = !shape.has_adapters(), is_merged = shape.weight_set != 0;
    if (shape.extras) return;
    if (shape.row_bucket == 1 && programs.has(PersistentProgram::kDecodeLayers) &&
        (!is_merged || merged.has_decode_table)) {
        const bool can_add = shape.lora == gpu::LoraLevel::kPlain &&
                             programs.has(PersistentProgram::kDecodeLayersAdapter) &&
                             traits.rank_max <= gpu::kDecodeRankMax;
        if ((is_base || can_add) && traits.n_context <= limits_.one_dispatch_context_max) {
            shape.schedule = LayerSchedule::kOneDispatch;
            shape.attention_splits = decode_splits_for(traits.n_context);
            if (!is_base && traits.types == 1u << decode_lora_type()) shape.lora_type = decode_lora_type();
        } else if (is_base) {
            shape.schedule = LayerSchedule::kApart;
        }
        return;
    }
    // decode_rows and decode_bricks compute all of the last layer, so they are not for steps without outputs. Only the
    // latter knows one row, and only the former merged weights, which are plain.
    const bool are_packed = weights_.layers.front().qkv.is_packed();
    const bool are_few = shape.row_bucket >= (are_packed ? 1u : 2u) && shape.row_bucket <= gpu::kDecodeRowsMax &&
                         shape.output_bucket > 0;
    const bool has_weights = !is_merged || (!are_packed && !merged.has_gate_up_bias);
    if (is_base && are_few && has_weights && programs.has(PersistentProgram::kDecodeRows))
        shape.schedule = LayerSchedule::kBetween;
}

AdapterMethod StepPlanner::method_for(const BatchTraits& traits, ProgramSet programs, const StepShape& shape) const {
    if (shape.lora != gpu::LoraLevel::kPlain) return AdapterMethod::kConsumers;
    const uint32_t rows = shape.row_bucket;
    if (stacks_adapters(rows) && stacking_pays(traits)) return AdapterMethod::kStacked;
    if (rows >= kLongRunRowsMin && traits.has_long_runs)
        return products_add_runs(traits.rank_max, rows) ? AdapterMethod::kLongRuns : AdapterMethod::kConsumers;
    if (shape.schedule != LayerSchedule::kOneDispatch && kernels_.lora.expands_apart(traits.rank_max, rows))
        return AdapterMethod::kExpanded;
    const bool has_weights_type = traits.types == 1u << static_cast<uint32_t>(weight_type());
    if (programs.has(PersistentProgram::kGatedLora) && gates_adapters(rows) &&
        traits.rank_max <= gpu::kGatedLoraRanks && has_weights_type)
        return AdapterMethod::kGatedProduct;
    // Long runs are above: gated_act on matrices writes rows alone, and down by warpgroups wants fragments.
    const bool has_few_runs = traits.most_runs > 0 && traits.most_runs <= rows / kRowsPerRun;
    if (has_few_runs && gates_few_runs(rows)) return AdapterMethod::kFewRuns;
    return AdapterMethod::kConsumers;
}

// Decides by the first layer's qkv: in a model with matrices of several types some products may lose by it.
bool StepPlanner::products_add_runs(uint32_t rank_max, uint32_t row_bucket) const {
    const Matrix& w = weights_.layers.front().qkv;
    gpu::Product product = product_of(
        w, {.rows = row_bucket, .may_be_in_fragments = true, .adapters = gpu::AdapterForm::kRuns}, w.is_packed());
    product.rank_max = rank_max;
    return kernels_.products.plan(product).has_value();
}

bool StepPlanner::stacking_pays(const BatchTraits& traits) const {
    if (!traits.stacked_steps) return false;
    double more = 0, own = 0;
    const std::array products = products_of(weights_.layers.front());
    for (uint32_t group = 0; group < gpu::kLoraGroups; ++group) {
        more += (*traits.stacked_steps)[group] * gpu::kStackedStep * products[group]->n;
        own += static_cast<double>(products[group]->k) * products[group]->n;
    }
    return more <= (traits.has_long_runs ? kStackedLongRunShareMax : kStackedShareMax) * own;
}

// Returns true if the activation has a kernel for few runs in steps of so many rows.
bool StepPlanner::gates_few_runs(uint32_t row_bucket) const {
    const LayerWeights& layer = weights_.layers.front();
    gpu::GatedActParams params{};
    params.ffn = config_.layer(0).ffn.size;
    params.y_stride = layer.gate_up.n_padded;
    return row_bucket >= kFewRunRowsMin && !topology_.has(kFeatureLayersDiffer | kFeatureExperts | kFeatureClamps) &&
           kernels_.rows.gates_by_matrix(params, {.rows = row_bucket, .lora = gpu::LoraLevel::kPlain, .few_runs = true},
                                         kernels_.act_type(layer.down.type));
}

// Returns true if attention can read such a step's rows from their product's sums if each row is another sequence's.
bool StepPlanner::takes_lone_rows(const StepShape& shape) const {
    return shape.row_bucket <= kLoneRowsMax && !shape.tiles && !shape.extras && topology_.has_only(kLoneRowsSupport) &&
           std::ranges::all_of(attentions_, [&](const AttentionFacts& attention) {
               return kernels_.attention.attends_from_qkv(
                   qkv_shape(config_, attention, {.rows = shape.row_bucket, .lora = shape.left_to_consumers()}),
                   attention_shape(attention, shape));
           });
}

}  // namespace lorad::model
