#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <thread>

#include <unistd.h>

#include "model/files/model_files.h"
#include "model/forward/decode_layers.h"
#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "server/access/audit.h"
#include "server/access/exposure.h"
#include "server/access/key_store.h"
#include "server/access/shared_places.h"
#include "server/cli/cli.h"
#include "server/cli/serve_options.h"
#include "server/engine/engine.h"
#include "server/engine/executor_runner.h"
#include "server/http/generate/response_store.h"
#include "server/http/guard/guard_metrics.h"
#include "server/http/listener.h"
#include "server/http/routes.h"
#include "server/http/tinker_samples.h"
#include "server/memory_reserve.h"
#include "server/memory_return.h"
#include "server/model_text.h"
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

// Null: none are kept. Beside the adapters of the same base.
Result<std::unique_ptr<ResponseStore>> response_store(const Config& config, const std::string& base_fingerprint) {
    if (config.response_store == "off") return std::unique_ptr<ResponseStore>();
    ResponseStoreOptions options;
    options.bytes_max = static_cast<uint64_t>(config.response_store_mib) << 20;
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

// Tries clients' grammars and adapters' templates in separate processes. If these cannot be started, the server does
// without such requests.
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
    text.isolate(std::move(helpers),
                 {.n_running_max = config.text_helpers,
                  .n_processors = std::max(1.0, static_cast<double>(std::thread::hardware_concurrency())),
                  .is_busy = std::move(is_busy)});
    return ok_status();
}

void apply_log_settings(const Config& config) {
    set_log_level(log_level_of(config.log_level));
    set_log_format(config.log_format == "json" ? LogFormat::kJson : LogFormat::kText);
}

void announce(const Config& config, const std::string& base_name, size_t n_adapters, uint16_t port) {
    const std::string url = format("{}://{}:{}", config.tls_cert.empty() ? "http" : "https", config.host, port);
    std::printf("lorad is ready: %s serves %s and %zu adapters; in a browser: %s/console\n", url.c_str(),
                base_name.c_str(), n_adapters, url.c_str());
    std::fflush(stdout);
    log_info("ready: {}", url);
}

// The last to be checked is the one that takes what it checks at once.
void add_reload_steps(ops::Reload& reload, access::KeyStore* keys, Listener& listener) {
    if (keys != nullptr) reload.add([keys](const Config&) { return keys->prepare(); });
    reload.add([](const Config& next) -> Result<ops::Reload::Commit> {
        return ops::Reload::Commit([next] { apply_log_settings(next); });
    });
    reload.add([&listener](const Config&) -> Result<ops::Reload::Commit> {
        TRY(listener.reload_tls());
        return ops::Reload::Commit([] {});
    });
}

// Joins all workers: after it nobody uses the context.
void end_serving(Listener& listener, const LoadedModel& loaded, bool failed) {
    listener.stop_accepting();
    const bool all_ended = listener.stop();
    loaded.device->save_caches();
    if (all_ended) return;
    log_error("a request still computes although its client is told that the server ends; the process ends without it");
    std::fflush(nullptr);
    _exit(failed ? 1 : 0);
}

// The part that answers before the model is there, to say that it is being loaded.
struct Front {
    std::unique_ptr<access::KeyStore> keys;  // null: none
    ContextGate gate{nullptr};
    Router router;
    access::Audit audit;
    access::SharedPlaces bodies;
    std::atomic<Metrics*> metrics{nullptr};  // counts responses; null until the model is there
    std::unique_ptr<Listener> listener;

    explicit Front(const Config& config) : bodies(kBodiesMax * static_cast<uint64_t>(config.body_bytes_max)) {}

    Status open(const Config& config, const ServiceEnvironment& service) {
        add_routes(router, gate);
        router.set_guard({.keys = keys.get(),
                          .audit = &audit,
                          .bodies = &bodies,
                          .administers_elsewhere = !config.admin_listen.empty(),
                          .metrics_without_key = config.metrics_without_key});
        TRY_ASSIGN(ListenerOptions options, listener_options(config, service));
        TRY_ASSIGN(listener, Listener::create(std::move(options), router, [this](int status) {
                       if (Metrics* counters = metrics.load()) counters->on_http_response(status);
                   }));
        return listener->start();
    }
    bool is_busy() const {
        const Metrics* counters = metrics.load();
        return counters != nullptr && counters->n_running() > 0;
    }
};

// The running server's parts, and the settings it was made from.
struct Serving {
    const Config& config;
    const std::function<Result<Config>()>& read_again;
    const std::string& base_name;
    const std::vector<LoraArgument>& lora;
    ops::ServiceManager& manager;
    Front& front;
    LoadedModel& loaded;
    ModelText& text;
    std::string tokenizer_info;
    std::unique_ptr<ops::LongStart> loading;  // ends when all is ready
};

// Serves with the loaded model until the last request has ended.
Status serve_loaded(Serving serving) {
    const Config& config = serving.config;
    LoadedModel& loaded = serving.loaded;
    Listener& listener = *serving.front.listener;
    Metrics metrics(metrics_shape(config, serving.base_name, loaded));
    ExecutorRunner runner(*loaded.executor, &loaded.device->compute_queue());
    training::PieceQueue pieces;
    EngineOptions options = engine_options(config, loaded);
    options.background = &pieces;
    Engine engine(runner, metrics, options);
    engine.start();
    RegistryMerge merge(*loaded.registry, engine, *loaded.executor,
                        merge_options(config.batch_invariant, loaded.executor->weights(), metrics));
    loaded.registry->restore_active();

    TRY_ASSIGN(const std::unique_ptr<ResponseStore> responses,
               response_store(config, loaded.registry->base().fingerprint));
    TRY_ASSIGN(const TrainingSetup training,
               open_training(config, serving.base_name, loaded, serving.text, engine, pieces));
    ServerContext context{engine,
                          metrics,
                          *loaded.registry,
                          serving.text,
                          serving.base_name,
                          loaded.config.vocab_size,
                          loaded.executor->options().n_positions_max,
                          loaded.config.generation,
                          unix_time_s(),
                          loaded.config.hidden_size};
    configure(context, config);
    context.responses = responses.get();
    context.training = training.service.get();
    TinkerSamples tinker_samples;
    context.tinker = training.models.get();
    context.tinker_samples = &tinker_samples;
    context.tokenizer_info = std::move(serving.tokenizer_info);
    context.http_metrics = [&listener] { return guard_metrics_text(listener.counts()); };
    for (const LoraArgument& argument : serving.lora) context.lora_scales.add(argument.name);
    serving.front.metrics = &metrics;
    ops::Vitals vitals({[&engine] { return engine.heartbeat(); }, [&loaded] { loaded.registry->find(""); }},
                       vital_limits(config, loaded.device->capabilities().is_cpu));
    context.vitals = &vitals;
    ops::Reload reload(config, serving.read_again);
    context.reload = &reload.state();
    ops::Lifecycle lifecycle(serving.manager, vitals, engine, reload);
    serving.loading.reset();
    serving.front.gate = &context;
    ops::signals_drain();
    announce(config, serving.base_name, serving.lora.size(), listener.port());
    add_reload_steps(reload, serving.front.keys.get(), listener);

    loaded.device->save_caches();  // now, as nobody knows how this process ends
    if (training.service) training.service->start();
    lifecycle.serve(
        format("serves {} and {} adapters on port {}", serving.base_name, serving.lora.size(), listener.port()));
    // Saves a checkpoint of the running job, which goes on at the next start.
    if (training.service) training.service->stop();
    lifecycle.drain();
    const bool failed = engine.failed();
    end_serving(listener, loaded, failed);
    serving.front.gate = nullptr;
    serving.front.metrics = nullptr;
    if (failed) return make_error(ErrorCode::kDeviceLost, "the device failed; see the log above");
    log_info("stopped");
    return ok_status();
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
    TRY_ASSIGN(const std::vector<LoraArgument> lora, lora_arguments(config));
    Front front(config);
    TRY_ASSIGN(front.keys, key_store(config));
    const std::string base_name =
        config.served_model_name.empty() ? model::served_name_of(config.model) : config.served_model_name;

    auto loading = std::make_unique<ops::LongStart>(manager, "loading the model");
    // Listening comes first, so that a taken port is told before a long load, and probes get an
    // answer during it.
    TRY(front.open(config, service));
    log_info("listening on {}:{}, loading {}", config.host, front.listener->port(), config.model);

    // The small files before the large ones: what is wrong with them is told at once.
    TRY_ASSIGN(const auto model_files, model::ModelFiles::open(config.model));
    TRY_ASSIGN(const model::ModelConfig model_config, model_files->config());
    TRY_ASSIGN(std::unique_ptr<ModelText> text, ModelText::load(*model_files, base_name));
    TRY_ASSIGN(std::string tokenizer_info, tokenizer_info_of(*model_files));
    TRY(isolate_text(*text, config, model_config, [&front] { return front.is_busy(); }));
    LoadArguments load = load_arguments(config, base_name);
    load.check_template = [&text](std::string_view source) { return text->check_template(source); };
    TRY_ASSIGN(LoadedModel loaded, LoadedModel::load(load));
    TRY(load_adapters(loaded, lora));
    return serve_loaded({config, read_again, base_name, lora, manager, front, loaded, *text, std::move(tokenizer_info),
                         std::move(loading)});
}

}  // namespace lorad::server
