#include "tests/support/goldens.h"

#include <cmath>
#include <cstring>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/source_dir.h"

namespace lorad::testing {

std::filesystem::path goldens_dir() { return source_dir() / "tests" / "goldens"; }

std::vector<GoldenPrompt> read_golden_prompts(const std::filesystem::path& file, const std::string& continuation) {
    std::ifstream in(file);
    EXPECT_TRUE(in.good()) << file;
    const auto json = nlohmann::json::parse(in);
    std::vector<GoldenPrompt> prompts;
    for (const auto& prompt : json.at("prompts")) {
        prompts.push_back({prompt.at("ids"), prompt.at(continuation).at("ids"), prompt.at(continuation).at("margins")});
    }
    return prompts;
}

std::vector<float> golden_floats(const model::TensorFiles& files, const std::string& name) {
    const model::Tensor* tensor = files.find(name);
    if (!tensor || tensor->dtype != model::DType::kF32) {
        ADD_FAILURE() << "no f32 tensor " << name << " in the golden file";
        return {};
    }
    std::vector<float> values(tensor->n_elements());
    std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
    return values;
}

double relative_error(const float* values, const float* reference, size_t n) {
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < n; ++i) {
        difference += (double{values[i]} - reference[i]) * (double{values[i]} - reference[i]);
        norm += double{reference[i]} * reference[i];
    }
    return std::sqrt(difference / norm);
}

size_t n_certain_tokens(const std::vector<double>& margins, double logit_error) {
    size_t n = 0;
    while (n < margins.size() && margins[n] > logit_error) ++n;
    return n;
}

}  // namespace lorad::testing
