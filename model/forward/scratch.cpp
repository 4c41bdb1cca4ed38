#include "model/forward/scratch.h"

#include <algorithm>
#include <array>
#include <bit>

#include "gpu/kernels/products/deferred_norm.h"
#include "gpu/upload.h"
#include "model/exec/kv_groups.h"
#include "model/exec/state_cache.h"
#include "model/output/logits.h"
#include "model/step/step_batch.h"
#include "model/step/step_plan.h"
#include "model/step/step_planner.h"
#include "model/weights/expert_places.h"

namespace lorad::model {

uint64_t ScratchBytes::sum() const {
    return step_state + x + xn + y + q + attention + act + low + stacked_b + stacked_low + norms + shrink_parts + ple +
           mixed + experts + attention_partials + output_xn + logits + sample_partials + sampled + results + logprobs +
           masks + unpacked;
}

namespace {

// The step's state for the most that a step can hold. A power of two, as the copies into it are.
uint64_t step_state_bytes(const ModelConfig& config, const ForwardLimits& limits) {
    const uint32_t row_bucket = bucket_for(limits.n_rows_max);
    const bool has_windows = KvGroups::of(config).has_both();
    const StepLayout layout({.row_bucket = row_bucket,
                             .output_bucket = bucket_for(limits.n_outputs_max),
                             .lora = gpu::LoraLevel::kFull,
                             .method = AdapterMethod::kStacked,
                             .tiles = true,
                             .single_bucket = row_bucket,
                             .state_runs = has_state(config) ? row_bucket : 0,
                             .window_rows = has_windows,
                             .rules = true});
    const uint64_t tables = limits.n_table_entries_max() * (has_windows ? 2 : 1) * sizeof(uint32_t);
    const uint64_t rules =
        uint64_t{limits.n_outputs_max} * kChoiceListMax * (sizeof(gpu::TokenChange) + sizeof(TokenId));
    return std::bit_ceil(std::max(layout.block_tables + tables + kListAlign + rules, kStepStateBytesMin));
}

// Adds what all buckets of rows share: it grows with the rows, and no plan changes it.
void add_rows(const ModelConfig& config, const ModelWeights& shapes, const ForwardLimits& limits, ScratchBytes& bytes) {
    const uint32_t row_bucket = bucket_for(limits.n_rows_max), output_bucket = bucket_for(limits.n_outputs_max);
    const uint64_t n_rows = row_bucket + gpu::kSlackRows;
    bytes.x = n_rows * gpu::padded(config.hidden_size) * sizeof(float);
    // Inputs of matmuls may be 16-bit; the room is for f32, the largest type they can have.
    bytes.xn = bytes.x;
    for (const LayerWeights& w : shapes.layers) {
        bytes.q = std::max(bytes.q, n_rows * w.o.k_stride * sizeof(float));
        bytes.act = std::max(bytes.act, n_rows * std::max(w.down.k_stride, w.ple_projection.k_stride) * sizeof(float));
    }
    bytes.act = std::max<uint64_t>(bytes.act, sizeof(float));
    bytes.attention = bytes.q;
    bytes.mixed = sizeof(float);
    uint32_t modules_max = kModuleRanges[kQkv].n_modules;  // of a group
    for (const LayerFacts& layer : config.layers) {
        if (layer.mixer == Mixer::kMamba)
            bytes.mixed = std::max(bytes.mixed, n_rows * mamba_shape(layer.mamba).outputs() * sizeof(float));
        if (layer.mixer != Mixer::kDeltaNet) continue;
        bytes.mixed = std::max(bytes.mixed, n_rows * delta_shape(layer.delta).outputs() * sizeof(float));
        modules_max = kModuleRanges[kDeltaIn].n_modules;
    }
    bytes.experts = std::max<uint64_t>(sizeof(float), ExpertPlaces(config, row_bucket).end);
    if (std::ranges::any_of(shapes.layers, [](const LayerWeights& w) { return w.router.n != 0; }))
        bytes.y = n_rows * gpu::padded(config.hidden_size) * sizeof(float);
    bytes.low = std::max(gpu::LoraPlanner::lora_low_bytes(row_bucket * kLoraUsesMax + gpu::kSlackRows, modules_max),
                         gpu::LoraPlanner::head_low_bytes(output_bucket));
    bytes.norms = gpu::deferred_norm_bytes(config.hidden_size);
    bytes.shrink_parts = gpu::LoraPlanner::kShrinkPartBytes;
    bytes.ple = std::max<uint64_t>(sizeof(float), n_rows * shapes.ple_model.n_padded * sizeof(float));
}

void add_outputs(const ModelConfig& config, const Matrix& head, const ForwardLimits& limits, ScratchBytes& bytes) {
    const uint32_t output_bucket = bucket_for(limits.n_outputs_max);
    const uint64_t n_outputs = output_bucket + gpu::kSlackRows;
    bytes.output_xn = n_outputs * head.k_stride * sizeof(float);
    bytes.logits = n_outputs * head.n_padded * sizeof(float);
    bytes.sample_partials = gpu::SamplingKernels::sample_partial_bytes(output_bucket);
    bytes.sampled = output_bucket * sizeof(int32_t);
    bytes.results = output_bucket * sizeof(gpu::SampleResult);
    // copied in words of 16 bytes
    bytes.logprobs = round_up(output_bucket * static_cast<uint32_t>(sizeof(gpu::ChoiceLogprobs)), 16);
    bytes.masks = uint64_t{limits.n_sequences_max} * mask_words(config.vocab_size) * sizeof(uint32_t);
}

// Adds what the product of so many rows may need in each way in which it may be planned.
void add_product(const gpu::ProductPlanner& planner, const Matrix& matrix, uint32_t rows, ScratchBytes& bytes) {
    if (matrix.n == 0) return;
    constexpr bool kEither[] = {false, true};
    for (const bool in_fragments : kEither) {
        for (const auto adapters : {gpu::AdapterForm::kApart, gpu::AdapterForm::kRuns}) {
            for (const bool leaves_room : kEither) {
                const ProductUse use{.rows = rows,
                                     .may_be_in_fragments = in_fragments,
                                     .adapters = adapters,
                                     .leaves_room = leaves_room};
                for (const bool is_packed : kEither) {
                    if (is_packed && !matrix.is_packed()) continue;  // merged copies are plain
                    const gpu::MatmulPlan plan = plan_sums(planner, product_of(matrix, use, is_packed));
                    bytes.y = std::max(bytes.y, product_elements(matrix, plan) * sizeof(float));
                    if (plan.unpacks) bytes.unpacked = std::max(bytes.unpacked, matrix.plain_bytes());
                }
            }
        }
    }
}

void add_products(const gpu::ProductPlanner& planner, const ModelWeights& shapes, uint32_t rows, ScratchBytes& bytes) {
    for (const LayerWeights& w : shapes.layers) {
        for (const Matrix* matrix : products_of(w)) add_product(planner, *matrix, rows, bytes);
        for (const Matrix* matrix : {&w.ple_gate, &w.ple_projection, &w.router, &w.shared_gate})
            add_product(planner, *matrix, rows, bytes);
    }
    add_product(planner, shapes.ple_model, rows, bytes);
}

void add_stacked_scratch(const LayerWeights& layer, uint32_t rows, ScratchBytes& bytes) {
    const std::array products = products_of(layer);
    for (uint32_t group = 0; group < gpu::kLoraGroups; ++group) {
        const uint32_t n_modules = gpu::kLoraGroupModules[group];
        bytes.stacked_b =
            std::max(bytes.stacked_b, gpu::ProductPlanner::stacked_b_bytes(products[group]->n_padded, n_modules));
        bytes.stacked_low = std::max(bytes.stacked_low, gpu::ProductPlanner::stacked_low_bytes(rows, n_modules));
    }
}

}  // namespace

ScratchBytes scratch_bytes(const StepPlanner& planner, const gpu::KernelPlanner& kernels, const ModelConfig& config,
                           const ModelWeights& shapes, const ForwardLimits& limits) {
    ScratchBytes bytes{};
    bytes.step_state = step_state_bytes(config, limits);
    add_rows(config, shapes, limits, bytes);
    add_outputs(config, shapes.output(), limits, bytes);
    bytes.stacked_b = bytes.stacked_low = bytes.attention_partials = bytes.unpacked = sizeof(float);
    // Fewer rows may be cut into more splits, so every bucket is asked.
    for (const uint32_t rows : buckets_up_to(limits.n_rows_max)) {
        if (planner.stacks_adapters(rows)) add_stacked_scratch(shapes.layers.front(), rows, bytes);
        add_products(kernels.products, shapes, rows, bytes);
        const uint32_t splits =
            kernels.attention.attention_splits_max(rows, planner.kv_heads_min(), limits.n_positions_max);
        for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
            const LayerFacts facts = config.layer(layer);
            if (facts.mixer != Mixer::kAttention) continue;
            bytes.attention_partials = std::max(
                bytes.attention_partials,
                gpu::AttentionPlanner::attention_partial_bytes(attention_shape(facts.attention, {rows, 0, splits})));
        }
    }
    return bytes;
}

Result<Scratch> create_scratch(gpu::Device& device, const ScratchBytes& bytes) {
    Scratch scratch;
    struct Wanted {
        gpu::Buffer* buffer;
        uint64_t n_bytes;
        const char* name;
    };
    const Wanted all[] = {
        {&scratch.step_state, bytes.step_state, "step state"},
        {&scratch.x, bytes.x, "x"},
        {&scratch.xn, bytes.xn, "xn"},
        {&scratch.y, bytes.y, "y"},
        {&scratch.q, bytes.q, "q"},
        {&scratch.attention, bytes.attention, "attention"},
        {&scratch.act, bytes.act, "act"},
        {&scratch.low, bytes.low, "low"},
        {&scratch.stacked_b, bytes.stacked_b, "stacked B"},
        {&scratch.stacked_low, bytes.stacked_low, "stacked low"},
        {&scratch.norms, bytes.norms, "norms"},
        {&scratch.shrink_parts, bytes.shrink_parts, "shrink parts"},
        {&scratch.ple, bytes.ple, "embeddings per layer"},
        {&scratch.mixed, bytes.mixed, "mixed"},
        {&scratch.experts, bytes.experts, "experts"},
        {&scratch.attention_partials, bytes.attention_partials, "attention partials"},
        {&scratch.output_xn, bytes.output_xn, "output xn"},
        {&scratch.logits, bytes.logits, "logits"},
        {&scratch.sample_partials, bytes.sample_partials, "sample partials"},
        {&scratch.sampled, bytes.sampled, "sampled"},
        {&scratch.results, bytes.results, "results"},
        {&scratch.logprobs, bytes.logprobs, "logprobs"},
        {&scratch.masks, bytes.masks, "masks"},
        {&scratch.unpacked, bytes.unpacked, "unpacked weights"},
    };
    for (const Wanted& wanted : all) {
        TRY_ASSIGN(*wanted.buffer, device.create_buffer(wanted.n_bytes, gpu::MemoryKind::kDeviceLocal, wanted.name));
    }
    TRY(device.uploader().fill_zero(scratch.shrink_parts, 0, scratch.shrink_parts.size()));
    TRY(device.uploader().finish());
    return scratch;
}

}  // namespace lorad::model
