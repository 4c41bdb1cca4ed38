// An adapter's two files as any client could upload them: the first line's length splits the input into config and weights.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "adapters/check.h"

using namespace lorad;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const model::ModelConfig base = [] {
        model::ModelConfig config;
        config.architecture = "LlamaForCausalLM";
        config.vocab_size = 16;
        config.hidden_size = 8;
        config.intermediate_size = 16;
        config.n_layers = 2;
        config.n_heads = 2;
        config.n_kv_heads = 1;
        config.head_dim = 4;
        return config;
    }();
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    const size_t split = std::min(input.find('\n'), size);
    const auto peft = adapters::parse_peft_config(input.substr(0, split));
    const std::string_view weights = input.substr(std::min(split + 1, size));
    const auto tensors = model::parse_safetensors(std::as_bytes(std::span(weights)), ErrorCode::kAdapterInvalid);
    if (!peft.ok()) return 0;
    adapters::RegexBudget budget;
    const auto rank = peft->rank_of("model.layers.1.self_attn.q_proj", budget);
    if (rank.ok()) CHECK(*rank >= 1 && *rank <= 512);
    if (!tensors.ok()) return 0;
    const auto plan = adapters::plan_adapter(*peft, *tensors, base);
    if (plan.ok()) CHECK(plan->layers.size() == base.n_layers);
    return 0;
}
