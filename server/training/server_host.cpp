#include "server/training/server_host.h"

#include <utility>

#include "adapters/files/source.h"
#include "model/train/trainer.h"
#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::server::training {

namespace {

constexpr uint32_t kSharedPositions = 512;  // tokens of a sequence that passes have room for which others may join

}  // namespace

ServerHost::ServerHost(const ServerParts& parts, std::unique_ptr<const TrainingText> text, Options options)
    : parts_(parts), text_(std::move(text)), options_(std::move(options)) {}

Status ServerHost::check_recipe(const proto::TrainingRecipe& recipe) const {
    TRY_ASSIGN(const model::TrainableAdapter shape,
               adapters::trainable_shape(lora_recipe(recipe), parts_.registry.base()));
    return check_fits(shape);
}

// By all memory of the device: what others take of it may be free at the job's turn.
Status ServerHost::check_fits(const model::TrainableAdapter& adapter) const {
    const gpu::DeviceCapabilities& capabilities = parts_.device.capabilities();
    const Result<model::TrainMemory> planned = model::Trainer::plan_memory(
        capabilities, parts_.config, parts_.weights, adapter,
        {.n_positions_max = 1, .memory_bytes = options_.memory_bytes}, capabilities.device_local_bytes);
    if (planned.ok() || planned.error().code == ErrorCode::kOutOfMemory)
        return planned.ok() ? ok_status() : Status(planned.error());
    return make_error(ErrorCode::kInvalidRequest, planned.error().message, planned.error().param);
}

Result<adapters::PeftFiles> ServerHost::start_files(const std::string& init_from) const {
    TRY_ASSIGN(const auto checked, parts_.registry.read(init_from));
    TRY_ASSIGN(const model::TrainableAdapter adapter, adapters::to_trainable(*checked, parts_.registry.base()));
    TRY(check_fits(adapter));
    return adapters::peft_files(adapter, parts_.registry.base(), {.base_name = options_.facts.base_name});
}

Result<MadeTrainer> ServerHost::make_trainer(const RunPlan& plan, const std::filesystem::path& start,
                                             StepTrainer* beside) {
    model::TrainableAdapter adapter;
    if (start.empty()) {
        TRY_ASSIGN(adapter, adapters::make_trainable(lora_recipe(plan.recipe), parts_.registry.base()));
    } else {
        TRY_ASSIGN(const auto checked,
                   adapters::check_adapter(adapters::AdapterLocation(start), parts_.registry.base()));
        TRY_ASSIGN(adapter, adapters::to_trainable(*checked, parts_.registry.base()));
    }
    model::TrainerOptions options;
    options.optimizer = plan.optimizer;
    options.n_positions_max = plan.n_positions;
    options.n_beside = options_.n_together - 1;
    options.lora_dropout = float(plan.recipe.lora_dropout);
    options.seed = plan.recipe.seed;
    options.memory_bytes = options_.memory_bytes;
    options.owner = plan.owner;
    if (options.n_beside > 0)
        options.n_positions_max =
            std::max(options.n_positions_max, std::min(kSharedPositions, parts_.config.max_positions));
    std::unique_ptr<model::Trainer> trainer;
    if (beside != nullptr) {
        TRY_ASSIGN(trainer, model::Trainer::create_beside(*beside->of_model(), adapter, options));
    } else {
        TRY_ASSIGN(trainer, model::Trainer::create(parts_.device, parts_.config, parts_.weights, adapter, options));
    }
    return MadeTrainer{step_trainer_of(std::move(trainer)), adapter.n_parameters()};
}

Result<bool> ServerHost::run_pieces(std::span<StepTrainer* const> trainers, const std::function<bool()>& stop) {
    return parts_.pieces.run_all(trainers, [&] { return stop() || !options_.is_alive(); }, options_.wake);
}

adapters::PeftFiles ServerHost::files_of(const model::TrainableAdapter& adapter, const RunPlan& plan) const {
    adapters::PeftFileOptions options;
    options.base_name = options_.facts.base_name;
    options.use_rslora = plan.recipe.use_rslora;
    return adapters::peft_files(adapter, parts_.registry.base(), options);
}

std::string ServerHost::generation_of(std::string_view name) const {
    const std::optional<adapters::AdapterInfo> info = parts_.registry.find(name);
    return info && !info->draining ? info->generation : std::string();
}

std::string ServerHost::generation_of(const adapters::PeftFiles& files) const {
    return adapters::generation_of({{"adapter_config.json", sha256_hex(std::as_bytes(std::span(files.config)))},
                                    {"adapter_model.safetensors", sha256_hex(files.tensors)}});
}

Result<std::string> ServerHost::publish(const std::string& name, const adapters::PeftFiles& files, bool replace,
                                        const std::string& expected, bool activate) {
    const std::span<const std::byte> config = std::as_bytes(std::span(files.config));
    const std::vector<adapters::UploadedFile> uploaded = {{"adapter_config.json", sha256_hex(config)},
                                                          {"adapter_model.safetensors", sha256_hex(files.tensors)}};
    const std::shared_ptr<const void> hold = parts_.registry.hold_blobs({uploaded[0].sha256, uploaded[1].sha256});
    for (const auto& [file, bytes] :
         {std::pair(uploaded[0], config), std::pair(uploaded[1], std::span<const std::byte>(files.tensors))}) {
        TRY_ASSIGN(const std::unique_ptr<adapters::BlobUpload> upload,
                   parts_.registry.put_blob(file.sha256, bytes.size(), nullptr, true));
        TRY(upload->write(bytes));
        TRY(upload->finish());
    }
    TRY_ASSIGN(const adapters::AdapterInfo info, parts_.registry.register_adapter(name, uploaded, {replace, expected}));
    // Where there is no room on the device the adapter waits in the store: requests bring it.
    if (activate) {
        const Result<adapters::AdapterInfo> active = parts_.registry.activate(name, {});
        if (!active.ok() && active.error().code == ErrorCode::kStorageFailed) return active.error();
    }
    return info.generation;
}

void ServerHost::remove(const std::string& name) {
    const Result<adapters::AdapterInfo> removed = parts_.registry.remove(name, {});
    if (!removed.ok() && removed.error().code != ErrorCode::kAdapterNotFound)
        log_warn("the adapter {} cannot be removed: {}", name, removed.error().message);
}

}  // namespace lorad::server::training
