// A golden family's folder as llama.cpp's converter writes it into GGUF, in f32: names, order of rows, and what it
// computes of the numbers.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "model/files/safetensors.h"

namespace lorad::testing {

// Numbers by our names, experts stacked and a delta net's parts apart: what a model's tensors mean, however files hold
// them.
using NamedNumbers = std::map<std::string, std::vector<float>>;
NamedNumbers meaning_of(const model::TensorFiles& files, const model::ModelConfig& config);

// The bytes of the file. gguf: general.architecture. packs_experts: the experts of gpt-oss are MXFP4, of whose blocks
// their numbers are.
std::string family_as_gguf(const NamedNumbers& numbers, const model::ModelConfig& config, const std::string& gguf,
                           bool packs_experts = false);

}  // namespace lorad::testing
