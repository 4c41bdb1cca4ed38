#include "adapters/files/peft_config.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/source_dir.h"

namespace lorad::adapters::peft_config_test {
namespace {

using ::testing::HasSubstr;

std::string config_text(const std::string& fields) {
    return R"({"peft_type":"LORA")" + (fields.empty() ? "" : "," + fields) + "}";
}

PeftConfig parsed(const std::string& fields) {
    Result<PeftConfig> config = parse_peft_config(config_text(fields));
    EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
    return config.ok() ? std::move(config).value() : PeftConfig();
}

Error refused(const std::string& text) {
    const Result<PeftConfig> config = parse_peft_config(text);
    EXPECT_FALSE(config.ok()) << text;
    return config.ok() ? Error() : config.error();
}

uint32_t rank_of(const PeftConfig& config, std::string_view module) {
    RegexBudget budget;
    return *config.rank_of(module, budget);
}
double scale_of(const PeftConfig& config, std::string_view module) {
    RegexBudget budget;
    return *config.scale_of(module, rank_of(config, module), budget);
}
std::optional<bool> targets(const PeftConfig& config, std::string_view module) {
    RegexBudget budget;
    return *config.targets(module, budget);
}

TEST(PeftConfig, DefaultsAreThoseOfPeft) {
    const PeftConfig config = parsed("");
    EXPECT_EQ(config.rank, 8u);
    EXPECT_EQ(config.alpha, 8.0);
    EXPECT_FALSE(config.use_rslora);
    EXPECT_EQ(targets(config, "model.layers.0.self_attn.q_proj"), std::nullopt);
}

TEST(PeftConfig, ScaleIsAlphaOverRankOrItsRoot) {
    EXPECT_EQ(scale_of(parsed(R"("r":16,"lora_alpha":32)"), "q_proj"), 2.0);
    EXPECT_EQ(scale_of(parsed(R"("r":16,"lora_alpha":8.5)"), "q_proj"), 8.5 / 16);
    EXPECT_EQ(scale_of(parsed(R"("r":8,"lora_alpha":16,"use_rslora":true)"), "q_proj"), 16 / std::sqrt(8.0));
}

TEST(PeftConfig, PatternsMatchSuffixesAndExpressionsAndTheFirstCounts) {
    const PeftConfig config = parsed(
        R"("r":4,"lora_alpha":12,"use_rslora":true,
           "rank_pattern":{"^model\\.layers\\.1\\.mlp\\.down_proj":10,"k_proj":2,"layers.2.self_attn.k_proj":5},
           "alpha_pattern":{"^model\\.layers\\.[02]\\.self_attn\\.v_proj":24,"k_proj":3})");
    EXPECT_EQ(rank_of(config, "model.layers.1.mlp.down_proj"), 10u);
    EXPECT_EQ(rank_of(config, "model.layers.11.mlp.down_proj"), 4u);
    EXPECT_EQ(rank_of(config, "model.layers.2.self_attn.k_proj"), 2u);
    EXPECT_EQ(rank_of(config, "model.layers.2.self_attn.xk_proj"), 4u);
    EXPECT_EQ(scale_of(config, "model.layers.2.self_attn.v_proj"), 24 / std::sqrt(4.0));
    EXPECT_EQ(scale_of(config, "model.layers.1.self_attn.v_proj"), 12 / std::sqrt(4.0));
    EXPECT_EQ(scale_of(config, "model.layers.1.self_attn.k_proj"), 3 / std::sqrt(2.0));
}

TEST(PeftConfig, TargetsFollowNamesLayersAndExclusions) {
    const PeftConfig names =
        parsed(R"("target_modules":["q_proj","layers.1.mlp.up_proj"],"exclude_modules":["layers.0.self_attn.q_proj"])");
    EXPECT_EQ(targets(names, "model.layers.1.self_attn.q_proj"), true);
    EXPECT_EQ(targets(names, "model.layers.0.self_attn.q_proj"), false);
    EXPECT_EQ(targets(names, "model.layers.1.mlp.up_proj"), true);
    EXPECT_EQ(targets(names, "model.layers.11.mlp.up_proj"), false);
    EXPECT_EQ(targets(names, "model.layers.1.self_attn.xq_proj"), false);

    const PeftConfig layers =
        parsed(R"("target_modules":["q_proj","model.layers.3.mlp.up_proj"],"layers_to_transform":[0,2])");
    EXPECT_EQ(targets(layers, "model.layers.2.self_attn.q_proj"), true);
    EXPECT_EQ(targets(layers, "model.layers.1.self_attn.q_proj"), false);
    EXPECT_EQ(targets(layers, "model.layers.3.mlp.up_proj"), true);  // named in full

    const PeftConfig pattern =
        parsed(R"("target_modules":["q_proj"],"layers_to_transform":1,"layers_pattern":"layers")");
    EXPECT_EQ(targets(pattern, "model.layers.1.self_attn.q_proj"), true);
    EXPECT_EQ(targets(pattern, "model.layers.0.self_attn.q_proj"), false);
    const PeftConfig other = parsed(R"("target_modules":["q_proj"],"layers_to_transform":[1],"layers_pattern":["h"])");
    EXPECT_EQ(targets(other, "model.layers.1.self_attn.q_proj"), false);

    const PeftConfig regex = parsed(R"("target_modules":".*\\.[02]\\..*(q|v)_proj","exclude_modules":".*v_proj")");
    EXPECT_EQ(targets(regex, "model.layers.2.self_attn.q_proj"), true);
    EXPECT_EQ(targets(regex, "model.layers.2.self_attn.v_proj"), false);
    EXPECT_EQ(targets(regex, "model.layers.1.self_attn.q_proj"), false);

    EXPECT_EQ(targets(parsed(R"("target_modules":"all-linear")"), "model.layers.0.mlp.up_proj"), true);
}

// The list of layers may stand at the root, as in an adapter of the bare decoder, where a pattern names it (PEFT since
// 2026-08).
TEST(PeftConfig, LayersAreFoundByTheirPatternAtTheRootToo) {
    const PeftConfig named =
        parsed(R"("target_modules":["q_proj"],"layers_to_transform":[0,2],"layers_pattern":["h","layers"])");
    for (const std::string before : {"", "model.", "a.b."}) {
        EXPECT_EQ(targets(named, before + "layers.2.self_attn.q_proj"), true) << before;
        EXPECT_EQ(targets(named, before + "layers.1.self_attn.q_proj"), false) << before;
        EXPECT_EQ(targets(named, before + "xlayers.2.self_attn.q_proj"), false) << before;
    }
    const PeftConfig any = parsed(R"("target_modules":["q_proj"],"layers_to_transform":[0,2])");
    EXPECT_EQ(targets(any, "model.layers.2.self_attn.q_proj"), true);
    EXPECT_EQ(targets(any, "layers.2.self_attn.q_proj"), false) << "PEFT wants something before it";
    EXPECT_EQ(targets(any, "model.layers.2.experts.1.q_proj"), true) << "the first index counts";
}

// Of many configurations and names, also of output layers, what PEFT's own function answers
// (tests/goldens/peft-targets).
TEST(PeftConfig, TargetsAreThoseOfPeft) {
    std::ifstream file(lorad::testing::source_dir() / "tests/goldens/peft-targets/cases.json");
    const nlohmann::json golden = nlohmann::json::parse(file);
    ASSERT_GE(golden["cases"].size(), 180u);
    for (const nlohmann::json& one : golden["cases"]) {
        const std::string config = one["config"].dump();
        const PeftConfig peft = parsed(config.substr(1, config.size() - 2));
        for (const std::string module : golden["modules"]) {
            const bool wanted = std::ranges::find(one["targets"], nlohmann::json(module)) != one["targets"].end();
            EXPECT_EQ(targets(peft, module), wanted) << module << " with " << config;
        }
    }
}

TEST(PeftConfig, WhatIsSavedIsNoTarget) {
    const PeftConfig config = parsed(
        R"("target_modules":["q_proj","lm_head","down_proj"],"modules_to_save":["lm_head","layers.0.mlp",".*1.self_attn"])");
    EXPECT_EQ(targets(config, "lm_head"), false);
    EXPECT_EQ(targets(config, "model.xlm_head"), false);
    EXPECT_EQ(targets(config, "model.layers.0.mlp.down_proj"), false) << "it is inside";
    EXPECT_EQ(targets(config, "model.layers.10.mlp.down_proj"), true);
    EXPECT_EQ(targets(config, "model.layers.1.self_attn.q_proj"), false) << "by an expression";
    EXPECT_EQ(targets(config, "model.layers.2.self_attn.q_proj"), true);
    EXPECT_EQ(targets(parsed(R"("target_modules":".*","modules_to_save":["lm_head"])"), "lm_head"), false);
}

TEST(PeftConfig, AnInitialisationIsKnownByWhatItLeavesOfTheBase) {
    for (const std::string init : {"gaussian", "Gaussian", "eva", "orthogonal", "mica", "MiCA"}) {
        EXPECT_EQ(parsed("\"r\":3,\"init_lora_weights\":\"" + init + "\"").rank, 3u) << init;
    }
    for (const std::string init : {"pissa", "pissa_niter_4", "olora", "OLoRA", "corda", "loftq", "lora_ga"}) {
        EXPECT_THAT(refused(config_text("\"init_lora_weights\":\"" + init + "\"")).message,
                    HasSubstr("it changes the base weights"))
            << init;
    }
    for (const std::string init : {"sunrise", "", "pisa"}) {
        const std::string message = refused(config_text("\"init_lora_weights\":\"" + init + "\"")).message;
        EXPECT_THAT(message, HasSubstr("an initialisation that lorad does not know")) << init;
        EXPECT_THAT(message, ::testing::Not(HasSubstr("changes the base"))) << init;
    }
}

TEST(PeftConfig, AnExpressionBeyondOursLeavesTheTensorsToDecide) {
    EXPECT_EQ(targets(parsed(R"x("target_modules":"(a)\\1")x"), "model.layers.0.mlp.up_proj"), std::nullopt);
    const Error error = refused(config_text(R"x("rank_pattern":{"(a)\\1":3})x"));
    EXPECT_EQ(error.code, ErrorCode::kAdapterUnsupported);
}

TEST(PeftConfig, EveryVariantThatChangesTheMathematicsIsRefusedByName) {
    const std::pair<const char*, const char*> cases[] = {
        {R"("invocation_string":"<|x|>")", "invocation_string"},
        {R"("use_qalora":true)", "QALoRA"},
        {R"("use_bdlora":{"x":1})", "BD-LoRA"},
        {R"("arrow_config":{"top_k":1})", "Arrow"},
        {R"("layer_replication":[[0,2],[1,3]])", "layer_replication"},
        {R"("megatron_config":{"x":1})", "Megatron"},
        {R"("target_parameters":["experts.w1"])", "target_parameters"},
        {R"("kasa_config":{"x":1})", "KaSA"},
        {R"("nvfp4_merge_aware":{"scale_mode":"fresh","start_step":0})",
         "nvfp4_merge_aware (trained to be merged and rounded to NVFP4"},
        {R"("velora_config":{"x":1})", "VeLoRA"},
        {R"("monteclora_config":{"x":1})", "MonteCLoRA"},
        {R"("init_lora_weights":"pissa")", "pissa"},
        {R"("init_lora_weights":"pissa_niter_16")", "pissa_niter_16"},
        {R"("init_lora_weights":"olora")", "olora"},
        {R"("init_lora_weights":"corda")", "corda"},
        {R"("init_lora_weights":"loftq")", "loftq"},
        {R"("init_lora_weights":"lora_ga")", "lora_ga"},
        {R"("enable_lora":[true,false])", "enable_lora"},
        {R"("some_new_thing":{"x":1})", "some_new_thing"},
        {R"("another_new_thing":1)", "another_new_thing"},
    };
    for (const auto& [fields, name] : cases) {
        const Error error = refused(config_text(fields));
        EXPECT_EQ(error.code, ErrorCode::kAdapterUnsupported) << fields;
        EXPECT_THAT(error.message, HasSubstr(name)) << fields;
    }
    const Error both = refused(config_text(R"("use_qalora":true,"init_lora_weights":"olora")"));
    EXPECT_THAT(both.message, HasSubstr("QALoRA"));
    EXPECT_THAT(both.message, HasSubstr("olora"));
}

TEST(PeftConfig, VariantsThatAreAppliedAreRead) {
    const PeftConfig config = parsed(R"("use_dora":true,"bias":"lora_only","modules_to_save":["lm_head","norm"],
        "trainable_token_indices":[5,3],"alora_invocation_tokens":[3,4],"invocation_string":"x","ensure_weight_tying":true)");
    EXPECT_TRUE(config.use_dora);
    EXPECT_EQ(config.bias, BiasKind::kLoraOnly);
    EXPECT_THAT(config.modules_to_save, ::testing::ElementsAre("lm_head", "norm"));
    ASSERT_EQ(config.token_indices.size(), 1u);
    EXPECT_EQ(config.token_indices[0].module, "embed_tokens");
    EXPECT_THAT(config.token_indices[0].tokens, ::testing::ElementsAre(5, 3));
    EXPECT_THAT(config.invocation_tokens, ::testing::ElementsAre(3, 4));
    EXPECT_TRUE(config.ensure_weight_tying);
    const PeftConfig other =
        parsed(R"("lora_bias":true,"bias":"all","trainable_token_indices":{"lm_head":[1],"embed_tokens":[]})");
    EXPECT_TRUE(other.lora_bias);
    EXPECT_EQ(other.bias, BiasKind::kAll);
    ASSERT_EQ(other.token_indices.size(), 1u);
    EXPECT_EQ(other.token_indices[0].module, "lm_head");
}

TEST(PeftConfig, OtherKindsOfAdapterAreRefusedByTheirType) {
    for (const char* type : {"IA3", "VERA", "LOHA", "LOKR", "OFT", "PROMPT_TUNING", "FOO", "lora"}) {
        const Error error = refused(std::string(R"({"peft_type":")") + type + R"("})");
        EXPECT_EQ(error.code, ErrorCode::kAdapterUnsupported);
        EXPECT_THAT(error.message, HasSubstr(type));
    }
}

TEST(PeftConfig, FieldsWithoutEffectOnATrainedAdapterAreAccepted) {
    parsed(
        R"("lora_dropout":0.1,"task_type":"CAUSAL_LM","peft_version":"0.21.0","inference_mode":true,"revision":"main",
              "fan_in_fan_out":true,"auto_mapping":{"base_model_class":"X"},"loftq_config":{"bits":4},"megatron_core":"megatron.core",
              "eva_config":{"rho":2.0},"init_lora_weights":"eva","qalora_group_size":16,"ensure_weight_tying":true,
              "some_new_thing":null,"x":false,"y":{},"z":[],"w":"","v":0,"use_dora":false,"bias":"none","modules_to_save":[])");
    for (const char* init : {"true", "false", "\"gaussian\"", "\"orthogonal\"", "null"}) {
        EXPECT_EQ(parsed(std::string(R"("r":3,"init_lora_weights":)") + init).rank, 3u) << init;
    }
}

TEST(PeftConfig, WrongTypesAndRangesNameTheField) {
    const std::pair<const char*, const char*> cases[] = {
        {R"("r":"four")", R"(adapter_config.json: r: expected integer, found string "four")"},
        {R"("r":4.5)", "r: expected integer, found number 4.5"},
        {R"("r":0)", "r: expected a rank of 1 to 512, found 0"},
        {R"("r":-4)", "r: expected a rank of 1 to 512, found -4"},
        {R"("r":null)", "r: required"},
        {R"("lora_alpha":"16")", "lora_alpha: expected number"},
        {R"("lora_alpha":1e300)", "lora_alpha: expected a number within float32"},
        {R"("lora_alpha":1048577)", "lora_alpha: expected at most"},
        {R"("use_rslora":"yes")", "use_rslora: expected true or false"},
        {R"("rank_pattern":[])", "rank_pattern: expected object"},
        {R"("rank_pattern":{"q_proj":"x"})", "rank_pattern.q_proj: expected integer"},
        {R"("rank_pattern":{"q_proj(":2})", "rank_pattern.q_proj(: not a regular expression"},
        {R"("target_modules":7)", "target_modules: expected string or array"},
        {R"("target_modules":[7])", "target_modules[0]: expected string"},
        {R"("target_modules":"q_(")", "target_modules: not a regular expression"},
        {R"("layers_to_transform":"1")", "layers_to_transform: expected integer"},
        {R"("bias":1)", "bias: expected string"},
        {R"("bias":"some")", "bias: expected none, all or lora_only"},
        {R"("use_dora":1)", "use_dora: expected true or false"},
        {R"("use_dora":true,"lora_bias":true)", "exclude each other"},
        {R"("modules_to_save":"lm_head")", "modules_to_save: expected array"},
        {R"("modules_to_save":[""])", "modules_to_save[0]: expected the name of a module"},
        {R"("trainable_token_indices":7)", "trainable_token_indices: expected array"},
        {R"("trainable_token_indices":{"embed_tokens":["a"]})",
         "trainable_token_indices.embed_tokens[0]: expected integer"},
        {R"("alora_invocation_tokens":[1.5])", "alora_invocation_tokens[0]: expected integer"},
        {R"("init_lora_weights":3)", "init_lora_weights: expected true, false or a name"},
        {R"("r":4,"r":8)", "r: the key occurs twice"},
    };
    for (const auto& [fields, message] : cases) {
        const Error error = refused(config_text(fields));
        EXPECT_EQ(error.code, ErrorCode::kAdapterInvalid) << fields;
        EXPECT_THAT(error.message, HasSubstr(message)) << fields;
    }
    EXPECT_EQ(refused(config_text(R"("r":2147483647)")).code, ErrorCode::kAdapterUnsupported);
    EXPECT_EQ(refused("{}").code, ErrorCode::kAdapterInvalid);
    EXPECT_EQ(refused("[]").code, ErrorCode::kAdapterInvalid);
    EXPECT_EQ(refused("").code, ErrorCode::kAdapterInvalid);
}

}  // namespace
}  // namespace lorad::adapters::peft_config_test
