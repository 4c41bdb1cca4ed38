// What the fuzz targets of adapters share: a small base, and what is done with files that may be an adapter for it.
#pragma once

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "adapters/plan/check.h"
#include "adapters/plan/pack.h"
#include "adapters/plan/report.h"

namespace lorad::fuzz {

// hidden 8, q 8, k and v 4, ffn 16, 2 layers.
inline model::ModelConfig small_config(std::string architecture = "LlamaForCausalLM") {
    model::ModelConfig config;
    config.architecture = std::move(architecture);
    config.vocab_size = 16;
    config.hidden_size = 8;
    config.intermediate_size = 16;
    config.n_layers = 2;
    config.n_heads = 2;
    config.n_kv_heads = 1;
    config.head_dim = 4;
    return config;
}

// The first line and what follows it.
inline std::pair<std::string_view, std::string_view> first_line(std::string_view input) {
    const size_t split = std::min(input.find('\n'), input.size());
    return {input.substr(0, split), input.substr(std::min(split + 1, input.size()))};
}

inline adapters::SourceFile file(std::string_view name, std::string_view text) {
    return {std::string(name), adapters::FileBytes::copy_of(std::as_bytes(std::span(text)))};
}

// Refused, or packed; and reported either way.
inline void check_and_report(std::vector<adapters::SourceFile> files, const adapters::BaseModel& base) {
    auto source = adapters::make_adapter_source(std::move(files));
    if (!source.ok()) return;
    adapters::Inspection inspection = adapters::compare_adapter(*std::move(source), base);
    if (!inspection.error) CHECK(adapters::pack(*inspection.adapter).ok());
    (void)adapters::report_json(adapters::inspect_adapter(std::move(inspection.adapter->source), base));
}

}  // namespace lorad::fuzz
