// Mixtures of experts: routing by each rule, grouping, products, activation, adapters and the weighted sum, against one
// row and expert at a time.
#include "tests/reference/experts.h"

#include <numeric>

#include "tests/gpu/kernels/kernel_fixture.h"
#include "tests/reference/mixers.h"

namespace lorad::gpu::testing::experts_test {
namespace {

struct RouteCase {
    reference::RouterRule rule;
    uint32_t experts, top, n_rows;
    bool normalises, has_bias, has_scale;
};
class ExpertRoute : public KernelTest, public ::testing::WithParamInterface<RouteCase> {};

TEST_P(ExpertRoute, ChoosesAndWeighsAsTheReferenceAndGroupsByExpert) {
    const RouteCase c = GetParam();
    const uint32_t stride = c.experts + 3, bucket = c.n_rows == 1 ? 1 : c.n_rows + 1, pairs = c.n_rows * c.top;
    auto logits = reference::random_values(size_t{bucket} * stride, Type::kF32, random_, 4.0f);
    const auto logit_bias = reference::random_values(c.experts, Type::kF32, random_);
    for (uint32_t e = 0; e < c.experts; e++) logits[e] = 0.25f - logit_bias[e];  // all but alike in the first row
    // In two parts, of which one is the same everywhere.
    std::vector<float> parts = logits;
    parts.resize(2 * logits.size(), 0.0f);
    for (size_t t = 0; t < c.n_rows; t++) {
        for (size_t e = 0; e < c.experts; e++) {
            parts[logits.size() + t * stride + e] = 0.5f;
            logits[t * stride + e] = (logits[t * stride + e] + 0.5f) + logit_bias[e];
        }
    }
    const auto bias = reference::random_values(c.experts, Type::kF32, random_),
               expert_scale = reference::random_values(c.experts, Type::kF32, random_);
    const Buffer step = step_state(std::vector<StepRow>(bucket), c.n_rows), logits_buffer = input(parts),
                 logit_bias_buffer = input(logit_bias), bias_buffer = input(bias), scale_buffer = input(expert_scale);
    const Buffer chosen = poisoned(uint64_t{bucket} * c.top * 4), weights = poisoned(uint64_t{bucket} * c.top * 4),
                 counts = input(std::vector<uint32_t>(c.experts, 0));
    const RouterShape shape{c.experts, c.top, static_cast<uint32_t>(c.rule), c.normalises};
    const ExpertPlan plan = kernels_->experts.plan(shape, {}, bucket);
    const uint32_t tile_rows = plan.tile_rows,
                   tiles_max = ExpertPlanner::tiles_max(bucket * c.top, c.experts, tile_rows);
    const Buffer sorted = poisoned(uint64_t{bucket} * c.top * 4), n_tiles = poisoned(16),
                 tiles = poisoned((uint64_t{tiles_max} + 1) * sizeof(ExpertTile));
    execute([&](Recorder& recorder) {
        kernels_->experts.route(recorder,
                                {.step = step.address(),
                                 .logits = logits_buffer.address(),
                                 .logit_bias = logit_bias_buffer.address(),
                                 .bias = c.has_bias ? bias_buffer.address() : 0,
                                 .expert_scale = c.has_scale ? scale_buffer.address() : 0,
                                 .chosen = chosen.address(),
                                 .weights = weights.address(),
                                 .counts = counts.address(),
                                 .sorted = sorted.address(),
                                 .n_tiles = n_tiles.address(),
                                 .tiles = tiles.address(),
                                 .stride = stride,
                                 .split_stride = bucket * stride,
                                 .sum_eps = 1e-6f,
                                 .scale = 1.5f},
                                shape, 2, bucket);
        recorder.barrier();
        if (bucket == 1) return;  // grouped already
        kernels_->experts.group(recorder,
                                {.step = step.address(),
                                 .chosen = chosen.address(),
                                 .counts = counts.address(),
                                 .sorted = sorted.address(),
                                 .n_tiles = n_tiles.address(),
                                 .tiles = tiles.address(),
                                 .tile_rows = 0,
                                 .top = 0},
                                shape, plan, bucket);
    });
    const reference::Router router{c.rule,
                                   c.top,
                                   c.normalises,
                                   1e-6f,
                                   1.5,
                                   c.has_bias ? std::span<const float>(bias) : std::span<const float>(),
                                   c.has_scale ? std::span<const float>(expert_scale) : std::span<const float>()};
    const auto got_chosen = content<uint32_t>(chosen, size_t{bucket} * c.top);
    const auto got_weights = content<float>(weights, size_t{bucket} * c.top);
    std::vector<std::vector<uint32_t>> of_expert(c.experts);
    for (uint32_t t = 0; t < c.n_rows; t++) {
        const auto want = reference::route(router, reference::to_doubles({&logits[size_t{t} * stride], c.experts}));
        for (uint32_t j = 0; j < c.top; j++) {
            const uint32_t pair = t * c.top + j;
            ASSERT_EQ(got_chosen[pair], want[j].expert) << "row " << t << ", choice " << j;
            ASSERT_NEAR(got_weights[pair], want[j].weight, 4e-6 * std::abs(want[j].weight) + 1e-9);
            of_expert[want[j].expert].push_back(pair);
        }
    }
    for (uint32_t pair = pairs; pair < bucket * c.top; pair++)
        EXPECT_EQ(got_chosen[pair], 0xffffffffu) << "a row beyond the last was written";

    const auto got_sorted = content<uint32_t>(sorted, pairs);
    std::vector<uint32_t> want_sorted;
    std::vector<ExpertTile> want_tiles;
    // One row's pairs stand in the order of choice.
    std::vector<uint32_t> order(c.experts);
    std::iota(order.begin(), order.end(), 0u);
    if (bucket == 1) order = got_chosen;
    for (const uint32_t e : order) {
        for (uint32_t i = 0; i < of_expert[e].size(); i += tile_rows) {
            want_tiles.push_back({e, static_cast<uint32_t>(want_sorted.size()) + i,
                                  std::min<uint32_t>(tile_rows, static_cast<uint32_t>(of_expert[e].size()) - i), 0});
        }
        want_sorted.insert(want_sorted.end(), of_expert[e].begin(), of_expert[e].end());
    }
    EXPECT_EQ(got_sorted, want_sorted);
    ASSERT_LE(want_tiles.size(), tiles_max);
    ASSERT_EQ(content<uint32_t>(n_tiles, 1)[0], want_tiles.size());
    const auto got_tiles = content<ExpertTile>(tiles, want_tiles.size());
    for (size_t i = 0; i < want_tiles.size(); i++) {
        EXPECT_EQ(std::tuple(got_tiles[i].expert, got_tiles[i].begin, got_tiles[i].n),
                  std::tuple(want_tiles[i].expert, want_tiles[i].begin, want_tiles[i].n))
            << "tile " << i;
    }
}

using Rule = reference::RouterRule;
INSTANTIATE_TEST_SUITE_P(Rules, ExpertRoute,
                         ::testing::Values(RouteCase{Rule::kSoftmaxThenTop, 5, 2, 7, true, false, false},
                                           RouteCase{Rule::kSoftmaxThenTop, 130, 8, 40, false, false, false},
                                           RouteCase{Rule::kSoftmaxThenTop, 6, 2, 1, true, false, true},
                                           RouteCase{Rule::kTopThenSoftmax, 32, 4, 90, false, false, false},
                                           RouteCase{Rule::kSigmoidBias, 7, 3, 9, true, true, false},
                                           RouteCase{Rule::kSigmoidBias, 4, 4, 3, false, false, false}));

TEST_F(KernelTest, ExpertRouteChoosesExpertsAlsoWhereLogitsAreNoNumbers) {
    std::vector<float> logits(8, NAN);
    const Buffer step = step_state(std::vector<StepRow>(1), 1), logits_buffer = input(logits), chosen = poisoned(16),
                 weights = poisoned(16), counts = input(std::vector<uint32_t>(8, 0)), sorted = poisoned(16),
                 n_tiles = poisoned(16), tiles = poisoned(32);
    execute([&](Recorder& recorder) {
        kernels_->experts.route(recorder,
                                {.step = step.address(),
                                 .logits = logits_buffer.address(),
                                 .logit_bias = 0,
                                 .bias = 0,
                                 .expert_scale = 0,
                                 .chosen = chosen.address(),
                                 .weights = weights.address(),
                                 .counts = counts.address(),
                                 .sorted = sorted.address(),
                                 .n_tiles = n_tiles.address(),
                                 .tiles = tiles.address(),
                                 .stride = 8,
                                 .split_stride = 0,
                                 .sum_eps = 0,
                                 .scale = 1},
                                {8, 2, kSoftmaxThenTop, true}, 1, 1);
    });
    for (const uint32_t expert : content<uint32_t>(chosen, 2)) EXPECT_LT(expert, 8u);
    for (const float weight : content<float>(weights, 2)) EXPECT_TRUE(std::isnan(weight));
}

struct ExpertCase {
    uint32_t experts, top, hidden, ffn, n_rows;
    Type weight, act;  // what the portable kernels read is f32
    bool is_clamped, has_bias, has_shared;
    LoraLevel level;
};
class Experts : public KernelTest, public ::testing::WithParamInterface<ExpertCase> {
  protected:
    static constexpr uint32_t kSlots = 3, kModules = 2;  // gate_up, down; slot 1 has no experts

    // One expert's pair of an adapter's module.
    struct ExpertAdapter {
        uint32_t rank = 0;
        std::vector<float> a, b;  // [experts][rank][k], [experts][n][rank]
        Buffer a_buffer, b_buffer;
        Type type = Type::kF32;
        float scale = 0;
        LoraModule entry() const {
            if (rank == 0) return {};
            return {a_buffer.address(), b_buffer.address(), rank, scale, static_cast<uint32_t>(type), 0, 0, 0, {}};
        }
    };
    ExpertAdapter make_adapter(uint32_t rank, uint32_t n, uint32_t k, Type type, float scale) {
        ExpertAdapter made;
        made.rank = rank;
        made.type = type;
        made.scale = scale;
        if (rank == 0) return made;
        made.a = reference::random_values(size_t{GetParam().experts} * rank * k, type, random_);
        made.b = reference::random_values(size_t{GetParam().experts} * n * rank, type, random_);
        made.a_buffer = input(reference::encode(made.a, k, padded(k), type));
        made.b_buffer = input(reference::encode(made.b, rank, round_up(rank, 8), type));
        return made;
    }
    static void add_adapter(Vector& y, const ExpertAdapter& adapter, size_t expert, std::span<const double> x,
                            double scale) {
        if (adapter.rank == 0) return;
        const size_t n = y.size(), k = x.size();
        Vector low(adapter.rank);
        for (size_t r = 0; r < adapter.rank; r++) {
            for (size_t i = 0; i < k; i++)
                low[r] += static_cast<double>(adapter.a[(expert * adapter.rank + r) * k + i]) * x[i];
        }
        for (size_t i = 0; i < n; i++) {
            for (size_t r = 0; r < adapter.rank; r++)
                y[i] += scale * adapter.scale * adapter.b[(expert * n + i) * adapter.rank + r] * low[r];
        }
    }
};

TEST_P(Experts, ALayersExpertsGiveTheWeightedSumAndLeaveRowsWithoutAdaptersAlone) {
    const ExpertCase c = GetParam();
    const uint32_t bucket = c.n_rows + 1, pairs = bucket * c.top, x_stride = padded(c.hidden),
                   act_stride = padded(c.ffn), gate_up_stride = 2 * c.ffn + 1;
    const auto logits = reference::random_values(size_t{bucket} * c.experts, Type::kF32, random_, 2.0f);
    const auto x = reference::random_values(size_t{bucket} * c.hidden, Type::kF32, random_);
    const auto gate_up = reference::random_values(size_t{c.experts} * 2 * c.ffn * c.hidden, c.weight, random_);
    const auto down = reference::random_values(size_t{c.experts} * c.hidden * c.ffn, c.weight, random_);
    const auto gate_up_bias = reference::random_values(size_t{c.experts} * 2 * c.ffn, Type::kF32, random_),
               down_bias = reference::random_values(size_t{c.experts} * c.hidden, Type::kF32, random_);
    const auto shared = reference::random_values(size_t{bucket} * c.hidden, Type::kF32, random_),
               shared_gate = reference::random_values(bucket, Type::kF32, random_);
    std::vector<ExpertAdapter> gate_up_adapters, down_adapters;
    for (uint32_t slot = 0; slot < kSlots; slot++) {
        const uint32_t rank = slot == 1 ? 0 : slot == 0 ? 3 : 9;
        gate_up_adapters.push_back(make_adapter(rank, 2 * c.ffn, c.hidden, reference::kTypes[slot], 0.5f));
        down_adapters.push_back(make_adapter(slot == 2 ? 0 : rank, c.hidden, c.ffn, reference::kTypes[slot], 0.75f));
    }
    // Rows: none, slot 0, slot 1, slot 2, and at level kFull some with two.
    struct Use {
        uint32_t slot;
        float scale;
    };
    std::vector<std::vector<Use>> row_uses(c.n_rows);
    for (uint32_t t = 0; t < c.n_rows && c.level != LoraLevel::kNone; t++) {
        if (t % 4 != 0) row_uses[t].push_back({t % 4 - 1, c.level == LoraLevel::kFull ? 0.7f : 1.0f});
        if (t % 4 == 1 && c.level == LoraLevel::kFull) row_uses[t].push_back({2, -1.25f});
    }
    std::vector<StepUse> step_uses;
    std::vector<StepRow> rows(bucket);
    for (uint32_t t = 0; t < c.n_rows; t++) {
        rows[t].adapter_slot = row_uses[t].empty() ? kNoSlot : row_uses[t][0].slot;
        rows[t].use_begin = static_cast<uint32_t>(step_uses.size());
        rows[t].n_uses = static_cast<uint32_t>(row_uses[t].size());
        for (const Use& use : row_uses[t]) step_uses.push_back({use.slot, use.scale, 0, 0});
    }
    std::vector<LoraModule> table(size_t{kSlots} * kModules);
    for (uint32_t slot = 0; slot < kSlots; slot++) {
        table[size_t{slot} * kModules] = gate_up_adapters[slot].entry();
        table[size_t{slot} * kModules + 1] = down_adapters[slot].entry();
    }
    const Buffer step = step_state(rows, c.n_rows), logits_buffer = input(logits),
                 x_buffer = input(reference::encode(x, c.hidden, x_stride, Type::kF32));
    const Buffer w1 = input(reference::encode(gate_up, c.hidden, x_stride, c.weight)),
                 w2 = input(reference::encode(down, c.ffn, act_stride, c.weight));
    const Buffer b1 = input(gate_up_bias), b2 = input(down_bias), shared_buffer = input(shared),
                 gate_buffer = input(shared_gate), table_buffer = input(table), uses = input(step_uses);
    const Buffer counts = input(std::vector<uint32_t>(c.experts, 0)), chosen = poisoned(uint64_t{pairs} * 4),
                 weights = poisoned(uint64_t{pairs} * 4), sorted = poisoned(uint64_t{pairs} * 4);
    const RouterShape shape{c.experts, c.top, kSoftmaxThenTop, true};
    const Buffer n_tiles = poisoned(16),
                 tiles = poisoned(uint64_t{ExpertPlanner::tiles_max(pairs, c.experts, 1)} * sizeof(ExpertTile));
    const Buffer y1 = poisoned(uint64_t{pairs} * gate_up_stride * 4), act = poisoned(uint64_t{pairs} * act_stride * 4),
                 gated_act = poisoned(uint64_t{pairs} * act_stride * 4), y2 = poisoned(uint64_t{pairs} * c.hidden * 4);
    const Buffer to = poisoned(uint64_t{bucket} * x_stride * 4);
    const auto lora = [&](Recorder& recorder, uint32_t module, const Buffer& in, const Buffer& y, uint32_t n,
                          uint32_t k, uint32_t in_stride, uint32_t y_stride, uint32_t of_a_row) {
        if (c.level == LoraLevel::kNone) return;
        kernels_->experts.lora(recorder,
                               {.step = step.address(),
                                .uses = uses.address(),
                                .lora_layer = table_buffer.address(),
                                .chosen = chosen.address(),
                                .x = in.address(),
                                .y = y.address(),
                                .lora_slot_stride = kModules,
                                .module = module,
                                .n = n,
                                .k = k,
                                .x_stride = in_stride,
                                .y_stride = y_stride,
                                .top = c.top,
                                .pairs_per_row = of_a_row},
                               c.level, ScalarType::kF32, bucket);
        recorder.barrier();
    };
    execute([&](Recorder& recorder) {
        ExpertKernels& experts = kernels_->experts;
        const ExpertPlan plan = experts.plan(shape, {}, bucket);
        experts.route(recorder,
                      {.step = step.address(),
                       .logits = logits_buffer.address(),
                       .logit_bias = 0,
                       .bias = 0,
                       .expert_scale = 0,
                       .chosen = chosen.address(),
                       .weights = weights.address(),
                       .counts = counts.address(),
                       .sorted = sorted.address(),
                       .n_tiles = n_tiles.address(),
                       .tiles = tiles.address(),
                       .stride = c.experts,
                       .split_stride = 0,
                       .sum_eps = 0,
                       .scale = 1},
                      shape, 1, bucket);
        recorder.barrier();
        experts.group(recorder,
                      {.step = step.address(),
                       .chosen = chosen.address(),
                       .counts = counts.address(),
                       .sorted = sorted.address(),
                       .n_tiles = n_tiles.address(),
                       .tiles = tiles.address(),
                       .tile_rows = 0,
                       .top = 0},
                      shape, plan, bucket);
        recorder.barrier();
        ExpertProductParams product{.sorted = sorted.address(),
                                    .n_tiles = n_tiles.address(),
                                    .tiles = tiles.address(),
                                    .w = w1.address(),
                                    .x = x_buffer.address(),
                                    .y = y1.address(),
                                    .bias = c.has_bias ? b1.address() : 0,
                                    .n = 2 * c.ffn,
                                    .w_stride = x_stride,
                                    .y_stride = gate_up_stride,
                                    .pairs_per_row = c.top,
                                    .alpha = 1.702f,
                                    .limit = 0.6f};
        ExpertProductParams gated = product;
        gated.y = gated_act.address();
        gated.y_stride = act_stride;
        experts.product(recorder, gated, shape, plan, scalar(c.weight), bucket,
                        ExpertGate{.clamped = c.is_clamped, .interleaved = c.is_clamped});
        experts.product(recorder, product, shape, plan, scalar(c.weight), bucket);
        recorder.barrier();
        lora(recorder, 0, x_buffer, y1, 2 * c.ffn, c.hidden, x_stride, gate_up_stride, c.top);
        experts.act(recorder,
                    {.step = step.address(),
                     .chosen = chosen.address(),
                     .y = y1.address(),
                     .bias = c.has_bias ? b1.address() : 0,
                     .act = act.address(),
                     .y_stride = gate_up_stride,
                     .act_stride = act_stride,
                     .ffn = c.ffn,
                     .top = c.top,
                     .alpha = 1.702f,
                     .limit = 0.6f,
                     .pad = {}},
                    Activation::kSilu, c.is_clamped, c.is_clamped, ScalarType::kF32, bucket);
        recorder.barrier();
        product.w = w2.address();
        product.x = act.address();
        product.y = y2.address();
        product.n = product.y_stride = c.hidden;
        product.w_stride = act_stride;
        product.pairs_per_row = 1;
        experts.product(recorder, product, shape, plan, scalar(c.weight), bucket);
        recorder.barrier();
        lora(recorder, 1, act, y2, c.hidden, c.ffn, act_stride, c.hidden, 1);
        experts.sum(recorder,
                    {.step = step.address(),
                     .chosen = chosen.address(),
                     .weights = weights.address(),
                     .y = y2.address(),
                     .bias = c.has_bias ? b2.address() : 0,
                     .shared_y = c.has_shared ? shared_buffer.address() : 0,
                     .shared_gate = c.has_shared ? gate_buffer.address() : 0,
                     .to = to.address(),
                     .y_stride = c.hidden,
                     .shared_stride = c.hidden,
                     .gate_stride = 1,
                     .to_stride = x_stride,
                     .hidden = c.hidden,
                     .pad = 0},
                    c.top, bucket);
    });
    // A product that ends in the activation has the same sums.
    if (c.level == LoraLevel::kNone) {
        EXPECT_EQ(content<float>(gated_act, size_t{c.n_rows} * c.top * act_stride),
                  content<float>(act, size_t{c.n_rows} * c.top * act_stride));
    }
    const auto got = content<float>(to, size_t{bucket} * x_stride);
    for (uint32_t t = 0; t < bucket; t++) {
        if (t >= c.n_rows) {
            for (uint32_t i = 0; i < c.hidden; i++)
                EXPECT_TRUE(is_poison(got[size_t{t} * x_stride + i])) << "a row beyond the last was written";
            continue;
        }
        const Vector row = reference::to_doubles({&x[size_t{t} * c.hidden], c.hidden});
        Vector want(c.hidden);
        for (const reference::Choice& choice :
             reference::route({.top = c.top, .normalises = true},
                              reference::to_doubles({&logits[size_t{t} * c.experts], c.experts}))) {
            const size_t e = choice.expert;
            Vector y = reference::multiply({&gate_up[e * 2 * c.ffn * c.hidden], size_t{2} * c.ffn * c.hidden}, row);
            for (const Use& use : row_uses[t]) add_adapter(y, gate_up_adapters[use.slot], e, row, use.scale);
            Vector activated(c.ffn);
            for (size_t f = 0; f < c.ffn; f++) {
                const size_t g = c.is_clamped ? 2 * f : f, u = c.is_clamped ? 2 * f + 1 : c.ffn + f;
                const double gate = y[g] + (c.has_bias ? gate_up_bias[e * 2 * c.ffn + g] : 0.0f),
                             up = y[u] + (c.has_bias ? gate_up_bias[e * 2 * c.ffn + u] : 0.0f);
                activated[f] =
                    c.is_clamped ? reference::clamped_swiglu(gate, up, 1.702, 0.6) : reference::silu(gate) * up;
            }
            Vector z = reference::multiply({&down[e * c.hidden * c.ffn], size_t{c.hidden} * c.ffn}, activated);
            for (const Use& use : row_uses[t]) add_adapter(z, down_adapters[use.slot], e, activated, use.scale);
            for (size_t i = 0; i < want.size(); i++)
                want[i] += choice.weight * (z[i] + (c.has_bias ? down_bias[e * c.hidden + i] : 0.0f));
        }
        double top = 1;
        for (size_t i = 0; i < want.size(); i++) {
            if (c.has_shared) want[i] += reference::sigmoid(shared_gate[t]) * shared[size_t{t} * c.hidden + i];
            top = std::max(top, std::abs(want[i]));
        }
        expect_near(want, &got[size_t{t} * x_stride], sum_tolerance(size_t{c.hidden} + c.ffn), 4 * top,
                    "row " + std::to_string(t));
    }
}

INSTANTIATE_TEST_SUITE_P(
    Layers, Experts,
    ::testing::Values(ExpertCase{5, 2, 48, 24, 11, Type::kF32, Type::kF32, false, false, false, LoraLevel::kNone},
                      ExpertCase{5, 2, 48, 24, 11, Type::kBf16, Type::kF32, false, false, true, LoraLevel::kPlain},
                      ExpertCase{6, 3, 70, 36, 9, Type::kF16, Type::kF32, true, true, false, LoraLevel::kFull},
                      ExpertCase{5, 2, 64, 37, 12, Type::kF16, Type::kF32, true, true, false, LoraLevel::kNone},
                      ExpertCase{3, 1, 64, 130, 1, Type::kBf16, Type::kF32, false, true, true, LoraLevel::kNone},
                      ExpertCase{4, 2, 64, 32, 30, Type::kF32, Type::kF32, true, false, true, LoraLevel::kFull}));

// Products on matrices: by every tile, of full tiles and of one pair, of a matrix whose last workgroup is moved back.
TEST_F(KernelTest, ExpertsOnMatricesMatchTheReferenceAndWriteTheirPairsAlone) {
    kernels_ = must(KernelSet::create(device(), {.path = lorad::testing::best_path(), .has_experts = true}));
    if (matrix_types().empty()) GTEST_SKIP() << "no cooperative matrices: " << device().capabilities().name;
    constexpr uint32_t kExperts = 4, kRows = 90, kTop = 2, kPairs = kRows * kTop, kLeftOut = 7;
    const RouterShape shape{.experts = kExperts, .top = kTop};
    for (const Type type : matrix_types()) {
        for (const auto& [n, k] : {std::pair(136u, 200u), std::pair(192u, 64u), std::pair(128u, 128u)}) {
            const uint32_t stride = padded(k);
            const auto w = reference::random_values(size_t{kExperts} * n * k, type, random_),
                       x = reference::random_values(size_t{kRows} * k, type, random_);
            const Buffer w_buffer = input(reference::encode(w, k, stride, type)),
                         x_buffer = input(reference::encode(x, k, stride, type));
            std::vector<uint32_t> sorted(kPairs);
            for (uint32_t i = 0; i < kPairs; i++) sorted[i] = i * 7 % kPairs;
            const Buffer sorted_buffer = input(sorted);
            const ExpertMatrices matrices{n, n, stride, stride, scalar(type), scalar(type)};
            ASSERT_FALSE(kernels_->experts.matrix_tiles(matrices).empty());
            for (const uint32_t tile_rows : kernels_->experts.matrix_tiles(matrices)) {
                std::vector<ExpertTile> tiles;
                std::vector<uint32_t> expert_of(kPairs, kExperts);
                for (uint32_t begin = 0, i = 0; begin + kLeftOut < kPairs; i++) {
                    const uint32_t of_tile = std::min(i == 1   ? 1
                                                      : i == 2 ? tile_rows - 1
                                                               : tile_rows,
                                                      kPairs - kLeftOut - begin);
                    tiles.push_back({i % kExperts, begin, of_tile, 0});
                    for (uint32_t j = 0; j < of_tile; j++) expert_of[sorted[begin + j]] = i % kExperts;
                    begin += of_tile;
                }
                const Buffer tiles_buffer = input(tiles),
                             n_tiles = input(std::vector<uint32_t>{static_cast<uint32_t>(tiles.size())}),
                             y = poisoned(uint64_t{kPairs} * n * 4);
                execute([&](Recorder& recorder) {
                    kernels_->experts.product(recorder,
                                              {.sorted = sorted_buffer.address(),
                                               .n_tiles = n_tiles.address(),
                                               .tiles = tiles_buffer.address(),
                                               .w = w_buffer.address(),
                                               .x = x_buffer.address(),
                                               .y = y.address(),
                                               .bias = 0,
                                               .n = n,
                                               .w_stride = stride,
                                               .y_stride = n,
                                               .pairs_per_row = kTop,
                                               .alpha = 0,
                                               .limit = 0},
                                              shape, {.tile_rows = tile_rows, .on_matrices = true}, scalar(type),
                                              kRows);
                });
                const auto got = content<float>(y, size_t{kPairs} * n);
                for (uint32_t pair = 0; pair < kPairs; pair++) {
                    const std::string where =
                        "pair " + std::to_string(pair) + ", tiles of " + std::to_string(tile_rows);
                    if (expert_of[pair] == kExperts) {
                        EXPECT_TRUE(is_poison(got[size_t{pair} * n])) << where << " was written";
                        continue;
                    }
                    const auto want = reference::multiply({&w[size_t{expert_of[pair]} * n * k], size_t{n} * k},
                                                          reference::to_doubles({&x[size_t{pair / kTop} * k], k}));
                    expect_near(want, &got[size_t{pair} * n], sum_tolerance(k), 1.0 + std::sqrt(k) / 3, where);
                }
            }
        }
    }
}

struct GateCase {
    Activation activation;
    bool clamped, interleaved, has_bias;
};
TEST_F(KernelTest, ExpertsOnMatricesEndInTheActivation) {
    kernels_ = must(KernelSet::create(device(), {.path = lorad::testing::best_path(), .has_experts = true}));
    if (matrix_types().empty()) GTEST_SKIP() << "no cooperative matrices: " << device().capabilities().name;
    constexpr uint32_t kExperts = 2, kPairs = 83, kFfn = 192, kN = 2 * kFfn, kK = 128, kOfFirst = 70;
    const RouterShape shape{.experts = kExperts, .top = 1};
    for (const Type type : matrix_types()) {
        const auto w = reference::random_values(size_t{kExperts} * kN * kK, type, random_),
                   x = reference::random_values(size_t{kPairs} * kK, type, random_),
                   bias = reference::random_values(size_t{kExperts} * kN, Type::kF32, random_);
        const Buffer w_buffer = input(reference::encode(w, kK, kK, type)),
                     x_buffer = input(reference::encode(x, kK, kK, type)), bias_buffer = input(bias);
        std::vector<uint32_t> sorted(kPairs);
        for (uint32_t i = 0; i < kPairs; i++) sorted[i] = i * 5 % kPairs;
        const Buffer sorted_buffer = input(sorted);
        for (const GateCase& c :
             {GateCase{Activation::kSilu, false, false, false}, GateCase{Activation::kGeluTanh, false, false, true},
              GateCase{Activation::kSilu, true, true, true}}) {
            for (const uint32_t tile_rows :
                 kernels_->experts.matrix_tiles({kN, kN, kK, kK, scalar(type), scalar(type)})) {
                std::vector<ExpertTile> tiles;
                std::vector<uint32_t> expert_of(kPairs);
                for (uint32_t begin = 0; begin < kPairs;) {
                    const uint32_t expert = begin < kOfFirst ? 0 : 1,
                                   n = std::min(tile_rows, (expert == 0 ? kOfFirst : kPairs) - begin);
                    tiles.push_back({expert, begin, n, 0});
                    for (uint32_t j = 0; j < n; j++) expert_of[sorted[begin + j]] = expert;
                    begin += n;
                }
                const Buffer tiles_buffer = input(tiles),
                             n_tiles = input(std::vector<uint32_t>{static_cast<uint32_t>(tiles.size())}),
                             act = poisoned(uint64_t{kPairs} * kFfn * 2);
                execute([&](Recorder& recorder) {
                    kernels_->experts.product(
                        recorder,
                        {.sorted = sorted_buffer.address(),
                         .n_tiles = n_tiles.address(),
                         .tiles = tiles_buffer.address(),
                         .w = w_buffer.address(),
                         .x = x_buffer.address(),
                         .y = act.address(),
                         .bias = c.has_bias ? bias_buffer.address() : 0,
                         .n = kN,
                         .w_stride = kK,
                         .y_stride = kFfn,
                         .pairs_per_row = 1,
                         .alpha = 1.702f,
                         .limit = 0.6f},
                        shape, {.tile_rows = tile_rows, .on_matrices = true}, scalar(type), kPairs,
                        ExpertGate{.activation = c.activation, .clamped = c.clamped, .interleaved = c.interleaved});
                });
                const auto got = content(act, size_t{kPairs} * kFfn, type);
                for (uint32_t pair = 0; pair < kPairs; pair++) {
                    const size_t e = expert_of[pair];
                    const Vector sums = reference::multiply({&w[e * kN * kK], size_t{kN} * kK},
                                                            reference::to_doubles({&x[size_t{pair} * kK], kK}));
                    Vector want(kFfn);
                    for (size_t f = 0; f < kFfn; f++) {
                        const size_t g = c.interleaved ? 2 * f : f, u = c.interleaved ? 2 * f + 1 : kFfn + f;
                        const double gate = sums[g] + (c.has_bias ? bias[e * kN + g] : 0.0f),
                                     up = sums[u] + (c.has_bias ? bias[e * kN + u] : 0.0f);
                        const double tanh_of = std::tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate));
                        want[f] = c.clamped                           ? reference::clamped_swiglu(gate, up, 1.702, 0.6f)
                                  : c.activation == Activation::kSilu ? reference::silu(gate) * up
                                                                      : 0.5 * gate * (1.0 + tanh_of) * up;
                    }
                    double top = 1;
                    for (const double v : want) top = std::max(top, std::abs(v));
                    expect_near(want, &got[size_t{pair} * kFfn], unit_roundoff(type) * 1.1 + 1e-5, top,
                                "pair " + std::to_string(pair) + ", tiles of " + std::to_string(tile_rows));
                }
            }
        }
    }
}

TEST(ExpertPlans, FollowThePairsOfAnExpertAndTheMatrices) {
    DeviceCapabilities caps;
    caps.subgroup_size = 32;
    caps.max_workgroup_invocations = 1024;
    caps.shared_memory_bytes = 48 * 1024;
    KernelFacts facts{caps, {}};
    facts.ladder.add(RungId::kMatrices, ScalarType::kF16).add(RungId::kMatrices, ScalarType::kBf16);
    const ExpertPlanner planner(facts);
    const RouterShape shape{.experts = 128, .top = 8};
    ExpertMatrices matrices{1536, 2048, 2048, 768, ScalarType::kBf16, ScalarType::kBf16};
    const auto plan = [&](uint32_t rows) {
        const ExpertPlan made = planner.plan(shape, matrices, rows);
        return std::pair(made.tile_rows, made.on_matrices);
    };
    EXPECT_EQ(plan(1), std::pair(1u, false));
    EXPECT_EQ(plan(8), std::pair(2u, false));
    EXPECT_EQ(plan(64), std::pair(16u, true));
    EXPECT_EQ(plan(256), std::pair(32u, true));
    EXPECT_EQ(plan(2048), std::pair(64u, true));
    matrices.gate_up = 96;  // too narrow for the widest tile
    EXPECT_EQ(plan(2048), std::pair(32u, true));
    matrices.gate_up = 40;
    EXPECT_EQ(plan(2048), std::pair(kExpertTileRows, false));
    matrices = {1536, 2048, 2048, 768, ScalarType::kF32, ScalarType::kF32};
    EXPECT_EQ(plan(2048), std::pair(kExpertTileRows, false));
    facts.options.batch_invariant = true;
    matrices.gate_up_kind = matrices.down_kind = ScalarType::kBf16;
    EXPECT_TRUE(plan(1).second);
    facts.options.batch_invariant = false;
    // Of a layer in which one of both products reads packed weights.
    matrices.gate_up_kind = {WeightFormat::kMXFP4, ScalarType::kBf16};
    EXPECT_EQ(plan(2048), std::pair(64u, true));
    facts.options.left_out = {"expert_matrix_packed_bf16"};
    EXPECT_EQ(plan(2048), std::pair(kExpertTileRows, false));
    matrices.gate_up_kind = ScalarType::kBf16;
    EXPECT_EQ(plan(2048), std::pair(64u, true));
}

}  // namespace
}  // namespace lorad::gpu::testing::experts_test
