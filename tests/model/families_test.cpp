// What the configs of the golden families say, in each of their spellings, and what is refused of them.
#include "tests/support/families.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include <gtest/gtest.h>

#include "model/config/config.h"
#include "model/config/config_families.h"
#include "model/config/topology.h"
#include "model/exec/state_cache.h"

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

Result<ModelConfig> config_of(const std::string& model) {
    return parse_model_config(text_of(families_dir() / "models" / model / "config.json"), "");
}

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
    if (!GetParam().architecture.empty()) {
        EXPECT_EQ(config->architecture, GetParam().architecture);
    }
    if (!GetParam().has_variant) return;
    const auto other =
        parse_model_config(text_of(families_dir() / "config-variants" / (GetParam().model + ".json")), "");
    ASSERT_TRUE(other.ok()) << other.error().message;
    ASSERT_EQ(config->n_layers, other->n_layers);
    for (uint32_t layer = 0; layer < config->n_layers; ++layer)
        EXPECT_TRUE(config->layer(layer) == other->layer(layer)) << "layer " << layer;
    ASSERT_EQ(config->n_ropes(), other->n_ropes());
    for (uint32_t rope = 0; rope < config->n_ropes(); ++rope) {
        const RopeConfig &a = config->rope_of(rope), &b = other->rope_of(rope);
        EXPECT_TRUE(a.type == b.type && a.theta == b.theta && a.rotary_dim == b.rotary_dim &&
                    a.pair_stride == b.pair_stride && a.exponent_dim == b.exponent_dim && a.factor == b.factor &&
                    a.attention_factor == b.attention_factor && a.original_max_positions == b.original_max_positions &&
                    a.long_factors == b.long_factors && a.beta_fast == b.beta_fast)
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

INSTANTIATE_TEST_SUITE_P(All, FamilyConfig, ::testing::ValuesIn(golden_families()), family_test_name);

TEST(Families, SayWhatTheirLayersAre) {
    const auto gemma4 = config_of("gemma4-e2b");
    ASSERT_TRUE(gemma4.ok());
    const LayerFacts sliding = gemma4->layer(0), full = gemma4->layer(2), shared = gemma4->layer(4),
                     last = gemma4->layer(5);
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
    EXPECT_EQ(features("granite"),
              uint32_t{kFeatureResidualMultiplier | kFeatureEmbedScale | kFeatureScoreScale | kFeatureLogits});
    EXPECT_EQ(features("olmo2"), uint32_t{kFeatureNormsAfter | kFeatureNoNormsBefore | kFeatureWideQkNorm});
    EXPECT_EQ(features("smollm3"), uint32_t{kFeatureRopeByLayer});
    EXPECT_EQ(features("ministral3-nested"), uint32_t{kFeaturePositionScale});
    EXPECT_EQ(features("gemma3-nested"), uint32_t{kFeatureNormsAfter | kFeatureGelu | kFeatureRopeByLayer |
                                                  kFeatureEmbedScale | kFeatureScoreScale});
    EXPECT_EQ(features("llama-biased"), 0u);
    EXPECT_EQ(features("qwen35"), uint32_t{kFeatureLayersDiffer | kFeatureOtherMixers | kFeatureOutputGate});
    EXPECT_EQ(features("lfm2"), uint32_t{kFeatureLayersDiffer | kFeatureOtherMixers});
    EXPECT_EQ(features("gpt-oss"), uint32_t{kFeatureExperts | kFeatureClamps | kFeatureSinks});
    EXPECT_EQ(features("qwen35-moe"),
              uint32_t{kFeatureLayersDiffer | kFeatureOtherMixers | kFeatureOutputGate | kFeatureExperts});
    EXPECT_EQ(features_beyond(ModelTopology{kFeatureGelu | kFeatureSinks}, kFeatureGelu), "attention sinks");
}

void expect_refused(const Result<ModelConfig>& config, std::string_view what) {
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.error().code, ErrorCode::kInvalidModel);
    EXPECT_NE(config.error().message.find(what), std::string::npos) << config.error().message;
}

TEST(Families, HybridsAndExpertsOfImpossibleSizesAreRefusedByKey) {
    const std::string qwen35 = text_of(families_dir() / "models/qwen35/config.json"),
                      moe = text_of(families_dir() / "models/qwen35-moe/config.json");
    expect_refused(
        parse_model_config(with(qwen35, "\"linear_num_value_heads\": 4", "\"linear_num_value_heads\": 3"), ""),
        "a multiple of the key heads");
    expect_refused(
        parse_model_config(with(qwen35, "\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": 400"), ""),
        "taps");
    expect_refused(parse_model_config(with(qwen35, "\"full_attention\"", "\"linear_attention\""), ""),
                   "at least one layer of attention");
    expect_refused(
        parse_model_config(with(qwen35, "\"hidden_act\"", "\"attn_output_gate\": false, \"hidden_act\""), ""),
        "attn_output_gate");
    expect_refused(parse_model_config(with(moe, "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 6"), ""),
                   "found 5 and 6");
    expect_refused(parse_model_config(with(moe, "\"num_experts\": 5", "\"num_experts\": 5000"), ""), "up to 1024");
}

TEST(Families, UnknownOnesAreToldWithTheNearestKnownOneAndWhatItHasNot) {
    const std::string granite = text_of(families_dir() / "models/granite/config.json");
    const std::string unknown =
        with(with(granite, "\"GraniteForCausalLM\"", "\"GranitePlusForCausalLM\""), "\"granite\"", "\"granite_plus\"");
    expect_refused(parse_model_config(unknown, ""),
                   "\"GranitePlusForCausalLM\" is not supported; the nearest that is: GraniteForCausalLM");
    expect_refused(parse_model_config(with(unknown, "\"mlp_bias\"", "\"kv_lora_rank\": 16, \"mlp_bias\""), ""),
                   "kv_lora_rank");
}

TEST(Families, KeysThatChangeResultsAreRefusedByName) {
    const std::string llama = text_of(families_dir() / "models/llama-biased/config.json");
    for (const char* key : {"\"final_logit_softcapping\": 30.0", "\"embedding_multiplier\": 2",
                            "\"num_local_experts\": 8", "\"use_bidirectional_attention\": true"}) {
        const std::string name = std::string(key).substr(1, std::string(key).find('"', 1) - 1);
        expect_refused(parse_model_config(with(llama, "\"hidden_act\"", std::string(key) + ", \"hidden_act\""), ""),
                       name);
    }
    for (const char* key : {"\"final_logit_softcapping\": null", "\"embedding_multiplier\": 1.0",
                            "\"num_local_experts\": 0", "\"use_bidirectional_attention\": false"}) {
        EXPECT_TRUE(parse_model_config(with(llama, "\"hidden_act\"", std::string(key) + ", \"hidden_act\""), "").ok())
            << key;
    }
    const std::string gemma = text_of(families_dir() / "models/gemma3-nested/config.json");
    const auto capped = parse_model_config(
        with(gemma, "\"hidden_activation\"", "\"attn_logit_softcapping\": 9.0, \"was\": null, \"hidden_activation\""),
        "");
    ASSERT_TRUE(capped.ok()) << capped.error().message;
    EXPECT_EQ(capped->layer(0).attention.softcap, 0.0f) << "transformers applies it nowhere";
    expect_refused(
        parse_model_config(
            with(gemma, "\"use_bidirectional_attention\": false", "\"use_bidirectional_attention\": true"), ""),
        "embedding models");
}

TEST(Families, GemmasActivationIsThatOfItsOwnKey) {
    const std::string gemma = text_of(families_dir() / "models/gemma3-nested/config.json");
    const std::string_view own = "\"hidden_activation\": \"gelu_pytorch_tanh\"";
    EXPECT_TRUE(parse_model_config(with(gemma, own, std::string(own) + ", \"hidden_act\": \"silu\""), "").ok())
        << "transformers reads past it";
    EXPECT_TRUE(parse_model_config(with(gemma, own, "\"hidden_act\": \"gelu\""), "").ok());
    expect_refused(parse_model_config(with(gemma, own, "\"hidden_act\": \"silu\""), ""), "hidden_act: expected gelu");
    expect_refused(parse_model_config(with(gemma, own, "\"hidden_activation\": \"gelu\""), ""),
                   "hidden_activation: expected gelu_pytorch_tanh");
}

TEST(Families, MinistralsTemperatureIsReadUnderBothNamesOfTheRotaryObject) {
    const std::string text = text_of(families_dir() / "models/ministral3-nested/config.json");
    const auto config = parse_model_config(text, "");
    const auto older = parse_model_config(with(text, "\"rope_parameters\"", "\"rope_scaling\""), "");
    ASSERT_TRUE(config.ok() && older.ok()) << (older.ok() ? "" : older.error().message);
    EXPECT_NE(config->layer(0).attention.position_scale.beta, 0.0f);
    EXPECT_TRUE(older->layer(0) == config->layer(0));
    const std::string llama = text_of(families_dir() / "models/llama-biased/config.json");
    expect_refused(parse_model_config(
                       with(llama, "\"rope_parameters\": {", "\"rope_scaling\": {\"llama_4_scaling_beta\": 0.1,"), ""),
                   "llama_4_scaling_beta");
}

TEST(Families, GraniteHybridsAreReadInBothWordsForTheirLayers) {
    const std::string text = text_of(families_dir() / "models/granite-hybrid/config.json");
    const auto config = parse_model_config(text, "");
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->layer(0).mixer, Mixer::kMamba);
    EXPECT_EQ(config->layer(2).mixer, Mixer::kAttention);
    EXPECT_EQ(config->layer(2).attention.rope, kNoRope);
    EXPECT_EQ(config->shape(0, LinearModule::kConvIn).n, 2u * 128 + 2 * 16 + 8);
    EXPECT_EQ(config->shape(0, LinearModule::kConvOut).k, 128u);
    EXPECT_EQ(config->shape(2, LinearModule::kConvIn).n, 0u);
    EXPECT_EQ(config->layer(0).ffn.size, 104u);
    EXPECT_EQ(state_sizes(*config, 0).n_bytes(), (3u * 160 + 128 * 16) * 4);
    std::string other = text;
    while (other.find("linear_attention") != std::string::npos)
        other = with(other, "\"linear_attention\"", "\"mamba\"");
    const auto same = parse_model_config(with(other, "\"full_attention\"", "\"attention\""), "");
    ASSERT_TRUE(same.ok()) << same.error().message;
    for (uint32_t layer = 0; layer < config->n_layers; ++layer)
        EXPECT_TRUE(config->layer(layer) == same->layer(layer)) << layer;
    // transformers turns nothing unless the config says "rope".
    const auto unsaid = parse_model_config(with(text, "\"position_embedding_type\": \"nope\",", ""), "");
    ASSERT_TRUE(unsaid.ok()) << unsaid.error().message;
    EXPECT_EQ(unsaid->layer(2).attention.rope, kNoRope);
    const auto turned = parse_model_config(with(text, "\"nope\"", "\"rope\""), "");
    ASSERT_TRUE(turned.ok()) << turned.error().message;
    EXPECT_EQ(turned->layer(2).attention.rope, 0u);

    expect_refused(parse_model_config(with(text, "\"mamba_n_heads\": 8", "\"mamba_n_heads\": 7"), ""),
                   "mamba_n_heads: expected heads of together 128");
    expect_refused(parse_model_config(with(text, "\"mamba_n_groups\": 1", "\"mamba_n_groups\": 3"), ""),
                   "a multiple of the groups");
    expect_refused(parse_model_config(with(text, "\"mamba_d_conv\": 4", "\"mamba_d_conv\": 40"), ""), "taps");
    expect_refused(parse_model_config(with(text, "\"mamba_d_state\": 16", "\"mamba_d_state\": 1024"), ""),
                   "states of up to 256");
    expect_refused(parse_model_config(with(text, "\"full_attention\"", "\"linear_attention\""), ""),
                   "at least one layer of attention");
    expect_refused(parse_model_config(with(text, "\"nope\"", "\"alibi\""), ""), "position_embedding_type");
    expect_refused(parse_model_config(with(text, "\"full_attention\"", "\"sliding_attention\""), ""),
                   "expected attention or mamba");
}

TEST(Families, GraniteHybridsWithExpertsHaveTheirSharedOne) {
    const std::string text = text_of(families_dir() / "models/granite-hybrid/config.json");
    const auto config = parse_model_config(with(with(text, "\"num_local_experts\": 0", "\"num_local_experts\": 6"),
                                                "\"num_experts_per_tok\": 0", "\"num_experts_per_tok\": 2"),
                                           "");
    ASSERT_TRUE(config.ok()) << config.error().message;
    const ExpertFacts experts = config->layer(0).ffn.experts;
    EXPECT_EQ(experts.n, 6u);
    EXPECT_EQ(experts.size, 96u);
    EXPECT_EQ(experts.shared_size, 104u);
    EXPECT_FALSE(experts.shared_gate);
    EXPECT_EQ(experts.router, Router::kTopThenSoftmax);
}

TEST(Families, Gemma4HasExpertsBesideItsFeedForward) {
    const std::string text = text_of(families_dir() / "models/gemma4-moe/config.json");
    const auto config = parse_model_config(text, "");
    ASSERT_TRUE(config.ok()) << config.error().message;
    const FfnFacts ffn = config->layer(1).ffn;
    EXPECT_EQ(ffn.kind, FeedForward::kDenseAndExperts);
    EXPECT_EQ(ffn.size, 56u);
    EXPECT_EQ(ffn.experts.n, 5u);
    EXPECT_EQ(ffn.experts.size, 24u);
    EXPECT_EQ(config->shape(1, LinearModule::kUp).n, 56u);
    EXPECT_EQ(config->shape(1, LinearModule::kRouter).n, 5u);
    expect_refused(parse_model_config(with(text, "\"top_k_experts\": 2", "\"top_k_experts\": 6"), ""), "found 5 and 6");
    expect_refused(
        parse_model_config(with(text, "\"moe_intermediate_size\": 24", "\"moe_intermediate_size\": null"), ""),
        "moe_intermediate_size");
}

// A key that a family claims to read is read: what cannot be its value is refused in some golden config of the family,
// or in one of the texts here.
TEST(Families, ReadTheKeysThatTheyClaimToRead) {
    std::map<std::string, std::vector<std::string>> configs;  // by architecture
    for (const GoldenFamily& golden : kGoldenFamilies)
        configs[golden.architecture].push_back(text_of(families_dir() / "models" / golden.model / "config.json"));
    // Families without a golden of their own, by the keys of one that is near.
    const auto renamed = [&](const char* model, const std::string& architecture, const std::string& from,
                             const std::string& to, const std::string& more = "") {
        std::string text = text_of(families_dir() / "models" / model / "config.json");
        text = with(with(text, "\"" + from + "\"", "\"" + architecture + "\""), "\"model_type\": \"",
                    "\"model_type\": \"" + to + "\", \"was\": \"");
        configs[architecture].push_back(more.empty() ? text
                                                     : with(text, "\"hidden_size\"", more + ", \"hidden_size\""));
    };
    renamed("qwen35-moe", "Qwen3MoeForCausalLM", "Qwen3_5MoeForCausalLM", "qwen3_moe");
    renamed("gpt-oss", "MixtralForCausalLM", "GptOssForCausalLM", "mixtral");
    renamed("lfm2", "Lfm2MoeForCausalLM", "Lfm2ForCausalLM", "lfm2_moe",
            "\"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 16");
    renamed("olmo2", "Gemma2ForCausalLM", "Olmo2ForCausalLM", "gemma2");
    for (const FamilyKeys& family : families_with_keys()) {
        ASSERT_TRUE(configs.contains(std::string(family.name))) << family.name;
        for (const std::string_view key : family.keys) {
            const bool is_read =
                std::ranges::any_of(configs.at(std::string(family.name)), [&](const std::string& text) {
                    // The last of several keys counts. In front of the text part's end, or of the rope object's.
                    for (const char* inside : {"\"hidden_size\"", "\"rope_theta\""}) {
                        const size_t at = text.rfind(inside);
                        if (at == std::string::npos) continue;
                        std::string without = text;
                        // The key itself, and one that counts before it.
                        for (const std::string& hidden :
                             {"\"" + std::string(key) + "\"",
                              std::string(key == "num_local_experts" ? "\"num_experts\"" : "\"-\"")}) {
                            for (size_t own = without.find(hidden); own != std::string::npos;
                                 own = without.find(hidden))
                                without.replace(own + 1, 1, "~");
                        }
                        const std::string broken =
                            with(without, inside, "\"" + std::string(key) + "\": {\"x\": [1]}, " + inside);
                        if (!parse_model_config(broken, "").ok()) return true;
                    }
                    return false;
                });
            EXPECT_TRUE(is_read) << family.name << " does not read " << key;
        }
    }
}

// Published configs of Gemma 3 leave out whatever their class has as a default.
TEST(Families, GemmasDefaultsAreItsOwn) {
    const auto config = parse_model_config(
        R"({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106],
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
                        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}, "vision_config": {"hidden_size": 1152}})",
        "");
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
