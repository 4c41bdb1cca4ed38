#include "adapters/plan/check.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/adapters/adapter_folder.h"

namespace lorad::adapters::check_test {
namespace {

using model::LinearModule;
using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace lorad::testing;

Error refused(const AdapterFolder& folder, const model::ModelConfig& config = small_config()) {
    const auto adapter = check_adapter(folder.path(), config);
    EXPECT_FALSE(adapter.ok());
    return adapter.ok() ? Error() : adapter.error();
}
Error refused(const TestTensors& tensors, const std::string& config = kPlainConfig) {
    return refused(AdapterFolder(config, tensors));
}
std::unique_ptr<CheckedAdapter> checked(const std::string& config, const TestTensors& tensors,
                                        const model::ModelConfig& base = small_config()) {
    auto adapter = check_adapter(AdapterFolder(config, tensors).path(), base);
    EXPECT_TRUE(adapter.ok()) << (adapter.ok() ? "" : adapter.error().message);
    return adapter.ok() ? std::move(adapter).value() : nullptr;
}
const ModulePlan& module_of(const CheckedAdapter& adapter, uint32_t layer, LinearModule module) {
    return adapter.plan.layers[layer][static_cast<size_t>(module)];
}

TEST(CheckAdapter, PlansEveryModuleOfAPlainAdapter) {
    const auto adapter = checked(kPlainConfig, plain_tensors());
    ASSERT_NE(adapter, nullptr);
    EXPECT_EQ(adapter->n_modules, 4u);
    EXPECT_EQ(adapter->rank_max, 4u);
    EXPECT_EQ(adapter->generation().size(), 64u);
    const ModulePlan& v = module_of(*adapter, 1, LinearModule::kV);
    EXPECT_EQ(v.a->name, lora_name(1, "self_attn.v_proj", 'A'));
    EXPECT_EQ(v.b->name, lora_name(1, "self_attn.v_proj", 'B'));
    EXPECT_EQ(v.rank, 4u);
    EXPECT_EQ(v.scale, 2.0f);
    EXPECT_EQ(v.n, 32u);
    EXPECT_EQ(v.k, 40u);
    EXPECT_EQ(module_of(*adapter, 0, LinearModule::kK).a, nullptr);
    EXPECT_EQ(module_of(*adapter, 0, LinearModule::kK).rank, 0u);
}

TEST(CheckAdapter, NamesWithoutPrefixAndWithDefaultInfixAreTheSame) {
    TestTensors tensors;
    for (auto& [name, tensor] : plain_tensors()) {
        std::string other = name.substr(std::string("base_model.model.").size());
        if (other.find("layers.1") != std::string::npos) other.insert(other.rfind(".weight"), ".default");
        tensors[other] = tensor;
    }
    const auto adapter = checked(kPlainConfig, tensors);
    ASSERT_NE(adapter, nullptr);
    EXPECT_EQ(adapter->n_modules, 4u);
}

TEST(CheckAdapter, FusedNamesBecomeRowRangesOnAnyBase) {
    TestTensors tensors;
    for (uint32_t layer = 0; layer < 2; ++layer) {
        add_pair(tensors, layer, "self_attn.qkv_proj", 3, 128, 40);
        add_pair(tensors, layer, "mlp.gate_up_proj", 5, 192, 40);
    }
    const std::string config =
        R"({"peft_type":"LORA","r":3,"lora_alpha":3,"rank_pattern":{"gate_up_proj":5},"target_modules":["qkv_proj","gate_up_proj"]})";
    for (const bool fused : {true, false}) {
        const auto adapter = checked(config, tensors, small_config(fused));
        ASSERT_NE(adapter, nullptr);
        EXPECT_EQ(adapter->n_modules, 10u);
        EXPECT_EQ(module_of(*adapter, 0, LinearModule::kQ).row_begin, 0u);
        EXPECT_EQ(module_of(*adapter, 0, LinearModule::kK).row_begin, 64u);
        EXPECT_EQ(module_of(*adapter, 0, LinearModule::kV).row_begin, 96u);
        EXPECT_EQ(module_of(*adapter, 0, LinearModule::kUp).row_begin, 96u);
        EXPECT_EQ(module_of(*adapter, 0, LinearModule::kUp).rank, 5u);
        EXPECT_EQ(module_of(*adapter, 0, LinearModule::kK).a, module_of(*adapter, 0, LinearModule::kQ).a);
    }
}

TEST(CheckAdapter, SplitNamesFitAFusedBase) {
    const auto adapter = checked(kPlainConfig, plain_tensors(), small_config(true));
    ASSERT_NE(adapter, nullptr);
    EXPECT_EQ(adapter->n_modules, 4u);
    EXPECT_EQ(module_of(*adapter, 0, LinearModule::kV).row_begin, 0u);
}

TEST(CheckAdapter, FusedAndSplitNamesOfOneMatrixAreRefused) {
    TestTensors tensors = plain_tensors();
    for (uint32_t layer = 0; layer < 2; ++layer) add_pair(tensors, layer, "self_attn.qkv_proj", 4, 128, 40);
    const Error error =
        refused(tensors, R"({"peft_type":"LORA","r":4,"target_modules":["q_proj","v_proj","qkv_proj"]})");
    EXPECT_EQ(error.code, ErrorCode::kAdapterInvalid);
    EXPECT_THAT(error.message, HasSubstr("either fused or split names"));
}

TEST(CheckAdapter, AllThatDoesNotFitIsInOneError) {
    TestTensors tensors = plain_tensors();
    tensors[lora_name(0, "self_attn.q_proj", 'A')] = matrix(8, 40, 1);
    tensors[lora_name(0, "self_attn.v_proj", 'B')] = matrix(31, 4, 1);
    tensors.erase(lora_name(1, "self_attn.q_proj", 'B'));
    add_pair(tensors, 7, "self_attn.q_proj", 4, 64, 40);
    tensors["base_model.model.model.layers.0.self_attn.c_attn.lora_A.weight"] = matrix(4, 40, 1);
    tensors["transformer.h.0.attn.w"] = matrix(4, 40, 1);
    const Error error = refused(tensors);
    EXPECT_EQ(error.code, ErrorCode::kAdapterInvalid);
    EXPECT_THAT(error.message,
                AllOf(HasSubstr("7 problems"),
                      HasSubstr("layers.0.self_attn.q_proj.lora_A.weight: expected [4, 40], found [8, 40]"),
                      HasSubstr("layers.0.self_attn.v_proj.lora_B.weight: expected [32, 4], found [31, 4]"),
                      HasSubstr("layers.1.self_attn.q_proj.lora_B.weight: expected [64, 4], found none"),
                      HasSubstr("layers.7.self_attn.q_proj.lora_A.weight: expected layers 0 to 1, found layer 7"),
                      HasSubstr("expected a linear layer of LlamaForCausalLM, found self_attn.c_attn"),
                      HasSubstr("transformer.h.0.attn.w: expected a name ending in")));
}

TEST(CheckAdapter, LongListsAreCut) {
    TestTensors tensors;
    for (uint32_t layer = 10; layer < 40; ++layer) add_pair(tensors, layer, "self_attn.q_proj", 4, 64, 40);
    const Error error = refused(tensors);
    EXPECT_THAT(error.message, AllOf(HasSubstr("64 problems"), HasSubstr("and 44 more")));
    EXPECT_LT(error.message.size(), 4000u);
}

TEST(CheckAdapter, TargetsWithoutTensorsAreRefusedAndTensorsWithoutTargetsAreToldOf) {
    EXPECT_THAT(
        refused(plain_tensors(), R"({"peft_type":"LORA","r":4,"target_modules":["q_proj","v_proj","o_proj"]})").message,
        AllOf(HasSubstr("2 problems"), HasSubstr("layers.1.self_attn.o_proj.lora_A.weight: expected a tensor"),
              HasSubstr("found none")));
    const std::pair<const char*, const char*> left_out[] = {
        {R"("target_modules":["q_proj"])",
         "leave out 2 of the file's modules, such as base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight"},
        {R"("target_modules":["q_proj","v_proj"],"layers_to_transform":[0])",
         "leave out 2 of the file's modules, such as base_model.model.model.layers.1.self_attn.q_proj"},
        {R"("target_modules":["q_proj","v_proj"],"exclude_modules":["v_proj"])", "leave out 2 of"},
    };
    for (const auto& [fields, told] : left_out) {
        const auto adapter = checked(format(R"({{"peft_type":"LORA","r":4,{}}})", fields), plain_tensors());
        ASSERT_NE(adapter, nullptr) << fields;
        EXPECT_EQ(adapter->n_modules, 4u) << fields;
        EXPECT_THAT(adapter->warnings, ::testing::ElementsAre(HasSubstr(told)));
    }
    // A config that names nothing of the base is one for another.
    EXPECT_THAT(refused(plain_tensors(), R"({"peft_type":"LORA","r":4,"target_modules":["c_attn"]})").message,
                HasSubstr("layers.0.self_attn.q_proj.lora_A.weight: expected a module that target_modules"));
    EXPECT_THAT(refused(plain_tensors(),
                        R"({"peft_type":"LORA","r":4,"target_modules":["q_proj","v_proj"],"layers_to_transform":[7]})")
                    .message,
                HasSubstr("layers.1.self_attn.q_proj.lora_A.weight: expected a module that"));
    EXPECT_NE(checked(R"({"peft_type":"LORA","r":4,"target_modules":["q_proj","v_proj","qkv_proj","c_attn","W_pack"]})",
                      plain_tensors()),
              nullptr);
    EXPECT_NE(checked(R"({"peft_type":"LORA","r":4})", plain_tensors()), nullptr);
}

TEST(CheckAdapter, AnExpressionThatIsNotReadIsToldOf) {
    for (const std::string field : {"target_modules", "exclude_modules"}) {
        const auto adapter =
            checked(format(R"x({{"peft_type":"LORA","r":4,"{}":"(q)\\1.*"}})x", field), plain_tensors());
        ASSERT_NE(adapter, nullptr) << field;
        EXPECT_THAT(adapter->warnings,
                    ::testing::ElementsAre(AllOf(HasSubstr(field + ": the expression"), HasSubstr("is not read"))));
    }
}

TEST(CheckAdapter, NamesThatAWrapperHasBentAreRefusedWithTheReason) {
    for (const auto& [part, told] : {std::pair("_orig_mod.", "saved from a compiled model"),
                                     std::pair("_fsdp_wrapped_module.", "saved from a model in FSDP")}) {
        for (const std::string& prefix :
             {std::string(part) + "base_model.model.", "base_model.model." + std::string(part)}) {
            TestTensors tensors;
            for (const auto& [name, tensor] : plain_tensors())
                tensors[prefix + name.substr(std::string("base_model.model.").size())] = tensor;
            EXPECT_THAT(refused(tensors).message, HasSubstr(told)) << prefix;
        }
    }
}

TEST(CheckAdapter, WeightsMustBeFiniteAndOfAFloatType) {
    for (const std::string dtype : {"F32", "F16", "BF16"}) {
        TestTensors tensors = plain_tensors();
        TestTensor b = matrix(32, 4, 5, dtype);
        const size_t at = 17;
        if (dtype == "F32") {
            const float bad = std::numeric_limits<float>::quiet_NaN();
            std::memcpy(b.data.data() + at * 4, &bad, 4);
        } else {
            const uint16_t bad = dtype == "F16" ? 0xfc00 : 0xff80;
            std::memcpy(b.data.data() + at * 2, &bad, 2);
        }
        tensors[lora_name(1, "self_attn.v_proj", 'B')] = b;
        EXPECT_THAT(refused(tensors).message, HasSubstr("expected finite numbers, found infinity or NaN at [4, 1]"))
            << dtype;
    }
    // Finite, but no weight that anybody has trained: sums of it would overflow.
    for (const float large : {1e38f, -1e38f, 1048577.0f}) {
        TestTensors tensors = plain_tensors();
        TestTensor b = matrix(32, 4, 5);
        std::memcpy(b.data.data(), &large, 4);
        tensors[lora_name(0, "self_attn.v_proj", 'B')] = b;
        EXPECT_THAT(refused(tensors).message, HasSubstr("expected numbers up to")) << large;
    }
    TestTensors tensors = plain_tensors();
    tensors[lora_name(0, "self_attn.q_proj", 'A')] = {"I64", {4, 40}, std::vector<std::byte>(4 * 40 * 8)};
    EXPECT_THAT(refused(tensors).message, HasSubstr("expected type F32, F16 or BF16, found I64"));
}

TEST(CheckAdapter, TensorsOfOtherMethodsAreUnsupportedByName) {
    const std::pair<const char*, const char*> cases[] = {
        {"base_model.model.model.layers.0.self_attn.k_proj.ia3_l", "IA3"},
        {"base_model.model.model.layers.0.self_attn.k_proj.vera_lambda_b", "VeRA"},
        {"base_model.model.model.layers.0.self_attn.k_proj.hada_w1_a", "LoHa"},
        {"base_model.model.model.layers.0.self_attn.k_proj.lokr_w1", "LoKr"},
        {"base_model.model.model.layers.0.self_attn.k_proj.lora_E", "AdaLoRA"},
        {"prompt_embeddings", "prompt tuning"},
        {"base_model.model.model.layers.0.self_attn.q_proj.weight", "fully trained linear layer"},
        {"base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight", "fully trained linear layer"},
        {"base_model.model.lm_head.lora_magnitude_vector", "DoRA on the output layer"},
        {"base_model.model.model.embed_tokens.lora_magnitude_vector", "DoRA on the embedding"},
        {"base_model.model.lm_head.bias", "bias of the output layer"},
        {"base_model.model.model.norm.bias", "other than the weights of a norm"},
    };
    for (const auto& [name, meaning] : cases) {
        TestTensors tensors = plain_tensors();
        tensors[name] = matrix(4, 4, 1);
        const Error error = refused(tensors);
        EXPECT_EQ(error.code, ErrorCode::kAdapterUnsupported) << name << ": " << error.message;
        EXPECT_THAT(error.message, AllOf(HasSubstr(name), HasSubstr(meaning), HasSubstr("not supported")));
    }
}

TEST(CheckAdapter, MissingAndForeignFilesAreNamed) {
    EXPECT_EQ(check_adapter("no/such/folder", small_config()).error().code, ErrorCode::kAdapterNotFound);
    AdapterFolder folder;
    EXPECT_EQ(check_adapter(folder.path() / "adapter_config.json", small_config()).error().code,
              ErrorCode::kAdapterUnsupported);
    folder.remove("adapter_model.safetensors");
    EXPECT_THAT(refused(folder).message, HasSubstr("adapter_model.safetensors: the file is missing"));
    folder.write("adapters.npz", "x");
    EXPECT_THAT(refused(folder).message, HasSubstr("an MLX adapter of an old form"));
    folder.write("adapter_model.bin", "x");
    EXPECT_EQ(refused(folder).code, ErrorCode::kAdapterUnsupported);
    EXPECT_THAT(refused(folder).message, HasSubstr("adapter_model.bin is a pickle"));
    std::filesystem::create_directory(folder.path() / "adapter_model.safetensors");
    EXPECT_THAT(refused(folder).message, HasSubstr("expected a regular file"));
}

TEST(CheckAdapter, MessagesAreOneLineOfBoundedLengthWhateverTheNames) {
    TestTensors tensors = plain_tensors();
    tensors["a\nwarning forged line\x7f\xc2\x9b\xe2\x80\xa8\xe2\x80\xae"] = matrix(1, 1, 1);
    tensors[std::string(100'000, 'x')] = matrix(1, 1, 1);
    const Error error = refused(tensors);
    EXPECT_THAT(error.message, HasSubstr(R"(a\nwarning forged line\u007f\u009b\u2028\u202e)"));
    EXPECT_EQ(error.message.find('\n'), std::string::npos);
    EXPECT_LT(error.message.size(), 8100u);
    const Error path = check_adapter(std::string("a\nb"), small_config()).error();
    EXPECT_EQ(path.message.find('\n'), std::string::npos);
}

TEST(CheckAdapter, APathWithANulIsNoFolder) {
    const AdapterFolder folder;
    const std::string path = folder.path().string() + std::string("\0x", 2);
    EXPECT_EQ(check_adapter(path, small_config()).error().code, ErrorCode::kAdapterNotFound);
}

TEST(CheckAdapter, TheGenerationIsTheContentAndNothingElse) {
    const auto one = checked(kPlainConfig, plain_tensors());
    const auto same = checked(kPlainConfig, plain_tensors());
    const auto other_weights = checked(kPlainConfig, plain_tensors(4, 2));
    const auto other_scale =
        checked(R"({"peft_type":"LORA","r":4,"lora_alpha":9,"target_modules":["q_proj","v_proj"]})", plain_tensors());
    ASSERT_TRUE(one && same && other_weights && other_scale);
    EXPECT_EQ(one->generation(), same->generation());
    EXPECT_NE(one->generation(), other_weights->generation());
    EXPECT_NE(one->generation(), other_scale->generation());
    // printf abc | sha256sum
    EXPECT_EQ(sha256_hex(std::as_bytes(std::span("abc", 3))),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace lorad::adapters::check_test
