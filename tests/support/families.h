// The golden families: a row for each model of tests/goldens/families (and of tests/goldens), with what it has beyond Llama's layers.
#pragma once

#include <filesystem>
#include <string>

#include "tests/support/goldens.h"

namespace lorad::testing {

struct GoldenFamily {
    const char* model;
    const char* architecture;
    bool has_variant = true;  // another spelling of its config.json
    // PEFT merged in f32; lorad rounds to the base's type, which costs its unit roundoff / sqrt(3) in each matrix product, a few times over the layers.
    double merged_error_max = 2e-2;
};

// Gemma 4's scores are not scaled down by the heads' size, so that these models make much of little: transformers itself, with merged weights rounded to bf16, is off by up to 0.17 on
// these prompts.
inline constexpr double kUnscaledScores = 0.2;

inline constexpr GoldenFamily kGoldenFamilies[] = {
    {"gemma3-nested", "Gemma3ForCausalLM"}, {"gemma4-dense", "Gemma4ForCausalLM", true, kUnscaledScores}, {"gemma4-e2b", "Gemma4ForCausalLM", true, kUnscaledScores}, {"gemma4-nested", "Gemma4ForCausalLM", false, kUnscaledScores},
    {"granite", "GraniteForCausalLM"},      {"llama-biased", "LlamaForCausalLM", false}, {"ministral3-nested", "Ministral3ForCausalLM", false}, {"olmo2", "Olmo2ForCausalLM"},
    {"olmo3", "Olmo3ForCausalLM"},          {"phi4-mini", "Phi3ForCausalLM"},       {"smollm3", "SmolLM3ForCausalLM"},
    {"qwen35", "Qwen3_5ForCausalLM", false}, {"qwen35-nested", "Qwen3_5ForCausalLM"}, {"lfm2", "Lfm2ForCausalLM"},
    {"qwen3-next", "Qwen3NextForCausalLM"},  {"qwen35-moe", "Qwen3_5MoeForCausalLM", false}, {"qwen35-moe-nested", "Qwen3_5MoeForCausalLM", false}, {"gpt-oss", "GptOssForCausalLM"},
    {"gpt-oss-mxfp4", "GptOssForCausalLM", false},
};

inline std::filesystem::path families_dir() { return goldens_dir() / "families"; }

inline std::string family_test_name(const ::testing::TestParamInfo<GoldenFamily>& info) {
    std::string name = info.param.model;
    for (char& c : name) c = c == '-' ? '_' : c;
    return name;
}

}  // namespace lorad::testing
