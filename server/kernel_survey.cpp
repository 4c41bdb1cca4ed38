#include "server/kernel_survey.h"

#include <filesystem>

#include "model/files/model_files.h"
#include "model/weights/weights.h"

namespace lorad::server {
namespace {

bool holds_weights(const std::filesystem::path& folder) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(folder, ignored)) return true;  // a GGUF file
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
        const std::string extension = entry.path().extension().string();
        if (extension == ".safetensors" || extension == ".gguf") return true;
    }
    return false;
}

}  // namespace

Result<ModelTensors> tensors_of(const model::ModelFiles& files, const std::filesystem::path& folder,
                                const model::ModelConfig& config) {
    const bool has_weights = holds_weights(folder);
    TRY_ASSIGN(model::TensorFiles tensors, has_weights ? files.tensors() : model::WeightLoader::imagine(config));
    return ModelTensors{std::move(tensors), has_weights};
}

Result<ModelSurvey> survey_model(const SurveyArguments& arguments) {
    ModelSurvey result;
    TRY_ASSIGN(const auto files, model::ModelFiles::open(arguments.load.folder));
    TRY_ASSIGN(result.config, files->config());
    TRY_ASSIGN(ModelTensors tensors, tensors_of(*files, arguments.load.folder, result.config));
    result.has_weights = tensors.has_weights;
    TRY_ASSIGN(gpu::DeviceOptions options, device_options(arguments.load.device, true));
    options.cache_folder.clear();
    options.pipeline_cache.clear();  // cached pipelines have no statistics
    options.compile_only = true;
    options.kernel_statistics = true;
    options.pretended_memory_bytes = arguments.memory_bytes;
    TRY_ASSIGN(const auto device, gpu::Device::create(options));
    result.capabilities = device->capabilities();
    TRY_ASSIGN(const model::ExecutorOptions executor, executor_options(arguments.load, result.capabilities));
    TRY_ASSIGN(result.survey, model::Executor::survey(*device, std::move(tensors.files), result.config, executor));
    return result;
}

}  // namespace lorad::server
