#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "proto/base/format.h"
#include "tests/gpu/kernels/decode_layers_fixture.h"

namespace lorad::gpu::testing::decode_layers_test {
namespace {

TEST_F(KernelTest, PartsOfTheContextInOneDispatchAreFewAndAttendedToAtOnce) {
    const auto splits = [&](uint32_t workgroups, uint32_t n_heads, uint32_t n_context) {
        const auto kernels =
            must(KernelSet::create(device(), {.path = KernelPath::kPortable, .decode_workgroups = workgroups}));
        DecodeLayersShape shape{.type = ScalarType::kF16,
                                .hidden = 3584,
                                .n_q_heads = n_heads,
                                .n_kv_heads = 4,
                                .head_dim = 128,
                                .rotary_dim = 128,
                                .ffn = 18944};
        return kernels->persistent.plan_decode_splits(shape, n_context);
    };
    for (const uint32_t n_context : {1u, 160u, 639u}) EXPECT_EQ(splits(132, 28, n_context), 1u) << n_context;
    EXPECT_EQ(splits(132, 28, 640), 2u);
    EXPECT_EQ(splits(132, 28, 1280), 4u);
    EXPECT_EQ(splits(132, 28, 1u << 20), 4u) << "28 x 8 are more than 132";
    EXPECT_EQ(splits(132, 12, 1u << 20), 8u);
    EXPECT_EQ(splits(20, 28, 1u << 20), 1u) << "fewer workgroups than heads";
}

TEST_P(DecodeLayersLora, AddTheAdapterOfTheRow) { expect_adapter_added(); }
TEST_P(DecodeLayersLora, AddAnAdapterOfF16) { expect_adapter_added(1); }

// A rank of inputs of more than 4,096 elements is made in parts, where workgroups have 512 threads.
class DecodeLayersLoraLong : public DecodeLayersLora {
  protected:
    void SetUp() override {
        GpuTest::SetUp();
        if (device().capabilities().is_cpu) GTEST_SKIP() << "takes a GPU: " << device().capabilities().name;
        DecodeLayersLora::SetUp();
    }
};

TEST_P(DecodeLayersLoraLong, AddTheAdapterOfTheRow) { expect_adapter_added(); }

// The second step finds what the first one said in the channels.
TEST_P(DecodeLayers, EqualTheReferenceInEveryStep) {
    expect_right_step("first step");
    expect_right_step("second step");
}

// Of q, k and v as the device has them, so that nothing but attention comes between, and an element may be rounded
// otherwise only where it lies next to the middle of two. The row's own k and v count as the cache rounds them, or what
// a row sees of itself would differ from what later rows see of it.
class DecodeAttention : public DecodeLayers {
  protected:
    static void expect_rounded(const Vector& want, const Vector& got, Type type, double tolerance, const char* name) {
        for (size_t i = 0; i < want.size(); i++) {
            const Vector bounds = rounded(Vector{want[i] - tolerance, want[i] + tolerance}, type);
            ASSERT_TRUE(bounds[0] <= got[i] && got[i] <= bounds[1])
                << name << " [" << i << "]: expected " << want[i] << ", found " << got[i];
        }
    }
};

TEST_P(DecodeAttention, SeesTheRowAsTheCacheKeepsIt) {
    params_.n_layers = 1;
    ASSERT_NO_FATAL_FAILURE(step());
    ASSERT_EQ(gave_up(), 0u);
    const auto words =
        kept_content<uint64_t>(params_.channels, PersistentPlanner::decode_channel_words(shape_, c_.n_splits));
    Vector qkv, attention;
    for (uint32_t i = 0; i < n_qkv(); i++)
        qkv.push_back(std::bit_cast<float>(static_cast<uint32_t>(words[c_.hidden + i])));
    for (uint32_t i = 0; i < q_size(); i++) {
        const auto bits = static_cast<uint16_t>(words[c_.hidden + n_qkv() + i / 2] >> i % 2 * 16);
        attention.push_back(c_.type == Type::kF16 ? reference::from_f16(bits) : reference::from_bf16(bits));
    }
    const double tolerance = 1e-6 * std::fabs(std::ranges::max(qkv, {}, [](double v) { return std::fabs(v); }));
    const Vector keys = kept_in_cache(0), values(qkv.begin() + q_size() + kv_size(), qkv.end());
    Vector normed = qkv;
    if (c_.family.wide_qk_norms) norm_wide(normed, layers_[0]);
    const std::vector<float> rope = rope_table(0);
    expect_rounded(own_keys(layers_[0], normed, std::span(rope).last(c_.rotary_dim)), keys, Type::kF16, tolerance, "k");
    expect_rounded(values, kept_in_cache(1), Type::kF16, 0, "v");
    expect_rounded(attended(layers_[0], qkv, 0, &keys), attention, c_.type, tolerance, "attention");
}

// What lies between the attentions of two layers, on the channels that steps of one dispatch use as well.
class DecodeBehind : public DecodeLayers {};

TEST_P(DecodeBehind, EqualsTheReference) {
    const std::vector<float> attention = random(q_size(), 1);
    for (const Type type : {Type::kF32, c_.type}) {
        for (const uint32_t n_layers : {2u, 1u}) {
            const std::string name =
                "attention of type " + std::to_string(static_cast<int>(type)) + ", layers " + std::to_string(n_layers);
            const uint32_t epoch = sync().epoch;
            Buffer y = poisoned(n_qkv() * sizeof(float)),
                   given = input(reference::encode(attention, q_size(), q_size(), type));
            std::memcpy(x_.mapped().data(), x_first_.data(), x_first_.size() * 4);
            DecodeBehindParams params{.layers = params_, .attention = given.address(), .partials = 0, .y = y.address()};
            params.layers.n_layers = n_layers;
            DecodeLayersShape shape = shape_;
            shape.n_splits = 1;
            execute(
                [&](Recorder& recorder) { kernels_->persistent.decode_behind(recorder, params, shape, scalar(type)); });
            ASSERT_EQ(gave_up(), 0u) << name;
            EXPECT_EQ(sync().epoch, epoch + 2) << name;
            Vector want = reference::to_doubles(x_first_);
            add_behind(want, layers_[0], reference::to_doubles(attention));
            expect_near_all(want, x_, name);
            if (n_layers == 1) {
                for (const float value : content<float>(y, n_qkv()))
                    ASSERT_TRUE(is_poison(value)) << name << ": there is no next layer";
                continue;
            }
            expect_near_all(product(layers_[1].qkv, normed(want, layers_[1].input_norm), std::vector<float>(n_qkv())),
                            y, name);
        }
        expect_right_step("all layers after that");
    }
}

// As attention leaves them: [Q][splits][4 + D], maximum, sum, two words that nobody reads, result. Some parts have no
// tokens, the last has some that count.
TEST_P(DecodeBehind, JoinsThePartsOfTheContext) {
    std::normal_distribution<float> normal;
    for (const uint32_t n_splits : {4u, 34u, kAttentionSplitsMax}) {
        const std::string name = std::to_string(n_splits) + " parts";
        const uint32_t d = c_.head_dim, line = d + 4;
        std::vector<float> partials(size_t{c_.n_q_heads} * n_splits * line, NAN);
        Vector attention(q_size());
        for (uint32_t head = 0; head < c_.n_q_heads; head++) {
            double total = 0;
            for (uint32_t s = 0; s < n_splits; s++) {
                float* part = &partials[(size_t{head} * n_splits + s) * line];
                const bool has_tokens = s % 5 != 1, is_far = s % 3 == 2;
                part[0] = has_tokens ? normal(random_) * 2 - (is_far ? 30.0f : 0.0f) : s % 2 == 0 ? -1e20f : -INFINITY;
                part[1] = has_tokens ? 1 + std::fabs(normal(random_)) * 20 : 0;
                const double share = std::exp(static_cast<double>(part[0]));
                total += part[1] * share;
                for (uint32_t i = 0; i < d; i++) {
                    part[4 + i] = has_tokens ? part[1] * normal(random_) : 0;
                    attention[size_t{head} * d + i] += part[4 + i] * share;
                }
            }
            for (uint32_t i = 0; i < d; i++) attention[size_t{head} * d + i] /= total;
        }
        Buffer given = input(partials), y = poisoned(n_qkv() * sizeof(float));
        std::memcpy(x_.mapped().data(), x_first_.data(), x_first_.size() * 4);
        DecodeLayersShape shape = shape_;
        shape.n_splits = n_splits;
        execute([&](Recorder& recorder) {
            kernels_->persistent.decode_behind(
                recorder, {.layers = params_, .attention = 0, .partials = given.address(), .y = y.address()}, shape,
                ScalarType::kF32);
        });
        ASSERT_EQ(gave_up(), 0u) << name;
        Vector want = reference::to_doubles(x_first_);
        add_behind(want, layers_[0], attention);
        expect_near_all(want, x_, name);
    }
}

// Or a step of many layers would wait in vain in each of them.
TEST_P(DecodeBehind, DoesNotBeginBehindOneThatGaveUp) {
    expect_right_step("before");
    const uint32_t epoch = sync().epoch;
    sync().given_up = 1;
    std::memcpy(x_.mapped().data(), x_first_.data(), x_first_.size() * 4);
    ASSERT_NO_FATAL_FAILURE(step_behind());
    EXPECT_EQ(gave_up(), 1u);
    EXPECT_EQ(sync().epoch, epoch);
    EXPECT_EQ(content<float>(x_, c_.hidden), x_first_);
}

// Of the matrices: where shaders know their multiprocessor it has the same one in each step.
class DecodeParts : public DecodeLayers {
  protected:
    void SetUp() override {
        GpuTest::SetUp();
        if (!device().capabilities().multiprocessor_ids)
            GTEST_SKIP() << "shaders do not know their multiprocessor: " << device().capabilities().name;
        DecodeLayers::SetUp();
    }
};

TEST_P(DecodeParts, AreEachTakenOnceWhateverAffinitySays) {
    expect_right_step("no affinity yet");
    const auto n_parts =
        static_cast<size_t>(std::ranges::count_if(sync().taken, [](uint32_t epoch) { return epoch != 0; }));
    EXPECT_GT(n_parts, 1u);
    for (const uint32_t affinity : {1u, kDecodeAffinities, 0xffffffffu}) {
        std::ranges::fill(sync().affinity, affinity);
        const uint32_t epoch = sync().epoch;
        expect_right_step("affinities alike");
        EXPECT_EQ(std::ranges::count(sync().taken, epoch + 1), static_cast<ptrdiff_t>(n_parts));
        const std::set<uint32_t> affinities(std::begin(sync().affinity), std::end(sync().affinity));
        EXPECT_GT(affinities.size(), n_parts / 2) << "they were not corrected";
    }
}

// The epoch advances, so what was said in it is not taken for what the next dispatch says.
TEST_P(DecodeParts, OfAnEpochThatWasUsedAreGivenUp) {
    expect_right_step("first step");
    const uint32_t epoch = sync().epoch;
    std::ranges::fill(sync().taken, epoch + 1);
    ASSERT_NO_FATAL_FAILURE(step());
    EXPECT_EQ(gave_up(), 1u);
    EXPECT_GT(sync().epoch, epoch);
    EXPECT_EQ(sync().left, 0u);
    given_up_ = input(std::vector<uint32_t>{0});
    params_.given_up = given_up_.address();
    expect_right_step("behind one that gave up");
}

TEST_P(DecodeParts, OfAnEpochThatWasUsedAreGivenUpBetweenAttentions) {
    std::ranges::fill(sync().taken, sync().epoch + 1);
    ASSERT_NO_FATAL_FAILURE(step_behind());
    EXPECT_EQ(gave_up(), 1u);
    EXPECT_EQ(sync().given_up, 1u);
}

// Each subgroup then has more steps than are on their way.
TEST_P(DecodeParts, AreRightWhereTheyAreFewAndLong) {
    uint32_t n_possible = 0;
    for (const uint32_t n_workgroups : {1u, 3u, 7u}) {
        kernels_ = must(KernelSet::create(
            device(), {.path = KernelPath::kAuto, .decode = PersistentDecode::kOn, .decode_workgroups = n_workgroups}));
        // sums of so many rows do not fit the shared memory
        if (!kernels_->persistent.can_decode_layers(shape_)) continue;
        n_possible++;
        expect_right_step(lorad::format("{} workgroups", n_workgroups).c_str());
    }
    EXPECT_GE(n_possible, 2u);
}

// A software device compiles each for half a minute to a minute: few, with rows of q that are and are not a multiple of
// 64; the others are in the slow set.
const LayersCase kOddShape{24, 12, 130, 0, 2, true}, kWideShape{128, 128, 300, 0, 1, false, 1028, 8, 2, 2050};
// As Gemma's; and as OLMo's with parts of others: capped scores, multipliers, and a layer that turns nothing.
const LayersCase kGemmaLike{.head_dim = 24,
                            .rotary_dim = 24,
                            .position = 130,
                            .window = 20,
                            .n_splits = 2,
                            .has_head_norms = true,
                            .type = Type::kBf16,
                            .family = {.activation = Activation::kGeluTanh, .norms_after = true, .by_layer = true},
                            .has_window_group = true},
    kOlmoLike{.head_dim = 64,
              .rotary_dim = 32,
              .position = 70,
              .has_head_norms = true,
              .n_kv_heads = 3,
              .family = {.norms_before = false,
                         .norms_after = true,
                         .wide_qk_norms = true,
                         .by_layer = true,
                         .softcap = 2.0f,
                         .multiplier = 0.3f,
                         .position_beta = 0.4f,
                         .position_original = 9},
              .turns_layer_1 = false};
INSTANTIATE_TEST_SUITE_P(Families, DecodeLayers, ::testing::Values(kGemmaLike, kOlmoLike));
INSTANTIATE_TEST_SUITE_P(Families, DecodeAttention, ::testing::Values(kGemmaLike, kOlmoLike));
INSTANTIATE_TEST_SUITE_P(Families, DecodeLayersLora, ::testing::Values(kGemmaLike));
INSTANTIATE_TEST_SUITE_P(Families, DecodeBehind, ::testing::Values(kOlmoLike));
INSTANTIATE_TEST_SUITE_P(SlowFamilies, DecodeBehind, ::testing::Values(kGemmaLike));
// With heads of Gemma 3 4B, which have more elements than the workgroup has threads.
LayersCase with_long_heads(uint32_t hidden, uint32_t ffn, uint32_t position = 300) {
    LayersCase c = kGemmaLike;
    c.head_dim = c.rotary_dim = 256;
    c.position = position;
    c.window = 200;
    c.hidden = hidden;
    c.n_q_heads = 4;
    c.n_kv_heads = 2;
    c.ffn = ffn;
    return c;
}
INSTANTIATE_TEST_SUITE_P(SlowFamilies, DecodeLayers, ::testing::Values(with_long_heads(256, 640)));
INSTANTIATE_TEST_SUITE_P(SlowFamilies, DecodeAttention, ::testing::Values(with_long_heads(256, 640, 9)));
INSTANTIATE_TEST_SUITE_P(SlowFamilies, DecodeLayersLora, ::testing::Values(with_long_heads(256, 640)));
INSTANTIATE_TEST_SUITE_P(Families, DecodeParts, ::testing::Values(with_long_heads(1280, 2560)));
INSTANTIATE_TEST_SUITE_P(Shapes, DecodeBehind, ::testing::Values(LayersCase{24, 12, 0, 0, 2, true}));
INSTANTIATE_TEST_SUITE_P(SlowShapes, DecodeBehind,
                         ::testing::Values(LayersCase{128, 128, 3, 0, 1, false, 1028, 8, 2, 2050}));
INSTANTIATE_TEST_SUITE_P(Shapes, DecodeLayersLora, ::testing::Values(kOddShape));
INSTANTIATE_TEST_SUITE_P(SlowShapes, DecodeLayersLora, ::testing::Values(LayersCase{64, 64, 5}, kWideShape));
INSTANTIATE_TEST_SUITE_P(Shapes, DecodeLayersLoraLong,
                         ::testing::Values(LayersCase{64, 64, 3, 0, 1, false, 4160, 2, 1, 8256},
                                           LayersCase{64, 64, 40, 0, 1, true, 896, 14, 2, 4864}));
INSTANTIATE_TEST_SUITE_P(Shapes, DecodeParts,
                         ::testing::Values(kWideShape, LayersCase{64, 64, 40, 0, 1, true, 896, 14, 2, 4864}));
INSTANTIATE_TEST_SUITE_P(Shapes, DecodeLayers,
                         ::testing::Values(LayersCase{64, 32, 1, 0, 4},  // parts without a token
                                           LayersCase{8, 8, 33, 20}, kOddShape, kWideShape));
INSTANTIATE_TEST_SUITE_P(Shapes, DecodeAttention, ::testing::Values(LayersCase{64, 32, 1, 0, 4}));
INSTANTIATE_TEST_SUITE_P(SlowShapes, DecodeLayers,
                         ::testing::Values(LayersCase{96, 48, 33, 20, 2},
                                           LayersCase{16, 16, 300, 1, 8, true, 64, 7, 7, 66}, LayersCase{64, 64, 0},
                                           LayersCase{64, 64, 5, 0, 4}, LayersCase{80, 80, 130, 0, 1, true},
                                           LayersCase{128, 128, 300, 0, 4}, LayersCase{128, 64, 70, 1, 8},
                                           LayersCase{136, 136, 130, 0, 2, true}, LayersCase{192, 96, 33, 20},
                                           LayersCase{256, 256, 0}, LayersCase{256, 128, 130, 0, 2, true},
                                           LayersCase{64, 64, 130, 0, 2, true}));

}  // namespace
}  // namespace lorad::gpu::testing::decode_layers_test
