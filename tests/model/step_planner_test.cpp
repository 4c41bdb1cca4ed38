// What a step runs, without a device: the planner's choices for a Qwen2.5-7B on an H200, and on a device without
// cooperative matrices.
#include "model/step/step_planner.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/config/config_readers.h"
#include "model/step/step_plan.h"
#include "tests/support/planned_devices.h"

namespace lorad::model::step_planner_test {
namespace {

using gpu::LoraLevel;
using gpu::MatmulVariant;
using gpu::ScalarType;
using ::testing::HasSubstr;

using lorad::testing::h200;
using lorad::testing::without_matrices;

// A model's sizes and types, and the planner of its steps on a device, all of whose rungs are taken to work.
struct Planned {
    explicit Planned(gpu::DeviceCapabilities capabilities, bool batch_invariant = false)
        : caps(std::move(capabilities)) {
        facts.options.batch_invariant = batch_invariant;
        config.architecture = "Qwen2ForCausalLM";
        config.vocab_size = 152064;
        config.hidden_size = 3584;
        config.intermediate_size = 18944;
        config.n_layers = 3;
        config.n_heads = 28;
        config.n_kv_heads = 4;
        config.head_dim = config.rope.rotary_dim = 128;
        config.sliding_windows.assign(config.n_layers, 0);
        const auto matrix = [](uint32_t n, uint32_t k) {
            Matrix made;
            made.n = n;
            made.k = k;
            made.n_padded = gpu::padded(n);
            made.k_stride = gpu::padded(k);
            made.type = ScalarType::kF16;
            return made;
        };
        weights.embedding = matrix(config.vocab_size, config.hidden_size);
        weights.lm_head = matrix(config.vocab_size, config.hidden_size);
        for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
            LayerWeights w;
            w.qkv = matrix(config.q_size() + 2 * config.kv_size(), config.hidden_size);
            w.o = matrix(config.hidden_size, config.q_size());
            w.gate_up = matrix(2 * config.intermediate_size, config.hidden_size);
            w.down = matrix(config.hidden_size, config.intermediate_size);
            weights.layers.push_back(std::move(w));
        }
        planner.emplace(kernels, config, weights,
                        PlannerLimits{.n_rows_max = 2048, .n_outputs_max = 256, .n_sequences_max = 256});
    }

    // All layers in one format.
    void pack(gpu::WeightFormat format) {
        for (LayerWeights& w : weights.layers) {
            for (Matrix* matrix : {&w.qkv, &w.o, &w.gate_up, &w.down})
                matrix->parts = {{.format = format, .row_begin = 0, .n = matrix->n, .offset = 0}};
        }
    }

    StepPlan plan(const BatchTraits& traits, ProgramSet programs = {}) const {
        return plan_step(kernels, config, weights, nullptr, planner->shape_of(traits, programs));
    }

    gpu::DeviceCapabilities caps;
    gpu::KernelFacts facts{caps, {}, gpu::ladder_of(caps, gpu::KernelPath::kAuto)};
    gpu::KernelPlanner kernels{facts};
    ModelConfig config;
    ModelWeights weights;
    std::optional<StepPlanner> planner;
};

BatchTraits decodes(uint32_t n_rows) {
    return {.n_rows = n_rows, .n_outputs = n_rows, .n_context = 160, .has_lone_rows = true};
}
BatchTraits with_adapters(BatchTraits traits, uint32_t rank, uint32_t most_runs) {
    traits.lora = LoraLevel::kPlain;
    traits.rank_max = rank;
    traits.types = 1u << static_cast<uint32_t>(ScalarType::kF16);
    traits.most_runs = most_runs;
    return traits;
}
constexpr ProgramSet kAll{PersistentProgram::kDecodeLayers, PersistentProgram::kDecodeLayersAdapter,
                          PersistentProgram::kDecodeRows, PersistentProgram::kGatedLora};

TEST(StepPlanner, ARowIsOneDispatchAsLongAsItsContextIsShort) {
    const Planned on(h200());
    EXPECT_EQ(on.plan(decodes(1), kAll).shape.schedule, LayerSchedule::kOneDispatch);
    EXPECT_EQ(on.plan(with_adapters(decodes(1), 16, 1), kAll).shape.schedule, LayerSchedule::kOneDispatch);
    EXPECT_EQ(on.plan(with_adapters(decodes(1), gpu::kDecodeRankMax + 1, 1), kAll).shape.schedule,
              LayerSchedule::kSeparate);
    BatchTraits behind = decodes(1);
    behind.n_context = kOneDispatchContextMax + 1;
    EXPECT_EQ(on.plan(behind, kAll).shape.schedule, LayerSchedule::kApart);
    EXPECT_EQ(on.plan(with_adapters(behind, 16, 1), kAll).shape.schedule, LayerSchedule::kSeparate);
    EXPECT_EQ(on.plan(decodes(1)).shape.schedule, LayerSchedule::kSeparate) << "its trial failed";
}

TEST(StepPlanner, UpToEightPackedRowsAreOneDispatchBetweenAttentions) {
    Planned on(h200());
    on.pack(gpu::WeightFormat::kQ4_K);
    constexpr ProgramSet kOfPacked{PersistentProgram::kDecodeRows};
    for (uint32_t rows = 1; rows <= gpu::kDecodeRowsMax; ++rows)
        EXPECT_EQ(on.plan(decodes(rows), kOfPacked).shape.schedule, LayerSchedule::kBetween) << rows;
    EXPECT_EQ(on.plan(decodes(gpu::kDecodeRowsMax + 1), kOfPacked).shape.schedule, LayerSchedule::kSeparate);
    EXPECT_EQ(on.plan(decodes(1)).shape.schedule, LayerSchedule::kSeparate) << "its trial failed";
    EXPECT_EQ(on.plan(with_adapters(decodes(1), 16, 1), kOfPacked).shape.schedule, LayerSchedule::kSeparate);
    BatchTraits other = decodes(4);
    other.n_outputs = 0;
    EXPECT_EQ(on.plan(other, kOfPacked).shape.schedule, LayerSchedule::kSeparate);
    other = decodes(4);
    other.is_merged = true;
    EXPECT_EQ(on.planner->shape_of(other, kOfPacked, {}).schedule, LayerSchedule::kSeparate)
        << "merged copies are plain";
}

TEST(StepPlanner, AFewRowsAreOneDispatchBetweenAttentions) {
    const Planned on(h200());
    for (uint32_t rows = 2; rows <= gpu::kDecodeRowsMax; ++rows)
        EXPECT_EQ(on.plan(decodes(rows), kAll).shape.schedule, LayerSchedule::kBetween) << rows;
    EXPECT_EQ(on.plan(decodes(gpu::kDecodeRowsMax + 1), kAll).shape.schedule, LayerSchedule::kSeparate);
    EXPECT_EQ(on.plan(with_adapters(decodes(4), 16, 4), kAll).shape.schedule, LayerSchedule::kSeparate);
    BatchTraits merged = decodes(4);
    merged.is_merged = true;
    EXPECT_EQ(on.planner->shape_of(merged, kAll, {.has_gate_up_bias = true}).schedule, LayerSchedule::kSeparate);
    EXPECT_EQ(on.planner->shape_of(merged, kAll, {}).schedule, LayerSchedule::kBetween);
}

TEST(StepPlanner, AdaptersAreAddedByTheMethodThatTheStepPaysLeastFor) {
    const Planned on(h200());
    const auto method = [&](const BatchTraits& traits, ProgramSet programs = kAll) {
        return on.planner->shape_of(traits, programs).method;
    };
    EXPECT_EQ(method(decodes(48)), AdapterMethod::kConsumers);
    EXPECT_EQ(method(with_adapters(decodes(48), 16, 8)), AdapterMethod::kGatedProduct);
    EXPECT_EQ(method(with_adapters(decodes(48), 16, 8), {}), AdapterMethod::kConsumers);
    EXPECT_EQ(method(with_adapters(decodes(48), 24, 8)), AdapterMethod::kConsumers)
        << "more ranks than the product has room for";
    EXPECT_EQ(method(with_adapters(decodes(48), 64, 8)), AdapterMethod::kExpanded);
    EXPECT_EQ(method(with_adapters(decodes(96), 24, 2)), AdapterMethod::kFewRuns);
    EXPECT_EQ(method(with_adapters(decodes(96), 24, 32)), AdapterMethod::kConsumers);
    BatchTraits of_types = with_adapters(decodes(48), 16, 8);
    of_types.types |= 1u << static_cast<uint32_t>(ScalarType::kF32);
    EXPECT_EQ(method(of_types), AdapterMethod::kConsumers);

    BatchTraits prompt =
        with_adapters({.n_rows = 512, .n_outputs = 1, .n_context = 512, .runs = {.n_tiles = 8}}, 32, 1);
    prompt.has_long_runs = true;
    EXPECT_EQ(method(prompt), AdapterMethod::kLongRuns);
    prompt.rank_max = 16;
    EXPECT_EQ(method(prompt), AdapterMethod::kConsumers) << "products by warpgroups are so much faster without";
    prompt.stacked_steps.emplace();  // they take no columns to speak of
    EXPECT_EQ(method(prompt), AdapterMethod::kStacked);
    prompt.stacked_steps->fill(1000);
    EXPECT_EQ(method(prompt), AdapterMethod::kConsumers) << "more work than the product itself";
    prompt.has_extras = true;  // whose kernels read lists of uses
    EXPECT_EQ(on.planner->shape_of(prompt, kAll).lora, LoraLevel::kFull);
    EXPECT_EQ(method(prompt), AdapterMethod::kConsumers);
}

TEST(StepPlanner, ThePlanSaysHowEachProductIsComputed) {
    const Planned on(h200());
    const StepPlan few = on.plan(decodes(12));
    EXPECT_TRUE(few.defers_norms);
    ASSERT_EQ(few.layers.size(), 3u);
    EXPECT_TRUE(few.layers[0].o.ends_in_stream() && few.layers[0].down.ends_in_stream());
    EXPECT_FALSE(few.layers[2].down.ends_in_stream()) << "behind the last layer only rows with an output are normed";

    const StepPlan gated = on.plan(with_adapters(decodes(48), 16, 8), kAll);
    EXPECT_FALSE(gated.defers_norms);
    EXPECT_TRUE(gated.layers[0].gate_up.is_gated());
    EXPECT_EQ(gated.layers[0].gate_up.variant, MatmulVariant::kGatedLora);
    EXPECT_EQ(gated.layers[0].down.variant, MatmulVariant::kWarpgroupDirect);
    EXPECT_EQ(gated.output.result, gpu::ProductResult::kGreatest);

    BatchTraits logits = decodes(48);
    logits.has_rules = true;
    EXPECT_EQ(on.plan(logits).output.result, gpu::ProductResult::kSums) << "rules read the logits";

    const StepPlan prompt = on.plan({.n_rows = 2048, .n_outputs = 1, .n_context = 2048, .runs = {.n_tiles = 16}});
    EXPECT_EQ(prompt.layers[0].o_input, InputForm::kArranged);
    EXPECT_FALSE(prompt.layers[0].keeps_rows);
    EXPECT_TRUE(prompt.layers[2].keeps_rows);
    EXPECT_EQ(prompt.layers[2].rows, 1u);
    EXPECT_EQ(prompt.layers[2].down.variant, MatmulVariant::kGemv);

    const StepPlan chunk = on.plan({.n_rows = 2048, .n_outputs = 0, .n_context = 2048, .runs = {.n_tiles = 16}});
    EXPECT_EQ(chunk.layers[2].o.rows, 0u) << "nobody reads more of the last layer than its keys and values";
}

TEST(StepPlanner, OtherActivationsThanSiluEndProductsOnMatrices) {
    Planned on(h200());
    on.config.layers = usual_layers(on.config);
    const bool silu_is_gated = on.plan(with_adapters(decodes(24), 16, 3)).layers[0].gate_up.is_gated();
    for (LayerFacts& layer : on.config.layers) layer.ffn.activation = gpu::Activation::kGeluTanh;
    EXPECT_EQ(silu_is_gated, on.plan(with_adapters(decodes(24), 16, 3)).layers[0].gate_up.is_gated());
    const StepPlan few = on.plan(decodes(24));
    ASSERT_TRUE(few.layers[0].gate_up.is_gated());
    EXPECT_EQ(few.layers[0].gate_up.variant, MatmulVariant::kCoopmat);
    EXPECT_FALSE(on.plan(decodes(64)).layers[0].gate_up.is_gated()) << "warpgroups know SiLU alone";
}

TEST(StepPlanner, WithoutMatricesEveryProductIsPortable) {
    const Planned on(without_matrices());
    for (const uint32_t rows : {1u, 8u, 64u, 512u}) {
        const MatmulVariant variant = rows == 1   ? MatmulVariant::kRow
                                      : rows <= 8 ? MatmulVariant::kStream
                                                  : MatmulVariant::kRegisters;
        for (const bool has_adapters : {false, true}) {
            const StepPlan plan = on.plan(has_adapters ? with_adapters(decodes(rows), 16, 1) : decodes(rows));
            const bool has_ends = rows == 1 && !has_adapters;  // one row's products have what stands between them
            EXPECT_EQ(plan.shape.schedule, LayerSchedule::kSeparate);
            EXPECT_EQ(plan.defers_norms, has_ends);
            EXPECT_EQ(plan.output.result, gpu::ProductResult::kSums);
            for (const LayerPlan& layer : plan.layers) {
                EXPECT_EQ(layer.gate_up.is_gated(), has_ends);
                for (const gpu::MatmulPlan& product : {layer.qkv, layer.o, layer.gate_up, layer.down}) {
                    EXPECT_EQ(product.variant, variant) << rows;
                    EXPECT_EQ(product.act_type, ScalarType::kF32);
                }
            }
        }
    }
}

// With batch_invariant a row's bits may not depend on the others: one variant for all.
TEST(StepPlanner, BatchInvariantStepsHaveOnePlanForAllRowCounts) {
    const Planned on(h200(), true);
    std::set<std::pair<uint32_t, uint32_t>> splits;
    for (const uint32_t rows : {1u, 8u, 64u, 512u}) {
        const StepPlan plan = on.plan(decodes(rows), {});
        EXPECT_EQ(plan.layers[0].qkv.variant, MatmulVariant::kCoopmat);
        EXPECT_EQ(plan.shape.attention_splits, 1u);
        EXPECT_EQ(on.planner->shape_of(with_adapters(decodes(rows), 64, 1), {}).method, AdapterMethod::kConsumers);
        splits.emplace(plan.layers[0].down.n_splits, plan.layers[0].down.k_per_split);
    }
    EXPECT_EQ(splits.size(), 1u);
}

// What is recorded at the start: whatever comes later with the same traits has its recording.
TEST(StepPlanner, UsualShapesHoldTheStepsThatCome) {
    const Planned on(h200());
    const std::vector<StepShape> usual = on.planner->usual_shapes(kAll, 32768);
    const std::set<StepShape> all(usual.begin(), usual.end());
    EXPECT_EQ(all.size(), usual.size());
    const auto holds = [&](const BatchTraits& traits, ProgramSet programs) {
        return all.contains(on.planner->shape_of(traits, programs));
    };
    for (const uint32_t rows : {1u, 2u, 7u, 30u, 48u, 64u, 100u, 256u}) {
        for (BatchTraits traits : {decodes(rows), with_adapters(decodes(rows), 16, rows),
                                   with_adapters(decodes(rows), 32, rows), with_adapters(decodes(rows), 64, rows)}) {
            traits.n_context = gpu::kBlockTokens;
            EXPECT_TRUE(holds(traits, kAll)) << rows << " rows, rank " << traits.rank_max;
            EXPECT_TRUE(holds(traits, {})) << rows << " rows by separate dispatches, rank " << traits.rank_max;
            traits.n_context = 32768;
            EXPECT_TRUE(holds(traits, kAll)) << rows << " rows behind a long context, rank " << traits.rank_max;
        }
    }
    for (const uint32_t rows : {512u, 2048u}) {
        const uint32_t tile_rows = on.planner->tile_request(rows).tile_rows;
        EXPECT_TRUE(
            holds({.n_rows = rows, .n_outputs = 1, .n_context = rows, .runs = {.n_tiles = rows / tile_rows}}, kAll))
            << rows;
    }
    EXPECT_LT(usual.size(), 900u) << "each is recorded at every start";
}

TEST(StepPlanner, APlanReadsAsText) {
    const Planned on(h200());
    const std::string text = describe(on.plan(with_adapters(decodes(48), 16, 8), kAll), on.config);
    EXPECT_THAT(text, HasSubstr("rows: up to 48, 48 of them with an output"));
    EXPECT_THAT(text, HasSubstr("adapters: one for each row; added by the product of gate and up"));
    EXPECT_THAT(text, HasSubstr("gate_up  warpgroup"));
    EXPECT_THAT(text, HasSubstr("from layer 0:"));
    EXPECT_THAT(describe(on.plan(decodes(1), kAll), on.config), HasSubstr("layers: one dispatch for all layers"));
}

}  // namespace
}  // namespace lorad::model::step_planner_test
