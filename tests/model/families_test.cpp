// What the configs of the golden families say, in each of their spellings, and what is refused of them.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "model/config.h"
#include "model/state_cache.h"
#include "model/topology.h"
#include "tests/support/families.h"

namespace lorad::model::families_test {
namespace {

using namespace lorad::testing;

std::string text_of(const std::filesystem::path& file) {
    std::ifstream in(file);
    EXPECT_TRUE(in.good()) << file;
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
}

Result<ModelConfig> config_of(const std::string& model) { return parse_model_config(text_of(families_dir() / "models" / model / "config.json"), ""); }

// Replaces the first `from`, which must be there.
std::string with(std::string text, std::string_view from, std::string_view to) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
}

class FamilyConfig : public ::testing::TestWithParam<GoldenFamily> {};

TEST_P(FamilyConfig, MeansTheSameInItsOtherSpelling) {
    const auto config = config_of(GetParam().model);
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->architecture, GetParam().architecture);
    if (!GetParam().has_variant) return;
    const auto other = parse_model_config(text_of(families_dir() / "config-variants" / (std::string(GetParam().model) + ".json")), "");
    ASSERT_TRUE(other.ok()) << other.error().message;
    ASSERT_EQ(config->n_layers, other->n_layers);
    for (uint32_t layer = 0; layer < config->n_layers; ++layer) EXPECT_TRUE(config->layer(layer) == other->layer(layer)) << "layer " << layer;
    ASSERT_EQ(config->n_ropes(), other->n_ropes());
    for (uint32_t rope = 0; rope < config->n_ropes(); ++rope) {
        const RopeConfig &a = config->rope_of(rope), &b = other->rope_of(rope);
        EXPECT_TRUE(a.type == b.type && a.theta == b.theta && a.rotary_dim == b.rotary_dim && a.pair_stride == b.pair_stride && a.exponent_dim == b.exponent_dim && a.factor == b.factor &&
                    a.attention_factor == b.attention_factor && a.original_max_positions == b.original_max_positions && a.long_factors == b.long_factors && a.beta_fast == b.beta_fast)
            << "rope " << rope;
    }
    EXPECT_EQ(config->embed_scale, other->embed_scale);
    EXPECT_EQ(config->logit_scale, other->logit_scale);
    EXPECT_EQ(config->final_softcap, other->final_softcap);
    EXPECT_EQ(config->dtype, other->dtype);
    EXPECT_EQ(config->tied_embeddings, other->tied_embeddings);
    EXPECT_EQ(config->per_layer_vocab, other->per_layer_vocab);
    EXPECT_EQ(config->generation.eos_token_ids, other->generation.eos_token_ids);
}

INSTANTIATE_TEST_SUITE_P(All, FamilyConfig, ::testing::ValuesIn(kGoldenFamilies), family_test_name);

TEST(Families, SayWhatTheirLayersAre) {
    const auto gemma4 = config_of("gemma4-e2b");
    ASSERT_TRUE(gemma4.ok());
    const LayerFacts sliding = gemma4->layer(0), full = gemma4->layer(2), shared = gemma4->layer(4), last = gemma4->layer(5);
    EXPECT_EQ(sliding.attention.window, 24u);
    EXPECT_EQ(sliding.attention.head_dim, 16u);
    EXPECT_EQ(full.attention.window, 0u);
    EXPECT_EQ(full.attention.head_dim, 32u);
    EXPECT_FALSE(full.attention.kv_from.has_value());
    EXPECT_EQ(shared.attention.kv_from, 1u) << "the last layer with a window of its own keys";
    EXPECT_EQ(last.attention.kv_from, 2u);
    EXPECT_EQ(sliding.ffn.size, 72u);
    EXPECT_EQ(shared.ffn.size, 144u);
    EXPECT_EQ(gemma4->shape(4, LinearModule::kK).n, 0u);
    EXPECT_EQ(gemma4->shape(0, LinearModule::kPleModel).n, 48u);
    EXPECT_EQ(gemma4->shape(1, LinearModule::kPleModel).n, 0u);
    EXPECT_EQ(gemma4->rope_of(0).rotary_dim, 8u);
    EXPECT_EQ(gemma4->rope_of(0).pair_stride, 16u) << "of half a head, whatever share is turned";

    const auto dense = config_of("gemma4-dense");
    ASSERT_TRUE(dense.ok());
    EXPECT_TRUE(dense->layer(1).attention.k_is_v);
    EXPECT_FALSE(dense->layer(0).attention.k_is_v);
    EXPECT_EQ(dense->shape(1, LinearModule::kV).n, 0u);

    const auto smollm3 = config_of("smollm3");
    ASSERT_TRUE(smollm3.ok());
    EXPECT_EQ(smollm3->layer(0).attention.rope, 0u);
    EXPECT_EQ(smollm3->layer(1).attention.rope, kNoRope);

    const auto olmo3 = config_of("olmo3");
    ASSERT_TRUE(olmo3.ok());
    EXPECT_EQ(olmo3->layer(3).attention.rope, 0u);
    EXPECT_EQ(olmo3->rope_of(0).type, RopeType::kYarn);
    EXPECT_EQ(olmo3->rope_of(1).type, RopeType::kDefault);
    EXPECT_EQ(olmo3->rope_of(1).theta, 5e5);
}

TEST(Families, SayWhichLayersHaveAStateAndExperts) {
    const auto qwen35 = config_of("qwen35");
    ASSERT_TRUE(qwen35.ok()) << qwen35.error().message;
    EXPECT_EQ(qwen35->layer(0).mixer, Mixer::kDeltaNet);
    EXPECT_EQ(qwen35->layer(3).mixer, Mixer::kAttention);
    EXPECT_TRUE(qwen35->layer(3).attention.output_gate);
    EXPECT_EQ(qwen35->shape(3, LinearModule::kQ).n, 2u * 4 * 32);
    EXPECT_EQ(qwen35->shape(0, LinearModule::kDeltaQkv).n, 2u * 2 * 16 + 4 * 24);
    EXPECT_EQ(qwen35->rope.rotary_dim, 8u);
    // Three values of a convolution's input, and an f32 for each key and value of a head, keys in whole sixteens.
    EXPECT_EQ(state_sizes(*qwen35, 0).n_bytes(), (3u * 160 + 4 * 24 * 16) * 4);
    EXPECT_EQ(state_slot_bytes(*qwen35), 4 * state_sizes(*qwen35, 0).n_bytes());
    EXPECT_FALSE(has_state(*config_of("gpt-oss")));

    const auto lfm2 = config_of("lfm2");
    ASSERT_TRUE(lfm2.ok()) << lfm2.error().message;
    EXPECT_EQ(lfm2->layer(0).ffn.size, 128u) << "two thirds of 180, in sixteens";
    EXPECT_EQ(state_slot_bytes(*lfm2), 3u * 2 * 64 * 4);

    const auto moe = config_of("qwen35-moe");
    ASSERT_TRUE(moe.ok()) << moe.error().message;
    EXPECT_EQ(moe->layer(0).ffn.experts.n, 5u);
    EXPECT_EQ(moe->layer(0).ffn.experts.top_k, 2u);
    EXPECT_EQ(moe->shape(0, LinearModule::kExpertGateUp).n, 48u);
    EXPECT_EQ(moe->shape(0, LinearModule::kUp).n, 40u) << "the shared expert's";

    const auto gpt_oss = config_of("gpt-oss");
    ASSERT_TRUE(gpt_oss.ok()) << gpt_oss.error().message;
    EXPECT_EQ(gpt_oss->layer(0).attention.window, 16u);
    EXPECT_EQ(gpt_oss->layer(1).attention.window, 0u);
    EXPECT_TRUE(gpt_oss->layer(0).attention.sinks);
    EXPECT_EQ(gpt_oss->layer(0).ffn.experts.router, Router::kTopThenSoftmax);
}

TEST(Families, LlamaLikeModelsHaveNoFeatures) {
    for (const char* model : {"llama-scaled", "llama-tied", "mistral-window", "phi3-sharded", "qwen2-tied", "qwen3"}) {
        const auto config = load_model_config(goldens_dir() / "models" / model);
        ASSERT_TRUE(config.ok()) << config.error().message;
        EXPECT_EQ(topology_of(*config).features, 0u) << model << ": " << features_beyond(topology_of(*config), 0);
        EXPECT_EQ(config->lora_stride(), kLinearModules);
    }
}

TEST(Families, ModelsTellWhatFastPathsMustAsk) {
    const auto features = [](const char* model) { return topology_of(*config_of(model)).features; };
    EXPECT_EQ(features("granite"), uint32_t{kFeatureResidualMultiplier | kFeatureEmbedScale | kFeatureScoreScale | kFeatureLogits});
    EXPECT_EQ(features("olmo2"), uint32_t{kFeatureNormsAfter | kFeatureNoNormsBefore | kFeatureWideQkNorm});
    EXPECT_EQ(features("smollm3"), uint32_t{kFeatureRopeByLayer});
    EXPECT_EQ(features("ministral3-nested"), uint32_t{kFeaturePositionScale});
    EXPECT_EQ(features("gemma3-nested"), uint32_t{kFeatureNormsAfter | kFeatureGelu | kFeatureRopeByLayer | kFeatureEmbedScale | kFeatureScoreScale});
    EXPECT_EQ(features("llama-biased"), 0u);
    EXPECT_EQ(features("qwen35"), uint32_t{kFeatureLayersDiffer | kFeatureOtherMixers | kFeatureOutputGate});
    EXPECT_EQ(features("lfm2"), uint32_t{kFeatureLayersDiffer | kFeatureOtherMixers});
    EXPECT_EQ(features("gpt-oss"), uint32_t{kFeatureExperts | kFeatureClamps | kFeatureSinks});
    EXPECT_EQ(features("qwen35-moe"), uint32_t{kFeatureLayersDiffer | kFeatureOtherMixers | kFeatureOutputGate | kFeatureExperts});
    EXPECT_EQ(features_beyond(ModelTopology{kFeatureGelu | kFeatureSinks}, kFeatureGelu), "attention sinks");
}

void expect_refused(const Result<ModelConfig>& config, std::string_view what) {
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.error().code, ErrorCode::kInvalidModel);
    EXPECT_NE(config.error().message.find(what), std::string::npos) << config.error().message;
}

TEST(Families, HybridsAndExpertsOfImpossibleSizesAreRefusedByKey) {
    const std::string qwen35 = text_of(families_dir() / "models/qwen35/config.json"), moe = text_of(families_dir() / "models/qwen35-moe/config.json");
    expect_refused(parse_model_config(with(qwen35, "\"linear_num_value_heads\": 4", "\"linear_num_value_heads\": 3"), ""), "a multiple of the key heads");
    expect_refused(parse_model_config(with(qwen35, "\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": 400"), ""), "taps");
    expect_refused(parse_model_config(with(qwen35, "\"full_attention\"", "\"linear_attention\""), ""), "at least one layer of attention");
    expect_refused(parse_model_config(with(qwen35, "\"hidden_act\"", "\"attn_output_gate\": false, \"hidden_act\""), ""), "attn_output_gate");
    expect_refused(parse_model_config(with(moe, "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 6"), ""), "found 5 and 6");
    expect_refused(parse_model_config(with(moe, "\"num_experts\": 5", "\"num_experts\": 5000"), ""), "up to 1024");
}

TEST(Families, UnknownOnesAreToldWithTheNearestKnownOneAndWhatItHasNot) {
    const std::string granite = text_of(families_dir() / "models/granite/config.json");
    const std::string unknown = with(with(granite, "\"GraniteForCausalLM\"", "\"GranitePlusForCausalLM\""), "\"granite\"", "\"granite_plus\"");
    expect_refused(parse_model_config(unknown, ""), "\"GranitePlusForCausalLM\" is not supported; the nearest that is: GraniteForCausalLM");
    expect_refused(parse_model_config(with(unknown, "\"mlp_bias\"", "\"kv_lora_rank\": 16, \"mlp_bias\""), ""), "kv_lora_rank");
}

TEST(Families, KeysThatChangeResultsAreRefusedByName) {
    const std::string llama = text_of(families_dir() / "models/llama-biased/config.json");
    for (const char* key : {"\"final_logit_softcapping\": 30.0", "\"embedding_multiplier\": 2", "\"num_local_experts\": 8", "\"use_bidirectional_attention\": true"}) {
        const std::string name = std::string(key).substr(1, std::string(key).find('"', 1) - 1);
        expect_refused(parse_model_config(with(llama, "\"hidden_act\"", std::string(key) + ", \"hidden_act\""), ""), name);
    }
    for (const char* key : {"\"final_logit_softcapping\": null", "\"embedding_multiplier\": 1.0", "\"num_local_experts\": 0", "\"use_bidirectional_attention\": false"}) {
        EXPECT_TRUE(parse_model_config(with(llama, "\"hidden_act\"", std::string(key) + ", \"hidden_act\""), "").ok()) << key;
    }
    const std::string gemma = text_of(families_dir() / "models/gemma3-nested/config.json");
    expect_refused(parse_model_config(with(gemma, "\"use_bidirectional_attention\": false", "\"use_bidirectional_attention\": true"), ""), "embedding models");
}

TEST(Families, LayersOfMamba2AreRefusedByName) {
    const std::string granite = text_of(families_dir() / "models/granite/config.json");
    const std::string hybrid = with(with(granite, "\"GraniteForCausalLM\"", "\"GraniteMoeHybridForCausalLM\""), "\"mlp_bias\"",
                                    "\"layer_types\": [\"linear_attention\", \"full_attention\", \"full_attention\"], \"shared_intermediate_size\": 104, \"x\"");
    expect_refused(parse_model_config(hybrid, ""), "Mamba 2");
    const auto dense = parse_model_config(with(hybrid, "\"linear_attention\"", "\"full_attention\""), "");
    ASSERT_TRUE(dense.ok()) << dense.error().message;
    EXPECT_EQ(dense->layer(0).ffn.size, 104u);
    EXPECT_TRUE(dense->fused_gate_up);
}

// Published configs of Gemma 3 leave out whatever their class has as a default.
TEST(Families, GemmasDefaultsAreItsOwn) {
    const auto config = parse_model_config(R"({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106],
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
                        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}, "vision_config": {"hidden_size": 1152}})", "");
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->vocab_size, 262208u);
    EXPECT_EQ(config->max_positions, 131072u);
    EXPECT_TRUE(config->tied_embeddings);
    EXPECT_EQ(config->rms_norm_eps, 1e-6f);
    const LayerFacts sliding = config->layer(0), full = config->layer(5);
    EXPECT_EQ(sliding.attention.n_heads, 8u);
    EXPECT_EQ(sliding.attention.n_kv_heads, 4u);
    EXPECT_EQ(sliding.attention.head_dim, 256u);
    EXPECT_EQ(sliding.attention.window, 1024u);
    EXPECT_EQ(sliding.attention.scale, 0.0625f);
    EXPECT_EQ(full.attention.window, 0u);
    EXPECT_EQ(config->rope_of(full.attention.rope).theta, 1e6);
    EXPECT_EQ(config->rope_of(full.attention.rope).factor, 8.0);
    EXPECT_EQ(config->rope_of(sliding.attention.rope).theta, 1e4);
    EXPECT_EQ(config->rope_of(sliding.attention.rope).type, RopeType::kDefault);
    EXPECT_EQ(config->generation.eos_token_ids, (std::vector<TokenId>{1, 106}));
}

}  // namespace
}  // namespace lorad::model::families_test
