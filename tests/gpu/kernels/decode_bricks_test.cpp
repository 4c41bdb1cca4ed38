// What lies between two layers' attentions in one dispatch where matrices are packed: the text of the program
// everywhere, its results where the device takes it.
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "gpu/kernels/persistent/decode_bricks_text.h"
#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/kernels/products/deferred_norm.h"
#include "gpu/kernels/random_bricks.h"
#include "tests/gpu/kernels/kernel_fixture.h"
#include "tests/gpu/kernels/program_text.h"

namespace lorad::gpu::testing::decode_bricks_test {
namespace {

constexpr float kEps = 1e-6f;
using enum WeightFormat;

// 7B and 0.5B in Q4_K_M, of a layer with more bits and one without; a mix of formats whose bricks have 128 columns.
constexpr DecodeBricksShape kQwen7b{.hidden = 3584,
                                    .q = 3584,
                                    .ffn = 18944,
                                    .o = kQ4_K,
                                    .gate_up = kQ4_K,
                                    .down = kQ6_K,
                                    .qkv = {{{kQ4_K, 0, 4096}, {kQ6_K, 4096, 512}, {}}}},
    kQwen05b{.hidden = 896,
             .q = 896,
             .ffn = 4864,
             .o = kQ4_K,
             .gate_up = kQ4_K,
             .down = kQ4_K,
             .qkv = {{{kQ4_K, 0, 1152}, {}, {}}}},
    kMixed{.hidden = 1280,
           .q = 1152,
           .ffn = 2304,
           .o = kQ5_1,
           .gate_up = kQ8_0,
           .down = kMXFP4,
           .qkv = {{{kIQ4_XS, 0, 1152}, {kFP8, 1152, 256}, {kQ5_K, 1408, 256}}}};

DecodeBricksProgram program(DecodeBricksShape shape, uint32_t rows, uint32_t workgroups = 264) {
    shape.rows = rows;
    return {shape, workgroups};
}

TEST(DecodeBricksText, IsForWholeBandsOfFormatsThatHavePrograms) {
    for (const DecodeBricksShape& shape : {kQwen7b, kQwen05b, kMixed}) {
        for (const uint32_t rows : {1u, 2u, 4u, 8u}) EXPECT_TRUE(program(shape, rows).can_be()) << shape.hidden;
        EXPECT_FALSE(program(shape, 16).can_be()) << "more rows than matrices have columns";
        EXPECT_FALSE(program(shape, 8, 0).can_be()) << "nobody knows how many run side by side";
    }
    DecodeBricksShape other = kQwen7b;
    other.down = kTable;
    EXPECT_FALSE(program(other, 1).can_be()) << "a table of f32";
    other = kQwen7b;
    other.ffn = 18944 + 64;
    EXPECT_FALSE(program(other, 1).can_be()) << "no whole halves of bricks";
    other = kQwen7b;
    other.qkv[0].n = 4100;
    EXPECT_FALSE(program(other, 1).can_be()) << "no whole bands";
    other = kQwen7b;
    other.qkv[1].row_begin = 4112;
    EXPECT_FALSE(program(other, 1).can_be()) << "rows between two parts";
    other = kQwen7b;
    other.o = kF16;
    EXPECT_FALSE(program(other, 1).can_be()) << "not packed";
}

// No workgroup has more bands of any product than there are places for.
TEST(DecodeBricksText, HasRoomForEveryWorkgroupsBands) {
    uint32_t n = 0;
    for (const uint32_t workgroups : {2u, 14u, 264u}) {
        for (const uint32_t hidden : {896u, 1024u, 4096u, 5120u, 8192u}) {
            for (const uint32_t ffn : {1536u, 4352u, 18944u}) {
                for (const uint32_t qkv : {1152u, 4096u, 10240u}) {
                    DecodeBricksShape shape = kQwen7b;
                    shape.hidden = shape.q = hidden;
                    shape.ffn = ffn;
                    shape.qkv = {{{kQ4_K, 0, qkv}, {}, {}}};
                    const DecodeBricksProgram of = program(shape, 8, workgroups);
                    const auto most = [&](uint32_t rows) { return ceil_div(rows / kBrickRows, workgroups); };
                    for (const uint32_t bands : {most(hidden), 2 * most(ffn), most(qkv)})
                        EXPECT_LE(bands + kDecodeBricksWarps - 1, of.partials()) << hidden << " " << ffn << " " << qkv;
                    ++n;
                }
            }
        }
    }
    EXPECT_EQ(n, 3u * 5 * 3 * 3);
}

// A brick of any format is on its way for each warp, whatever the rows.
TEST(DecodeBricksText, HasEveryLabelOnceAndFitsSharedMemory) {
    for (const DecodeBricksShape& shape : {kQwen7b, kQwen05b, kMixed}) {
        for (const uint32_t rows : {1u, 4u, 8u}) {
            const DecodeBricksProgram of = program(shape, rows);
            EXPECT_GE(of.ring_bytes(), brick_bytes(kWeightsQ6_K));
            const std::string text = decode_bricks_text(of);
            const uint32_t bytes = check_program_text(text, 30u);
            EXPECT_GT(bytes, kDecodeBricksWarps * brick_bytes(kWeightsQ6_K));
            EXPECT_LE(bytes, kDecodeBricksShared);
        }
    }
}

class DecodeBricks : public KernelTest {
  protected:
    struct Case {
        DecodeBricksShape shape;
        Type type = Type::kF16;
        uint32_t n_rows = 1;
        bool has_bias = false, is_last = false;
    };
    // Random bricks, and their numbers in rows.
    struct Packed {
        Buffer part;
        std::vector<float> values;
        uint64_t address() const { return part.address() + kPartAlign; }
    };

    void SetUp() override {
        KernelTest::SetUp();
        kernels_ = must(KernelSet::create(device(), {.path = lorad::testing::best_path()}));
    }

    Packed packed(WeightFormat format, uint32_t n, uint32_t k) {
        Packed made{.part = input(std::vector<std::byte>(kPartAlign + bytes_of(format, n, k))), .values = {}};
        self_test::fill_part(format, made.part.mapped(), random_);
        const Buffer plain = poisoned(uint64_t{n} * k * 4);
        execute([&](Recorder& recorder) {
            kernels_->products.unpack_weights(
                recorder,
                {.from = made.address(), .to = plain.address(), .first_row = 0, .n = n, .n_rows = n, .stride = k},
                {format, ScalarType::kF32});
        });
        made.values = content<float>(plain, size_t{n} * k);
        return made;
    }
    std::vector<float> rows_of(const Buffer& fragments, uint32_t k, Type type) const {
        const std::vector<float> all = content(fragments, size_t{kDecodeRowsMax} * k, type);
        std::vector<float> rows(all.size());
        for (uint32_t t = 0; t < kDecodeRowsMax; ++t) {
            for (uint32_t i = 0; i < k; ++i)
                rows[size_t{t} * k + i] = all[fragment_offset(t, i, k, kBandFragments) / 2];
        }
        return rows;
    }
    static double inverse_of(std::span<const double> stream) {
        double squares = 0;
        for (const double v : stream) squares += v * v;
        return 1.0 / std::sqrt(squares / static_cast<double>(stream.size()) + kEps);
    }
    // Errors of sums, by the size of what is summed up: weights are rounded to the type where their scales are.
    static void expect_sums(const std::vector<double>& want, std::span<const float> got, double magnitude, Type type,
                            const std::string& what) {
        const double tolerance = 4 * reference::unit_roundoff(type) * magnitude;
        for (size_t i = 0; i < want.size(); ++i)
            ASSERT_NEAR(got[i], want[i], tolerance + std::fabs(want[i]) * 2e-3) << what << ", number " << i;
    }
    static double magnitude_of(const std::vector<float>& w, std::span<const double> x) {
        double w2 = 0, x2 = 0;
        for (const float v : w) w2 += double{v} * v;
        for (const double v : x) x2 += v * v;
        return std::sqrt(w2 / static_cast<double>(w.size()) * x2);
    }

    // Two layers in a row, whose grid barriers count in one word.
    void check(const Case& c) {
        SCOPED_TRACE(::testing::Message() << "type " << int(c.type) << " hidden " << c.shape.hidden << " rows "
                                          << c.n_rows << (c.is_last ? ", the last layer" : ""));
        DecodeBricksShape shape = c.shape;
        shape.type = scalar(c.type);
        shape.rows = std::bit_ceil(c.n_rows);
        if (c.is_last) shape.qkv = {};
        const uint32_t h = shape.hidden, ffn = shape.ffn, y_stride = padded(c.shape.qkv_rows());
        const Packed o = packed(shape.o, h, shape.q), gate = packed(shape.gate_up, ffn, h),
                     up = packed(shape.gate_up, ffn, h), down = packed(shape.down, h, ffn);
        std::vector<Packed> qkv;
        for (const DecodeBricksPart& part : c.shape.qkv)
            qkv.push_back(part.n > 0 ? packed(part.format, part.n, h) : Packed{});
        // Norms make up for weights of any size.
        const auto vector = [&](double size) {
            std::vector<float> values = reference::random_values(h, Type::kF32, random_);
            for (float& v : values) v *= static_cast<float>(size);
            return values;
        };
        const auto size_of = [](const Packed& w) {
            double squares = 0;
            for (const float v : w.values) squares += double{v} * v;
            return std::sqrt(squares / static_cast<double>(w.values.size()));
        };
        const std::vector<float> o_bias = vector(1), down_bias = vector(1),
                                 post = vector(1 / (size_of(gate) * std::sqrt(h))), next = vector(1);
        const Buffer o_bias_b = input(o_bias), down_bias_b = input(down_bias), post_b = input(post),
                     next_b = input(next);
        const Buffer count = input(std::vector<uint32_t>{c.n_rows});
        const Buffer sync = poisoned(kernels_->persistent.decode_bricks_sync_bytes(shape)), given_up = poisoned(16);
        std::memset(sync.mapped().data(), 0, sync.size());
        std::memset(given_up.mapped().data(), 0, given_up.size());
        for (uint32_t turn = 0; turn < 2; ++turn) {
            std::vector<float> x = reference::random_values(size_t{c.n_rows} * shape.q, c.type, random_);
            const std::vector<float> old_stream = reference::random_values(size_t{c.n_rows} * h, Type::kF32, random_);
            auto x_bytes = reference::encode(x, shape.q, shape.q, c.type);
            x_bytes.resize(size_t{kDecodeRowsMax} * shape.q * 2, std::byte{0xff});
            const Buffer x_b = input(x_bytes);
            const Buffer stream = poisoned(size_t{kDecodeRowsMax} * h * 4),
                         xn = poisoned(size_t{kDecodeRowsMax} * h * 2),
                         act = poisoned(size_t{kDecodeRowsMax} * ffn * 2);
            const Buffer y = poisoned(size_t{kDecodeRowsMax} * y_stride * 4), norms = poisoned(deferred_norm_bytes(h));
            std::memcpy(stream.mapped().data(), old_stream.data(), old_stream.size() * 4);
            std::vector<float> inverse(kDecodeRowsMax);
            const double o_size = size_of(o) * std::sqrt(shape.q);
            for (uint32_t t = 0; t < kDecodeRowsMax; ++t)
                inverse[t] = static_cast<float>((0.5 + 0.25 * t) / std::max(1.0, o_size));
            std::memcpy(norms.mapped().data() + kDeferredInverse, inverse.data(), inverse.size() * 4);
            execute([&](Recorder& recorder) {
                DecodeBricksParams params{.n_rows = count.address(),
                                          .o = o.address(),
                                          .gate = gate.address(),
                                          .up = up.address(),
                                          .down = down.address(),
                                          .attention = x_b.address(),
                                          .stream = stream.address(),
                                          .xn = xn.address(),
                                          .act = act.address(),
                                          .y = y.address(),
                                          .norms = norms.address(),
                                          .sync = sync.address(),
                                          .given_up = given_up.address(),
                                          .post_attention_norm = post_b.address(),
                                          .next_norm = c.is_last ? 0 : next_b.address(),
                                          .o_bias = c.has_bias ? o_bias_b.address() : 0,
                                          .down_bias = c.has_bias ? down_bias_b.address() : 0,
                                          .eps = kEps,
                                          .y_stride = y_stride};
                for (size_t i = 0; i < qkv.size() && !c.is_last; ++i)
                    params.qkv[i] = c.shape.qkv[i].n > 0 ? qkv[i].address() : 0;
                kernels_->persistent.decode_bricks(recorder, params, shape);
            });
            ASSERT_EQ(content<uint32_t>(given_up, 1)[0], 0u);
            const auto got_stream = content<float>(stream, size_t{kDecodeRowsMax} * h),
                       got_y = content<float>(y, size_t{kDecodeRowsMax} * y_stride);
            const auto got_xn = rows_of(xn, h, c.type), got_act = rows_of(act, ffn, c.type);
            const auto got_inverse = content<float>(norms, kDecodeRowsMax);
            const double u = reference::unit_roundoff(c.type);
            for (uint32_t t = 0; t < kDecodeRowsMax; ++t) {
                const std::string row = "row " + std::to_string(t) + ", layer " + std::to_string(turn);
                if (t >= c.n_rows) {
                    for (uint32_t i = 0; i < h; ++i)
                        ASSERT_TRUE(is_poison(got_stream[size_t{t} * h + i])) << row << " was written";
                    for (uint32_t i = 0; i < c.shape.qkv_rows(); ++i)
                        ASSERT_TRUE(is_poison(got_y[size_t{t} * y_stride + i])) << row << " of y was written";
                    continue;
                }
                const std::vector<double> input_x = reference::to_doubles({&x[size_t{t} * shape.q], shape.q});
                std::vector<double> sum = reference::multiply(o.values, input_x);
                for (uint32_t i = 0; i < h; ++i)
                    sum[i] += double{old_stream[size_t{t} * h + i]} + (c.has_bias ? o_bias[i] : 0.0f);
                const double post_inverse = inverse_of(sum);
                std::vector<double> normed(h);
                for (uint32_t i = 0; i < h; ++i) normed[i] = sum[i] * post[i] * post_inverse;
                const std::vector<double> gates = reference::multiply(gate.values, normed),
                                          ups = reference::multiply(up.values, normed);
                const double magnitude = magnitude_of(gate.values, normed);
                const float* own_act = &got_act[size_t{t} * ffn];
                for (uint32_t i = 0; i < ffn; ++i) {
                    const double want = gates[i] / (1.0 + std::exp(-gates[i])) * ups[i];
                    ASSERT_NEAR(own_act[i], want,
                                12 * u * (magnitude + std::fabs(gates[i])) * (magnitude + std::fabs(ups[i])))
                        << row << ", activation " << i;
                }
                // Behind down, of the activations as they are.
                const std::vector<double> acts = reference::to_doubles({own_act, ffn});
                const std::vector<double> last = reference::multiply(down.values, acts);
                for (uint32_t i = 0; i < h; ++i) sum[i] += last[i] + (c.has_bias ? down_bias[i] : 0.0f);
                const std::span own{&got_stream[size_t{t} * h], h};
                expect_sums(sum, own, 1.0 + magnitude_of(o.values, input_x) + magnitude_of(down.values, acts), c.type,
                            "the stream's " + row);
                if (c.is_last) continue;
                const std::vector<double> own_stream = reference::to_doubles(own);
                const double next_inverse = inverse_of(own_stream), next_scale = post_inverse / kDeferredMargin;
                EXPECT_NEAR(got_inverse[t], next_inverse, next_inverse * 1e-4) << row;
                const float* own_xn = &got_xn[size_t{t} * h];
                for (uint32_t i = 0; i < h; ++i) {
                    const double want = own_stream[i] * next[i] * next_scale;
                    ASSERT_NEAR(own_xn[i], want, std::fabs(want) * (u + 2e-3) + 0x1p-24)
                        << row << " of xn, column " << i;
                }
                const std::vector<double> own_xns = reference::to_doubles({own_xn, h});
                for (size_t i = 0; i < qkv.size(); ++i) {
                    const DecodeBricksPart& part = c.shape.qkv[i];
                    if (part.n == 0) continue;
                    std::vector<double> want = reference::multiply(qkv[i].values, own_xns);
                    for (double& v : want) v *= next_inverse / next_scale;
                    expect_sums(want, {&got_y[size_t{t} * y_stride + part.row_begin], part.n},
                                magnitude_of(qkv[i].values, own_xns) * next_inverse / next_scale, c.type,
                                "y's " + row + ", part " + std::to_string(i));
                }
            }
            if (::testing::Test::HasFailure()) return;
        }
    }

    bool can(DecodeBricksShape shape, Type type) const {
        shape.type = scalar(type);
        shape.rows = kDecodeRowsMax;
        return kernels_->persistent.can_decode_bricks(shape);
    }

    std::unique_ptr<KernelSet> kernels_;
    std::mt19937 random_{54};
};

TEST_F(DecodeBricks, EqualF64ForAnyNumberOfRows) {
    if (!can(kQwen05b, Type::kF16)) GTEST_SKIP() << "the device does not take the program";
    for (const uint32_t n_rows : {1u, 2u, 3u, 5u, 8u})
        check({.shape = kQwen05b, .n_rows = n_rows, .has_bias = n_rows == 5});
}

TEST_F(DecodeBricks, EqualF64InAMixOfFormats) {
    if (!can(kMixed, Type::kF16)) GTEST_SKIP() << "the device does not take the program";
    check({.shape = kMixed, .n_rows = 7, .has_bias = true});
    check({.shape = kMixed, .n_rows = 1, .is_last = true});
    check({.shape = kMixed, .type = Type::kBf16, .n_rows = 4});
}

// On an H200 264 workgroups have 288 bands of o and down.
TEST_F(DecodeBricks, EqualF64WithSeveralBandsOfAWorkgroup) {
    DecodeBricksShape shape = kQwen05b;
    shape.hidden = 4608;
    shape.ffn = 1024;
    shape.qkv = {{{kQ4_K, 0, 1152}, {}, {}}};
    if (!can(shape, Type::kF16)) GTEST_SKIP() << "the device does not take the program";
    check({.shape = shape, .n_rows = 2});
    check({.shape = shape, .n_rows = 8, .has_bias = true});
}

TEST_F(DecodeBricks, AreNotTakenWhereAskedOff) {
    const auto off =
        must(KernelSet::create(device(), {.path = lorad::testing::best_path(), .decode = PersistentDecode::kOff}));
    const auto invariant =
        must(KernelSet::create(device(), {.path = lorad::testing::best_path(), .batch_invariant = true}));
    DecodeBricksShape shape = kQwen7b;
    shape.rows = 1;
    EXPECT_FALSE(off->persistent.can_decode_bricks(shape));
    EXPECT_FALSE(invariant->persistent.can_decode_bricks(shape));
}

}  // namespace
}  // namespace lorad::gpu::testing::decode_bricks_test
