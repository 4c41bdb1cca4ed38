// Uploaded files of a PEFT or an MLX adapter. The first byte says which; the first line's length splits the rest into config
// and weights.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "adapters/check.h"
#include "adapters/pack.h"
#include "adapters/report.h"

using namespace lorad;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const adapters::BaseModel base = [] {
        model::ModelConfig config;
        config.architecture = "Qwen2ForCausalLM";
        config.vocab_size = 16;
        config.hidden_size = 8;
        config.intermediate_size = 16;
        config.n_layers = 2;
        config.n_heads = 2;
        config.n_kv_heads = 1;
        config.head_dim = 4;
        config.qkv_bias = true;
        config.tied_embeddings = true;
        adapters::BaseModel made(config);
        for (const char* name : {"model.layers.0.self_attn.q_proj.bias", "model.layers.1.self_attn.q_proj.bias"}) {
            made.biases[name] = std::vector<float>(8, 1.0f);
        }
        return made;
    }();
    if (size == 0) return 0;
    const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
    const size_t split = std::min(input.find('\n'), input.size());
    const auto file = [](std::string_view name, std::string_view text) {
        return adapters::SourceFile{std::string(name), adapters::FileBytes::copy_of(std::as_bytes(std::span(text)))};
    };
    std::vector<adapters::SourceFile> files;
    files.push_back(file(adapters::kConfigFile, input.substr(0, split)));
    files.push_back(file(data[0] == 'm' ? adapters::kMlxFile : adapters::kPeftFile, input.substr(std::min(split + 1, input.size()))));
    auto source = adapters::make_adapter_source(std::move(files));
    if (!source.ok()) return 0;
    adapters::Inspection inspection = adapters::compare_adapter(*std::move(source), base);
    if (!inspection.error) CHECK(adapters::pack(*inspection.adapter).ok());
    (void)adapters::report_json(adapters::inspect_adapter(std::move(inspection.adapter->source), base));
    return 0;
}
