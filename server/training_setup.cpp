#include "server/training_setup.h"

#include <algorithm>
#include <filesystem>

#include "proto/base/log.h"
#include "proto/base/version.h"

namespace lorad::server {
namespace {

training::TrainingLimits training_limits(const Config& config) {
    training::TrainingLimits limits;
    limits.files.file_bytes_max = uint64_t(config.training_file_mib) << 20;
    limits.files.tenant_bytes_max = uint64_t(config.training_quota_mib) << 20;
    limits.files.bytes_max = uint64_t(config.training_store_mib) << 20;
    limits.n_active_max = config.training_jobs;
    limits.n_together = config.training_together;
    limits.checkpoint_every = std::chrono::seconds(config.training_checkpoint_s);
    return limits;
}

tinker::SessionLimits session_limits(const Config& config, uint32_t n_positions_max) {
    tinker::SessionLimits limits;
    limits.n_models_max = config.training_models;
    limits.n_positions_max = std::min(config.training_model_tokens, n_positions_max);
    limits.n_together_max = config.training_together;
    limits.idle_max = std::chrono::seconds(config.training_idle_s);
    return limits;
}

}  // namespace

Result<TrainingSetup> open_training(const Config& config, const std::string& base_name, LoadedModel& loaded,
                                    const ModelText& text, Engine& engine, training::PieceQueue& pieces) {
    TrainingSetup setup;
    if (config.training_jobs == 0) return setup;
    const std::filesystem::path state = config.state_dir == "none" ? std::string()
                                        : config.state_dir.empty() ? default_state_dir()
                                                                   : config.state_dir;
    if (state.empty()) {
        log_info("without a state folder nothing is trained: files and jobs have to be kept somewhere");
        return setup;
    }
    const adapters::BaseModel& base = loaded.registry->base();
    training::ServerHost::Options options;
    options.facts = {base_name, base.fingerprint,         loaded.device->capabilities().name,
                     version(), loaded.config.vocab_size, loaded.executor->options().n_positions_max};
    const uint32_t n_positions_max = options.facts.n_positions_max;
    options.memory_bytes = uint64_t(config.training_memory_mib) << 20;
    options.n_together = config.training_together;
    options.wake = [&engine] { engine.wake(); };
    options.is_alive = [&engine] { return engine.accepting(); };
    const std::filesystem::path folder = state / ("training-" + base.fingerprint.substr(0, 16));
    auto training_text = std::make_unique<const training::TrainingText>(text.tokenizer(), text.chat_template(),
                                                                        loaded.config.generation.eos_token_ids);
    setup.host = std::make_unique<training::ServerHost>(
        training::ServerParts{*loaded.device, loaded.config, loaded.executor->weights(), *loaded.registry, pieces},
        std::move(training_text), std::move(options));
    TRY_ASSIGN(setup.service, training::TrainingService::open(folder, *setup.host, training_limits(config)));
    if (config.training_models == 0) return setup;
    const uint64_t tenant_bytes_max = uint64_t(config.training_quota_mib) << 20;
    TRY_ASSIGN(tinker::SavedWeights weights,
               tinker::SavedWeights::open(folder / "weights", {.bytes_max = tenant_bytes_max}));
    setup.models = std::make_unique<tinker::ModelSessions>(
        *setup.host, tinker::StateStore(folder / "states", base.fingerprint, {.bytes_max = tenant_bytes_max}),
        std::move(weights), session_limits(config, n_positions_max),
        [service = setup.service.get()] { service->wake(); });
    setup.service->set_called_work(setup.models.get());
    return setup;
}

}  // namespace lorad::server
