// Any bytes as a GGUF adapter: refused, or tensors within the file that are compared with a base and packed.
#include <cstdint>
#include <span>

#include "adapters/check.h"
#include "adapters/gguf.h"
#include "adapters/pack.h"
#include "adapters/report.h"

using namespace lorad;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const adapters::BaseModel base = [] {
        model::ModelConfig config;
        config.architecture = "LlamaForCausalLM";
        config.vocab_size = 16;
        config.hidden_size = 8;
        config.intermediate_size = 16;
        config.n_layers = 2;
        config.n_heads = 2;
        config.n_kv_heads = 1;
        config.head_dim = 4;
        return adapters::BaseModel(config);
    }();
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
    const auto file = adapters::parse_gguf(bytes);
    if (!file.ok()) return 0;
    for (const auto& tensor : file->tensors) {
        CHECK(tensor.data.data() >= bytes.data() && tensor.data.data() + tensor.data.size() <= bytes.data() + bytes.size());
    }
    std::vector<adapters::SourceFile> files;
    files.push_back({std::string(adapters::kGgufFile), adapters::FileBytes::copy_of(bytes)});
    auto source = adapters::make_adapter_source(std::move(files));
    if (!source.ok()) return 0;
    adapters::Inspection inspection = adapters::compare_adapter(*std::move(source), base);
    if (!inspection.error) CHECK(adapters::pack(*inspection.adapter).ok());
    (void)adapters::report_json(adapters::inspect_adapter(std::move(inspection.adapter->source), base));
    return 0;
}
