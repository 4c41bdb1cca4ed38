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

// kMxfp4: the experts of gpt-oss, of whose blocks their numbers are. kMixed: gates in Q8_0, all else plain.
enum class ExpertsAs { kPlain, kMxfp4, kQ8_0, kMixed };

// The bytes of the file. gguf: general.architecture.
std::string family_as_gguf(const NamedNumbers& numbers, const model::ModelConfig& config, const std::string& gguf,
                           ExpertsAs experts = ExpertsAs::kPlain);

}  // namespace lorad::testing
