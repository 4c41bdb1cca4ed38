// All layers of a row in one dispatch against the same in double precision. On a software device by one workgroup.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <ostream>
#include <string>

#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::decode_layers_test {

using reference::Type;
using reference::Vector;

struct LayersCase {
    uint32_t head_dim = 64, rotary_dim = 64, position = 0, window = 0, n_splits = 1;
    bool has_head_norms = false;
    uint32_t hidden = 100, n_q_heads = 3, n_kv_heads = 1, ffn = 130;
    Type type = Type::kF16;
    DecodeFamily family = {};
    // with family.by_layer: layer 0 has a window and blocks of its own, layer 1 neither; or it turns nothing
    bool has_window_group = false, turns_layer_1 = true;
};

inline void PrintTo(const LayersCase& c, std::ostream* out) {
    *out << "head_dim " << c.head_dim << " rotary_dim " << c.rotary_dim << " position " << c.position << " window "
         << c.window << " splits " << c.n_splits << " hidden " << c.hidden;
}

// Weights of one layer, dense, and what lies in its cache before the step.
struct LayerValues {
    std::vector<float> qkv, o, gate_up, down, qkv_bias, o_bias, gate_up_bias, down_bias;
    std::vector<float> input_norm, post_norm, o_after, down_after, q_norm, k_norm;
    std::vector<float> keys, values;  // [position][n_kv_heads][head_dim]
};

using LayerModules = std::array<TestModule, kLoraModules>;

class DecodeLayers : public KernelTest, public ::testing::WithParamInterface<LayersCase> {
  protected:
    static constexpr uint32_t kLayers = 2, kCacheBlocks = 64;
    static constexpr float kEps = 1e-5f;

    uint32_t q_size() const { return c_.n_q_heads * c_.head_dim; }
    uint32_t kv_size() const { return c_.n_kv_heads * c_.head_dim; }
    uint32_t n_qkv() const { return q_size() + 2 * kv_size(); }
    bool in_window_group(uint32_t layer) const { return c_.has_window_group && layer == 0; }
    uint32_t window_of(uint32_t layer) const { return !c_.has_window_group || layer == 0 ? c_.window : 0; }
    uint32_t block_of(uint32_t token, bool in_group = false) const {
        return (token / kBlockTokens * 7 + (in_group ? 11 : 3)) % kCacheBlocks;
    }

    template <typename T>
    uint64_t kept(const std::vector<T>& values) {
        return buffers_.emplace_back(input(values)).address();
    }

    std::vector<float> random(size_t n, double bound, float middle = 0) { return random(n, bound, middle, Type::kF16); }

    std::vector<float> random(size_t n, double bound, float middle, Type type) {
        auto values = reference::random_values(n, type, random_, static_cast<float>(bound));
        for (float& value : values) value += middle;
        return values;
    }

    LayerValues make_values() {
        const uint32_t h = c_.hidden, f = c_.ffn;
        const double by_hidden = 1.7 / std::sqrt(h);
        const uint32_t n_q_norms = c_.family.wide_qk_norms ? q_size() : c_.head_dim,
                       n_k_norms = c_.family.wide_qk_norms ? kv_size() : c_.head_dim;
        return {.qkv = random(size_t{n_qkv()} * h, by_hidden, 0, c_.type),
                .o = random(size_t{h} * q_size(), 1.7 / std::sqrt(q_size()), 0, c_.type),
                .gate_up = random(size_t{2} * f * h, by_hidden, 0, c_.type),
                .down = random(size_t{h} * f, 1.7 / std::sqrt(f), 0, c_.type),
                .qkv_bias = random(n_qkv(), 0.5),
                .o_bias = random(h, 0.5),
                .gate_up_bias = random(size_t{2} * f, 0.5),
                .down_bias = random(h, 0.5),
                .input_norm = random(h, 1, 1.5f),
                .post_norm = random(h, 1, 1.5f),
                .o_after = random(h, 1, 1.5f),
                .down_after = random(h, 1, 1.5f),
                .q_norm = random(n_q_norms, 0.5, 1),
                .k_norm = random(n_k_norms, 0.5, 1),
                .keys = random(size_t{c_.position} * kv_size(), 1),
                .values = random(size_t{c_.position} * kv_size(), 1)};
    }

    uint64_t matrix(const std::vector<float>& w, uint32_t n, uint32_t k) {
        auto bytes = reference::encode(w, k, padded(k), c_.type);
        bytes.resize(size_t{padded(n)} * padded(k) * 2);
        return kept(bytes);
    }

    uint64_t vector(std::vector<float> values) {
        values.resize(padded(static_cast<uint32_t>(values.size())));
        return kept(values);
    }

    size_t place_in_cache(uint32_t plane, uint32_t token, uint32_t i, bool in_group) const {
        const size_t line = (size_t{block_of(token, in_group)} * 2 + plane) * c_.n_kv_heads + i / c_.head_dim;
        return (line * kBlockTokens + token % kBlockTokens) * c_.head_dim + i % c_.head_dim;
    }

    // Blocks in no order; what is not written is not a number.
    uint64_t cache(const LayerValues& layer, bool in_group) {
        constexpr uint16_t kNaN = 0x7e00;
        std::vector<uint16_t> kv(size_t{kCacheBlocks} * 2 * kv_size() * kBlockTokens, kNaN);
        for (uint32_t token = 0; token < c_.position; token++) {
            for (uint32_t i = 0; i < kv_size(); i++) {
                for (const uint32_t plane : {0u, 1u}) {
                    const float value = (plane == 0 ? layer.keys : layer.values)[size_t{token} * kv_size() + i];
                    kv[place_in_cache(plane, token, i, in_group)] = reference::to_f16(value);
                }
            }
        }
        return kept(kv);
    }

    DecodeLayer entry(const LayerValues& layer, uint32_t number) {
        const uint32_t h = c_.hidden, f = c_.ffn;
        const bool has_after = c_.family.norms_after, has_before = c_.family.norms_before,
                   turns = c_.turns_layer_1 || number == 0;
        return {.qkv = matrix(layer.qkv, n_qkv(), h),
                .qkv_bias = vector(layer.qkv_bias),
                .o = matrix(layer.o, h, q_size()),
                .o_bias = vector(layer.o_bias),
                .gate_up = matrix(layer.gate_up, 2 * f, h),
                .gate_up_bias = vector(layer.gate_up_bias),
                .down = matrix(layer.down, h, f),
                .down_bias = vector(layer.down_bias),
                .input_norm = has_before ? vector(layer.input_norm) : 0,
                .post_attention_norm = has_before ? vector(layer.post_norm) : 0,
                .q_norm = c_.has_head_norms ? vector(layer.q_norm) : 0,
                .k_norm = c_.has_head_norms ? vector(layer.k_norm) : 0,
                .kv = cache(layer, in_window_group(number)),
                .window = window_of(number),
                .in_window_group = in_window_group(number),
                .o_after = has_after ? vector(layer.o_after) : 0,
                .down_after = has_after ? vector(layer.down_after) : 0,
                .rope = shape_.has_families() && turns ? kept(rope_table(number)) : 0};
    }

    std::vector<float> rope_table(uint32_t layer) const {
        const double theta = c_.family.by_layer && layer == 0 ? 300.0 : 10000.0;
        const uint32_t half = c_.rotary_dim / 2;
        std::vector<float> table;
        for (uint32_t t = 0; t <= c_.position; t++) {
            for (uint32_t i = 0; i < half; i++) {
                const double angle = t * std::pow(theta, -static_cast<double>(i) / half);
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
        const uint64_t step = buffers_.emplace_back(step_state({row}, 1)).address();
        return c_.has_window_group ? both_states(row) : step;
    }

    // Headers and rows of both groups of layers. The window's table lies behind the other one.
    uint64_t both_states(StepRow row) {
        std::vector<std::byte> bytes(2 * (sizeof(StepHeader) + sizeof(StepRow)));
        StepHeader header{};
        header.n_rows = 1;
        const auto put = [&](size_t at) {
            std::memcpy(&bytes[at], &header, sizeof(header));
            std::memcpy(&bytes[at + sizeof(header)], &row, sizeof(row));
        };
        put(0);
        row.kv_slot = block_of(c_.position, true) * kBlockTokens + c_.position % kBlockTokens;
        row.block_table = c_.position / kBlockTokens + 1;
        params_.window_step = sizeof(StepHeader) + sizeof(StepRow);
        put(params_.window_step);
        return kept(bytes);
    }

    static Vector rounded(Vector values, Type type) {
        for (double& value : values) value = reference::rounded(static_cast<float>(value), type);
        return values;
    }

    // As inputs of products are rounded on the device.
    Vector rounded(const Vector& values) const { return rounded(values, c_.type); }

    Vector product(const std::vector<float>& w, const Vector& x, const std::vector<float>& bias) const {
        Vector sums = reference::multiply(w, rounded(x));
        for (size_t i = 0; i < sums.size(); i++) sums[i] += bias[i];
        return sums;
    }

    Vector head(const Vector& qkv, uint32_t begin, const std::vector<float>& gamma, std::span<const float> rope) const {
        Vector own(qkv.begin() + begin, qkv.begin() + begin + c_.head_dim);
        if (c_.has_head_norms && !c_.family.wide_qk_norms) own = reference::rms_norm(own, gamma, kEps);
        if (!rope.empty()) reference::rope(own, c_.rotary_dim, rope);
        return own;
    }

    // Norms of queries and keys over all heads.
    void norm_wide(Vector& qkv, const LayerValues& layer) const {
        const auto norm = [&](uint32_t first, uint32_t n, const std::vector<float>& gamma) {
            const Vector normed = reference::rms_norm(std::span(qkv).subspan(first, n), gamma, kEps);
            std::ranges::copy(normed, qkv.begin() + first);
        };
        norm(0, q_size(), layer.q_norm);
        norm(q_size(), kv_size(), layer.k_norm);
    }

    // Of one KV head: the cache, then the row's own as the cache rounds it.
    std::vector<float> column(const std::vector<float>& cached, uint32_t kv_head, const Vector& own) const {
        std::vector<float> tokens;
        for (uint32_t t = 0; t < c_.position; t++) {
            const auto begin = cached.begin() + static_cast<ptrdiff_t>(size_t{t} * kv_size() + kv_head * c_.head_dim);
            tokens.insert(tokens.end(), begin, begin + c_.head_dim);
        }
        for (const double value : rounded(own, Type::kF16)) tokens.push_back(static_cast<float>(value));
        return tokens;
    }

    // All heads' keys of the row.
    Vector own_keys(const LayerValues& layer, const Vector& qkv, std::span<const float> rope) const {
        Vector keys;
        for (uint32_t i = 0; i < c_.n_kv_heads; i++) {
            const Vector key = head(qkv, q_size() + i * c_.head_dim, layer.k_norm, rope);
            keys.insert(keys.end(), key.begin(), key.end());
        }
        return keys;
    }

    // With the row's keys as a cache has them, where they are given.
    Vector attended(const LayerValues& layer, Vector qkv, uint32_t number, const Vector* cached = nullptr) const {
        const std::vector<float> rope = rope_table(number);
        const bool turns = c_.turns_layer_1 || number == 0;
        const std::span<const float> turn = turns ? std::span(rope).last(c_.rotary_dim) : std::span<const float>();
        if (c_.family.wide_qk_norms) norm_wide(qkv, layer);
        const Vector keys = cached != nullptr ? *cached : own_keys(layer, qkv, turn);
        const uint32_t n_originals = c_.position / c_.family.position_original;
        const double scale = 1 + static_cast<double>(c_.family.position_beta) * std::log(1.0 + n_originals);
        Vector result;
        for (uint32_t q = 0; q < c_.n_q_heads; q++) {
            const uint32_t kv_head = q / (c_.n_q_heads / c_.n_kv_heads), k_begin = kv_head * c_.head_dim,
                           v_begin = q_size() + kv_size() + k_begin;
            const Vector query = head(qkv, q * c_.head_dim, layer.q_norm, turn),
                         key(keys.begin() + k_begin, keys.begin() + k_begin + c_.head_dim);
            const Vector value(qkv.begin() + v_begin, qkv.begin() + v_begin + c_.head_dim);
            const Vector sums = reference::attention(
                std::vector<float>(query.begin(), query.end()), column(layer.keys, kv_head, key),
                column(layer.values, kv_head, value),
                {.scale = scale / std::sqrt(c_.head_dim), .window = window_of(number), .softcap = c_.family.softcap});
            result.insert(result.end(), sums.begin(), sums.end());
        }
        return result;
    }

    // x += what a part gives, with its norm if it has one.
    void add(Vector& x, Vector more, const std::vector<float>& after) const {
        if (c_.family.norms_after) more = reference::rms_norm(more, after, kEps);
        for (size_t i = 0; i < x.size(); i++) x[i] += static_cast<double>(c_.family.multiplier) * more[i];
    }

    Vector normed(const Vector& x, const std::vector<float>& gamma) const {
        return c_.family.norms_before ? reference::rms_norm(x, gamma, kEps) : x;
    }

    // What an adapter adds to a product from y[first] on.
    void add_module(Vector& y, uint32_t first, const LayerModules* modules, uint32_t module, const Vector& x) const {
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
        add(x, o, layer.o_after);
        const Vector input = normed(x, layer.post_norm);
        Vector gate_up = product(layer.gate_up, input, layer.gate_up_bias);
        add_module(gate_up, 0, modules, kLoraGate, input);
        add_module(gate_up, c_.ffn, modules, kLoraUp, input);
        Vector act(c_.ffn);
        const bool is_gelu = c_.family.activation == Activation::kGeluTanh;
        for (uint32_t i = 0; i < c_.ffn; i++)
            act[i] = (is_gelu ? reference::gelu_tanh(gate_up[i]) : reference::silu(gate_up[i])) * gate_up[c_.ffn + i];
        Vector down = product(layer.down, act, layer.down_bias);
        add_module(down, 0, modules, kLoraDown, act);
        add(x, down, layer.down_after);
    }

    Vector expected(Vector x, const std::vector<LayerModules>& modules = {}) const {
        for (uint32_t l = 0; l < layers_.size(); l++) {
            const LayerModules* own = modules.empty() ? nullptr : &modules[l];
            const Vector input = normed(x, layers_[l].input_norm);
            Vector qkv = product(layers_[l].qkv, input, layers_[l].qkv_bias);
            add_module(qkv, 0, own, kLoraQ, input);
            add_module(qkv, q_size(), own, kLoraK, input);
            add_module(qkv, q_size() + kv_size(), own, kLoraV, input);
            add_behind(x, layers_[l], attended(layers_[l], qkv, l), own);
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
        shape_ = {.type = scalar(c_.type),
                  .hidden = c_.hidden,
                  .n_q_heads = c_.n_q_heads,
                  .n_kv_heads = c_.n_kv_heads,
                  .head_dim = c_.head_dim,
                  .rotary_dim = c_.rotary_dim,
                  .ffn = c_.ffn,
                  .n_splits = c_.n_splits,
                  .family = c_.family};
        ASSERT_TRUE(kernels_->persistent.can_decode_layers(shape_));
        std::vector<DecodeLayer> table;
        for (uint32_t l = 0; l < kLayers; l++) table.push_back(entry(layers_.emplace_back(make_values()), l));
        first_cache_ = table[0].kv;
        const std::vector<float> rope = rope_table(1);
        x_first_ = random(c_.hidden, 1);
        std::vector<uint32_t> blocks;
        for (const bool in_group : {false, true}) {
            for (uint32_t token = 0; token <= c_.position; token += kBlockTokens)
                blocks.push_back(block_of(token, in_group));
        }
        x_ = input(x_first_);
        sync_ = input(std::vector<DecodeSync>(1));
        given_up_ = input(std::vector<uint32_t>{0});
        params_ = {
            .step = 0,
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
        params_.step = state();
        want_ = expected(reference::to_doubles(x_first_));
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

    template <typename T>
    std::vector<T> kept_content(uint64_t address, size_t n) {
        return content<T>(*std::ranges::find(buffers_, address, &Buffer::address), n);
    }

    // What the step left of the row in the cache of layer 0.
    Vector kept_in_cache(uint32_t plane) {
        const auto kv = kept_content<uint16_t>(first_cache_, size_t{kCacheBlocks} * 2 * kv_size() * kBlockTokens);
        Vector row(kv_size());
        for (uint32_t i = 0; i < kv_size(); i++)
            row[i] = reference::from_f16(kv[place_in_cache(plane, c_.position, i, in_window_group(0))]);
        return row;
    }

    uint32_t gave_up() { return content<uint32_t>(given_up_, 1)[0]; }
    DecodeSync& sync() { return *reinterpret_cast<DecodeSync*>(sync_.mapped().data()); }

    LayersCase c_ = GetParam();
    std::vector<LayerValues> layers_;
    std::vector<Buffer> buffers_;
    DecodeLayersShape shape_;
    DecodeLayersParams params_{};
    uint64_t first_cache_ = 0;
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

inline void DecodeLayersLora::expect_adapter_added(uint32_t type) {
    const std::vector<LayerModules> modules = add_adapter(type);
    const Vector without = want_;
    want_ = expected(reference::to_doubles(x_first_), modules);
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

}  // namespace lorad::gpu::testing::decode_layers_test
