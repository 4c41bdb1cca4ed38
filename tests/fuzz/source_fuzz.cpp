// Uploaded files of a PEFT or an MLX adapter. The first byte says which; the rest of the first line is the config, what
// follows the weights.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/adapter_input.h"

using namespace lorad;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const adapters::BaseModel base = [] {
        model::ModelConfig config = fuzz::small_config("Qwen2ForCausalLM");
        config.qkv_bias = true;
        config.tied_embeddings = true;
        adapters::BaseModel made(config);
        for (const char* name : {"model.layers.0.self_attn.q_proj.bias", "model.layers.1.self_attn.q_proj.bias"}) {
            made.biases[name] = std::vector<float>(8, 1.0f);
        }
        return made;
    }();
    if (size == 0) return 0;
    const auto [config, weights] = fuzz::first_line({reinterpret_cast<const char*>(data) + 1, size - 1});
    std::vector<adapters::SourceFile> files;
    files.push_back(fuzz::file(adapters::kConfigFile, config));
    files.push_back(fuzz::file(data[0] == 'm' ? adapters::kMlxFile : adapters::kPeftFile, weights));
    fuzz::check_and_report(std::move(files), base);
    return 0;
}
