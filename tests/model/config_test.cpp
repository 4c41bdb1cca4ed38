#include "model/config/config.h"

#include <cmath>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temp_dir.h"

namespace lorad::model::config_test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json base_config(const char* architecture) {
    return {{"architectures", {architecture}},
            {"vocab_size", 1000},
            {"hidden_size", 64},
            {"intermediate_size", 128},
            {"num_hidden_layers", 4},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"max_position_embeddings", 512},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", 500000.0},
            {"hidden_act", "silu"},
            {"eos_token_id", 7}};
}

ModelConfig parsed(const json& config, const std::string& generation = "") {
    auto result = parse_model_config(config.dump(), generation);
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
    return result.ok() ? std::move(result).value() : ModelConfig{};
}

std::string error_of(const json& config, const std::string& generation = "") {
    const auto result = parse_model_config(config.dump(), generation);
    if (result.ok()) return "accepted";
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidModel);
    return result.error().message;
}

json with(json config, const char* key, json value) {
    config[key] = std::move(value);
    return config;
}

TEST(ModelConfig, DerivesShapesOfLinearLayers) {
    const ModelConfig config = parsed(with(base_config("LlamaForCausalLM"), "head_dim", 32));
    EXPECT_EQ(config.q_size(), 128u);
    EXPECT_EQ(config.shape(LinearModule::kQ).n, 128u);
    EXPECT_EQ(config.shape(LinearModule::kK).n, 64u);
    EXPECT_EQ(config.shape(LinearModule::kO).k, 128u);
    EXPECT_EQ(config.shape(LinearModule::kDown).k, 128u);
    EXPECT_EQ(config.shape(LinearModule::kDown).n, 64u);
    EXPECT_EQ(parsed(base_config("LlamaForCausalLM")).head_dim, 16u);
    EXPECT_EQ(name_of(LinearModule::kGate), "gate_proj");
}

TEST(ModelConfig, KnowsWhatEachArchitectureAdds) {
    const ModelConfig llama =
        parsed(with(with(base_config("LlamaForCausalLM"), "attention_bias", true), "mlp_bias", true));
    EXPECT_TRUE(llama.qkv_bias && llama.o_bias && llama.mlp_bias);
    EXPECT_FALSE(parsed(base_config("LlamaForCausalLM")).qkv_bias);
    const ModelConfig qwen2 = parsed(base_config("Qwen2ForCausalLM"));
    EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias);
    const ModelConfig qwen3 = parsed(base_config("Qwen3ForCausalLM"));
    EXPECT_TRUE(qwen3.qk_norm && !qwen3.qkv_bias);
    EXPECT_EQ(qwen3.head_dim, 128u);
    const ModelConfig phi3 = parsed(base_config("Phi3ForCausalLM"));
    EXPECT_TRUE(phi3.fused_qkv && phi3.fused_gate_up);
}

TEST(ModelConfig, ReadsBothSpellingsOfRope) {
    const ModelConfig legacy = parsed(base_config("Qwen2ForCausalLM"));
    EXPECT_EQ(legacy.rope.theta, 500000.0);
    json config = base_config("Qwen2ForCausalLM");
    config.erase("rope_theta");
    config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
    EXPECT_EQ(parsed(config).rope.theta, 1e6);
    config["rope_parameters"] = {
        {"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 1e6}, {"partial_rotary_factor", 1.0}};
    const ModelConfig scaled = parsed(config);
    EXPECT_EQ(scaled.rope.type, RopeType::kLinear);
    EXPECT_EQ(scaled.rope.rotary_dim, 16u);
}

TEST(ModelConfig, HeadsTurnInPartOnlyWhereTheClassReadsIt) {
    json phi3 = base_config("Phi3ForCausalLM");
    phi3["partial_rotary_factor"] = 0.5;
    EXPECT_EQ(parsed(phi3).rope.rotary_dim, 8u);
    for (const char* whole : {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
        json config = base_config(whole);
        EXPECT_TRUE(parse_model_config(with(config, "partial_rotary_factor", 1.0).dump(), "").ok()) << whole;
        EXPECT_THAT(
            error_of(with(config, "partial_rotary_factor", 0.5)),
            HasSubstr("partial_rotary_factor: expected 1, as heads of this architecture turn whole, found 0.5"));
        config["rope_parameters"] = {{"rope_type", "default"}, {"partial_rotary_factor", 0.25}};
        config.erase("rope_theta");
        EXPECT_THAT(error_of(config), HasSubstr("partial_rotary_factor: expected 1")) << whole;
    }
}

TEST(ModelConfig, TakesBothSpellingsOfRopeOnlyIfTheyAgree) {
    json config = base_config("Qwen3ForCausalLM");
    config["rope_parameters"] = {
        {"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 512}, {"rope_theta", 1e6}};
    config["rope_theta"] = 1e6;
    config["rope_scaling"] = {
        {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}, {"attention_factor", nullptr}};
    EXPECT_EQ(parsed(config).rope.theta, 1e6);
    EXPECT_EQ(parsed(with(config, "rope_scaling", json::object())).rope.type, RopeType::kYarn);
    EXPECT_THAT(error_of(with(config, "rope_theta", nullptr)),
                HasSubstr("rope_theta: expected the same in rope_scaling"));
    config["rope_scaling"].erase("original_max_position_embeddings");
    EXPECT_THAT(error_of(config), HasSubstr("original_max_position_embeddings: expected the same in rope_scaling, or "
                                            "one of the two alone, found 512 and nothing"));
    config["rope_scaling"]["factor"] = 2.0;
    EXPECT_THAT(error_of(config), HasSubstr("factor: expected the same in rope_parameters"));
    config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
    config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
    EXPECT_THAT(error_of(config), HasSubstr("expected the same in rope_parameters"));
}

TEST(ModelConfig, BareDecodersAreTheirFamilys) {
    json config = base_config("MistralForCausalLM");
    config["architectures"] = {"MistralModel"};
    EXPECT_EQ(parsed(config).architecture, "MistralForCausalLM");
    config["architectures"] = {"MistralModelForSomething"};
    EXPECT_THAT(error_of(config), HasSubstr("is not supported"));
}

TEST(ModelConfig, StretchesTheContextOfYarn) {
    const ModelConfig config =
        parsed(with(base_config("Qwen2ForCausalLM"), "rope_scaling",
                    {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}}));
    EXPECT_EQ(config.max_positions, 2048u);
    EXPECT_NEAR(config.rope.attention_factor, 1.138629436111989, 1e-12);
}

TEST(ModelConfig, ReadsWindows) {
    json config = with(base_config("MistralForCausalLM"), "sliding_window", 32);
    EXPECT_THAT(parsed(config).sliding_windows, ElementsAre(32, 32, 32, 32));
    EXPECT_THAT(parsed(with(config, "sliding_window", nullptr)).sliding_windows, ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(parsed(with(config, "sliding_window", 512)).sliding_windows, ElementsAre(0, 0, 0, 0));

    config = with(base_config("MistralForCausalLM"), "max_position_embeddings", 8192);
    config.erase("sliding_window");
    EXPECT_THAT(parsed(config).sliding_windows, ElementsAre(4096, 4096, 4096, 4096)) << "MistralConfig's own default";
    EXPECT_THAT(parsed(with(config, "sliding_window", nullptr)).sliding_windows, ElementsAre(0, 0, 0, 0));

    config = with(with(base_config("Qwen2ForCausalLM"), "sliding_window", 32), "max_window_layers", 3);
    EXPECT_THAT(parsed(config).sliding_windows, ElementsAre(0, 0, 0, 0));
    config["use_sliding_window"] = true;
    EXPECT_THAT(parsed(config).sliding_windows, ElementsAre(0, 0, 0, 32));
    json without = with(config, "max_position_embeddings", 8192);
    without.erase("sliding_window");
    EXPECT_THAT(parsed(without).sliding_windows, ElementsAre(0, 0, 0, 4096));
    config["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "sliding_attention"};
    EXPECT_THAT(parsed(config).sliding_windows, ElementsAre(0, 32, 0, 32));
    config["layer_types"] = {"full_attention"};
    EXPECT_THAT(error_of(config), HasSubstr("layer_types: expected 4 entries"));
    config["layer_types"] = {"full_attention", "linear_attention", "full_attention", "full_attention"};
    EXPECT_THAT(error_of(config), HasSubstr("layer_types[1]"));
}

TEST(ModelConfig, TakesGenerationDefaultsAndEndTokens) {
    EXPECT_THAT(parsed(base_config("Qwen2ForCausalLM")).generation.eos_token_ids, ElementsAre(7));
    const ModelConfig config =
        parsed(base_config("Qwen2ForCausalLM"),
               R"({"eos_token_id":[9,8],"temperature":0.7,"top_p":0.8,"top_k":20,"min_p":0.05})");
    EXPECT_THAT(config.generation.eos_token_ids, ElementsAre(9, 8));
    EXPECT_FLOAT_EQ(config.generation.temperature, 0.7f);
    EXPECT_FLOAT_EQ(config.generation.top_p, 0.8f);
    EXPECT_EQ(config.generation.top_k, 20u);
    EXPECT_FLOAT_EQ(config.generation.min_p, 0.05f);
    EXPECT_THAT(parsed(with(base_config("Qwen2ForCausalLM"), "eos_token_id", nullptr)).generation.eos_token_ids,
                ElementsAre());
    EXPECT_THAT(error_of(base_config("Qwen2ForCausalLM"), R"({"temperature":-1})"),
                HasSubstr("generation_config.json"));
    EXPECT_THAT(error_of(base_config("Qwen2ForCausalLM"), R"({"eos_token_id":"x"})"), HasSubstr("eos_token_id"));
    EXPECT_THAT(error_of(base_config("Qwen2ForCausalLM"), "[]"), HasSubstr("generation_config.json"));
}

TEST(ModelConfig, NamesWhatItDoesNotSupport) {
    EXPECT_THAT(
        error_of(base_config("MambaForCausalLM")),
        ::testing::AllOf(HasSubstr("MambaForCausalLM"), HasSubstr("Qwen3ForCausalLM"), HasSubstr("LlamaForCausalLM")));
    EXPECT_THAT(error_of(with(base_config("LlamaForCausalLM"), "quantization_config", {{"quant_method", "gptq"}})),
                HasSubstr("quantiz"));
    EXPECT_THAT(error_of(with(base_config("LlamaForCausalLM"), "hidden_act", "relu")), HasSubstr("hidden_act"));
    EXPECT_THAT(
        error_of(with(base_config("LlamaForCausalLM"), "rope_scaling", {{"type", "su-scaled"}, {"factor", 2.0}})),
        HasSubstr("\"su-scaled\" is not supported"));
}

TEST(ModelConfig, NamesTheKeyThatIsWrong) {
    const json good = base_config("Qwen2ForCausalLM");
    for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                            "num_key_value_heads", "max_position_embeddings", "intermediate_size"}) {
        json missing = good;
        missing.erase(key);
        EXPECT_THAT(error_of(missing), HasSubstr(key));
        for (const json& wrong : {json(0), json(-1), json(1.5), json("8"), json(1e18)}) {
            EXPECT_THAT(error_of(with(good, key, wrong)), HasSubstr(key)) << wrong;
        }
    }
    EXPECT_THAT(error_of(with(good, "num_key_value_heads", 3)), HasSubstr("not a multiple"));
    EXPECT_THAT(error_of(with(good, "hidden_size", 66)), HasSubstr("head_dim"));
    EXPECT_THAT(error_of(with(good, "head_dim", 12)), HasSubstr("head_dim: expected a multiple of 8"));
    EXPECT_THAT(error_of(with(good, "head_dim", 520)),
                HasSubstr("head_dim: expected integer from 1 to 512, found 520"));
    EXPECT_THAT(error_of(with(good, "rope_theta", 0)), HasSubstr("rope_theta"));
    EXPECT_THAT(error_of(with(good, "partial_rotary_factor", 1.5)), HasSubstr("partial_rotary_factor"));
    EXPECT_THAT(error_of(json::array()), HasSubstr("config.json"));
    EXPECT_THAT(error_of({{"hidden_size", 64}}), HasSubstr("no architectures"));
    const auto truncated = parse_model_config(R"({"architectures": ["Llama)", "");
    ASSERT_FALSE(truncated.ok());
    EXPECT_THAT(truncated.error().message, HasSubstr("config.json"));
}

TEST(ModelConfig, ChecksScalingParameters) {
    const auto scaled = [](const json& scaling) {
        return with(base_config("LlamaForCausalLM"), "rope_scaling", scaling);
    };
    EXPECT_THAT(error_of(scaled({{"type", "linear"}})), HasSubstr("rope_scaling.factor"));
    EXPECT_THAT(error_of(scaled({{"type", "linear"}, {"factor", -2}})), HasSubstr("rope_scaling.factor"));
    EXPECT_THAT(
        error_of(scaled({{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}})),
        HasSubstr("original_max_position_embeddings"));
    EXPECT_THAT(error_of(scaled({{"rope_type", "llama3"},
                                 {"factor", 8},
                                 {"low_freq_factor", 4},
                                 {"high_freq_factor", 4},
                                 {"original_max_position_embeddings", 64}})),
                HasSubstr("high_freq_factor"));
    EXPECT_THAT(error_of(scaled({{"rope_type", "longrope"}, {"short_factor", {1, 2}}, {"long_factor", {1, 2}}})),
                HasSubstr("expected 8 numbers"));
    EXPECT_THAT(error_of(scaled(7)), HasSubstr("rope_scaling"));
    // Each of these is a positive number, but the angles are none.
    EXPECT_THAT(error_of(with(base_config("LlamaForCausalLM"), "rope_theta", 1e-300)), HasSubstr("not finite"));
    EXPECT_THAT(error_of(scaled({{"type", "linear"}, {"factor", 1e-300}})), HasSubstr("not finite"));
    const std::vector<double> ones(8, 1.0);
    EXPECT_THAT(error_of(scaled({{"rope_type", "longrope"},
                                 {"short_factor", ones},
                                 {"long_factor", ones},
                                 {"original_max_position_embeddings", 1}})),
                HasSubstr("not finite"));
}

TEST(ModelConfig, DynamicRopeIsTheUsualOneWithinTheModelsContext) {
    const auto with_rope = [](const json& rope) { return with(base_config("LlamaForCausalLM"), "rope_scaling", rope); };
    EXPECT_EQ(parsed(with_rope({{"type", "dynamic"}, {"factor", 4.0}})).rope.type, RopeType::kDefault);
    EXPECT_THAT(error_of(with_rope({{"type", "dynamic"}})), HasSubstr("factor"));
    EXPECT_THAT(error_of(with_rope({{"rope_type", "dynamic"}, {"factor", 0}})), HasSubstr("positive"));
}

// As transformers has it: the factor that is written counts before the ratio of the contexts, and the original context
// beside the object before that inside.
TEST(ModelConfig, LongRopeTakesItsFactorFromTheObjectOrTheContexts) {
    const std::vector<double> ones(8, 1.0);
    const auto rope_of = [&](const json& more, int beside) {
        json rope{{"rope_type", "longrope"}, {"short_factor", ones}, {"long_factor", ones}};
        rope.update(more);
        json config =
            with(with(base_config("LlamaForCausalLM"), "rope_scaling", rope), "max_position_embeddings", 1024);
        if (beside > 0) config["original_max_position_embeddings"] = beside;
        return parsed(config).rope;
    };
    const auto attention_factor = [](double factor, double original) {
        return std::sqrt(1.0 + std::log(factor) / std::log(original));
    };
    EXPECT_DOUBLE_EQ(rope_of({{"original_max_position_embeddings", 64}}, 0).attention_factor, attention_factor(16, 64));
    EXPECT_DOUBLE_EQ(rope_of({{"original_max_position_embeddings", 64}, {"factor", 4}}, 0).attention_factor,
                     attention_factor(4, 64));
    EXPECT_EQ(rope_of({{"original_max_position_embeddings", 64}}, 128).original_max_positions, 128u);
    EXPECT_EQ(rope_of(json::object(), 0).original_max_positions, 1024u);
    const json longrope{{"rope_type", "longrope"}, {"short_factor", ones}, {"long_factor", ones}};
    const json phi3 =
        with(with(base_config("Phi3ForCausalLM"), "rope_scaling", longrope), "max_position_embeddings", 16384);
    EXPECT_EQ(parsed(phi3).rope.original_max_positions, 4096u) << "Phi3Config's own default";
    json inside = phi3;
    inside["rope_scaling"]["original_max_position_embeddings"] = 512;
    EXPECT_EQ(parsed(inside).rope.original_max_positions, 4096u) << "which counts before what the object says";
    inside["original_max_position_embeddings"] = 2048;
    EXPECT_EQ(parsed(inside).rope.original_max_positions, 2048u);
}

TEST(ModelConfig, SaysWhichFolderOrFileIsMissing) {
    const lorad::testing::TempDir dir;
    const auto no_folder = load_model_config(dir.path() / "none");
    ASSERT_FALSE(no_folder.ok());
    EXPECT_THAT(no_folder.error().message, HasSubstr("none: no such folder"));
    const auto no_file = load_model_config(dir.path());
    ASSERT_FALSE(no_file.ok());
    EXPECT_THAT(no_file.error().message, HasSubstr("config.json: no such file"));
    std::ofstream(dir.path() / "config.json") << base_config("Qwen2ForCausalLM").dump();
    EXPECT_TRUE(load_model_config(dir.path()).ok());
    std::ofstream(dir.path() / "generation_config.json") << "{";
    const auto broken = load_model_config(dir.path());
    ASSERT_FALSE(broken.ok());
    EXPECT_THAT(broken.error().message, HasSubstr("generation_config.json"));
}

}  // namespace
}  // namespace lorad::model::config_test
