// What lies between two layers' attentions in one dispatch for a few rows: the text of the program everywhere, its
// results where the device takes it.
#include <cmath>
#include <sstream>
#include <string>

#include "gpu/kernels/persistent/decode_rows_text.h"
#include "gpu/kernels/products/deferred_norm.h"
#include "tests/gpu/kernels/kernel_fixture.h"
#include "tests/gpu/kernels/program_text.h"

namespace lorad::gpu::testing::decode_rows_test {
namespace {

constexpr float kEps = 1e-6f;
constexpr DecodeRowsShape kQwen7b{ScalarType::kF16, 3584, 3584, 18944, 4608},
    kQwen1p5b{ScalarType::kF16, 1536, 1536, 8960, 2048}, kLlama8b{ScalarType::kBf16, 4096, 4096, 14336, 6144};
// Of the tests: one block of columns for each workgroup; two, of which the last workgroup's are not full.
constexpr DecodeRowsShape kOneBlock{ScalarType::kF16, 1280, 1280, 4096, 1792},
    kTwoBlocks{ScalarType::kF16, 2304, 2048, 4352, 2816};

DecodeRowsProgram program(const DecodeRowsShape& shape, uint32_t workgroups = 132) { return {shape, workgroups}; }

TEST(DecodeRowsText, IsForShapesWhoseStepsAreWholeAndThatGiveEverybodyWork) {
    for (const DecodeRowsShape& shape : {kQwen7b, kQwen1p5b, kLlama8b, kOneBlock, kTwoBlocks}) {
        EXPECT_TRUE(program(shape).can_be()) << shape.hidden;
        EXPECT_LE(program(shape).parts(), 132u) << shape.hidden;
        EXPECT_GE(program(shape).parts() * program(shape).blocks() * program(shape).block_rows(), shape.hidden);
        EXPECT_EQ(shape.qkv % program(shape).qkv_rows(), 0u)
            << shape.hidden << ": a last tile would go beyond the matrix";
        EXPECT_FALSE(program(shape, 0).can_be()) << shape.hidden << ": nobody knows how many run side by side";
        EXPECT_FALSE(program(shape, 2048).can_be()) << shape.hidden << ": more workgroups than tiles";
    }
    EXPECT_FALSE(program({ScalarType::kF16, 896, 896, 4864, 1152}).can_be()) << "896 are no whole steps";
    EXPECT_FALSE(program({ScalarType::kF16, 1024, 1024, 4096, 1536}).can_be()) << "a tile shorter than a ring";
    EXPECT_FALSE(program({ScalarType::kF16, 5120, 5120, 13824, 7168}).can_be()) << "more of x than registers";
    EXPECT_FALSE(program(kLlama8b, 114).can_be()) << "36 columns are three blocks";
    EXPECT_EQ(program({ScalarType::kF16, 3072, 3072, 8192, 5120}).qkv_rows(), 16u)
        << "14 are nearer to a third of a workgroup's, but no whole tiles";
    EXPECT_FALSE(program({ScalarType::kF16, 2560, 2560, 4608, 3333}).can_be()) << "no whole tiles";
}

// What an assembler would say first, and the limit of shared memory, beyond which a device is lost.
TEST(DecodeRowsText, HasEveryLabelOnceAndFitsSharedMemory) {
    for (const DecodeRowsShape& shape : {kQwen7b, kQwen1p5b, kLlama8b, kOneBlock, kTwoBlocks}) {
        const std::string text = decode_rows_text(program(shape));
        const uint32_t bytes = check_program_text(text, 20u);
        EXPECT_GT(bytes, 40u * 1024);
        EXPECT_LE(bytes, 48u * 1024);
    }
}

// Each slot that is asked for is waited for once: one group of copies for each, five ahead.
TEST(DecodeRowsText, CommitsAGroupForEachSlot) {
    const std::string text = decode_rows_text(program(kQwen7b));
    const auto count = [&](const std::string& what) {
        size_t n = 0;
        for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
        return n;
    };
    const size_t waits = count("cp.async.wait_group 4;"), commits = count("cp.async.commit_group;");
    EXPECT_EQ(commits, waits + 3 * kDecodeRowsSlots) << "o's first slots, and those of who has nothing of o or down";
}

class DecodeRows : public KernelTest {
  protected:
    struct Case {
        DecodeRowsShape shape;
        Type type = Type::kF16;
        uint32_t n_rows = kDecodeRowsMax;
        bool has_bias = false, is_last = false;
    };

    void SetUp() override {
        KernelTest::SetUp();
        kernels_ = must(KernelSet::create(device(), {.path = lorad::testing::best_path()}));
    }
    bool can(DecodeRowsShape shape, Type type) const {
        shape.type = scalar(type);
        return kernels_->persistent.can_decode_rows(shape);
    }

    std::vector<float> rounded(const std::vector<double>& values, Type type) const {
        std::vector<float> floats(values.begin(), values.end());
        return reference::decode(
            reference::encode(floats, static_cast<uint32_t>(floats.size()), static_cast<uint32_t>(floats.size()), type),
            type);
    }
    static double inverse_of(const std::vector<double>& stream) {
        double squares = 0;
        for (const double v : stream) squares += v * v;
        return 1.0 / std::sqrt(squares / static_cast<double>(stream.size()) + kEps);
    }

    // Two layers in a row, whose grid barriers count in one word.
    void check(const Case& c) {
        SCOPED_TRACE(::testing::Message() << "type " << int(c.type) << " hidden " << c.shape.hidden << " rows "
                                          << c.n_rows << (c.is_last ? ", the last layer" : ""));
        DecodeRowsShape shape = c.shape;
        shape.type = scalar(c.type);
        const uint32_t h = shape.hidden, y_stride = padded(shape.qkv);
        const auto matrix = [&](uint32_t n, uint32_t k) {
            return reference::random_values(size_t{n} * k, c.type, random_);
        };
        const auto buffer_of = [&](const std::vector<float>& w, uint32_t k) {
            return input(reference::encode(w, k, k, c.type));
        };
        const auto vector = [&](uint32_t n) { return reference::random_values(n, Type::kF32, random_); };
        const std::vector<float> o = matrix(h, shape.q), gate_up = matrix(2 * shape.ffn, h),
                                 down = matrix(h, shape.ffn), qkv = matrix(shape.qkv, h);
        const std::vector<float> o_bias = vector(h), down_bias = vector(h), post = vector(h), next = vector(h);
        const Buffer o_b = buffer_of(o, shape.q), gate_up_b = buffer_of(gate_up, h),
                     down_b = buffer_of(down, shape.ffn), qkv_b = buffer_of(qkv, h);
        const Buffer o_bias_b = input(o_bias), down_bias_b = input(down_bias), post_b = input(post),
                     next_b = input(next);
        const Buffer count = input(std::vector<uint32_t>{c.n_rows});
        const Buffer sync = poisoned(kernels_->persistent.decode_rows_sync_bytes(shape)), given_up = poisoned(16);
        std::memset(sync.mapped().data(), 0, sync.size());
        std::memset(given_up.mapped().data(), 0, given_up.size());
        for (uint32_t turn = 0; turn < 2; turn++) {
            const std::vector<float> x = reference::random_values(size_t{c.n_rows} * shape.q, c.type, random_);
            const std::vector<float> old_stream = reference::random_values(size_t{c.n_rows} * h, Type::kF32, random_);
            auto x_bytes = reference::encode(x, shape.q, shape.q, c.type);
            x_bytes.resize(size_t{kDecodeRowsMax} * shape.q * 2, std::byte{0xff});
            const Buffer x_b = input(x_bytes);
            const Buffer stream = poisoned(size_t{kDecodeRowsMax} * h * 4),
                         xn = poisoned(size_t{kDecodeRowsMax} * h * 2),
                         act = poisoned(size_t{kDecodeRowsMax} * shape.ffn * 2);
            const Buffer y = poisoned(size_t{kDecodeRowsMax} * y_stride * 4), norms = poisoned(deferred_norm_bytes(h));
            std::memcpy(stream.mapped().data(), old_stream.data(), old_stream.size() * 4);
            std::vector<float> inverse(kDecodeRowsMax);
            for (uint32_t t = 0; t < kDecodeRowsMax; t++) inverse[t] = 0.5f + 0.25f * static_cast<float>(t);
            std::memcpy(norms.mapped().data() + kDeferredInverse, inverse.data(), inverse.size() * 4);
            execute([&](Recorder& recorder) {
                kernels_->persistent.decode_rows(recorder,
                                                 {.n_rows = count.address(),
                                                  .o = o_b.address(),
                                                  .gate_up = gate_up_b.address(),
                                                  .down = down_b.address(),
                                                  .qkv = c.is_last ? 0 : qkv_b.address(),
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
                                                  .max_polls = 0},
                                                 shape);
            });
            ASSERT_EQ(content<uint32_t>(given_up, 1)[0], 0u);
            const auto got_stream = content<float>(stream, size_t{kDecodeRowsMax} * h),
                       got_y = content<float>(y, size_t{kDecodeRowsMax} * y_stride);
            const auto got_xn = content(xn, size_t{kDecodeRowsMax} * h, c.type),
                       got_act = content(act, size_t{kDecodeRowsMax} * shape.ffn, c.type);
            const auto got_inverse = content<float>(norms, kDecodeRowsMax);
            const double u = reference::unit_roundoff(c.type);
            for (uint32_t t = 0; t < kDecodeRowsMax; t++) {
                const std::string row = "row " + std::to_string(t) + ", layer " + std::to_string(turn);
                if (t >= c.n_rows) {
                    for (uint32_t i = 0; i < h; i++)
                        ASSERT_TRUE(is_poison(got_stream[size_t{t} * h + i]) && is_poison(got_xn[size_t{t} * h + i]))
                            << row << " was written";
                    for (uint32_t i = 0; i < shape.ffn; i++)
                        ASSERT_TRUE(is_poison(got_act[size_t{t} * shape.ffn + i])) << row << " of act was written";
                    for (uint32_t i = 0; i < shape.qkv; i++)
                        ASSERT_TRUE(is_poison(got_y[size_t{t} * y_stride + i])) << row << " of y was written";
                    continue;
                }
                // Behind o; what of it is rounded nobody sees, so activations may be off by a few roundings that went
                // the other way.
                std::vector<double> sum =
                    reference::multiply(o, reference::to_doubles({&x[size_t{t} * shape.q], shape.q}));
                for (uint32_t i = 0; i < h; i++)
                    sum[i] += double{old_stream[size_t{t} * h + i]} + (c.has_bias ? o_bias[i] : 0.0f);
                std::vector<double> normed(h);
                const double scale = double{inverse[t]} / kDeferredMargin, post_inverse = inverse_of(sum);
                for (uint32_t i = 0; i < h; i++) normed[i] = sum[i] * post[i] * scale;
                const std::vector<double> gates_ups =
                    reference::multiply(gate_up, reference::to_doubles(rounded(normed, c.type)));
                const float* own_act = &got_act[size_t{t} * shape.ffn];
                for (uint32_t i = 0; i < shape.ffn; i++) {
                    const double gate = gates_ups[i] * post_inverse / scale,
                                 up = gates_ups[shape.ffn + i] * post_inverse / scale,
                                 want = gate / (1.0 + std::exp(-gate)) * up;
                    ASSERT_NEAR(own_act[i], want, 8 * u * (1.0 + std::fabs(gate)) * (1.0 + std::fabs(up)))
                        << row << ", activation " << i;
                }
                // Behind down, of the activations as they are.
                const std::vector<double> last = reference::multiply(down, reference::to_doubles({own_act, shape.ffn}));
                double largest = 0;
                for (uint32_t i = 0; i < shape.ffn; i++) largest = std::max(largest, std::fabs(double{own_act[i]}));
                for (uint32_t i = 0; i < h; i++) sum[i] += last[i] + (c.has_bias ? down_bias[i] : 0.0f);
                const float* own = &got_stream[size_t{t} * h];
                expect_near(sum, own, sum_tolerance(shape.ffn), 1.0 + largest * std::sqrt(shape.ffn),
                            "the stream's " + row);
                if (c.is_last) {
                    for (uint32_t i = 0; i < shape.qkv; i++)
                        ASSERT_TRUE(is_poison(got_y[size_t{t} * y_stride + i]))
                            << row << " of y was written behind the last layer";
                    continue;
                }
                const std::vector<double> own_stream = reference::to_doubles({own, h});
                const double next_inverse = inverse_of(own_stream), next_scale = post_inverse / kDeferredMargin;
                EXPECT_NEAR(got_inverse[t], next_inverse, next_inverse * 1e-5) << row;
                const float* own_xn = &got_xn[size_t{t} * h];
                for (uint32_t i = 0; i < h; i++) {
                    const double want = own_stream[i] * next[i] * next_scale;
                    ASSERT_NEAR(own_xn[i], want, std::fabs(want) * (u + 1e-5) + 0x1p-25)
                        << row << " of xn, column " << i;
                }
                std::vector<double> want_y = reference::multiply(qkv, reference::to_doubles({own_xn, h}));
                double magnitude = 1.0;
                for (uint32_t i = 0; i < h; i++) magnitude += std::fabs(double{own_xn[i]}) / std::sqrt(h);
                for (double& v : want_y) v *= next_inverse / next_scale;
                expect_near(want_y, &got_y[size_t{t} * y_stride], sum_tolerance(h) + 2e-5,
                            magnitude * next_inverse / next_scale, "y's " + row);
            }
            if (::testing::Test::HasFailure()) return;
        }
    }

    std::unique_ptr<KernelSet> kernels_;
    std::mt19937 random_{28};
};

TEST_F(DecodeRows, EqualF64ForAnyNumberOfRows) {
    if (!can(kOneBlock, Type::kF16)) GTEST_SKIP() << "the device does not take the program";
    for (const uint32_t n_rows : {2u, 5u, 8u}) check({.shape = kOneBlock, .n_rows = n_rows, .has_bias = n_rows == 5});
}

TEST_F(DecodeRows, EqualF64WithTwoBlocksOfColumns) {
    if (!can(kTwoBlocks, Type::kF16)) GTEST_SKIP() << "the device does not take the program";
    check({.shape = kTwoBlocks, .n_rows = 7, .has_bias = true});
    check({.shape = kTwoBlocks, .n_rows = 3, .is_last = true});
}

TEST_F(DecodeRows, EqualF64InBf16) {
    if (!can(kOneBlock, Type::kBf16)) GTEST_SKIP() << "the device does not take the program";
    check({.shape = kOneBlock, .type = Type::kBf16, .n_rows = 6});
    check({.shape = kTwoBlocks, .type = Type::kBf16, .n_rows = 8, .has_bias = true});
}

TEST_F(DecodeRows, AreNotTakenWhereAskedOff) {
    const auto off =
        must(KernelSet::create(device(), {.path = lorad::testing::best_path(), .decode = PersistentDecode::kOff}));
    const auto invariant =
        must(KernelSet::create(device(), {.path = lorad::testing::best_path(), .batch_invariant = true}));
    EXPECT_FALSE(off->persistent.can_decode_rows(kQwen7b));
    EXPECT_FALSE(invariant->persistent.can_decode_rows(kQwen7b));
}

}  // namespace
}  // namespace lorad::gpu::testing::decode_rows_test
