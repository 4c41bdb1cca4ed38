// Level kFull of the consumers: lists of adapters with scales, gains and biases, rows with different lists side by
// side.
#include <algorithm>

#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::lora_uses_test {
namespace {

constexpr uint32_t kSlots = 11;
constexpr uint32_t kUsesMax = 8;

// One module of one adapter, perhaps with a gain and a bias; those begin at odd places, as the parts of fused ones do.
struct FullModule {
    TestModule lora;
    std::vector<float> gain, bias;
    Buffer gain_buffer, bias_buffer;

    LoraModule entry() const {
        LoraModule entry = lora.entry();
        if (!gain.empty()) entry.gain = gain_buffer.address() + sizeof(float);
        if (!bias.empty()) entry.bias = bias_buffer.address() + sizeof(float);
        return entry;
    }

    // out += scale * ((gain - 1) base + gain * scale_m * B low + bias)
    void add_to(Vector& out, const Vector& base, std::span<const float> low, double scale) const {
        Vector delta(out.size());
        if (lora.pair.rank > 0) add_expand(delta, lora.pair, reference::to_doubles(low));
        for (size_t n = 0; n < out.size(); n++) {
            const double g = gain.empty() ? 1.0 : gain[n];
            out[n] += scale * ((g - 1) * base[n] + g * delta[n] + (bias.empty() ? 0.0 : bias[n]));
        }
    }
};

struct Use {
    uint32_t slot, low_row;
    float scale;
};

class LoraUses : public KernelTest {
  protected:
    // Slots 0..: no module, plain ones, gains, biases, both, a bias alone; all ranks and types.
    FullModule make_module(uint32_t slot, uint32_t n) {
        constexpr size_t kRanks[kSlots] = {0, 16, 3, 8, 64, 5, 24, 1, 0, 512, 12};
        FullModule module;
        module.lora = TestModule::make(n, 8, kRanks[slot], reference::kTypes[slot % 3], 0.4 + 0.1 * slot, random_);
        const auto shifted = [&](std::vector<float>& values, Buffer& buffer, float around) {
            values = reference::random_values(n, Type::kF32, random_);
            for (float& v : values) v = around + 0.5f * v;
            std::vector<float> stored = values;
            stored.insert(stored.begin(), NAN);
            stored.push_back(NAN);
            buffer = input(stored);
        };
        if (slot >= 3 && slot % 3 == 0) shifted(module.gain, module.gain_buffer, 1.0f);
        if (slot == 5 || slot == 6 || slot == 8) shifted(module.bias, module.bias_buffer, 0.0f);
        return module;
    }

    // Lists of 0..8 uses for rows in runs of one to three; all of them, and the device's rows and uses.
    void make_rows(uint32_t n_rows, uint32_t bucket) {
        rows.assign(bucket, StepRow{});
        lists.assign(n_rows, {});
        uses.clear();
        uint32_t n_low = 0;
        for (uint32_t t = 0, run = 0; t < n_rows; run++) {
            const uint32_t end = std::min(n_rows, t + 1 + run % 3);
            const uint32_t n_uses = (run * 5) % (kUsesMax + 1);
            const auto begin = static_cast<uint32_t>(uses.size());
            for (uint32_t u = 0; u < n_uses; u++) {
                const float scale = std::uniform_real_distribution<float>(-2.0f, 2.0f)(random_);
                uses.push_back({static_cast<uint32_t>(random_() % kSlots), scale, n_low - t, 0});
                for (uint32_t row = t; row < end; row++)
                    lists[row].push_back({uses.back().slot, n_low + row - t, scale});
                n_low += end - t;
            }
            for (; t < end; t++) {
                rows[t].use_begin = begin;
                rows[t].n_uses = n_uses;
                rows[t].adapter_slot = n_uses == 0 ? kNoSlot : uses[begin].slot;
            }
        }
        n_low_rows = std::max(n_low, 1u);
    }

    // Shrink results: finite up to the rank rounded up to 8, zero behind the rank, else what must not be read.
    std::vector<float> make_low(const std::vector<std::vector<FullModule>>& modules) {
        const size_t n_modules = modules.size();
        std::vector<float> low(size_t{n_low_rows} * n_modules * kMaxRank, NAN);
        for (const auto& list : lists) {
            for (const Use& use : list) {
                for (size_t m = 0; m < n_modules; m++) {
                    const size_t rank = modules[m][use.slot].lora.pair.rank;
                    const auto values = reference::random_values(rank, Type::kF32, random_);
                    float* to = &low[(use.low_row * n_modules + m) * kMaxRank];
                    std::fill(to, to + (rank + 7) / 8 * 8, 0.0f);
                    std::copy(values.begin(), values.end(), to);
                }
            }
        }
        return low;
    }

    // [part of the group][slot], and their entries in the table.
    std::vector<std::vector<FullModule>> make_modules(std::span<const uint32_t> widths, uint32_t first_module) {
        std::vector<std::vector<FullModule>> modules(widths.size());
        table.assign(size_t{kSlots} * kLoraModules, LoraModule{});
        for (uint32_t m = 0; m < widths.size(); m++) {
            for (uint32_t s = 0; s < kSlots; s++) {
                modules[m].push_back(make_module((s + m) % kSlots, widths[m]));
                table[s * kLoraModules + first_module + m] = modules[m][s].entry();
            }
        }
        return modules;
    }

    // Part m of row t: base + bias + what its adapters add, base given.
    Vector with_uses(const std::vector<std::vector<FullModule>>& modules, uint32_t m, uint32_t t, const Vector& base,
                     const Vector& with_bias, const std::vector<float>& low) const {
        Vector sum = with_bias;
        for (const Use& use : lists[t]) {
            modules[m][use.slot].add_to(sum, base, {&low[(use.low_row * modules.size() + m) * kMaxRank], kMaxRank},
                                        use.scale);
        }
        return sum;
    }

    std::vector<StepRow> rows;
    std::vector<StepUse> uses;
    std::vector<std::vector<Use>> lists;
    std::vector<LoraModule> table;
    uint32_t n_low_rows = 0;
};

struct Sums {
    Vector base, with_bias;
};

// Columns [from, from + n) of row t of y[split][capacity][width], without and with bias.
Sums sums_of(const std::vector<float>& y, uint32_t n_splits, uint32_t capacity, uint32_t width, uint32_t t,
             uint32_t from, uint32_t n, const std::vector<float>& bias) {
    Sums sums{Vector(n), Vector(n)};
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t s = 0; s < n_splits; s++) sums.base[i] += y[(size_t{s} * capacity + t) * width + from + i];
        sums.with_bias[i] = sums.base[i] + (bias.empty() ? 0.0 : bias[from + i]);
    }
    return sums;
}

// A sum of up to eight deltas of up to 512 products each, f32. Values are uniform in -1..1, so a delta of rank 512 is
// about sqrt(512) / 3, times scales of up to 3.
const double kTolerance = sum_tolerance(512);
constexpr double kMagnitude = 60.0;

TEST_F(LoraUses, AddNormAddsAllAdaptersOfARow) {
    struct Case {
        uint32_t hidden, n_rows, bucket, n_splits;
        bool with_bias;
    };
    for (const Case& c : {Case{96, 1, 1, 1, false}, Case{250, 21, 24, 2, true}, Case{192, 48, 48, 1, true},
                          Case{2050, 5, 6, 3, false}}) {
        SCOPED_TRACE(c.hidden);
        const uint32_t stride = padded(c.hidden), capacity = c.bucket + kSlackRows;
        const uint32_t widths[] = {c.hidden};
        const auto modules = make_modules(widths, kLoraDown);
        make_rows(c.n_rows, c.bucket);
        if (c.bucket == 1) {  // the only row with the longest list
            rows[0].n_uses = kUsesMax;
            uses.clear();
            for (uint32_t u = 0; u < kUsesMax; u++) {
                uses.push_back({u + 2, 0.5f + u, u, 0});
                lists[0].push_back({u + 2, u, 0.5f + u});
            }
            n_low_rows = kUsesMax;
        }
        const auto low = make_low(modules);
        const auto y = reference::random_values(size_t{c.n_splits} * capacity * c.hidden, Type::kF32, random_);
        const auto x = reference::random_values(size_t{capacity} * c.hidden, Type::kF32, random_);
        const auto bias = c.with_bias ? reference::random_values(c.hidden, Type::kF32, random_) : std::vector<float>{};
        Buffer step = step_state(rows, c.n_rows), uses_buffer = input(uses), table_buffer = input(table),
               low_buffer = input(low);
        Buffer y_buffer = input(reference::encode(y, c.hidden, stride, Type::kF32));
        Buffer bias_buffer =
            input(c.with_bias ? reference::encode(bias, c.hidden, stride, Type::kF32) : std::vector<std::byte>(16));
        const auto x_bytes = reference::encode(x, c.hidden, stride, Type::kF32);
        Buffer x_buffer = poisoned(x_bytes.size());
        std::memcpy(x_buffer.mapped().data(), x_bytes.data(), x_bytes.size());
        AddNormParams params{};
        params.step = step.address();
        params.y = y_buffer.address();
        params.bias = c.with_bias ? bias_buffer.address() : 0;
        params.low = low_buffer.address();
        params.lora_layer = table_buffer.address();
        params.uses = uses_buffer.address();
        params.x = x_buffer.address();
        params.lora_slot_stride = kLoraModules;
        params.lora_module = kLoraDown;
        params.hidden = c.hidden;
        params.y_stride = params.x_stride = params.xn_stride = stride;
        params.split_stride = capacity * stride;
        params.eps = 1e-5f;
        execute([&](Recorder& recorder) {
            kernels_->rows.add_norm(recorder, params, {c.bucket, c.n_splits, LoraLevel::kFull}, ScalarType::kF32);
        });
        const auto got = content<float>(x_buffer, size_t{capacity} * stride);
        for (uint32_t t = 0; t < c.n_rows; t++) {
            const Sums sums = sums_of(y, c.n_splits, capacity, c.hidden, t, 0, c.hidden, bias);
            Vector want = with_uses(modules, 0, t, sums.base, sums.with_bias, low);
            for (uint32_t i = 0; i < c.hidden; i++) want[i] += x[size_t{t} * c.hidden + i];
            expect_near(want, &got[size_t{t} * stride], kTolerance, kMagnitude,
                        "row " + std::to_string(t) + " with " + std::to_string(lists[t].size()) + " uses");
        }
    }
}

TEST_F(LoraUses, QkvPostAddsAllAdaptersToEachPart) {
    constexpr uint32_t kQ = 4, kKv = 2, kDim = 32, kRows = 29, kBucket = 32, kSplits = 2;
    constexpr uint32_t kWidth = (kQ + 2 * kKv) * kDim, kCapacity = kBucket + kSlackRows;
    const uint32_t widths[] = {kQ * kDim, kKv * kDim, kKv * kDim}, from[] = {0, kQ * kDim, (kQ + kKv) * kDim};
    const auto modules = make_modules(widths, kLoraQ);
    make_rows(kRows, kBucket);
    for (uint32_t t = 0; t < kBucket; t++) rows[t].kv_slot = t;
    const auto low = make_low(modules);
    const auto y = reference::random_values(size_t{kSplits} * kCapacity * kWidth, Type::kF32, random_);
    const auto bias = reference::random_values(kWidth, Type::kF32, random_);
    const std::vector<float> turns(2 * kDim, 0.0f);
    std::vector<float> still = turns;  // cos 1, sin 0: rope rotates nothing
    for (size_t i = 0; i < still.size(); i += 2) still[i] = 1.0f;
    Buffer step = step_state(rows, kRows), uses_buffer = input(uses), table_buffer = input(table),
           low_buffer = input(low);
    Buffer y_buffer = input(reference::encode(y, kWidth, padded(kWidth), Type::kF32));
    Buffer bias_buffer = input(bias), rope_buffer = input(still);
    Buffer q = poisoned(uint64_t{kBucket} * kQ * kDim * 4), kv = poisoned(uint64_t{2} * kKv * kBlockTokens * kDim * 2);
    QkvPostParams params{};
    params.step = step.address();
    params.y = y_buffer.address();
    params.bias = bias_buffer.address();
    params.low = low_buffer.address();
    params.lora_layer = table_buffer.address();
    params.uses = uses_buffer.address();
    params.rope = rope_buffer.address();
    params.q = q.address();
    params.kv = kv.address();
    params.lora_slot_stride = kLoraModules;
    params.y_stride = padded(kWidth);
    params.split_stride = kCapacity * padded(kWidth);
    params.q_stride = kQ * kDim;
    execute([&](Recorder& recorder) {
        kernels_->attention.qkv_post(recorder, params, {{kBucket, kSplits, LoraLevel::kFull}, kQ, kKv, kDim, kDim});
    });
    const auto got_q = content<float>(q, size_t{kRows} * kQ * kDim);
    const auto got_kv = content(kv, size_t{2} * kKv * kBlockTokens * kDim, Type::kF16);
    for (uint32_t t = 0; t < kRows; t++) {
        for (uint32_t m = 0; m < 3; m++) {
            const Sums sums = sums_of(y, kSplits, kCapacity, kWidth, t, from[m], widths[m], bias);
            const Vector want = with_uses(modules, m, t, sums.base, sums.with_bias, low);
            const std::string what = "row " + std::to_string(t) + " part " + std::to_string(m);
            if (m == 0) {
                expect_near(want, &got_q[size_t{t} * kQ * kDim], kTolerance, kMagnitude, what);
                continue;
            }
            for (uint32_t h = 0; h < kKv; h++) {
                const Vector head(want.begin() + h * kDim, want.begin() + (h + 1) * kDim);
                const size_t line = ((m - 1) * kKv + h) * kBlockTokens + t;
                expect_near(head, &got_kv[line * kDim], unit_roundoff(Type::kF16) + kTolerance, kMagnitude, what);
            }
        }
    }
}

TEST_F(LoraUses, GatedActAddsAllAdaptersToBothHalves) {
    for (const uint32_t ffn : {96u, 250u, 251u}) {
        SCOPED_TRACE(ffn);
        constexpr uint32_t kRows = 30, kBucket = 32, kSplits = 2, kCapacity = kBucket + kSlackRows;
        const uint32_t widths[] = {ffn, ffn}, y_stride = padded(2 * ffn), act_stride = padded(ffn);
        const auto modules = make_modules(widths, kLoraGate);
        make_rows(kRows, kBucket);
        auto low = make_low(modules);
        for (float& v : low) v *= 0.05f;  // gate and up are multiplied: keep them small
        const auto y = reference::random_values(size_t{kSplits} * kCapacity * 2 * ffn, Type::kF32, random_);
        const auto bias = reference::random_values(2 * ffn, Type::kF32, random_);
        Buffer step = step_state(rows, kRows), uses_buffer = input(uses), table_buffer = input(table),
               low_buffer = input(low);
        Buffer y_buffer = input(reference::encode(y, 2 * ffn, y_stride, Type::kF32)), bias_buffer = input(bias);
        Buffer act = poisoned(uint64_t{kBucket} * act_stride * 4);
        GatedActParams params{};
        params.step = step.address();
        params.y = y_buffer.address();
        params.bias = bias_buffer.address();
        params.low = low_buffer.address();
        params.lora_layer = table_buffer.address();
        params.uses = uses_buffer.address();
        params.act = act.address();
        params.lora_slot_stride = kLoraModules;
        params.ffn = ffn;
        params.y_stride = y_stride;
        params.split_stride = kCapacity * y_stride;
        params.act_stride = act_stride;
        execute([&](Recorder& recorder) {
            kernels_->rows.gated_act(recorder, params, {kBucket, kSplits, LoraLevel::kFull}, Activation::kSilu,
                                     ScalarType::kF32);
        });
        const auto got = content<float>(act, size_t{kBucket} * act_stride);
        for (uint32_t t = 0; t < kRows; t++) {
            Vector half[2];
            for (uint32_t m = 0; m < 2; m++) {
                const Sums sums = sums_of(y, kSplits, kCapacity, 2 * ffn, t, m * ffn, ffn, bias);
                half[m] = with_uses(modules, m, t, sums.base, sums.with_bias, low);
            }
            Vector want(ffn);
            double largest = 1;
            for (uint32_t i = 0; i < ffn; i++) {
                want[i] = reference::silu(half[0][i]) * half[1][i];
                largest = std::max({largest, std::fabs(half[0][i]), std::fabs(half[1][i])});
            }
            // Errors of either half are multiplied by the other.
            expect_near(want, &got[size_t{t} * act_stride], kTolerance + 4e-6, largest * largest,
                        "row " + std::to_string(t));
            for (uint32_t i = ffn; i < act_stride; i++)
                ASSERT_EQ(got[size_t{t} * act_stride + i], 0.0f) << "padding of row " << t;
        }
        ASSERT_TRUE(is_poison(got[size_t{kRows} * act_stride])) << "a row behind the step was written";
    }
}

// Rows with one plain adapter, and rows without, beside mixes: as if the step were plain.
TEST_F(LoraUses, APlainRowHasTheSameBitsAtEveryLevel) {
    constexpr uint32_t kHidden = 192, kRows = 12, kCapacity = kRows + kSlackRows;
    const uint32_t widths[] = {kHidden};
    const auto modules = make_modules(widths, kLoraO);
    constexpr uint32_t kPlainSlots[] = {1, 2, 4, 7, 10};
    const auto low = reference::random_values(size_t{kRows} * kMaxRank, Type::kF32, random_);
    const auto y = reference::random_values(size_t{kCapacity} * kHidden, Type::kF32, random_);
    const auto x = reference::random_values(size_t{kCapacity} * kHidden, Type::kF32, random_);
    const auto bias = reference::random_values(kHidden, Type::kF32, random_);
    rows.assign(kRows, StepRow{});
    for (uint32_t t = 0; t < kRows; t++) {
        rows[t].use_begin = t;
        rows[t].n_uses = t % 4 == 3 ? 0 : 1;
        uses.push_back({kPlainSlots[t % 5], 1.0f, 0, 0});
        rows[t].adapter_slot = rows[t].n_uses == 0 ? kNoSlot : uses[t].slot;
    }
    Buffer step = step_state(rows, kRows), uses_buffer = input(uses), table_buffer = input(table),
           low_buffer = input(low);
    Buffer y_buffer = input(y), bias_buffer = input(bias);
    const auto run = [&](LoraLevel level) {
        Buffer x_buffer = poisoned(x.size() * 4);
        std::memcpy(x_buffer.mapped().data(), x.data(), x.size() * 4);
        AddNormParams params{};
        params.step = step.address();
        params.y = y_buffer.address();
        params.bias = bias_buffer.address();
        params.low = low_buffer.address();
        params.lora_layer = table_buffer.address();
        params.uses = uses_buffer.address();
        params.x = x_buffer.address();
        params.lora_slot_stride = kLoraModules;
        params.lora_module = kLoraO;
        params.hidden = params.y_stride = params.x_stride = params.xn_stride = kHidden;
        execute([&](Recorder& recorder) {
            kernels_->rows.add_norm(recorder, params, {kRows, 1, level}, ScalarType::kF32);
        });
        return content<uint32_t>(x_buffer, size_t{kRows} * kHidden);
    };
    const auto none = run(LoraLevel::kNone), plain = run(LoraLevel::kPlain), full = run(LoraLevel::kFull);
    EXPECT_EQ(plain, full);
    EXPECT_NE(plain, none);
    for (uint32_t t = 3; t < kRows; t += 4) {
        EXPECT_EQ(0, std::memcmp(&none[t * kHidden], &full[t * kHidden], kHidden * 4)) << "row " << t;
    }
}

}  // namespace
}  // namespace lorad::gpu::testing::lora_uses_test
