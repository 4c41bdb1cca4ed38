// PEFT's variants of LoRA: what is planned for each, and what is refused because parts contradict each other.
#include <algorithm>
#include <bit>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "adapters/plan/check.h"
#include "tests/adapters/adapter_folder.h"
#include "tests/reference/numbers.h"
#include "tests/support/source_dir.h"

namespace lorad::adapters::variants_test {
namespace {

using model::LinearModule;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace lorad::testing;

const std::string kPrefix = "base_model.model.model.";

BaseModel base_with(bool tied = false, bool biases = false) {
    BaseModel base(small_config());
    base.config.tied_embeddings = tied;
    if (biases) {
        base.config.qkv_bias = true;
        for (int layer = 0; layer < 2; ++layer) {
            for (const auto& [name, n] :
                 {std::pair("q_proj", 64u), std::pair("k_proj", 32u), std::pair("v_proj", 32u)}) {
                base.biases[format("model.layers.{}.self_attn.{}.bias", layer, name)] = std::vector<float>(n, 0.5f);
            }
        }
    }
    return base;
}
std::string config_with(const std::string& fields) {
    return R"({"peft_type":"LORA","r":4,"lora_alpha":8,"target_modules":["q_proj","v_proj"])" +
           (fields.empty() ? "" : "," + fields) + "}";
}
Result<std::unique_ptr<CheckedAdapter>> check(const std::string& fields, const TestTensors& tensors,
                                              const BaseModel& base = base_with()) {
    return check_adapter(AdapterFolder(config_with(fields), tensors).path(), base);
}
std::string refusal(const std::string& fields, const TestTensors& tensors, const BaseModel& base = base_with()) {
    const auto adapter = check(fields, tensors, base);
    EXPECT_FALSE(adapter.ok());
    return adapter.ok() ? "" : adapter.error().message;
}
TestTensor vector(uint64_t n, uint64_t seed, const std::string& dtype = "F32") {
    TestTensor tensor = matrix(1, n, seed, dtype);
    tensor.shape = {n};
    return tensor;
}
// A plain adapter with a vector of one value beside each of its modules.
TestTensors with_vectors(const std::string& suffix) {
    TestTensors tensors = plain_tensors();
    for (int layer = 0; layer < 2; ++layer) {
        tensors[format("{}layers.{}.self_attn.q_proj.{}", kPrefix, layer, suffix)] = vector(64, 3);
        tensors[format("{}layers.{}.self_attn.v_proj.{}", kPrefix, layer, suffix)] = vector(32, 4);
    }
    return tensors;
}
const ModulePlan& module_of(const CheckedAdapter& adapter, size_t layer, LinearModule module) {
    return adapter.plan.layers[layer][static_cast<size_t>(module)];
}

TEST(PeftVariants, DoraHasAMagnitudeForEveryModule) {
    for (const std::string suffix :
         {"lora_magnitude_vector", "lora_magnitude_vector.weight", "lora_magnitude_vector.default.weight"}) {
        const auto adapter = check(R"("use_dora":true)", with_vectors(suffix));
        ASSERT_TRUE(adapter.ok()) << adapter.error().message;
        const ModulePlan& v = module_of(**adapter, 1, LinearModule::kV);
        ASSERT_NE(v.magnitude, nullptr);
        EXPECT_EQ(v.magnitude->name, format("{}layers.1.self_attn.v_proj.{}", kPrefix, suffix));
        EXPECT_FALSE((*adapter)->has_replaced_parts());
    }
    TestTensors tensors = with_vectors("lora_magnitude_vector");
    EXPECT_THAT(refusal("", tensors), HasSubstr("lora_magnitude_vector: expected use_dora = true in the config"));
    tensors.erase(kPrefix + "layers.1.self_attn.q_proj.lora_magnitude_vector");
    EXPECT_THAT(refusal(R"("use_dora":true)", tensors),
                HasSubstr("layers.1.self_attn.q_proj.lora_magnitude_vector: expected [64], found none"));
    tensors = with_vectors("lora_magnitude_vector");
    tensors[kPrefix + "layers.0.self_attn.q_proj.lora_magnitude_vector"] = vector(63, 1);
    EXPECT_THAT(refusal(R"("use_dora":true)", tensors), HasSubstr("expected [64], found [63]"));
}

TEST(PeftVariants, FusedMagnitudesAndBiasesAreSplitByRows) {
    TestTensors tensors;
    for (uint32_t layer = 0; layer < 2; ++layer) {
        add_pair(tensors, layer, "self_attn.qkv_proj", 4, 128, 40);
        tensors[format("{}layers.{}.self_attn.qkv_proj.lora_B.bias", kPrefix, layer)] = vector(128, 9);
    }
    const auto adapter = check_adapter(
        AdapterFolder(R"({"peft_type":"LORA","r":4,"lora_alpha":8,"lora_bias":true,"target_modules":["qkv_proj"]})",
                      tensors)
            .path(),
        base_with());
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    const ModulePlan& v = module_of(**adapter, 0, LinearModule::kV);
    ASSERT_EQ(v.bias.size(), 32u);
    EXPECT_EQ(v.row_begin, 96u);
    EXPECT_EQ(v.bias[0], 2.0f * test_value(9, 0, 96));
}

TEST(PeftVariants, ABiasOnBCountsWithTheScale) {
    const auto adapter = check(R"("lora_bias":true)", with_vectors("lora_B.bias"));
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    const ModulePlan& q = module_of(**adapter, 0, LinearModule::kQ);
    ASSERT_EQ(q.bias.size(), 64u);
    EXPECT_EQ(q.bias[5], 2.0f * test_value(3, 0, 5));
    EXPECT_THAT(refusal("", with_vectors("lora_B.bias")),
                HasSubstr("lora_B.bias: expected lora_bias = true in the config"));
    EXPECT_THAT(refusal(R"("lora_bias":true)", plain_tensors()), HasSubstr("lora_B.bias: expected [64], found none"));
}

TEST(PeftVariants, TrainedBiasesCountAsTheDifferenceToTheBases) {
    const BaseModel base = base_with(false, true);
    for (const std::string suffix : {"base_layer.bias", "bias"}) {
        TestTensors tensors = with_vectors(suffix);
        tensors[kPrefix + "layers.1.self_attn.k_proj.bias"] = vector(32, 7);  // a module without A and B
        const auto adapter = check(R"("bias":"all")", tensors, base);
        ASSERT_TRUE(adapter.ok()) << adapter.error().message;
        EXPECT_EQ(module_of(**adapter, 0, LinearModule::kQ).bias[5], test_value(3, 0, 5) - 0.5f);
        const ModulePlan& k = module_of(**adapter, 1, LinearModule::kK);
        EXPECT_EQ(k.a, nullptr);
        ASSERT_EQ(k.bias.size(), 32u);
        EXPECT_EQ(k.bias[31], test_value(7, 0, 31) - 0.5f);
        EXPECT_EQ((*adapter)->n_modules, 5u);
    }
    EXPECT_TRUE(check(R"("bias":"lora_only")", plain_tensors(), base).ok());
    EXPECT_THAT(refusal("", with_vectors("bias"), base), HasSubstr("expected bias = all or lora_only in the config"));
    EXPECT_THAT(refusal(R"("bias":"all")", with_vectors("bias")),
                HasSubstr("expected a layer of the base with a bias, found one without"));
    BaseModel unknown = base_with(false, true);
    unknown.biases.clear();
    EXPECT_THAT(refusal(R"("bias":"all")", with_vectors("bias"), unknown),
                HasSubstr("the base's bias to compare with"));
}

TEST(PeftVariants, FullyTrainedModulesReplaceTheBases) {
    for (const std::string suffix : {"weight", "modules_to_save.weight", "modules_to_save.default.weight"}) {
        TestTensors tensors = plain_tensors();
        tensors["base_model.model.lm_head." + suffix] = matrix(100, 40, 1, "BF16");
        tensors[kPrefix + "embed_tokens." + suffix] = matrix(100, 40, 2);
        tensors[kPrefix + "norm." + suffix] = vector(40, 3);
        for (int layer = 0; layer < 2; ++layer) {
            tensors[format("{}layers.{}.input_layernorm.{}", kPrefix, layer, suffix)] = vector(40, 5);
        }
        const auto adapter =
            check(R"("modules_to_save":["lm_head","embed_tokens","model.norm","input_layernorm"])", tensors);
        ASSERT_TRUE(adapter.ok()) << adapter.error().message;
        const ExtrasPlan& extras = (*adapter)->plan.extras;
        EXPECT_NE(extras.head_table, nullptr);
        EXPECT_NE(extras.embed_table, nullptr);
        EXPECT_NE(extras.final_norm, nullptr);
        ASSERT_EQ(extras.norms.size(), 2u);
        EXPECT_NE(extras.norms[1].input, nullptr);
        EXPECT_EQ(extras.norms[1].ffn, nullptr);
        EXPECT_TRUE((*adapter)->has_replaced_parts());
        // "norm" ends every norm's name, as in PEFT.
        EXPECT_THAT(refusal(R"("modules_to_save":["norm"])", tensors),
                    HasSubstr("post_attention_layernorm.weight: expected a tensor"));
    }
    EXPECT_THAT(refusal(R"("modules_to_save":["o_proj"])", plain_tensors()),
                AllOf(HasSubstr("modules_to_save: model.layers.1.self_attn.o_proj"), HasSubstr("not supported")));
    EXPECT_THAT(refusal(R"("modules_to_save":["mlp"])", plain_tensors()),
                HasSubstr("a part with linear layers, which is not supported"));
    EXPECT_THAT(refusal(R"("modules_to_save":["score"])", plain_tensors()),
                HasSubstr("a module that the base does not have"));
    TestTensors resized = plain_tensors();
    resized["base_model.model.lm_head.weight"] = matrix(116, 40, 1);
    EXPECT_THAT(refusal("", resized), HasSubstr("lm_head.weight: expected [100, 40], found [116, 40]"));
}

// With save_embedding_layers, which is the default after the vocabulary was resized, PEFT writes a trained table three
// times.
TEST(PeftVariants, WhatPeftSavesBesideATrainedTableIsNotInTheWay) {
    TestTensors tensors = plain_tensors();
    for (const std::string module : {"base_model.model.lm_head", "base_model.model.model.embed_tokens"}) {
        tensors[module + ".modules_to_save.weight"] = matrix(100, 40, 1);
        tensors[module + ".weight"] = matrix(100, 40, 1);
        tensors[module + ".original_module.weight"] = matrix(100, 40, 9);
    }
    const std::string fields = R"("modules_to_save":["lm_head","embed_tokens"])";
    const auto adapter = check(fields, tensors);
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    for (const model::Tensor* table : {(*adapter)->plan.extras.head_table, (*adapter)->plan.extras.embed_table}) {
        ASSERT_NE(table, nullptr);
        EXPECT_THAT(table->name, ::testing::Not(HasSubstr("original_module")));
    }
    EXPECT_THAT(refusal(fields, tensors, base_with(true)),
                HasSubstr("embed_tokens.original_module.weight: expected the base's own model.embed_tokens.weight"));
    tensors["base_model.model.lm_head.weight"] = matrix(100, 40, 2);
    EXPECT_THAT(refusal(fields, tensors), HasSubstr("expected one tensor for this matrix"));
    TestTensors alone = plain_tensors();
    alone["base_model.model.lm_head.original_module.weight"] = matrix(100, 40, 9);
    EXPECT_THAT(refusal("", alone), HasSubstr("expected the copy of modules_to_save beside it"));
    alone = plain_tensors();
    alone[kPrefix + "layers.0.self_attn.q_proj.original_module.weight"] = matrix(64, 40, 9);
    EXPECT_THAT(refusal("", alone), HasSubstr("a fully trained linear layer, which is not supported"));
}

TEST(PeftVariants, AdaptersOfTheBareDecoderHaveNoModelInTheirNames) {
    TestTensors tensors;
    for (const auto& [name, tensor] : plain_tensors())
        tensors["base_model.model." + name.substr(kPrefix.size())] = tensor;
    tensors["base_model.model.embed_tokens.modules_to_save.weight"] = matrix(100, 40, 1);
    // The config's expressions are about names without it, too.
    const auto adapter = check(
        R"("modules_to_save":["embed_tokens"],"task_type":"FEATURE_EXTRACTION","alpha_pattern":{"^layers\\.0\\.self_attn\\.q_proj":16})",
        tensors);
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    EXPECT_EQ(module_of(**adapter, 0, LinearModule::kQ).scale, 4.0f);
    EXPECT_EQ(module_of(**adapter, 1, LinearModule::kQ).scale, 2.0f);
    EXPECT_NE((*adapter)->plan.extras.embed_table, nullptr);
}

TEST(PeftVariants, OnATiedBaseATableBesideTheBasesIsAloneAndOneInItsPlaceIsNot) {
    const BaseModel tied = base_with(true);
    TestTensors tensors = plain_tensors();
    tensors[kPrefix + "embed_tokens.weight"] = matrix(100, 40, 2);
    const auto beside = check(R"("modules_to_save":["embed_tokens"])", tensors, tied);
    ASSERT_TRUE(beside.ok()) << beside.error().message;
    EXPECT_NE((*beside)->plan.extras.embed_table, nullptr);
    EXPECT_EQ((*beside)->plan.extras.head_table, nullptr);
    for (const std::string fields : {"", R"("modules_to_save":["embed_tokens"],"ensure_weight_tying":true)"}) {
        const auto instead = check(fields, tensors, tied);
        ASSERT_TRUE(instead.ok()) << instead.error().message;
        EXPECT_EQ((*instead)->plan.extras.head_table, (*instead)->plan.extras.embed_table);
    }
    tensors["base_model.model.lm_head.weight"] = matrix(100, 40, 2);
    EXPECT_TRUE(check("", tensors, tied).ok());
    tensors["base_model.model.lm_head.weight"] = matrix(100, 40, 3);
    EXPECT_THAT(refusal("", tensors, tied), HasSubstr("as the base ties them"));
    EXPECT_TRUE(check(R"("modules_to_save":["embed_tokens","lm_head"])", tensors, tied).ok());
}

TEST(PeftVariants, EmbeddingAndOutputLayerTakeLora) {
    TestTensors tensors = plain_tensors();
    tensors[kPrefix + "embed_tokens.lora_embedding_A"] = matrix(4, 100, 2);
    tensors[kPrefix + "embed_tokens.lora_embedding_B"] = matrix(40, 4, 3);
    tensors["base_model.model.lm_head.lora_A.weight"] = matrix(6, 40, 4);
    tensors["base_model.model.lm_head.lora_B.weight"] = matrix(100, 6, 5);
    const std::string targets = R"({"peft_type":"LORA","r":4,"lora_alpha":8,"rank_pattern":{"lm_head":6},
        "target_modules":["q_proj","v_proj","embed_tokens","lm_head"])";
    const auto adapter = check_adapter(AdapterFolder(targets + "}", tensors).path(), base_with());
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    const ExtrasPlan& extras = (*adapter)->plan.extras;
    EXPECT_EQ(extras.embed.rank, 4u);
    EXPECT_EQ(extras.embed.scale, 2.0f);
    EXPECT_EQ(extras.head.rank, 6u);
    EXPECT_EQ(extras.head.scale, static_cast<float>(8.0 / 6));
    EXPECT_EQ((*adapter)->rank_max, 6u);
    EXPECT_FALSE((*adapter)->has_replaced_parts());
    const auto refused = [&](const std::string& fields) {
        const auto other = check_adapter(AdapterFolder(targets + fields + "}", tensors).path(), base_with(true));
        EXPECT_FALSE(other.ok());
        return other.ok() ? "" : other.error().message;
    };
    EXPECT_THAT(refused(R"(,"use_dora":true)"),
                HasSubstr("DoRA on the embedding or output layer, which is not supported"));
    EXPECT_THAT(refused(R"(,"ensure_weight_tying":true)"), HasSubstr("ensure_weight_tying"));
    tensors[kPrefix + "embed_tokens.weight"] = matrix(100, 40, 2);
    EXPECT_THAT(refused(""), HasSubstr("either LoRA or a fully trained module"));
    EXPECT_THAT(refusal(R"("target_modules":["q_proj","v_proj","lm_head"])", plain_tensors()),
                HasSubstr("occurs twice"));
}

// PEFT trains one A and B for both, saves them twice, and makes the second of the first where a file has one.
TEST(PeftVariants, EnsuredTyingGivesTheOutputLayerTheEmbeddingsLora) {
    const auto turned = [](const TestTensor& from) {
        TestTensor to{from.dtype, {from.shape[1], from.shape[0]}, from.data};
        const size_t n = from.data.size() / (from.shape[0] * from.shape[1]);
        for (uint64_t row = 0; row < from.shape[0]; ++row) {
            for (uint64_t column = 0; column < from.shape[1]; ++column) {
                std::copy_n(from.data.begin() + (row * from.shape[1] + column) * n, n,
                            to.data.begin() + (column * from.shape[0] + row) * n);
            }
        }
        return to;
    };
    TestTensors once = plain_tensors();
    once[kPrefix + "embed_tokens.lora_embedding_A"] = matrix(4, 100, 2);
    once[kPrefix + "embed_tokens.lora_embedding_B"] = matrix(40, 4, 3);
    TestTensors twice = once;
    twice["base_model.model.lm_head.lora_A.weight"] = turned(once[kPrefix + "embed_tokens.lora_embedding_B"]);
    twice["base_model.model.lm_head.lora_B.weight"] = turned(once[kPrefix + "embed_tokens.lora_embedding_A"]);
    const auto with = [](const std::string& targets, const TestTensors& tensors, bool tied = true,
                         const std::string& more = {}) {
        return check_adapter(
            AdapterFolder(R"({"peft_type":"LORA","r":4,"lora_alpha":8,"ensure_weight_tying":true,"target_modules":)" +
                              targets + more + "}",
                          tensors)
                .path(),
            base_with(tied));
    };
    for (const std::string targets : {R"(["q_proj","v_proj","model.embed_tokens"])", R"(["q_proj","v_proj","lm_head"])",
                                      R"(".*(q|v)_proj|embed_tokens")"}) {
        for (const TestTensors& tensors : {once, twice}) {
            const auto adapter = with(targets, tensors);
            ASSERT_TRUE(adapter.ok()) << adapter.error().message;
            const ExtrasPlan& extras = (*adapter)->plan.extras;
            ASSERT_NE(extras.head.a, nullptr) << targets;
            EXPECT_EQ(extras.head.rank, 4u);
            EXPECT_TRUE(std::ranges::equal(extras.head.b->data, twice["base_model.model.lm_head.lora_B.weight"].data));
            EXPECT_THAT((*adapter)->warnings, ::testing::IsEmpty());
        }
    }
    EXPECT_EQ((*with(R"(["q_proj","v_proj","embed_tokens"])", once, false))->plan.extras.head.a, nullptr)
        << "nothing is tied";
    // PEFT asks whether the expression is about the bare name.
    EXPECT_EQ((*with(R"(".*(q|v)_proj|model.embed_tokens")", once))->plan.extras.head.a, nullptr);
    EXPECT_EQ((*with(R"(["q_proj","v_proj","embed_tokens"])", twice, true, R"(,"alpha_pattern":{"lm_head":16})"))
                  ->plan.extras.head.scale,
              4.0f);
    twice["base_model.model.lm_head.lora_B.weight"] = matrix(100, 4, 9);
    EXPECT_THAT(with(R"(["q_proj","v_proj","embed_tokens"])", twice).error().message,
                HasSubstr("as ensure_weight_tying ties them, found other numbers"));
}

TEST(PeftVariants, AModuleThatIsTargetedAndSavedIsTheSavedOne) {
    for (const std::string module : {"lm_head", "embed_tokens"}) {
        TestTensors tensors = plain_tensors();
        tensors["base_model.model." + std::string(module == "lm_head" ? "" : "model.") + module + ".weight"] =
            matrix(100, 40, 1);
        for (const std::string& targets :
             {"[\"q_proj\",\"v_proj\",\"" + module + "\"]", "\".*(q_proj|v_proj|" + module + ")\""}) {
            const auto adapter = check_adapter(AdapterFolder(R"({"peft_type":"LORA","r":4,"target_modules":)" +
                                                                 targets + R"(,"modules_to_save":[")" + module + "\"]}",
                                                             tensors)
                                                   .path(),
                                               base_with());
            ASSERT_TRUE(adapter.ok()) << adapter.error().message;
            const ExtrasPlan& extras = (*adapter)->plan.extras;
            EXPECT_NE(module == "lm_head" ? extras.head_table : extras.embed_table, nullptr);
            EXPECT_EQ(extras.head.a, nullptr);
        }
    }
}

// What a table is after the base was loaded in another type: its numbers, rounded or cut off.
TEST(PeftVariants, ATableOfTheBasesButForRoundingIsTheBases) {
    using Kind = TableComparison::Kind;
    const auto table = [](const std::vector<float>& values, const std::string& dtype) {
        std::vector<uint16_t> narrow;
        for (const float value : values)
            narrow.push_back(dtype == "BF16" ? to_bf16(value) : lorad::reference::to_f16(value));
        return TestTensor{dtype, {1, values.size()}, dtype == "F32" ? as_data(values) : as_data(narrow)};
    };
    const auto compare = [](const TestTensor& base, const TestTensor& saved,
                            TableOrigin origin = TableOrigin::kMayBeTrained) {
        const auto view = [](const TestTensor& of) {
            return model::Tensor{"t",
                                 of.dtype == "F32"   ? model::DType::kF32
                                 : of.dtype == "F16" ? model::DType::kF16
                                                     : model::DType::kBF16,
                                 of.shape, std::span(of.data)};
        };
        return compare_tables(view(base), view(saved), origin);
    };
    std::vector<float> values;
    for (int i = 0; i < 500; ++i) values.push_back(test_value(5, 0, i) * 0.02f + 1e-7f * static_cast<float>(i % 3));
    const auto rounded = [&](uint32_t keep) {
        std::vector<float> out = values;
        for (float& value : out) value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & keep);
        return out;
    };
    const auto bf16 = rounded(0xffff0000);
    EXPECT_EQ(compare(table(values, "F32"), table(values, "F32")).kind, Kind::kSame);
    EXPECT_EQ(compare(table(values, "F32"), table(bf16, "BF16")).kind, Kind::kRounded);
    EXPECT_EQ(compare(table(values, "F32"), table(bf16, "F32")).kind, Kind::kRounded) << "widened again";
    EXPECT_EQ(compare(table(values, "F32"), table(values, "F16")).kind, Kind::kRounded);
    EXPECT_EQ(compare(table(values, "F16"), table(bf16, "BF16"), TableOrigin::kFrozen).kind, Kind::kRounded);
    EXPECT_EQ(compare(table(bf16, "BF16"), table(bf16, "F32")).kind, Kind::kSame);
    // Both of one that had more digits: what LoRA lies on is not trained.
    EXPECT_EQ(compare(table(bf16, "BF16"), table(values, "F16"), TableOrigin::kFrozen).kind, Kind::kRounded);
    EXPECT_EQ(compare(table(bf16, "BF16"), table(values, "F16")).kind, Kind::kOther);
    // In a type that holds all of the base's digits a difference was trained, however small.
    std::vector<float> trained = bf16;
    for (float& value : trained) value *= 1.001f;
    EXPECT_EQ(compare(table(bf16, "BF16"), table(trained, "F32")).kind, Kind::kOther);
    EXPECT_EQ(compare(table(values, "F32"), table(trained, "F32")).kind, Kind::kOther);
    // One number of a rounded table that has moved by two steps.
    std::vector<float> moved = bf16;
    moved[250] = std::bit_cast<float>(std::bit_cast<uint32_t>(moved[250]) + 0x20000);
    const TableComparison one = compare(table(values, "F32"), table(moved, "BF16"));
    EXPECT_EQ(one.kind, Kind::kOther);
    EXPECT_GT(one.n_different, 0u);
    EXPECT_GT(one.largest, 0.0f);
}

TEST(PeftVariants, TheBasesTableSavedAlongIsNotOneThatReplacesIt) {
    const auto base = BaseModel::load(lorad::testing::source_dir() / "tests/goldens/models/llama-scaled");
    ASSERT_TRUE(base.ok());
    const auto folder = lorad::testing::source_dir() / "tests/goldens/adapters/llama-scaled/embed-lora-with-base";
    const auto adapter = check_adapter(folder, *base);
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    EXPECT_EQ((*adapter)->plan.extras.embed_table, nullptr);
    EXPECT_NE((*adapter)->plan.extras.embed.a, nullptr);
    const auto unknown = check_adapter(folder, BaseModel(base->config));
    ASSERT_TRUE(unknown.ok());
    EXPECT_NE((*unknown)->plan.extras.embed_table, nullptr);
}

TEST(PeftVariants, TrainedTokensAreRowsInAscendingOrder) {
    TestTensors tensors = plain_tensors();
    const std::string name = kPrefix + "embed_tokens.token_adapter.trainable_tokens_delta";
    tensors[name] = matrix(3, 40, 2, "F16");
    for (const std::string fields :
         {R"("trainable_token_indices":[50,7,90])", R"("trainable_token_indices":{"embed_tokens":[50,7,90]})"}) {
        for (const bool tied : {false, true}) {
            const auto adapter = check(fields, tensors, base_with(tied));
            ASSERT_TRUE(adapter.ok()) << adapter.error().message;
            const ExtrasPlan& extras = (*adapter)->plan.extras;
            EXPECT_THAT(extras.token_ids, ElementsAre(7u, 50u, 90u));
            EXPECT_THAT(extras.token_order, ElementsAre(1u, 0u, 2u));
            EXPECT_EQ(extras.tokens_in_head, tied);
            EXPECT_TRUE((*adapter)->has_replaced_parts());
        }
    }
    const std::string both = R"("trainable_token_indices":{"embed_tokens":[50,7,90],"lm_head":[50,7,90]})";
    EXPECT_TRUE(check(both, tensors, base_with(true)).ok());
    EXPECT_THAT(refusal(both, tensors), HasSubstr("tokens of the output layer alone, which is not supported"));
    // Of a tied output layer they may be saved along.
    const std::string head_name = "base_model.model.lm_head.token_adapter.trainable_tokens_delta",
                      one = R"("trainable_token_indices":[50,7,90])";
    TestTensors along = tensors;
    along[head_name] = matrix(3, 40, 2, "F16");
    EXPECT_TRUE(check(one, along, base_with(true)).ok());
    EXPECT_THAT(refusal(one, along),
                HasSubstr("lm_head.token_adapter.trainable_tokens_delta: expected trainable_token_indices"));
    BaseModel own_head = base_with();
    own_head.config.tied_by_name = true;
    EXPECT_THAT(refusal(one, tensors, own_head),
                HasSubstr("tie_word_embeddings beside an lm_head.weight of other numbers"));
    along[head_name] = matrix(3, 40, 3, "F16");
    EXPECT_THAT(refusal(one, along, base_with(true)), HasSubstr("as the base ties them"));
    EXPECT_THAT(refusal("", tensors), HasSubstr("expected trainable_token_indices in the config"));
    EXPECT_THAT(refusal(R"("trainable_token_indices":[1,2])", tensors), HasSubstr("expected [2, 40], found [3, 40]"));
    EXPECT_THAT(refusal(R"("trainable_token_indices":[1,2,100])", tensors),
                HasSubstr("expected tokens 0 to 99, found 100"));
    EXPECT_THAT(refusal(R"("trainable_token_indices":[1,2,-1])", tensors), HasSubstr("found -1"));
    EXPECT_THAT(refusal(R"("trainable_token_indices":[1,2,1])", tensors), HasSubstr("1 twice"));
    EXPECT_THAT(refusal(R"("trainable_token_indices":{"wte":[1,2,3]})", tensors),
                HasSubstr("trainable_token_indices: wte"));
    EXPECT_THAT(refusal(R"("trainable_token_indices":[1])", plain_tensors()),
                HasSubstr("trainable_tokens_delta: expected [1, 40], found none"));
}

TEST(PeftVariants, AnActivatedLoraKeepsItsTokensAndHasNoPartsThatCannotBegin) {
    const auto adapter = check(R"("alora_invocation_tokens":[3,99])", plain_tensors());
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    EXPECT_THAT((*adapter)->plan.invocation_tokens, ElementsAre(3, 99));
    EXPECT_THAT(refusal(R"("alora_invocation_tokens":[100])", plain_tensors()),
                HasSubstr("expected tokens 0 to 99, found 100"));
    EXPECT_THAT(refusal(R"("alora_invocation_tokens":[1],"use_dora":true)", with_vectors("lora_magnitude_vector")),
                HasSubstr("also DoRA"));
    EXPECT_THAT(refusal(R"("alora_invocation_tokens":[1],"lora_bias":true)", with_vectors("lora_B.bias")),
                HasSubstr("also biases"));
    TestTensors tensors = plain_tensors();
    tensors["base_model.model.lm_head.weight"] = matrix(100, 40, 1);
    EXPECT_THAT(refusal(R"("alora_invocation_tokens":[1])", tensors),
                HasSubstr("also a trained embedding, output layer or norm"));
}

TEST(PeftVariants, ARecordedFingerprintOfAnotherBaseIsRefused) {
    auto base = base_with();
    base.fingerprint = std::string(64, 'a');
    TestTensors tensors = plain_tensors();
    EXPECT_TRUE(check("", tensors, base).ok());
    for (const bool fits : {true, false}) {
        const AdapterFolder folder;
        const std::string file =
            safetensors_bytes(tensors, {{"lorad.base_fingerprint", std::string(64, fits ? 'a' : 'b')}});
        folder.write("adapter_model.safetensors", file);
        const auto adapter = check_adapter(folder.path(), base);
        EXPECT_EQ(adapter.ok(), fits);
        EXPECT_THAT(fits ? kFingerprintKey : adapter.error().message, HasSubstr("lorad.base_fingerprint"));
        // Of a quantized base nobody can tell: the adapter may have been made for the same model in another form.
        BaseModel quantized = base;
        quantized.formats.is_quantized = true;
        const auto warned = check_adapter(folder.path(), quantized);
        ASSERT_TRUE(warned.ok()) << warned.error().message;
        ASSERT_EQ((*warned)->warnings.size(), fits ? 0u : 1u);
        for (const std::string& warning : (*warned)->warnings)
            EXPECT_THAT(warning,
                        HasSubstr("lorad.base_fingerprint is not that of this base, whose weights are quantized"));
    }
}

}  // namespace
}  // namespace lorad::adapters::variants_test
