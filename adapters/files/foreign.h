// Adapters that are not PEFT's, told in PEFT's words: tensors under PEFT's names and in its layout, and a config. From
// there on there is one way for all of them.
#pragma once

#include <vector>

#include "adapters/files/source.h"
#include "adapters/plan/plan.h"

namespace lorad::adapters {

struct ForeignAdapter {
    PeftConfig config;
    AdapterTensors tensors;
    std::vector<Misfit> misfits;  // tensors without a meaning
    std::vector<std::string> warnings;
};

// general.type adapter, adapter.type lora, as llama.cpp's converter writes it: the rows of q and k that it permutes for
// Llama-architecture models are put back, Q8_0 becomes f32 (exactly), the embedding's A is turned.
// An error if the file is broken, is no LoRA, or is of another architecture than the base.
Result<ForeignAdapter> read_gguf_adapter(const AdapterSource& source, const BaseModel& base);

// mlx-lm's adapters.safetensors and adapter_config.json, fine_tune_type lora or dora. A and B are stored transposed;
// the scale stands in the config.
Result<ForeignAdapter> read_mlx_adapter(const AdapterSource& source, const BaseModel& base);

// Adds a tensor of its own memory under PEFT's name; its bytes are to be written.
Result<std::span<std::byte>> add_owned(AdapterTensors& tensors, std::string name, model::DType dtype,
                                       std::vector<uint64_t> shape);
// Adds the transposed matrix.
Status add_transposed(AdapterTensors& tensors, std::string name, const model::Tensor& matrix);

}  // namespace lorad::adapters
