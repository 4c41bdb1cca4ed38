// The golden families: a row for each model of tests/goldens/families (and of tests/goldens), with what it has beyond
// Llama's layers.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/goldens.h"

namespace lorad::testing {

struct GoldenFamily {
    std::string model;
    std::string architecture;  // empty: not told
    bool has_variant = true;   // another spelling of its config.json
};

inline const std::vector<GoldenFamily> kGoldenFamilies = {
    {"gemma3-nested", "Gemma3ForCausalLM"},
    {"gemma4-dense", "Gemma4ForCausalLM"},
    {"gemma4-e2b", "Gemma4ForCausalLM"},
    {"gemma4-moe", "Gemma4ForCausalLM"},
    {"gemma4-nested", "Gemma4ForCausalLM", false},
    {"gpt-oss", "GptOssForCausalLM"},
    {"gpt-oss-mxfp4", "GptOssForCausalLM", false},
    {"granite", "GraniteForCausalLM"},
    {"granite-hybrid", "GraniteMoeHybridForCausalLM", false},
    {"lfm2", "Lfm2ForCausalLM"},
    {"llama-biased", "LlamaForCausalLM", false},
    {"ministral3-nested", "Ministral3ForCausalLM", false},
    {"olmo2", "Olmo2ForCausalLM"},
    {"olmo3", "Olmo3ForCausalLM"},
    {"phi4-mini", "Phi3ForCausalLM"},
    {"qwen3-next", "Qwen3NextForCausalLM"},
    {"qwen35", "Qwen3_5ForCausalLM", false},
    {"qwen35-moe", "Qwen3_5MoeForCausalLM", false},
    {"qwen35-moe-nested", "Qwen3_5MoeForCausalLM", false},
    {"qwen35-nested", "Qwen3_5ForCausalLM"},
    {"smollm3", "SmolLM3ForCausalLM"},
};

// Another set of the same layout may be tested instead: LORAD_FAMILIES names its folder.
inline const char* other_families() { return std::getenv("LORAD_FAMILIES"); }
inline std::filesystem::path families_dir() {
    return other_families() != nullptr ? std::filesystem::path(other_families()) : goldens_dir() / "families";
}

inline std::vector<GoldenFamily> golden_families() {
    if (other_families() == nullptr) return kGoldenFamilies;
    std::vector<GoldenFamily> families;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(families_dir() / "models", ignored))
        families.push_back({entry.path().filename(), "", false});
    std::ranges::sort(families, {}, &GoldenFamily::model);
    return families;
}

inline std::string family_test_name(const ::testing::TestParamInfo<GoldenFamily>& info) {
    std::string name = info.param.model;
    for (char& c : name) c = c == '-' ? '_' : c;
    return name;
}

}  // namespace lorad::testing
