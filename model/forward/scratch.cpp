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
    return step_state + x + xn + y + q + attention + act + low + joined_b + joined_low + norms + shrink_parts + ple +
           mixed + experts + attention_partials + output_xn + logits + sample_partials + sampled + results + logprobs +
           masks + unpacked;
}

ScratchBytes scratch_bytes(const StepPlanner& planner, const gpu::KernelPlanner& kernels, const ModelConfig& config,
                           const ModelWeights& shapes, const ForwardLimits& limits) {
    const uint32_t row_bucket = bucket_for(limits.n_rows_max), output_bucket = bucket_for(limits.n_outputs_max);
    const uint64_t n_rows = row_bucket + gpu::kSlackRows, n_outputs = output_bucket + gpu::kSlackRows;
    const Matrix& head = shapes.output();
    ScratchBytes bytes{};
    const bool has_windows = KvGroups::of(config).has_both();
    // A power of two, as the copies into it are.
    const uint64_t step_state =
        StepLayout({.row_bucket = row_bucket,
                    .output_bucket = output_bucket,
                    .lora = gpu::LoraLevel::kFull,
                    .method = AdapterMethod::kJoined,
                    .tiles = true,
                    .single_bucket = row_bucket,
                    .state_runs = has_state(config) ? row_bucket : 0,
                    .window_rows = has_windows,
                    .rules = true})
            .block_tables +
        limits.n_table_entries_max() * (has_windows ? 2 : 1) * sizeof(uint32_t) + kListAlign +
        uint64_t{limits.n_outputs_max} * kChoiceListMax * (sizeof(gpu::TokenChange) + sizeof(TokenId));
    bytes.step_state = std::bit_ceil(std::max(step_state, kStepStateBytesMin));
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
    uint32_t modules_max = kModulesOfGroup[kQkv].n_modules;  // of a group
    for (const LayerFacts& layer : config.layers) {
        if (layer.mixer == Mixer::kMamba)
            bytes.mixed = std::max(bytes.mixed, n_rows * mamba_shape(layer.mamba).outputs() * sizeof(float));
        if (layer.mixer != Mixer::kDeltaNet) continue;
        bytes.mixed = std::max(bytes.mixed, n_rows * delta_shape(layer.delta).outputs() * sizeof(float));
        modules_max = kModulesOfGroup[kDeltaIn].n_modules;
    }
    bytes.experts = std::max<uint64_t>(sizeof(float), ExpertPlaces(config, row_bucket).end);
    bytes.low = std::max(gpu::LoraPlanner::lora_low_bytes(row_bucket * kLoraUsesMax + gpu::kSlackRows, modules_max),
                         gpu::LoraPlanner::head_low_bytes(output_bucket));
    bytes.joined_b = bytes.joined_low = sizeof(float);
    bytes.norms = gpu::deferred_norm_bytes(config.hidden_size);
    bytes.shrink_parts = gpu::LoraPlanner::kShrinkPartBytes;
    bytes.ple = std::max<uint64_t>(sizeof(float), n_rows * shapes.ple_model.n_padded * sizeof(float));
    bytes.output_xn = n_outputs * head.k_stride * sizeof(float);
    bytes.logits = n_outputs * head.n_padded * sizeof(float);
    bytes.sample_partials = gpu::SamplingKernels::sample_partial_bytes(output_bucket);
    bytes.sampled = output_bucket * sizeof(int32_t);
    bytes.results = output_bucket * sizeof(gpu::SampleResult);
    // copied in words of 16 bytes
    bytes.logprobs = round_up(output_bucket * static_cast<uint32_t>(sizeof(gpu::ChoiceLogprobs)), 16);
    bytes.masks = uint64_t{limits.n_sequences_max} * mask_words(config.vocab_size) * sizeof(uint32_t);
    bytes.attention_partials = sizeof(float);
    bytes.unpacked = sizeof(float);
    // Fewer rows may be cut into more splits, so every bucket is asked.
    for (const uint32_t rows : buckets_up_to(limits.n_rows_max)) {
        if (planner.joins_adapters(rows)) {
            const std::array products = products_of(shapes.layers.front());
            for (uint32_t group = 0; group < gpu::kLoraGroups; ++group) {
                bytes.joined_b = std::max(
                    bytes.joined_b,
                    gpu::ProductPlanner::joined_b_bytes(products[group]->n_padded, gpu::kLoraGroupModules[group]));
                bytes.joined_low = std::max(bytes.joined_low,
                                            gpu::ProductPlanner::joined_low_bytes(rows, gpu::kLoraGroupModules[group]));
            }
        }
        const auto add_product = [&](const Matrix& matrix) {
            if (matrix.n == 0) return;
            for (const bool in_blocks : {false, true}) {
                for (const auto adapters : {gpu::AdapterForm::kApart, gpu::AdapterForm::kRuns}) {
                    for (const bool leaves_room : {false, true}) {
                        const ProductUse use{.rows = rows,
                                             .may_be_in_blocks = in_blocks,
                                             .adapters = adapters,
                                             .leaves_room = leaves_room};
                        for (const bool is_packed : {false, true}) {
                            if (is_packed && !matrix.is_packed()) continue;  // merged copies are plain
                            const gpu::MatmulPlan plan =
                                plan_sums(kernels.products, product_of(matrix, use, is_packed));
                            bytes.y = std::max(bytes.y, product_elements(matrix, plan) * sizeof(float));
                            if (plan.unpacks) bytes.unpacked = std::max(bytes.unpacked, matrix.plain_bytes());
                        }
                    }
                }
            }
        };
        for (const LayerWeights& w : shapes.layers) {
            for (const Matrix* matrix : products_of(w)) add_product(*matrix);
            add_product(w.ple_gate);
            add_product(w.ple_projection);
            add_product(w.router);
            add_product(w.shared_gate);
            if (w.router.n != 0) bytes.y = std::max(bytes.y, n_rows * gpu::padded(config.hidden_size) * sizeof(float));
        }
        add_product(shapes.ple_model);
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
        {&scratch.joined_b, bytes.joined_b, "joined B"},
        {&scratch.joined_low, bytes.joined_low, "joined low"},
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
