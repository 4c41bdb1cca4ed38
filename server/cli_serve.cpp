#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <thread>

#include <unistd.h>

#include "model/config/rope.h"
#include "model/exec/kv_cache.h"
#include "model/exec/state_cache.h"
#include "model/files/model_files.h"
#include "model/forward/decode_layers.h"
#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "server/access/audit.h"
#include "server/access/exposure.h"
#include "server/access/key_store.h"
#include "server/access/shared_places.h"
#include "server/cli.h"
#include "server/engine/engine.h"
#include "server/engine/executor_runner.h"
#include "server/http/generate/response_store.h"
#include "server/http/generate/tokenizing.h"
#include "server/http/guard/guard_metrics.h"
#include "server/http/listener.h"
#include "server/http/routes.h"
#include "server/memory_reserve.h"
#include "server/memory_return.h"
#include "server/model_text.h"
#include "server/ops/activation.h"
#include "server/ops/lifecycle.h"
#include "server/ops/reload.h"
#include "server/ops/service_manager.h"
#include "server/ops/signals.h"
#include "server/ops/vitals.h"
#include "server/registry_merge.h"
#include "server/training_setup.h"

namespace lorad::server {
namespace {

// Bodies of the largest size that may be in memory at once; smaller ones count by their size.
constexpr uint64_t kBodiesMax = 32;

LogLevel log_level_of(const std::string& text) {
    if (text == "debug") return LogLevel::kDebug;
    if (text == "warn") return LogLevel::kWarn;
    if (text == "error") return LogLevel::kError;
    return LogLevel::kInfo;
}

GuardOptions guard_options(const Config& config) {
    GuardOptions guard;
    guard.n_workers =
        config.http_threads != 0
            ? config.http_threads
            : std::min(config.max_num_seqs + config.max_queue + 16 + kUploadsMax + kWatchersMax + kDrainWaitsMax,
                       kHttpThreadsMax);
    guard.n_connections_max = config.max_connections;
    guard.n_connections_per_address_max = config.max_connections_per_address;
    return guard;
}

Status load_adapters(LoadedModel& loaded, const std::vector<LoraArgument>& arguments) {
    for (const LoraArgument& argument : arguments) {
        Result<adapters::AdapterInfo> info = loaded.registry->load(argument.name, argument.dir, {.load_inplace = true});
        if (!info.ok()) {
            return make_error(info.error().code,
                              format("adapter {} from {}: {}", argument.name, argument.dir, info.error().message));
        }
    }
    return ok_status();
}

// Blocks of keys and values alone do not say what a recurrent state was behind them.
bool has_prefix_cache(const Config& config, const LoadedModel& loaded) {
    return !config.no_prefix_cache && (!model::has_state(loaded.config) || loaded.executor->n_snapshots() > 0);
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

// Null: none are kept. Beside the adapters of the same base.
Result<std::unique_ptr<ResponseStore>> response_store(const Config& config, const std::string& base_fingerprint) {
    if (config.response_store == "off") return std::unique_ptr<ResponseStore>();
    ResponseStoreOptions options;
    options.bytes_max = uint64_t(config.response_store_mib) << 20;
    options.age_max_s = config.response_store_age_s;
    std::unique_ptr<adapters::FileSystem> files;
    if (config.response_store == "state") {
        const std::filesystem::path folder = config.state_dir.empty() ? default_state_dir() : config.state_dir;
        if (folder.empty()) {
            return make_error(
                ErrorCode::kInvalidConfig,
                "response-store: \"state\" needs a state folder, and this user has none: name one with state-dir",
                "response-store");
        }
        TRY_ASSIGN(files, adapters::open_file_system(folder / ("responses-" + base_fingerprint.substr(0, 16))));
        TRY(files->lock("lock"));
    }
    return ResponseStore::create(options, std::move(files));
}

MergeControlOptions merge_options(bool batch_invariant, const model::ModelWeights& weights, Metrics& metrics) {
    MergeControlOptions options;
    options.batch_invariant = batch_invariant;
    options.may_by_itself = !model::has_packed(weights);
    options.on_change = [&metrics](const std::optional<MergeState>& merged) {
        metrics.set_merged_bytes(merged ? merged->device_bytes : 0);
        if (merged) metrics.on_merged(merged->gpu_ms);
    };
    return options;
}

// Null: no keys, which is for this machine's users only.
Result<std::unique_ptr<access::KeyStore>> key_store(const Config& config) {
    if (!has_keys(config)) {
        if (config.insecure_no_keys) log_warn("there are no keys: whoever reaches this server may use and change it");
        return std::unique_ptr<access::KeyStore>();
    }
    TRY_ASSIGN(std::unique_ptr<access::KeyStore> keys,
               access::KeyStore::create({.file = config.api_key_file, .full_key = config.api_key}));
    log_info("access: {} keys", keys->n_keys());
    return keys;
}

// What clients send as grammars, and adapters as templates, is tried in processes of its own. Where they cannot be
// started the server does without such requests.
Status isolate_text(ModelText& text, const Config& config, const model::ModelConfig& model,
                    std::function<bool()> is_busy) {
    sandbox::HelperPool::Options options;
    TRY_ASSIGN(options.setup.words, text.helper_words());
    options.setup.vocab_size = model.vocab_size;
    options.setup.eos_ids = model.generation.eos_token_ids;
    options.setup.logs_json = config.log_format == "json";
    options.n_ready = config.text_helpers;
    options.environment = helper_environment();
    std::unique_ptr<sandbox::HelperPool> helpers;
    if (config.text_helpers > 0) {
        Result<std::unique_ptr<sandbox::HelperPool>> started = sandbox::HelperPool::start(std::move(options));
        if (!started.ok()) log_error("{}; requests that need it are answered 503", started.error().message);
        if (started.ok()) helpers = std::move(*started);
    }
    text.isolate(std::move(helpers), {.n_running_max = config.text_helpers,
                                      .n_processors = std::max(1.0, double(std::thread::hardware_concurrency())),
                                      .is_busy = std::move(is_busy)});
    return ok_status();
}

void apply_log_settings(const Config& config) {
    set_log_level(log_level_of(config.log_level));
    set_log_format(config.log_format == "json" ? LogFormat::kJson : LogFormat::kText);
}

ops::VitalLimits vital_limits(const Config& config, bool is_cpu) {
    ops::VitalLimits limits;
    limits.hang = std::chrono::seconds(config.engine_hang_s != 0 ? config.engine_hang_s : is_cpu ? 300 : 10);
    limits.ready = std::min(limits.ready, limits.hang);
    return limits;
}

}  // namespace

Status run_serve(const Config& config, const std::function<Result<Config>()>& read_again) {
    apply_log_settings(config);
    ops::install_signals();
    bound_allocator();
    install_memory_reserve();
    const ServiceEnvironment service = service_environment();
    ops::ServiceManager manager(service);
    if (config.model.empty()) {
        return make_error(ErrorCode::kInvalidConfig, "no model: give --model DIR, LORAD_MODEL or model = in the file",
                          "model");
    }
    TRY_ASSIGN(std::vector<LoraArgument> lora, lora_arguments(config));
    TRY_ASSIGN(std::unique_ptr<access::KeyStore> keys, key_store(config));
    std::string base_name =
        config.served_model_name.empty() ? model::served_name_of(config.model) : config.served_model_name;

    auto loading = std::make_unique<ops::LongStart>(manager, "loading the model");
    // Listening comes first, so that a taken port is told before a long load, and probes get an
    // answer during it.
    ContextGate gate{nullptr};
    Router router;
    add_routes(router, gate);
    access::Audit audit;
    access::SharedPlaces bodies(kBodiesMax * uint64_t(config.body_bytes_max));
    router.set_guard({.keys = keys.get(),
                      .audit = &audit,
                      .bodies = &bodies,
                      .administers_elsewhere = !config.admin_listen.empty(),
                      .metrics_without_key = config.metrics_without_key});
    std::atomic<Metrics*> metrics_of_responses{nullptr};
    ListenerOptions listener_options;
    TRY_ASSIGN(listener_options.sockets, ops::listening_sockets(config, service));
    listener_options.tls_cert = config.tls_cert;
    listener_options.tls_key = config.tls_key;
    listener_options.body_bytes_max = config.body_bytes_max;
    TRY_ASSIGN(std::vector<std::string> origins, cors_origins(config.cors_origin));
    listener_options.cors = Cors(std::move(origins));
    listener_options.guard = guard_options(config);
    TRY_ASSIGN(std::unique_ptr<Listener> listener,
               Listener::create(std::move(listener_options), router, [&](int status) {
                   if (Metrics* metrics = metrics_of_responses.load()) metrics->on_http_response(status);
               }));
    TRY(listener->start());
    log_info("listening on {}:{}, loading {}", config.host, listener->port(), config.model);

    // The small files before the large ones: what is wrong with them is told at once.
    TRY_ASSIGN(const auto model_files, model::ModelFiles::open(config.model));
    TRY_ASSIGN(const model::ModelConfig model_config, model_files->config());
    TRY_ASSIGN(std::unique_ptr<ModelText> text, ModelText::load(*model_files, base_name));
    TRY_ASSIGN(std::string tokenizer_info, tokenizer_info_of(*model_files));
    TRY(isolate_text(*text, config, model_config, [&] {
        const Metrics* metrics = metrics_of_responses.load();
        return metrics != nullptr && metrics->n_running() > 0;
    }));
    LoadArguments load = load_arguments(config, base_name);
    load.check_template = [&text](std::string_view source) { return text->check_template(source); };
    TRY_ASSIGN(LoadedModel loaded, LoadedModel::load(load));
    TRY(load_adapters(loaded, lora));
    Metrics metrics(metrics_shape(config, base_name, loaded));
    ExecutorRunner runner(*loaded.executor, &loaded.device->compute_queue());
    EngineOptions engine_options;
    engine_options.limits = {config.max_num_batched_tokens, config.max_num_seqs, model::kBlockTokens};
    engine_options.n_kv_blocks = loaded.executor->n_kv_blocks();
    engine_options.n_short_text_tokens =
        model::short_text_tokens(loaded.config.rope, loaded.executor->options().n_positions_max);
    engine_options.n_waiting_max = config.max_queue;
    engine_options.has_state = model::has_state(loaded.config);
    engine_options.groups = loaded.executor->memory_plan().groups;
    engine_options.n_window_blocks = loaded.executor->memory_plan().n_window_blocks;
    engine_options.n_snapshots = loaded.executor->n_snapshots();
    engine_options.snapshot_tokens = config.state_cache_tokens;
    engine_options.prefix_cache = has_prefix_cache(config, loaded);
    if (!config.no_prefix_cache && !engine_options.prefix_cache) {
        log_info("prefix cache: off, as layers of this model remember more of a text than its keys and values, and "
                 "state-cache-mib leaves no room for that");
    }
    engine_options.n_waiting_tokens_max = config.max_num_queued_tokens != 0
                                              ? config.max_num_queued_tokens
                                              : uint64_t(4) * engine_options.n_kv_blocks * model::kBlockTokens;
    engine_options.request_time_max = std::chrono::seconds(config.max_request_s);
    engine_options.starvation_bound = std::chrono::milliseconds(config.starvation_bound_ms);
    engine_options.n_prefill_rows_max = config.prefill_chunk_tokens;
    engine_options.n_sampling_threads = std::clamp(std::thread::hardware_concurrency() / 2, 1u, 8u);
    training::PieceQueue pieces;
    engine_options.background = &pieces;
    engine_options.background_share = {config.training_share, config.training_latency_factor};
    Engine engine(runner, metrics, engine_options);
    engine.start();
    RegistryMerge merge(*loaded.registry, engine, *loaded.executor,
                        merge_options(config.batch_invariant, loaded.executor->weights(), metrics));
    loaded.registry->restore_active();

    TRY_ASSIGN(const std::unique_ptr<ResponseStore> responses,
               response_store(config, loaded.registry->base().fingerprint));
    TRY_ASSIGN(const TrainingSetup training, open_training(config, base_name, loaded, *text, engine, pieces));
    ServerContext context{engine,
                          metrics,
                          *loaded.registry,
                          *text,
                          base_name,
                          loaded.config.vocab_size,
                          loaded.executor->options().n_positions_max,
                          loaded.config.generation,
                          unix_time_s(),
                          loaded.config.hidden_size};
    context.responses = responses.get();
    context.training = training.service.get();
    context.strict = config.strict;
    context.tool_format = model::tool_format_of(config.tool_call_parser);
    context.separates_reasoning = config.reasoning_parser != "none";
    if (config.reasoning_parser == "gemma4") context.thought_marks = model::kGemma4Thoughts;
    context.tokenizer_info = std::move(tokenizer_info);
    context.adapter_root = config.adapter_root;
    context.http_metrics = [&listener] { return guard_metrics_text(listener->counts()); };
    context.texts_now.set_max(tokenizing_bytes_max(context.n_positions_max));
    context.uploads.file_bytes_max = uint64_t(config.adapter_file_mib) << 20;
    if (config.upload_quota_mib != 0) {
        context.uploads.held_bytes_max = uint64_t(config.upload_quota_mib) << 20;
    } else if (config.adapter_store_mib != 0) {
        context.uploads.held_bytes_max = uint64_t(config.adapter_store_mib) << 19;
    }
    for (const LoraArgument& argument : lora) context.lora_scales.add(argument.name);
    metrics_of_responses = &metrics;
    ops::Vitals vitals({[&engine] { return engine.heartbeat(); }, [&loaded] { loaded.registry->find(""); }},
                       vital_limits(config, loaded.device->capabilities().is_cpu));
    context.vitals = &vitals;
    ops::Reload reload(config, read_again);
    context.reload = &reload.state();
    ops::Lifecycle lifecycle(manager, vitals, engine, reload);
    loading.reset();
    gate = &context;
    ops::signals_drain();
    const std::string serving =
        format("serves {} and {} adapters on port {}", base_name, lora.size(), listener->port());
    const std::string url =
        format("{}://{}:{}", config.tls_cert.empty() ? "http" : "https", config.host, listener->port());
    std::printf("lorad is ready: %s serves %s and %zu adapters; in a browser: %s/console\n", url.c_str(),
                base_name.c_str(), lora.size(), url.c_str());
    std::fflush(stdout);
    log_info("ready: {}", url);
    if (keys) reload.add([&keys](const Config&) { return keys->prepare(); });
    // The last to be checked is the one that takes what it checks at once.
    reload.add([](const Config& next) -> Result<ops::Reload::Commit> {
        return ops::Reload::Commit([next] { apply_log_settings(next); });
    });
    reload.add([&listener](const Config&) -> Result<ops::Reload::Commit> {
        TRY(listener->reload_tls());
        return ops::Reload::Commit([] {});
    });

    if (training.service) training.service->start();
    lifecycle.serve(serving);
    // With a checkpoint of the job under way, which goes on at the next start.
    if (training.service) training.service->stop();
    lifecycle.drain();
    bool failed = engine.failed();
    listener->stop_accepting();
    // Joins all workers: after it nobody uses the context.
    const bool all_ended = listener->stop();
    loaded.device->save_pipeline_cache();
    if (!all_ended) {
        log_error(
            "a request still computes although its client is told that the server ends; the process ends without it");
        std::fflush(nullptr);
        _exit(failed ? 1 : 0);
    }
    gate = nullptr;
    metrics_of_responses = nullptr;
    if (failed) return make_error(ErrorCode::kDeviceLost, "the device failed; see the log above");
    log_info("stopped");
    return ok_status();
}

}  // namespace lorad::server
