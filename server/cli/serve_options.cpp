#include "server/cli/serve_options.h"

#include <algorithm>
#include <thread>

#include "model/config/rope.h"
#include "model/exec/kv_cache.h"
#include "model/exec/state_cache.h"
#include "proto/base/log.h"
#include "server/http/generate/tokenizing.h"
#include "server/ops/activation.h"

namespace lorad::server {
namespace {

GuardOptions guard_options(const Config& config) {
    GuardOptions guard;
    guard.n_workers = config.http_threads != 0 ? config.http_threads
                                               : std::min(config.max_num_seqs + config.max_queue + 16 + kUploadsMax +
                                                              kWatchersMax + kFutureWaitsMax + kDrainWaitsMax,
                                                          kHttpThreadsMax);
    guard.n_connections_max = config.max_connections;
    guard.n_connections_per_address_max = config.max_connections_per_address;
    return guard;
}

// Blocks of keys and values alone do not say what a recurrent state was behind them.
bool has_prefix_cache(const Config& config, const LoadedModel& loaded) {
    return !config.no_prefix_cache && (!model::has_state(loaded.config) || loaded.executor->n_snapshots() > 0);
}

}  // namespace

Result<ListenerOptions> listener_options(const Config& config, const ServiceEnvironment& service) {
    ListenerOptions options;
    TRY_ASSIGN(options.sockets, ops::listening_sockets(config, service));
    options.tls_cert = config.tls_cert;
    options.tls_key = config.tls_key;
    options.body_bytes_max = config.body_bytes_max;
    TRY_ASSIGN(std::vector<std::string> origins, cors_origins(config.cors_origin));
    options.cors = Cors(std::move(origins));
    options.guard = guard_options(config);
    return options;
}

EngineOptions engine_options(const Config& config, const LoadedModel& loaded) {
    const model::MemoryPlan& plan = loaded.executor->memory_plan();
    EngineOptions options;
    options.limits = {config.max_num_batched_tokens, config.max_num_seqs, model::kBlockTokens};
    options.n_kv_blocks = loaded.executor->n_kv_blocks();
    options.n_short_text_tokens =
        model::short_text_tokens(loaded.config.rope, loaded.executor->options().n_positions_max);
    options.n_waiting_max = config.max_queue;
    options.has_state = model::has_state(loaded.config);
    options.groups = plan.groups;
    options.n_window_blocks = plan.n_window_blocks;
    options.n_snapshots = loaded.executor->n_snapshots();
    options.snapshot_tokens = config.state_cache_tokens;
    options.prefix_cache = has_prefix_cache(config, loaded);
    if (!config.no_prefix_cache && !options.prefix_cache) {
        log_info("prefix cache: off, as layers of this model remember more of a text than its keys and values, and "
                 "state-cache-mib leaves no room for that");
    }
    options.n_waiting_tokens_max = config.max_num_queued_tokens != 0
                                       ? config.max_num_queued_tokens
                                       : uint64_t{4} * options.n_kv_blocks * model::kBlockTokens;
    options.request_time_max = std::chrono::seconds(config.max_request_s);
    options.starvation_bound = std::chrono::milliseconds(config.starvation_bound_ms);
    options.n_prefill_rows_max = config.prefill_chunk_tokens;
    options.n_sampling_threads = std::clamp(std::thread::hardware_concurrency() / 2, 1u, 8u);
    options.background_share = {config.training_share, config.training_latency_factor};
    return options;
}

Metrics::Shape metrics_shape(const Config& config, const std::string& base_name, const LoadedModel& loaded) {
    const gpu::DeviceCapabilities& device = loaded.device->capabilities();
    Metrics::Shape shape;
    shape.model_name = base_name;
    shape.block_tokens = model::kBlockTokens;
    shape.n_kv_blocks = loaded.executor->n_kv_blocks();
    shape.cache_dtype = config.kv_cache_dtype;
    shape.n_adapters_max = config.max_loras;
    shape.device_name = device.name;
    shape.device_driver = device.driver;
    shape.device_is_cpu = device.is_cpu;
    shape.prefix_cache = has_prefix_cache(config, loaded);
    shape.n_window_blocks = loaded.executor->memory_plan().n_window_blocks;
    shape.n_snapshots = loaded.executor->n_snapshots();
    shape.memory_utilization = config.gpu_memory_utilization;
    const model::MemoryPlan& plan = loaded.executor->memory_plan();
    shape.memory_plan = {{"weights", plan.weight_bytes},     {"scratch", plan.scratch_bytes},
                         {"adapters", plan.adapter_bytes},   {"merged", plan.merged_bytes},
                         {"training", plan.training_bytes},  {"states", plan.state_bytes},
                         {"snapshots", plan.snapshot_bytes}, {"kv", plan.kv_bytes}};
    return shape;
}

ops::VitalLimits vital_limits(const Config& config, bool is_cpu) {
    ops::VitalLimits limits;
    limits.hang = std::chrono::seconds(config.engine_hang_s != 0 ? config.engine_hang_s : is_cpu ? 300 : 10);
    limits.ready = std::min(limits.ready, limits.hang);
    return limits;
}

void configure(ServerContext& context, const Config& config) {
    context.strict = config.strict;
    context.tool_format = model::tool_format_of(config.tool_call_parser);
    context.separates_reasoning = config.reasoning_parser != "none";
    if (config.reasoning_parser == "gemma4") context.thought_marks = model::kGemma4Thoughts;
    context.adapter_root = config.adapter_root;
    context.texts_now.set_max(tokenizing_bytes_max(context.n_positions_max));
    context.uploads.file_bytes_max = static_cast<uint64_t>(config.adapter_file_mib) << 20;
    if (config.upload_quota_mib != 0) {
        context.uploads.held_bytes_max = static_cast<uint64_t>(config.upload_quota_mib) << 20;
    } else if (config.adapter_store_mib != 0) {
        context.uploads.held_bytes_max = static_cast<uint64_t>(config.adapter_store_mib) << 19;
    }
}

}  // namespace lorad::server
