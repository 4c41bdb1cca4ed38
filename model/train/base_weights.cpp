#include "model/train/base_weights.h"

#include <utility>

#include "model/files/model_files.h"

namespace lorad::model {

Result<std::unique_ptr<const ModelWeights>> load_base_weights(gpu::Device& device, const std::filesystem::path& model,
                                                              const ModelConfig& config,
                                                              const BaseWeightOptions& options,
                                                              const LoadProgress& progress) {
    TRY_ASSIGN(const std::unique_ptr<const ModelFiles> model_files, ModelFiles::open(model));
    TRY_ASSIGN(TensorFiles files, model_files->tensors());
    if (options.quantize) quantize_tensors(files, *options.quantize);
    auto weights = std::make_unique<ModelWeights>();
    TRY_ASSIGN(const std::unique_ptr<WeightLoader> loader,
               WeightLoader::create(files, config, *weights, options.weights));
    TRY(loader->allocate(device));
    TRY(loader->upload(device, progress));
    return std::unique_ptr<const ModelWeights>(std::move(weights));
}

}  // namespace lorad::model
