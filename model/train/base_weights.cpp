#include "model/train/base_weights.h"

#include <utility>

#include "model/files/model_files.h"

namespace lorad::model {

Result<std::unique_ptr<const ModelWeights>> load_base_weights(gpu::Device& device, const std::filesystem::path& model,
                                                              const ModelConfig& config,
                                                              std::optional<gpu::ScalarType> weight_type,
                                                              const LoadProgress& progress) {
    TRY_ASSIGN(const std::unique_ptr<const ModelFiles> model_files, ModelFiles::open(model));
    TRY_ASSIGN(const TensorFiles files, model_files->tensors());
    auto weights = std::make_unique<ModelWeights>();
    TRY_ASSIGN(const std::unique_ptr<WeightLoader> loader,
               WeightLoader::create(files, config, *weights, {.type = weight_type, .keeps_packed = false}));
    TRY(loader->allocate(device));
    TRY(loader->upload(device, progress));
    return std::unique_ptr<const ModelWeights>(std::move(weights));
}

}  // namespace lorad::model
