// Makes an executor: kernels, the plan of the memory, the memory, the weights; and again without kernels that the
// driver refuses.
#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "gpu/kernels/persistent/grid_barrier.h"
#include "gpu/upload.h"
#include "model/config/rope.h"
#include "model/exec/executor_impl.h"
#include "model/exec/kv_precision.h"
#include "model/exec/memory_fit.h"
#include "model/exec/tuned_products.h"
#include "model/files/model_files.h"
#include "proto/base/check.h"
#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::model {
namespace {

Status fill_in(const ModelConfig& config, ExecutorOptions& options) {
    if (options.n_outputs_max == 0) options.n_outputs_max = options.n_sequences_max;
    if (options.n_rows_max < options.n_sequences_max || options.n_sequences_max == 0) {
        return make_error(ErrorCode::kInvalidConfig,
                          format("a step of {} rows cannot hold {} sequences; both must be positive",
                                 options.n_rows_max, options.n_sequences_max));
    }
    if (options.n_positions_max > config.max_positions) {
        return make_error(ErrorCode::kInvalidConfig,
                          format("a context of {} tokens was asked for, the model was made for {}",
                                 options.n_positions_max, config.max_positions));
    }
    return ok_status();
}

bool has_f16_matrices(const TensorFiles& files) {
    return std::ranges::any_of(
        files.tensors(), [](const Tensor& tensor) { return tensor.dtype == DType::kF16 && tensor.shape.size() == 2; });
}

std::vector<uint32_t> head_dims_of(const ModelConfig& config) {
    std::vector<uint32_t> head_dims;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        const LayerFacts facts = config.layer(layer);
        if (facts.mixer == Mixer::kAttention &&
            std::ranges::find(head_dims, facts.attention.head_dim) == head_dims.end())
            head_dims.push_back(facts.attention.head_dim);
    }
    return head_dims;
}

// Each shape of the model's mixers that shape_of tells once; none of layers with another one.
template <typename Shape>
std::vector<Shape> shapes_of(const ModelConfig& config, Mixer mixer, Shape (*shape_of)(const LayerFacts&)) {
    std::vector<Shape> shapes;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        const LayerFacts facts = config.layer(layer);
        if (facts.mixer != mixer) continue;
        const Shape shape = shape_of(facts);
        if (std::ranges::find(shapes, shape) == shapes.end()) shapes.push_back(shape);
    }
    return shapes;
}
gpu::DeltaShape delta_shape_of(const LayerFacts& facts) { return delta_shape(facts.delta); }
gpu::MambaShape mamba_shape_of(const LayerFacts& facts) { return mamba_shape(facts.mamba); }

// Other weights have another one, as far as one can know without reading them.
std::string identity_of(const std::filesystem::path& folder, const TensorFiles& files) {
    std::error_code error;
    const auto written = std::filesystem::last_write_time(folder, error);
    if (error) return {};
    uint64_t n_bytes = 0;
    for (const Tensor& tensor : files.tensors()) n_bytes += tensor.data.size();
    return format("{} {} {} {}", std::filesystem::weakly_canonical(folder, error).string(), files.tensors().size(),
                  n_bytes, written.time_since_epoch().count());
}

}  // namespace

// The refusal names settings that would make it fit. `files`: as they are without ExecutorOptions::quantize.
Status Executor::Impl::plan_memory_for(uint64_t weight_bytes, const TensorFiles& files, ScratchBytes& scratch_sizes) {
    const FitQuestion question{device.capabilities(), device.free_bytes_estimate(), config, files};
    Result<Fit> fitted = fit(kernels->planner(), *planner, weights, weight_bytes, question, kv_format, options);
    if (!fitted.ok() && fitted.error().code == ErrorCode::kOutOfMemory && options.n_kv_blocks == 0) {
        const std::optional<Savings> savings = savings_that_fit(question, options);
        Error error = std::move(fitted).error();
        error.message += savings ? format("; it fits with {}", savings->flags)
                                 : std::string("; no setting makes it fit: a smaller model, or a larger device");
        return error;
    }
    if (!fitted.ok()) return fitted.error();
    if (options.n_positions_max == 0 && fitted->n_positions_max < config.max_positions) {
        log_warn("context shortened from {} to {} tokens: that is what the device's memory holds", config.max_positions,
                 fitted->n_positions_max);
    }
    options.n_positions_max = fitted->n_positions_max;
    plan = fitted->plan;
    scratch_sizes = fitted->scratch;
    return ok_status();
}

void Executor::Impl::make_planner() {
    planner.emplace(kernels->planner(), config, weights, planner_limits(options, plan.groups));
}

Status Executor::Impl::upload_rope_tables() {
    TRY_ASSIGN(rope_tables, device.create_buffer(rope_tables_bytes(config, options.n_positions_max),
                                                 gpu::MemoryKind::kDeviceLocal, "rope tables"));
    uint64_t offset = 0;
    for (uint32_t rope = 0; rope < config.n_ropes(); ++rope) {
        const std::vector<float> table = model::rope_table(config.rope_of(rope), options.n_positions_max);
        TRY(device.uploader().upload(rope_tables, offset, std::as_bytes(std::span(table))));
        rope_offsets.push_back(offset);
        offset += table.size() * sizeof(float);
    }
    return ok_status();
}

Status Executor::Impl::allocate(const ScratchBytes& scratch_sizes) {
    TRY(upload_rope_tables());
    TRY_ASSIGN(lora_table, LoraTable::create(device, config, options.n_adapter_slots));
    transform = std::make_unique<WeightTransform>(device, *kernels, config, weights, options.merged_bytes);
    TRY_ASSIGN(scratch, create_scratch(device, scratch_sizes));
    TRY_ASSIGN(kv_cache, KvCache::create(device, config, plan.n_kv_blocks, kv_format, plan.groups.windowed,
                                         plan.n_window_blocks));
    TRY_ASSIGN(state_cache, StateCache::create(device, config, options.n_sequences_max + plan.n_snapshots));
    if (can_decode_layers(kernels->persistent, config, weights)) {
        TRY_ASSIGN(decode_layers, DecodeLayers::create(device, config, weights, kv_cache, ropes()));
        programs.offer(PersistentProgram::kDecodeLayers, "decode_layers", decode_layers->given_up());
        if (kernels->persistent.can_decode_layers(decode_layers_shape(config, weights, 1, true))) {
            programs.offer(PersistentProgram::kDecodeLayersAdapter, "decode_layers with an adapter",
                           decode_layers->given_up());
        }
    }
    if (can_decode_rows(*kernels, config, weights)) {
        TRY_ASSIGN(
            decode_rows,
            GridBarrier::create(device, kernels->persistent.decode_rows_sync_bytes(decode_rows_shape(config, weights)),
                                "decode rows"));
        programs.offer(PersistentProgram::kDecodeRows, "decode_rows", decode_rows->given_up());
    } else if (can_decode_bricks(*kernels, config, weights)) {
        uint64_t sync_bytes = 0;  // of the layer whose program needs most
        for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
            for (const uint32_t rows : {2u, 4u, gpu::kDecodeRowsMax})
                sync_bytes = std::max(sync_bytes, kernels->persistent.decode_bricks_sync_bytes(
                                                      *decode_bricks_shape(config, weights, layer, rows)));
        }
        TRY_ASSIGN(decode_rows, GridBarrier::create(device, sync_bytes, "decode bricks"));
        programs.offer(PersistentProgram::kDecodeRows, "decode_bricks", decode_rows->given_up());
    }
    if (!planner->gated_buckets().empty()) {
        TRY_ASSIGN(gated_lora, GridBarrier::create(device, sizeof(gpu::GridBarrierSync), "gated lora"));
        programs.offer(PersistentProgram::kGatedLora, "matmul_warpgroup_gated_lora", gated_lora->given_up());
    }
    TRY_ASSIGN(host_logits, device.create_buffer(host_logits_rows() * config.vocab_size * sizeof(float),
                                                 gpu::MemoryKind::kHostReadback, "host logits"));
    for (RingSlot& slot : ring) {
        TRY_ASSIGN(slot.state,
                   device.create_buffer(scratch.step_state.size(), gpu::MemoryKind::kHostUpload, "host step state"));
        TRY_ASSIGN(slot.masks, device.create_buffer(scratch.masks.size(), gpu::MemoryKind::kHostUpload, "host masks"));
        TRY_ASSIGN(slot.results,
                   device.create_buffer(scratch.results.size(), gpu::MemoryKind::kHostReadback, "host results"));
        TRY_ASSIGN(slot.logprobs,
                   device.create_buffer(scratch.logprobs.size(), gpu::MemoryKind::kHostReadback, "host logprobs"));
        const Matrix& head = weights.output();
        TRY_ASSIGN(slot.hidden, HiddenRows::create(device, scratch.output_xn, kernels->act_type(head.type),
                                                   config.hidden_size, head.k_stride));
    }
    return device.uploader().finish();
}

// All that comes before weights are read: what they are, the kernels, the plan of the memory, and the memory. `files`
// outlive the loader.
Result<std::unique_ptr<WeightLoader>> Executor::Impl::prepare(TensorFiles& files) {
    TRY(fill_in(config, options));
    const TensorFiles stored = TensorFiles::of({files.tensors().begin(), files.tensors().end()}, {});
    if (options.quantize) quantize_tensors(files, *options.quantize);
    TRY_ASSIGN(auto loader, WeightLoader::create(files, config, weights,
                                                 {.type = options.weight_type, .keeps_packed = options.keeps_packed}));
    kv_format = fitting_kv_format(options.kv_type, files, config);
    const auto make_kernels = [&](gpu::KvType kv_type) {
        return gpu::KernelSet::create(device, {.path = options.kernel_path,
                                               .batch_invariant = options.batch_invariant,
                                               .has_experts = topology_of(config).has(kFeatureExperts),
                                               .kv_type = kv_type,
                                               .decode = options.decode,
                                               .decode_workgroups = options.decode_workgroups,
                                               .left_out = options.left_out_kernels,
                                               .lora_on_matrices = options.lora_on_matrices,
                                               .expand_rows = options.expand_rows,
                                               .refused = options.refused_kernels,
                                               .head_dims = head_dims_of(config),
                                               .head_group = config.n_heads / config.n_kv_heads,
                                               .packed_formats = packed_formats_of(weights),
                                               .delta_shapes = shapes_of(config, Mixer::kDeltaNet, delta_shape_of),
                                               .mamba_shapes = shapes_of(config, Mixer::kMamba, mamba_shape_of)});
    };
    TRY_ASSIGN(kernels, make_kernels(kv_format.keys_f16.empty() ? options.kv_type : gpu::KvType::kInt8Values));
    if (needs_f32_keys(kv_format, config, kernels->act_type(weights.layers.front().qkv.type))) {
        kv_format = KvFormat(gpu::KvType::kF32);
        TRY_ASSIGN(kernels, make_kernels(kv_format.type));
    }
    options.kernel_path = kernels->options().path;
    // Wide activations would become infinite in products that take their inputs in f16.
    if (config.wide_activations && !options.weight_type && has_f16_matrices(files) &&
        kernels->act_type(gpu::ScalarType::kF16) == gpu::ScalarType::kF16) {
        log_warn("weights: {} has values beyond f16; its f16 matrices become f32, --dtype bfloat16 takes half of that",
                 config.architecture);
        options.weight_type = gpu::ScalarType::kF32;
        weights = ModelWeights();
        TRY_ASSIGN(loader, WeightLoader::create(files, config, weights,
                                                {.type = options.weight_type, .keeps_packed = options.keeps_packed}));
    }
    TRY(kernels->tune(
        device, {.when = options.tuning, .products = tuned_products(weights), .tiles_max = options.tuned_tiles_max}));
    make_planner();
    ScratchBytes scratch_sizes{};
    TRY(plan_memory_for(loader->device_bytes(), stored, scratch_sizes));
    if (plan.groups.has_both()) make_planner();  // of steps with rows of windows
    TRY(loader->allocate(device));
    TRY(allocate(scratch_sizes));
    return loader;
}

Status Executor::Impl::load(const std::filesystem::path& folder, const LoadProgress& progress) {
    TRY_ASSIGN(const auto model_files, ModelFiles::open(folder));
    TRY_ASSIGN(TensorFiles files, model_files->tensors());
    model_identity = identity_of(folder, files);
    TRY_ASSIGN(const auto loader, prepare(files));
    Status warmed = ok_status();
    std::thread warmer;
    if (options.warm_up) warmer = std::thread([&] { warmed = warm_up(); });
    Status uploaded = loader->upload(device, progress);
    if (warmer.joinable()) warmer.join();
    TRY(std::move(uploaded));
    TRY(std::move(warmed));
    return try_programs();
}

// The tests at the start run the fast kernels on small products. A driver may still refuse those of the model's own
// sizes. If no path was requested, the model is then loaded without the refused ones that others can replace and, if
// that does not help, with portable kernels alone. Some drivers report a lack of memory when they cannot compile: what
// lacks it twice counts as refused.
Result<std::unique_ptr<Executor>> Executor::load(gpu::Device& device, const std::filesystem::path& folder,
                                                 const ModelConfig& config, const ExecutorOptions& options,
                                                 const LoadProgress& progress) {
    ExecutorOptions tried = options;
    bool has_lacked_memory = false;
    while (true) {
        auto impl = std::make_unique<Impl>(device, config, tried);
        const Status loaded = impl->load(folder, progress);
        if (loaded.ok()) return std::unique_ptr<Executor>(new Executor(std::move(impl)));
        const ErrorCode why = loaded.error().code;
        const bool is_for_kernels = (why == ErrorCode::kKernelRefused || why == ErrorCode::kOutOfMemory) &&
                                    impl->kernels && impl->kernels->has_failures(why);
        if (!is_for_kernels || options.kernel_path != gpu::KernelPath::kAuto ||
            impl->options.kernel_path == gpu::KernelPath::kPortable)
            return loaded.error();
        std::string how = "as before";
        if (why == ErrorCode::kKernelRefused || std::exchange(has_lacked_memory, true)) {
            const std::vector<std::string> without = impl->kernels->replaceable_failures(why);
            tried.left_out_kernels.insert(tried.left_out_kernels.end(), without.begin(), without.end());
            if (without.empty()) tried.kernel_path = gpu::KernelPath::kPortable;
            how = without.empty() ? "with portable kernels alone" : format("without {}", fmt::join(without, ", "));
        }
        log_warn("kernels: on {}: {}; loading again {}", device.capabilities().name, loaded.error().message, how);
    }
}

Result<KernelSurvey> Executor::survey(gpu::Device& device, TensorFiles files, const ModelConfig& config,
                                      const ExecutorOptions& options) {
    CHECK(device.capabilities().compiles_only);  // else its memory would be taken for weights that never come
    return std::make_unique<Impl>(device, config, options)->survey(files);
}

}  // namespace lorad::model
