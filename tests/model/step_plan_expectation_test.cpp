// What steps run, on devices that need not be there: plans of four models' steps of all sizes and of all kinds of
// adapters. A change of a plan is a change of a digest here.
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/kernels/launch.h"
#include "model/step/step_plan.h"
#include "model/step/step_planner.h"
#include "proto/base/format.h"
#include "tests/support/planned_devices.h"

namespace lorad::model::step_plan_expectation_test {
namespace {

using gpu::LoraLevel;
using gpu::ScalarType;
using lorad::testing::PlannedDevice;
using lorad::testing::text_of;

struct Sizes {
    const char* name;
    uint32_t hidden, ffn, n_heads, n_kv_heads, head_dim, vocab;
    gpu::Activation activation = gpu::Activation::kSilu;
    ScalarType type = ScalarType::kF16;
    uint32_t format = 0;  // 0: matrices are plain
    bool sinks = false;
};
constexpr std::array kModels = {
    Sizes{"0.5b", 896, 4864, 14, 2, 64, 151936},
    Sizes{"1.5b bf16", 1536, 8960, 12, 2, 128, 151936, gpu::Activation::kSilu, ScalarType::kBf16},
    Sizes{"7b", 3584, 18944, 28, 4, 128, 152064},
    Sizes{"7b q4_k", 3584, 18944, 28, 4, 128, 152064, gpu::Activation::kSilu, ScalarType::kF16, gpu::kWeightsQ4_K},
    Sizes{"gemma2-2b", 2304, 9216, 8, 4, 256, 256000, gpu::Activation::kGeluTanh, ScalarType::kBf16},
    Sizes{"0.5b f32", 896, 4864, 14, 2, 64, 151936, gpu::Activation::kSilu, ScalarType::kF32},
};

struct Model {
    Model(const Sizes& s, const PlannedDevice& on) : kernels(on.facts) {
        config.architecture = "Qwen2ForCausalLM";
        config.vocab_size = s.vocab;
        config.hidden_size = s.hidden;
        config.intermediate_size = s.ffn;
        config.n_layers = 3;
        config.n_heads = s.n_heads;
        config.n_kv_heads = s.n_kv_heads;
        config.head_dim = config.rope.rotary_dim = s.head_dim;
        config.sliding_windows.assign(config.n_layers, 0);
        if (s.activation != gpu::Activation::kSilu) {
            LayerFacts facts = config.layer(0);
            facts.ffn.activation = s.activation;
            config.layers.assign(config.n_layers, facts);
        }
        if (s.sinks) {
            LayerFacts facts = config.layer(0);
            facts.attention.sinks = true;
            config.layers.assign(config.n_layers, facts);
        }
        const auto matrix = [&](uint32_t n, uint32_t k) {
            Matrix made;
            made.n = n;
            made.k = k;
            made.n_padded = gpu::padded(n);
            made.k_stride = gpu::padded(k);
            made.type = s.type;
            if (s.format != 0) made.parts = {{.format = static_cast<gpu::WeightFormat>(s.format), .n = n}};
            return made;
        };
        weights.embedding = matrix(s.vocab, s.hidden);
        weights.lm_head = matrix(s.vocab, s.hidden);
        for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
            LayerWeights w;
            w.qkv = matrix(config.q_size() + 2 * config.kv_size(), s.hidden);
            w.o = matrix(s.hidden, config.q_size());
            w.gate_up = matrix(2 * s.ffn, s.hidden);
            w.down = matrix(s.hidden, s.ffn);
            weights.layers.push_back(std::move(w));
        }
        planner.emplace(kernels, config, weights,
                        PlannerLimits{.n_rows_max = 2048, .n_outputs_max = 256, .n_sequences_max = 256});
    }

    const gpu::KernelPlanner kernels;
    ModelConfig config;
    ModelWeights weights;
    std::optional<StepPlanner> planner;
};

std::string text_of(const StepPlan& plan) {
    std::string text = lorad::format("schedule {} method {} lone {} defers {}\n", static_cast<int>(plan.shape.schedule),
                                     static_cast<int>(plan.shape.method), plan.shape.lone_rows, plan.defers_norms);
    for (const LayerPlan& layer : plan.layers) {
        text += "qkv " + text_of(layer.qkv) + "\no " + text_of(layer.o) +
                lorad::format(" form {}\n", static_cast<int>(layer.o_input));
        text += "gate_up " + text_of(layer.gate_up) + (layer.gate_up.is_gated() ? " gated" : "") + "\ndown " +
                text_of(layer.down) +
                lorad::format(" then {} rows {} {}\n", layer.rows, layer.keeps_rows, static_cast<int>(layer.method));
    }
    return text + "output " + text_of(plan.output) +
           (plan.output.result == gpu::ProductResult::kGreatest ? " argmax\n" : "\n");
}

std::vector<std::pair<std::string, BatchTraits>> batches() {
    std::vector<std::pair<std::string, BatchTraits>> all;
    for (const uint32_t rows : {1u, 2u, 3u, 4u, 6u, 8u, 12u, 16u, 24u, 32u, 48u, 64u, 96u, 128u, 256u, 512u, 2048u}) {
        for (const bool decodes : {true, false}) {
            if (decodes && rows > 256) continue;
            BatchTraits base{.n_rows = rows, .n_outputs = decodes ? rows : 1, .n_context = decodes ? 160 : rows};
            base.has_lone_rows = decodes;
            base.runs.n_tiles = decodes ? 0 : (rows + 127) / 128;
            const std::string name = lorad::format("{} rows of {}", rows, decodes ? "decodes" : "a prompt");
            all.emplace_back(name, base);
            BatchTraits logits = base;
            logits.has_rules = true;
            all.emplace_back(name + ", rules", logits);
            for (const uint32_t rank : {8u, 16u, 24u, 64u}) {
                for (const bool long_runs : {false, true}) {
                    for (const bool joined : {false, true}) {
                        for (const uint32_t most_runs : {1u, 32u}) {
                            BatchTraits traits = base;
                            traits.lora = LoraLevel::kPlain;
                            traits.rank_max = rank;
                            traits.types = 1u << static_cast<uint32_t>(ScalarType::kF16);
                            traits.has_long_runs = long_runs;
                            traits.most_runs = most_runs;
                            if (joined) traits.stacked_steps.emplace();
                            all.emplace_back(lorad::format("{}, rank {}, long {}, joined {}, runs {}", name, rank,
                                                           long_runs, joined, most_runs),
                                             traits);
                        }
                    }
                }
            }
            BatchTraits full = base;
            full.lora = LoraLevel::kFull;
            full.rank_max = 16;
            all.emplace_back(name + ", lists", full);
        }
    }
    return all;
}

TEST(StepPlanExpectation, StepsRunWhatTheyRan) {
    const lorad::testing::Digests want = {
        {"portable, 0.5b", "7c036ce6b726b3c1"},
        {"portable, 1.5b bf16", "ca63b77f6e933073"},
        {"portable, 7b", "e81fbb18564019b3"},
        {"portable, 7b q4_k", "ad758eb6f1383ba7"},
        {"portable, gemma2-2b", "d1ade66aa6d239e7"},
        {"portable, 0.5b f32", "addd28f71808a2f7"},
        {"software, 0.5b", "e653b780ae5ed18d"},
        {"software, 1.5b bf16", "14b627f710d73c2f"},
        {"software, 7b", "eee912a7da7e67d7"},
        {"software, 7b q4_k", "673457d99f2bcaff"},
        {"software, gemma2-2b", "20deab8e0da9e175"},
        {"software, 0.5b f32", "04b435bff626c0f3"},
        {"coopmat, 0.5b", "ff6b2250afd665a3"},
        {"coopmat, 1.5b bf16", "82c51d59b0b1126b"},
        {"coopmat, 7b", "195dd25a4cdd6683"},
        {"coopmat, 7b q4_k", "ea852017e76bf10b"},
        {"coopmat, gemma2-2b", "269e4cc892d9c32b"},
        {"coopmat, 0.5b f32", "addd28f71808a2f7"},
        {"coopmat2, 0.5b", "28d5d6417dfe2aa1"},
        {"coopmat2, 1.5b bf16", "ebcc40ce21aa4203"},
        {"coopmat2, 7b", "b8feada279501579"},
        {"coopmat2, 7b q4_k", "8dd5d43b5aee9a7f"},
        {"coopmat2, gemma2-2b", "13bc230ad7f3cc1b"},
        {"coopmat2, 0.5b f32", "363db4c45ea0f4d7"},
        {"warpgroup, 0.5b", "7808c3710c73f49f"},
        {"warpgroup, 1.5b bf16", "af333c6c274da897"},
        {"warpgroup, 7b", "b46e7aa4d8aeb507"},
        {"warpgroup, 7b q4_k", "5993d8724f9f47e7"},
        {"warpgroup, gemma2-2b", "e75d809dd524bce3"},
        {"warpgroup, 0.5b f32", "363db4c45ea0f4d7"},
        {"batch invariant, 0.5b", "83ae328d2e3c27e7"},
        {"batch invariant, 1.5b bf16", "6d631dcb71a96d43"},
        {"batch invariant, 7b", "0cf937eb35690dcb"},
        {"batch invariant, 7b q4_k", "dca524178fa9e953"},
        {"batch invariant, gemma2-2b", "187ba89a1b8021e3"},
        {"batch invariant, 0.5b f32", "9eac20e70c73f16b"},
        {"coopmat without gated, fragments and packed, 0.5b", "53329c9eb718ac71"},
        {"coopmat without gated, fragments and packed, 1.5b bf16", "ea858bae122e02a5"},
        {"coopmat without gated, fragments and packed, 7b", "f88d52f70f0792bf"},
        {"coopmat without gated, fragments and packed, 7b q4_k", "6c8a2438f743164f"},
        {"coopmat without gated, fragments and packed, gemma2-2b", "cf57c9ac46e7267b"},
        {"coopmat without gated, fragments and packed, 0.5b f32", "addd28f71808a2f7"},
        {"warpgroup without direct, stacked and argmax, 0.5b", "fb94def4bacd0631"},
        {"warpgroup without direct, stacked and argmax, 1.5b bf16", "c7585d9bb1852c85"},
        {"warpgroup without direct, stacked and argmax, 7b", "fbabe506264975d5"},
        {"warpgroup without direct, stacked and argmax, 7b q4_k", "011b86041b17700d"},
        {"warpgroup without direct, stacked and argmax, gemma2-2b", "f0beb8221086973b"},
        {"warpgroup without direct, stacked and argmax, 0.5b f32", "363db4c45ea0f4d7"},
    };
    lorad::testing::Digests got;
    constexpr ProgramSet kAll{PersistentProgram::kDecodeLayers, PersistentProgram::kDecodeLayersAdapter,
                              PersistentProgram::kDecodeRows, PersistentProgram::kGatedLora};
    const auto all = batches();
    for (const PlannedDevice& on : lorad::testing::planned_devices()) {
        for (const Sizes& sizes : kModels) {
            const Model model(sizes, on);
            std::string text;
            for (const auto& [name, traits] : all) {
                for (const ProgramSet programs : {ProgramSet{}, kAll}) {
                    text += name + "\n" +
                            text_of(plan_step(model.kernels, model.config, model.weights, nullptr,
                                              model.planner->shape_of(traits, programs)));
                }
            }
            const std::string group = lorad::format("{}, {}", on.name, sizes.name);
            got[group] = lorad::testing::digest_of(text);
        }
    }
    EXPECT_TRUE(got == want) << lorad::testing::changes(want, got);
}

// What a step's plan says of attention from the sums of q, k and v, its launcher takes (AttentionKernels has it as a
// CHECK), and only a kernel that can writes fragments.
TEST(StepPlanExpectation, AttentionFromSumsIsPlannedWhereItIsTaken) {
    uint32_t n_lone = 0, n_in_fragments = 0;
    for (const PlannedDevice& on : lorad::testing::planned_devices()) {
        for (const Sizes& sizes : kModels) {
            const Model model(sizes, on);
            for (const auto& [name, traits] : batches()) {
                const StepPlan plan =
                    plan_step(model.kernels, model.config, model.weights, nullptr, model.planner->shape_of(traits, {}));
                for (uint32_t layer = 0; layer < plan.layers.size(); ++layer) {
                    const LayerPlan& of = plan.layers[layer];
                    SCOPED_TRACE(lorad::format("{}, {}, {}, layer {}", on.name, sizes.name, name, layer));
                    const AttentionFacts facts = model.config.layer(layer).attention;
                    const gpu::AttentionShape shape = attention_shape(facts, plan.shape);
                    if (of.o_input == InputForm::kFragments) {
                        ++n_in_fragments;
                        ASSERT_TRUE(model.kernels.attention.attends_in_fragments(
                            shape, model.kernels.act_type(model.weights.layers[layer].o.type)));
                    }
                    if (!plan.shape.lone_rows) continue;
                    ++n_lone;
                    const gpu::QkvShape qkv = qkv_shape(model.config, facts,
                                                        {.rows = plan.shape.row_bucket,
                                                         .n_splits = of.qkv.n_splits,
                                                         .lora = plan.shape.left_to_consumers(),
                                                         .whole_rows = of.qkv.whole_rows});
                    ASSERT_TRUE(model.kernels.attention.attends_from_qkv(qkv, shape));
                    ASSERT_EQ(qkv.base.whole_rows, 0u);
                }
            }
        }
    }
    EXPECT_GT(n_lone, 0u);
    EXPECT_GT(n_in_fragments, 0u);
}

// No attention with sinks writes fragments (AttentionShape::sinks), whatever the product behind it would read.
TEST(StepPlanExpectation, BehindAttentionWithSinksOReadsRows) {
    Sizes sizes = kModels[2];
    ASSERT_STREQ(sizes.name, "7b");
    for (const bool sinks : {false, true}) {
        sizes.sinks = sinks;
        uint32_t n_in_fragments = 0;
        for (const PlannedDevice& on : lorad::testing::planned_devices()) {
            const Model model(sizes, on);
            for (const auto& [name, traits] : batches()) {
                const StepPlan plan =
                    plan_step(model.kernels, model.config, model.weights, nullptr, model.planner->shape_of(traits, {}));
                for (const LayerPlan& layer : plan.layers) n_in_fragments += layer.o_input == InputForm::kFragments;
            }
        }
        EXPECT_EQ(n_in_fragments == 0, sinks);
    }
}

}  // namespace
}  // namespace lorad::model::step_plan_expectation_test
