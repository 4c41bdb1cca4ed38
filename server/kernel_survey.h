// The kernels and the memory that a model would take on a device; no weights are read, nothing runs. For lorad-bench
// pipelines and lorad check --memory-gib.
#pragma once

#include <cstdint>
#include <filesystem>

#include "gpu/device.h"
#include "model/exec/executor.h"
#include "model/files/model_files.h"
#include "proto/base/result.h"
#include "server/loaded_model.h"

namespace lorad::server {

struct ModelTensors {
    model::TensorFiles files;
    bool has_weights = false;  // in the folder: their headers were read
};
// The tensors of a model, or those that its config asks for where there are none. `files` outlive them.
Result<ModelTensors> tensors_of(const model::ModelFiles& files, const std::filesystem::path& folder,
                                const model::ModelConfig& config);

struct SurveyArguments {
    LoadArguments load;         // folder: config.json is enough
    uint64_t memory_bytes = 0;  // assumed size of the device; 0: enough
};

struct ModelSurvey {
    gpu::DeviceCapabilities capabilities;
    model::ModelConfig config;
    bool has_weights = false;
    model::KernelSurvey survey;
};

// Opens the device to compile alone. kInvalidModel: a folder without weights whose config says that they are quantized.
// kOutOfMemory: more than memory_bytes.
Result<ModelSurvey> survey_model(const SurveyArguments& arguments);

}  // namespace lorad::server
