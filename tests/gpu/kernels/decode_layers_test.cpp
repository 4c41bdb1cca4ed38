#include <algorithm>
#include <array>
#include <cmath>
#include <ostream>
#include <set>

#include "proto/base/format.h"
#include "tests/gpu/kernels/kernel_fixture.h"

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

using reference::Type;
using reference::Vector;

struct LayersCase {
    uint32_t head_dim = 64, rotary_dim = 64, position = 0, window = 0, n_splits = 1;
    bool has_head_norms = false;
    uint32_t hidden = 100, n_q_heads = 3, n_kv_heads = 1, ffn = 130;
};

void PrintTo(const LayersCase& c, std::ostream* out) {
    *out << "head_dim " << c.head_dim << " rotary_dim " << c.rotary_dim << " position " << c.position << " window "
         << c.window << " splits " << c.n_splits << " hidden " << c.hidden;
}

// Weights of one layer, dense, and what lies in its cache before the step.
struct LayerValues {
    std::vector<float> qkv, o, gate_up, down, qkv_bias, o_bias, gate_up_bias, down_bias;
    std::vector<float> input_norm, post_norm, q_norm, k_norm;
    std::vector<float> keys, values;  // [position][n_kv_heads][head_dim]
};

using LayerModules = std::array<TestModule, kLoraModules>;

// All layers in one dispatch against the same in double precision. On a software device by one workgroup.
class DecodeLayers : public KernelTest, public ::testing::WithParamInterface<LayersCase> {
  protected:
    static constexpr uint32_t kLayers = 2, kCacheBlocks = 64;
    static constexpr float kEps = 1e-5f;

    uint32_t q_size() const { return c_.n_q_heads * c_.head_dim; }
    uint32_t kv_size() const { return c_.n_kv_heads * c_.head_dim; }
    uint32_t n_qkv() const { return q_size() + 2 * kv_size(); }
    uint32_t block_of(uint32_t token) const { return (token / kBlockTokens * 7 + 3) % kCacheBlocks; }

    template <typename T>
    uint64_t kept(const std::vector<T>& values) {
        return buffers_.emplace_back(input(values)).address();
    }

    std::vector<float> random(size_t n, double bound, float middle = 0) {
        auto values = reference::random_values(n, Type::kF16, random_, static_cast<float>(bound));
        for (float& value : values) value += middle;
        return values;
    }

    LayerValues make_values() {
        const uint32_t h = c_.hidden, f = c_.ffn;
        const double by_hidden = 1.7 / std::sqrt(h);
        return {.qkv = random(size_t{n_qkv()} * h, by_hidden),
                .o = random(size_t{h} * q_size(), 1.7 / std::sqrt(q_size())),
                .gate_up = random(size_t{2} * f * h, by_hidden),
                .down = random(size_t{h} * f, 1.7 / std::sqrt(f)),
                .qkv_bias = random(n_qkv(), 0.5),
                .o_bias = random(h, 0.5),
                .gate_up_bias = random(size_t{2} * f, 0.5),
                .down_bias = random(h, 0.5),
                .input_norm = random(h, 1, 1.5f),
                .post_norm = random(h, 1, 1.5f),
                .q_norm = random(c_.head_dim, 0.5, 1),
                .k_norm = random(c_.head_dim, 0.5, 1),
                .keys = random(size_t{c_.position} * kv_size(), 1),
                .values = random(size_t{c_.position} * kv_size(), 1)};
    }

    uint64_t matrix(const std::vector<float>& w, uint32_t n, uint32_t k) {
        auto bytes = reference::encode(w, k, padded(k), Type::kF16);
        bytes.resize(size_t{padded(n)} * padded(k) * 2);
        return kept(bytes);
    }

    uint64_t vector(std::vector<float> values) {
        values.resize(padded(static_cast<uint32_t>(values.size())));
        return kept(values);
    }

    // Blocks in no order; what is not written is not a number.
    uint64_t cache(const LayerValues& layer) {
        constexpr uint16_t kNaN = 0x7e00;
        std::vector<uint16_t> kv(size_t{kCacheBlocks} * 2 * kv_size() * kBlockTokens, kNaN);
        for (uint32_t token = 0; token < c_.position; token++) {
            for (uint32_t i = 0; i < kv_size(); i++) {
                for (const uint32_t plane : {0u, 1u}) {
                    const size_t line = (size_t{block_of(token)} * 2 + plane) * c_.n_kv_heads + i / c_.head_dim;
                    const float value = (plane == 0 ? layer.keys : layer.values)[size_t{token} * kv_size() + i];
                    kv[(line * kBlockTokens + token % kBlockTokens) * c_.head_dim + i % c_.head_dim] =
                        reference::to_f16(value);
                }
            }
        }
        return kept(kv);
    }

    DecodeLayer entry(const LayerValues& layer) {
        const uint32_t h = c_.hidden, f = c_.ffn;
        return {.qkv = matrix(layer.qkv, n_qkv(), h),
                .qkv_bias = vector(layer.qkv_bias),
                .o = matrix(layer.o, h, q_size()),
                .o_bias = vector(layer.o_bias),
                .gate_up = matrix(layer.gate_up, 2 * f, h),
                .gate_up_bias = vector(layer.gate_up_bias),
                .down = matrix(layer.down, h, f),
                .down_bias = vector(layer.down_bias),
                .input_norm = vector(layer.input_norm),
                .post_attention_norm = vector(layer.post_norm),
                .q_norm = c_.has_head_norms ? vector(layer.q_norm) : 0,
                .k_norm = c_.has_head_norms ? vector(layer.k_norm) : 0,
                .kv = cache(layer),
                .window = c_.window,
                .pad = 0};
    }

    std::vector<float> rope_table() const {
        const uint32_t half = c_.rotary_dim / 2;
        std::vector<float> table;
        for (uint32_t t = 0; t <= c_.position; t++) {
            for (uint32_t i = 0; i < half; i++) {
                const double angle = t * std::pow(10000.0, -static_cast<double>(i) / half);
                table.push_back(static_cast<float>(std::cos(angle)));
                table.push_back(static_cast<float>(std::sin(angle)));
            }
        }
        return table;
    }

    uint64_t state(uint32_t adapter_slot = kNoSlot) {
        StepRow row{};
        row.adapter_slot = adapter_slot;
        row.position = c_.position;
        row.kv_slot = block_of(c_.position) * kBlockTokens + c_.position % kBlockTokens;
        return buffers_.emplace_back(step_state({row}, 1)).address();
    }

    // As inputs of products are rounded on the device.
    static Vector rounded(Vector values) {
        for (double& value : values) value = reference::rounded(static_cast<float>(value), Type::kF16);
        return values;
    }

    static Vector product(const std::vector<float>& w, const Vector& x, const std::vector<float>& bias) {
        Vector sums = reference::multiply(w, rounded(x));
        for (size_t i = 0; i < sums.size(); i++) sums[i] += bias[i];
        return sums;
    }

    Vector head(const Vector& qkv, uint32_t begin, const std::vector<float>& gamma, std::span<const float> rope) const {
        Vector own(qkv.begin() + begin, qkv.begin() + begin + c_.head_dim);
        if (c_.has_head_norms) own = reference::rms_norm(own, gamma, kEps);
        reference::rope(own, c_.rotary_dim, rope);
        return own;
    }

    // Of one KV head: the cache, then the row's own as the cache rounds it.
    std::vector<float> column(const std::vector<float>& cached, uint32_t kv_head, const Vector& own) const {
        std::vector<float> tokens;
        for (uint32_t t = 0; t < c_.position; t++) {
            const auto begin = cached.begin() + static_cast<ptrdiff_t>(size_t{t} * kv_size() + kv_head * c_.head_dim);
            tokens.insert(tokens.end(), begin, begin + c_.head_dim);
        }
        for (const double value : rounded(own)) tokens.push_back(static_cast<float>(value));
        return tokens;
    }

    Vector attended(const LayerValues& layer, const Vector& qkv, const std::vector<float>& rope) const {
        const std::span<const float> turn = std::span(rope).last(c_.rotary_dim);
        Vector result;
        for (uint32_t q = 0; q < c_.n_q_heads; q++) {
            const uint32_t kv_head = q / (c_.n_q_heads / c_.n_kv_heads), k_begin = q_size() + kv_head * c_.head_dim,
                           v_begin = k_begin + kv_size();
            const Vector query = head(qkv, q * c_.head_dim, layer.q_norm, turn),
                         key = head(qkv, k_begin, layer.k_norm, turn);
            const Vector value(qkv.begin() + v_begin, qkv.begin() + v_begin + c_.head_dim);
            const Vector sums = reference::attention(
                std::vector<float>(query.begin(), query.end()), column(layer.keys, kv_head, key),
                column(layer.values, kv_head, value), {.scale = 1 / std::sqrt(c_.head_dim), .window = c_.window});
            result.insert(result.end(), sums.begin(), sums.end());
        }
        return result;
    }

    static void add(Vector& x, const Vector& more) {
        for (size_t i = 0; i < x.size(); i++) x[i] += more[i];
    }

    // What an adapter adds to a product from y[first] on.
    static void add_module(Vector& y, uint32_t first, const LayerModules* modules, uint32_t module, const Vector& x) {
        if (modules == nullptr || (*modules)[module].pair.rank == 0) return;
        const LoraPair& pair = (*modules)[module].pair;
        const Vector delta =
            reference::multiply((*modules)[module].b, reference::multiply((*modules)[module].a, rounded(x)));
        for (size_t i = 0; i < delta.size(); i++) y[first + i] += pair.scale * delta[i];
    }

    // What a layer adds to x from o on.
    void add_behind(Vector& x, const LayerValues& layer, const Vector& attention,
                    const LayerModules* modules = nullptr) const {
        Vector o = product(layer.o, attention, layer.o_bias);
        add_module(o, 0, modules, kLoraO, attention);
        add(x, o);
        const Vector normed = reference::rms_norm(x, layer.post_norm, kEps);
        Vector gate_up = product(layer.gate_up, normed, layer.gate_up_bias);
        add_module(gate_up, 0, modules, kLoraGate, normed);
        add_module(gate_up, c_.ffn, modules, kLoraUp, normed);
        Vector act(c_.ffn);
        for (uint32_t i = 0; i < c_.ffn; i++) act[i] = reference::silu(gate_up[i]) * gate_up[c_.ffn + i];
        Vector down = product(layer.down, act, layer.down_bias);
        add_module(down, 0, modules, kLoraDown, act);
        add(x, down);
    }

    Vector expected(Vector x, const std::vector<float>& rope, const std::vector<LayerModules>& modules = {}) const {
        for (size_t l = 0; l < layers_.size(); l++) {
            const LayerModules* own = modules.empty() ? nullptr : &modules[l];
            const Vector normed = reference::rms_norm(x, layers_[l].input_norm, kEps);
            Vector qkv = product(layers_[l].qkv, normed, layers_[l].qkv_bias);
            add_module(qkv, 0, own, kLoraQ, normed);
            add_module(qkv, q_size(), own, kLoraK, normed);
            add_module(qkv, q_size() + kv_size(), own, kLoraV, normed);
            add_behind(x, layers_[l], attended(layers_[l], qkv, rope), own);
        }
        return x;
    }

    // Skips where the device lacks what the kernel needs.
    void SetUp() override {
        KernelTest::SetUp();
        const DeviceCapabilities& caps = device().capabilities();
        if (!caps.int64_atomics || caps.subgroup_size % 8 != 0)
            GTEST_SKIP() << "64-bit atomics or subgroups of eight lanes are missing: " << caps.name;
        if (!caps.is_cpu && caps.n_compute_units_hint == 0)
            GTEST_SKIP() << "the number of multiprocessors is not known: " << caps.name;
        // Workgroups of a software device do not run side by side.
        const uint32_t n_workgroups = caps.is_cpu ? 1 : 0;
        kernels_ = must(KernelSet::create(
            device(), {.path = KernelPath::kAuto, .decode = PersistentDecode::kOn, .decode_workgroups = n_workgroups}));
        shape_ = {.type = ScalarType::kF16,
                  .hidden = c_.hidden,
                  .n_q_heads = c_.n_q_heads,
                  .n_kv_heads = c_.n_kv_heads,
                  .head_dim = c_.head_dim,
                  .rotary_dim = c_.rotary_dim,
                  .ffn = c_.ffn,
                  .n_splits = c_.n_splits};
        ASSERT_TRUE(kernels_->persistent.can_decode_layers(shape_));
        std::vector<DecodeLayer> table;
        for (uint32_t l = 0; l < kLayers; l++) table.push_back(entry(layers_.emplace_back(make_values())));
        const std::vector<float> rope = rope_table();
        x_first_ = random(c_.hidden, 1);
        std::vector<uint32_t> blocks;
        for (uint32_t token = 0; token <= c_.position; token += kBlockTokens) blocks.push_back(block_of(token));
        x_ = input(x_first_);
        sync_ = input(std::vector<DecodeSync>(1));
        given_up_ = input(std::vector<uint32_t>{0});
        params_ = {
            .step = state(),
            .layers = kept(table),
            .block_tables = kept(blocks),
            .rope = kept(rope),
            .x = x_.address(),
            .channels = kept(std::vector<uint64_t>(PersistentPlanner::decode_channel_words(shape_, c_.n_splits), 0)),
            .sync = sync_.address(),
            .given_up = given_up_.address(),
            .n_layers = kLayers,
            .max_polls = 0,
            .eps = kEps,
            .scale = 1 / std::sqrt(static_cast<float>(c_.head_dim))};
        want_ = expected(reference::to_doubles(x_first_), rope);
    }

    void step() {
        std::memcpy(x_.mapped().data(), x_first_.data(), x_first_.size() * 4);
        execute([&](Recorder& recorder) { kernels_->persistent.decode_layers(recorder, params_, shape_); });
    }

    void expect_right_step(const char* name) {
        ASSERT_NO_FATAL_FAILURE(step());
        ASSERT_EQ(gave_up(), 0u) << name;
        expect_near_all(want_, x_, name);
    }

    static void expect_near_all(const Vector& want, const Buffer& got, const std::string& name) {
        double largest = 0;
        for (const double value : want) largest = std::max(largest, std::fabs(value));
        expect_near(want, content<float>(got, want.size()).data(), 3e-3, largest, name);
    }

    // What lies behind the first attention, of an input of ones; for its signs of giving up.
    void step_behind() {
        Buffer y = poisoned(n_qkv() * sizeof(float)), given = input(std::vector<float>(q_size(), 1.0f));
        DecodeLayersShape shape = shape_;
        shape.n_splits = 1;
        execute([&](Recorder& recorder) {
            kernels_->persistent.decode_behind(
                recorder, {.layers = params_, .attention = given.address(), .partials = 0, .y = y.address()}, shape,
                ScalarType::kF32);
        });
    }

    uint32_t gave_up() { return content<uint32_t>(given_up_, 1)[0]; }
    DecodeSync& sync() { return *reinterpret_cast<DecodeSync*>(sync_.mapped().data()); }

    LayersCase c_ = GetParam();
    std::vector<LayerValues> layers_;
    std::vector<Buffer> buffers_;
    DecodeLayersShape shape_;
    DecodeLayersParams params_{};
    std::vector<float> x_first_;
    Buffer x_, sync_, given_up_;
    Vector want_;
};

// Ranks and types of all kinds, in the second of two slots; one layer lacks some modules.
class DecodeLayersLora : public DecodeLayers {
  protected:
    static constexpr uint32_t kSlots = 2;

    std::vector<LayerModules> add_adapter(uint32_t type) {
        const uint32_t h = c_.hidden, f = c_.ffn;
        const std::array<std::pair<uint32_t, uint32_t>, kLoraModules> sizes = {
            {{q_size(), h}, {kv_size(), h}, {kv_size(), h}, {h, q_size()}, {f, h}, {f, h}, {h, f}}};
        const std::array<std::array<size_t, kLoraModules>, kLayers> ranks = {
            {{16, 5, 0, 8, 9, 64, 12}, {kDecodeRankMax, kDecodeRankMax, kDecodeRankMax, 33, 0, 16, 1}}};
        std::vector<LayerModules> modules(kLayers);
        std::vector<LoraModule> table(kSlots * kLayers * kLoraModules);
        for (uint32_t l = 0; l < kLayers; l++) {
            for (uint32_t m = 0; m < kLoraModules; m++) {
                modules[l][m] =
                    TestModule::make(sizes[m].first, sizes[m].second, ranks[l][m],
                                     reference::kTypes[type != kAnyLoraType ? type : (l + m + c_.position) % 3],
                                     0.5 / std::sqrt(sizes[m].second), random_);
                table[(kLayers + l) * kLoraModules + m] = modules[l][m].entry();
            }
        }
        params_.lora_table = kept(table);
        params_.lora_slot_stride = kLayers * kLoraModules;
        shape_.lora = true;
        shape_.lora_type = type;
        EXPECT_TRUE(kernels_->persistent.can_decode_layers(shape_));
        return modules;
    }

    void expect_adapter_added(uint32_t type = kAnyLoraType);
};

void DecodeLayersLora::expect_adapter_added(uint32_t type) {
    const std::vector<LayerModules> modules = add_adapter(type);
    const Vector without = want_;
    want_ = expected(reference::to_doubles(x_first_), rope_table(), modules);
    double difference = 0, largest = 0;
    for (size_t i = 0; i < want_.size(); i++) {
        difference = std::max(difference, std::fabs(want_[i] - without[i]));
        largest = std::max(largest, std::fabs(want_[i]));
    }
    ASSERT_GT(difference, 0.1 * largest) << "the adapter changes too little to be missed";
    params_.step = state(1);
    expect_right_step("first step");
    expect_right_step("second step");
    params_.step = state(kNoSlot);
    want_ = without;
    expect_right_step("a row without an adapter");
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

// What lies between the attentions of two layers, on the channels that steps of one dispatch use as well.
class DecodeBehind : public DecodeLayers {};

TEST_P(DecodeBehind, EqualsTheReference) {
    const std::vector<float> attention = random(q_size(), 1);
    for (const Type type : {Type::kF32, Type::kF16}) {
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
            expect_near_all(product(layers_[1].qkv, reference::rms_norm(want, layers_[1].input_norm, kEps),
                                    std::vector<float>(n_qkv())),
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
