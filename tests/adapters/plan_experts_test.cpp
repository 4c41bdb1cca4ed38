// Adapters on bases with experts, against the config alone.
#include <gtest/gtest.h>

#include "adapters/plan/plan.h"
#include "model/config/config.h"
#include "proto/base/format.h"

namespace lorad::adapters::plan_experts_test {
namespace {

model::ModelConfig moe(uint32_t n_layers, uint32_t n_experts) {
    auto config = model::parse_model_config(
        format(
            R"({{"architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": {}, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024, "num_experts": {}, "num_experts_per_tok": 2, "moe_intermediate_size": 32}})",
            n_layers, n_experts),
        "");
    EXPECT_TRUE(config.ok()) << config.error().message;
    return std::move(config).value();
}

PeftConfig peft(const std::string& fields) {
    auto config = parse_peft_config(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, )" + fields + "}");
    EXPECT_TRUE(config.ok()) << config.error().message;
    return std::move(config).value();
}

// The file has nothing of the experts, so no expert's name is compared with the expression, of which there are 36,096
// here.
TEST(PlanExperts, AnExpressionIsNotComparedWithEveryExpertOfALargeBase) {
    const BaseModel base(moe(94, 128));
    const auto outcome = compare_with_base(
        peft(R"x("target_modules": ".*\\.layers\\.(1?[0-9]|2[0-9])\\.self_attn\\.(q_proj|k_proj|v_proj|o_proj)")x"), {},
        base);
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    ASSERT_FALSE(outcome->misfits.empty());
    EXPECT_NE(outcome->misfits.front().tensor.find("self_attn."), std::string::npos) << outcome->misfits.front().tensor;
}

// A file with some single experts must have all that its config names.
TEST(PlanExperts, AnExpertThatTheConfigNamesAndTheFileHasNotIsNamed) {
    const BaseModel base(moe(1, 2));
    const std::vector<float> numbers(64 * 2, 0.5f);
    std::vector<model::Tensor> tensors;
    const auto add = [&](const std::string& name, std::vector<uint64_t> shape) {
        tensors.push_back({.name = "base_model.model.model.layers.0.mlp.experts." + name + ".weight",
                           .dtype = model::DType::kF32,
                           .shape = std::move(shape),
                           .data = std::as_bytes(std::span(numbers))});
    };
    add("0.down_proj.lora_A", {2, 32});
    add("0.down_proj.lora_B", {64, 2});
    tensors[0].data = tensors[0].data.first(2 * 32 * 4);
    const auto outcome = compare_with_base(peft(R"("target_modules": ["down_proj"])"), tensors, base);
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    ASSERT_EQ(outcome->misfits.size(), 1u);
    EXPECT_EQ(outcome->misfits.front().tensor, "base_model.model.model.layers.0.mlp.experts.1.down_proj.lora_A.weight");
}

}  // namespace
}  // namespace lorad::adapters::plan_experts_test
