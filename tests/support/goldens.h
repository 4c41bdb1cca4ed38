// Reference answers of the golden models: see tests/goldens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model/files/safetensors.h"

namespace lorad::testing {

struct GoldenPrompt {
    std::vector<int32_t> ids;
    std::vector<int32_t> greedy;  // continuation, not stopped by an end-of-sequence token
    std::vector<double> margins;  // best logit minus second best, per greedy token
};

std::filesystem::path goldens_dir();
// prompts of expected/models/NAME.json and expected/adapters/MODEL/NAME.json. `continuation` is what holds the greedy
// tokens, also "greedy_with_adapter" in quantized/expected.
std::vector<GoldenPrompt> read_golden_prompts(const std::filesystem::path& file,
                                              const std::string& continuation = "greedy");
// "promptI.last_logits" and the like of the safetensors file beside it. Fails the test if it is absent.
std::vector<float> golden_floats(const model::TensorFiles& files, const std::string& name);

// Norm of the difference over norm of the reference.
double relative_error(const float* values, const float* reference, size_t n);

// How many leading tokens have to be equal: all up to the first step whose margin is below the error on the logits,
// since from there on another arithmetic may rightly choose otherwise.
size_t n_certain_tokens(const std::vector<double>& margins, double logit_error);

}  // namespace lorad::testing
