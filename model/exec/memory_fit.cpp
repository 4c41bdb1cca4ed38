#include "model/exec/memory_fit.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "model/config/rope.h"
#include "model/exec/kv_precision.h"
#include "model/exec/state_cache.h"
#include "model/forward/decode_layers.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr uint32_t kShortestAutomatic = 2048;

ForwardLimits limits_of(const ExecutorOptions& options) {
    return {options.n_rows_max, options.n_outputs_max, options.n_sequences_max, options.n_positions_max};
}

// Llama's layers in one dispatch have one table of blocks.
bool may_group_kv(const gpu::KernelPlanner& kernels, const ModelConfig& config, const ModelWeights& weights) {
    return !KvGroups::of(config).has_both() || !can_decode_layers(kernels.persistent, config, weights) ||
           decode_layers_shape(config, weights, 1).has_families();
}

MemoryPlanOptions plan_options(const gpu::KernelPlanner& kernels, const ExecutorOptions& options,
                               const ModelConfig& config, const ModelWeights& weights, const KvFormat& kv) {
    return {.n_rows_max = options.n_rows_max,
            .n_sequences_max = options.n_sequences_max,
            .n_positions_max = options.n_positions_max,
            .memory_utilization = options.memory_utilization,
            .adapter_bytes = options.adapter_bytes,
            .merged_bytes = options.merged_bytes,
            .training_bytes = options.training_bytes,
            .state_bytes = uint64_t{options.n_sequences_max} * state_slot_bytes(config),
            .snapshot_bytes_max = options.snapshot_bytes_max,
            .kv_bytes_max = options.kv_bytes_max,
            .n_kv_blocks = options.n_kv_blocks,
            .kv = kv,
            .weight_formats = describe_formats(weights),
            .may_group_kv = options.may_group_kv && may_group_kv(kernels, config, weights)};
}

// One setting that takes less memory, as somebody would give it.
struct Saving {
    std::string flag;
    void (*apply)(ExecutorOptions&);
    bool (*helps)(const ExecutorOptions&);  // it is not so already
};

const Saving kShortContext = {
    "--max-model-len 4096", [](ExecutorOptions& o) { o.n_positions_max = 4096; },
    [](const ExecutorOptions& o) { return o.n_positions_max == 0 || o.n_positions_max > 4096; }};
const Saving kInt8Cache = {"--kv-cache-dtype int8", [](ExecutorOptions& o) { o.kv_type = gpu::KvType::kInt8; },
                           [](const ExecutorOptions& o) { return o.kv_type != gpu::KvType::kInt8; }};
const Saving kFewRows = {"--max-num-batched-tokens 512",
                         [](ExecutorOptions& o) { o.n_rows_max = std::max(512u, o.n_sequences_max); },
                         [](const ExecutorOptions& o) { return o.n_rows_max > std::max(512u, o.n_sequences_max); }};
const Saving kFewSequences = {"--max-num-seqs 8",
                              [](ExecutorOptions& o) {
                                  o.n_outputs_max -= o.n_sequences_max - 8;
                                  o.n_sequences_max = 8;
                              },
                              [](const ExecutorOptions& o) { return o.n_sequences_max > 8; }};
const Saving kFewAdapters = {"--adapter-memory-mib 64",
                             [](ExecutorOptions& o) { o.adapter_bytes = uint64_t{64} << 20; },
                             [](const ExecutorOptions& o) { return o.adapter_bytes > uint64_t{64} << 20; }};
const Saving kQ8 = {"--quantize q8_0",
                    [](ExecutorOptions& o) {
                        o.quantize = QuantizeType::kQ8_0;
                        o.keeps_packed = true;
                    },
                    [](const ExecutorOptions& o) { return !o.quantize; }};
const Saving kQ4 = {"--quantize q4_k",
                    [](ExecutorOptions& o) {
                        o.quantize = QuantizeType::kQ4_K;
                        o.keeps_packed = true;
                    },
                    [](const ExecutorOptions& o) { return !o.quantize; }};

}  // namespace

PlannerLimits planner_limits(const ExecutorOptions& options, const KvGroups& groups) {
    return {.n_rows_max = options.n_rows_max,
            .n_outputs_max = options.n_outputs_max,
            .n_sequences_max = options.n_sequences_max,
            .one_dispatch_context_max = options.one_dispatch_context_max,
            .waits_for_others = options.decode != gpu::PersistentDecode::kOff,
            .window_rows = groups.has_both()};
}

uint64_t rope_tables_bytes(const ModelConfig& config, uint32_t n_positions_max) {
    uint64_t n_bytes = 0;
    for (uint32_t rope = 0; rope < config.n_ropes(); ++rope) {
        const RopeConfig& of = config.rope_of(rope);
        n_bytes += (uint64_t{n_positions_max} + short_text_tokens(of, n_positions_max)) * of.rotary_dim * sizeof(float);
    }
    return n_bytes;
}

Result<Fit> fit(const gpu::KernelPlanner& kernels, const StepPlanner& planner, const ModelWeights& weights,
                uint64_t weight_bytes, const FitQuestion& question, const KvFormat& kv,
                const ExecutorOptions& options) {
    const ModelConfig& config = question.config;
    ExecutorOptions tried = options;
    const bool is_automatic = tried.n_positions_max == 0;
    if (is_automatic) tried.n_positions_max = config.max_positions;
    while (true) {
        Fit result;
        result.scratch = scratch_bytes(planner, kernels, config, weights, limits_of(tried));
        result.n_positions_max = tried.n_positions_max;
        auto planned = plan_memory(question.capabilities, question.free_bytes, config, weight_bytes,
                                   result.scratch.sum() + rope_tables_bytes(config, tried.n_positions_max),
                                   plan_options(kernels, tried, config, weights, kv));
        if (planned.ok()) {
            result.plan = std::move(planned).value();
            return result;
        }
        if (!is_automatic || tried.n_positions_max / 2 < kShortestAutomatic) return planned.error();
        tried.n_positions_max /= 2;
    }
}

Result<Fit> fit(const FitQuestion& question, const ExecutorOptions& options) {
    // The copy has the same bytes and sources.
    TensorFiles files = TensorFiles::of({question.files.tensors().begin(), question.files.tensors().end()}, {});
    if (options.quantize) quantize_tensors(files, *options.quantize);
    ModelWeights weights;
    TRY_ASSIGN(const auto loader,
               WeightLoader::create(files, question.config, weights,
                                    {.type = options.weight_type, .keeps_packed = options.keeps_packed}));
    KvFormat kv = fitting_kv_format(options.kv_type, files, question.config);
    gpu::KernelFacts facts{question.capabilities,
                           {.path = options.kernel_path,
                            .batch_invariant = options.batch_invariant,
                            .kv_type = options.kv_type,
                            .decode = options.decode}};
    facts.ladder = gpu::ladder_of(question.capabilities, options.kernel_path, options.left_out_kernels);
    facts.options.path = facts.ladder.path();
    if (needs_f32_keys(kv, question.config, gpu::KernelPlanner(facts).act_type(weights.layers.front().qkv.type))) {
        kv = KvFormat(gpu::KvType::kF32);
        facts.options.kv_type = kv.type;
    }
    const gpu::KernelPlanner kernels(facts);
    const StepPlanner planner(kernels, question.config, weights,
                              planner_limits(options, KvGroups::none(question.config)));
    return fit(kernels, planner, weights, loader->device_bytes(), question, kv, options);
}

std::optional<Savings> savings_that_fit(const FitQuestion& question, const ExecutorOptions& options) {
    // The order is from settings that nobody notices to those that change answers.
    const std::vector<std::vector<const Saving*>> ways = {
        {&kFewAdapters},
        {&kFewRows},
        {&kShortContext},
        {&kFewRows, &kShortContext},
        {&kInt8Cache, &kFewRows, &kShortContext},
        {&kQ8},
        {&kQ8, &kFewRows},
        {&kQ8, &kFewRows, &kShortContext},
        {&kQ8, &kInt8Cache, &kFewRows, &kFewSequences, &kFewAdapters, &kShortContext},
        {&kQ4},
        {&kQ4, &kFewRows},
        {&kQ4, &kFewRows, &kShortContext},
        {&kQ4, &kInt8Cache, &kFewRows, &kFewSequences, &kFewAdapters, &kShortContext}};
    for (const auto& way : ways) {
        ExecutorOptions changed = options;
        std::string flags;
        for (const Saving* saving : way) {
            if (!saving->helps(changed)) continue;
            saving->apply(changed);
            flags += (flags.empty() ? "" : " ") + saving->flag;
        }
        // If the model is shorter than that, its own length is the limit.
        if (changed.n_positions_max > question.config.max_positions) continue;
        if (!flags.empty() && fit(question, changed).ok()) return Savings{std::move(flags), std::move(changed)};
    }
    return std::nullopt;
}

}  // namespace lorad::model
