// An adapter's two files as any client could upload them: the first line is the config, the rest the weights.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/adapter_input.h"

using namespace lorad;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const model::ModelConfig base = fuzz::small_config();
    const auto [config, weights] = fuzz::first_line({reinterpret_cast<const char*>(data), size});
    const auto peft = adapters::parse_peft_config(config);
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
