#include "tests/gpu/kernels/kernel_fixture.h"
#include "tests/reference/weights.h"

namespace lorad::gpu::testing::merge_test {
namespace {

// Half the distance between neighbouring numbers of a type at v: what one rounding may cost.
double half_step(double v, Type type) {
    const int smallest = type == Type::kF16 ? -14 : -126;
    const int exponent = v == 0 ? smallest : std::max(std::ilogb(v), smallest);
    return std::ldexp(reference::unit_roundoff(type), exponent);
}

struct Part {
    size_t rank;
    Type type;
    double scale, factor;
    bool with_gain = false, with_bias = false;
};

struct MergeCase {
    uint32_t n_before, n, n_after, k;  // rows of a fused matrix before and behind the module
    Type type;
    std::vector<Part> parts;
    float weight_bound = 1.0f;
};

class MergeWeights : public KernelTest, public ::testing::WithParamInterface<MergeCase> {
  protected:
    void make_parts(const MergeCase& c) {
        for (const Part& part : c.parts) {
            modules_.push_back(TestModule::make(c.n, c.k, part.rank, part.type, part.scale, random_));
            put_poison_behind_b(modules_.back());
            gains_.push_back(reference::random_values(part.with_gain ? c.n : 0, Type::kF32, random_, 2.0f));
            biases_.push_back(reference::random_values(part.with_bias ? c.n : 0, Type::kF32, random_, 2.0f));
            gain_buffers_.push_back(input(gains_.back()));
            bias_buffers_.push_back(input(biases_.back()));
        }
        for (size_t i = 0; i < c.parts.size(); i++) {
            LoraModule entry = modules_[i].entry();
            entries_.push_back({entry.a, entry.b, gains_[i].empty() ? 0 : gain_buffers_[i].address(),
                                biases_[i].empty() ? 0 : bias_buffers_[i].address(), entry.rank, entry.type,
                                entry.scale, static_cast<float>(c.parts[i].factor)});
            LoraPair pair = modules_[i].pair;
            pair.scale = static_cast<float>(pair.scale);
            terms_.push_back({pair, gains_[i], biases_[i], static_cast<float>(c.parts[i].factor)});
        }
        entries_.resize(std::max<size_t>(entries_.size(), 1));
        parts_buffer_ = input(entries_);
    }

    // B ends where the module does, not where the rows to copy do.
    static void put_poison_behind_b(TestModule& module) {
        if (module.pair.rank == 0) return;
        const auto rank = static_cast<uint32_t>(module.pair.rank);
        auto bytes = reference::encode(module.b, rank, round_up(rank, 8), module.type);
        bytes.resize(bytes.size() + size_t{128} * round_up(rank, 8) * 4, std::byte{0xff});
        module.b_buffer = input(bytes);
    }

    std::vector<TestModule> modules_;
    std::vector<std::vector<float>> gains_, biases_;
    std::vector<Buffer> gain_buffers_, bias_buffers_;
    std::vector<MergePart> entries_;
    std::vector<reference::MergeTerm> terms_;
    Buffer parts_buffer_;
};

TEST_P(MergeWeights, RoundsTheSumOnceAndLeavesOtherRowsAndThePristineWeightsAlone) {
    const MergeCase c = GetParam();
    make_parts(c);
    const uint32_t stride = padded(c.k), n_all = c.n_before + c.n + c.n_after;
    const size_t element = bytes_of(scalar(c.type)), row_bytes = stride * element;
    const auto w = reference::random_values(size_t{n_all} * c.k, c.type, random_, c.weight_bound);
    const auto w_bytes = reference::encode(w, c.k, stride, c.type);
    const Buffer from = input(w_bytes);
    const Buffer to = poisoned(w_bytes.size());
    // The module's rows and those behind it, which are copied.
    const MergeWeightsParams params{from.address() + c.n_before * row_bytes,
                                    to.address() + c.n_before * row_bytes,
                                    parts_buffer_.address(),
                                    static_cast<uint32_t>(c.parts.size()),
                                    c.n + c.n_after,
                                    c.n,
                                    stride,
                                    0,
                                    0};
    execute([&](Recorder& recorder) { kernels_->lora.merge_weights(recorder, params, scalar(c.type)); });

    EXPECT_EQ(content<std::byte>(from, w_bytes.size()), w_bytes) << "the pristine weights were written";
    const auto got = content(to, size_t{n_all} * stride, c.type);
    const std::span<const float> own(&w[size_t{c.n_before} * c.k], size_t{c.n} * c.k);
    const auto want = reference::merged(own, c.k, terms_);
    size_t n_summands = 1;
    double magnitude = c.weight_bound;
    for (const Part& part : c.parts) {
        n_summands += part.rank;
        magnitude += std::fabs(part.factor) * (part.with_gain ? 3 : 1) *
                     (c.weight_bound + part.scale * std::sqrt(double(part.rank)));
    }
    for (uint32_t row = 0; row < n_all; row++) {
        for (uint32_t i = 0; i < stride; i++) {
            const float value = got[size_t{row} * stride + i];
            if (row < c.n_before) {
                ASSERT_TRUE(is_poison(value)) << "row " << row << " before the module was written";
            } else if (i >= c.k) {
                ASSERT_EQ(value, 0.0f) << "padding of row " << row;
            } else if (row >= c.n_before + c.n) {
                ASSERT_EQ(value, w[size_t{row} * c.k + i]) << "row " << row << " behind the module";
            } else {
                const double wanted = want[size_t{row - c.n_before} * c.k + i];
                ASSERT_NEAR(value, wanted, half_step(wanted, c.type) + sum_tolerance(n_summands) * magnitude)
                    << "row " << row << " column " << i;
            }
        }
    }
}

TEST_P(MergeWeights, AddsTheBiases) {
    const MergeCase c = GetParam();
    make_parts(c);
    const uint32_t n_rows = c.n + c.n_after;
    const auto base = reference::random_values(n_rows, Type::kF32, random_, 3.0f);
    const Buffer from = input(base);
    for (const bool with_base : {true, false}) {
        const Buffer to = poisoned((n_rows + 1) * 4);
        execute([&](Recorder& recorder) {
            kernels_->lora.merge_bias(recorder, {with_base ? from.address() : 0, to.address(), parts_buffer_.address(),
                                                 static_cast<uint32_t>(c.parts.size()), n_rows, c.n, 0});
        });
        const auto got = content<float>(to, n_rows + 1);
        const std::span<const float> own = with_base ? std::span(base).first(c.n) : std::span<const float>();
        expect_near(reference::merged_bias(own, c.n, terms_), got.data(), sum_tolerance(8), 30, "bias");
        for (uint32_t i = c.n; i < n_rows; i++) EXPECT_EQ(got[i], with_base ? base[i] : 0.0f);
        EXPECT_TRUE(is_poison(got[n_rows]));
    }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, MergeWeights,
    ::testing::Values(MergeCase{0, 96, 32, 96, Type::kF32, {{8, Type::kF32, 2, 1}}},
                      MergeCase{64, 33, 95, 250, Type::kBf16, {{16, Type::kBf16, 0.5, 1}}},
                      MergeCase{128, 64, 0, 128, Type::kF16, {{3, Type::kF16, 1.5, -0.7, true, true}}},
                      // a wide row, a rank of several tiles
                      MergeCase{0, 17, 3, 1030, Type::kBf16, {{70, Type::kF32, 0.25, 1, false, true}}},
                      MergeCase{5, 12, 1, 300, Type::kF16, {{512, Type::kBf16, 0.1, 1, true}}},
                      // f16 numbers below 2^-14
                      MergeCase{0, 16, 0, 64, Type::kF16, {{1, Type::kF16, 2e-5, 1}}, 1e-4f},
                      // one of these has a bias alone
                      MergeCase{7,
                                41,
                                9,
                                200,
                                Type::kBf16,
                                {{1, Type::kF32, 1, 0.5},
                                 {9, Type::kF16, 1, -0.25, true},
                                 {0, Type::kF32, 1, 2, false, true},
                                 {33, Type::kBf16, 0.5, 1, false, true},
                                 {16, Type::kBf16, 1, 0.3},
                                 {8, Type::kF32, 1, 0.1, true},
                                 {5, Type::kF16, 1, 0.2},
                                 {64, Type::kF16, 0.1, -1}}},
                      MergeCase{0, 24, 8, 64, Type::kF16, {}}));

TEST_F(MergeWeights, HasTheSameBitsEveryTime) {
    const MergeCase c{0, 64, 0, 640, Type::kBf16, {{16, Type::kBf16, 1, 0.5, true}, {40, Type::kF16, 1, 1}}};
    make_parts(c);
    const auto w =
        reference::encode(reference::random_values(size_t{c.n} * c.k, c.type, random_), c.k, padded(c.k), c.type);
    const Buffer from = input(w);
    std::vector<std::vector<std::byte>> results;
    for (int run = 0; run < 3; run++) {
        const Buffer to = poisoned(w.size());
        execute([&](Recorder& recorder) {
            kernels_->lora.merge_weights(
                recorder, {from.address(), to.address(), parts_buffer_.address(), 2, c.n, c.n, padded(c.k), 0, 0},
                scalar(c.type));
        });
        results.push_back(content<std::byte>(to, w.size()));
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
}

struct NormCase {
    uint32_t n, k;
    size_t rank;
    Type weight_type, type;
};

class WeightNorm : public KernelTest, public ::testing::WithParamInterface<NormCase> {};

TEST_P(WeightNorm, DividesMagnitudesByTheNormOfTheAdaptedRows) {
    const auto [n, k, rank, weight_type, type] = GetParam();
    const TestModule module = TestModule::make(n, k, rank, type, 0.5, random_);
    auto w = reference::random_values(size_t{n} * k, weight_type, random_);
    const auto magnitude = reference::random_values(n + 1, Type::kF32, random_, 4.0f);
    // A row that the adapter leaves at zero must not divide by it.
    std::vector<float> b = module.b;
    std::fill_n(&w[size_t{n - 1} * k], k, 0.0f);
    std::fill_n(&b[size_t{n - 1} * rank], rank, 0.0f);
    const Buffer b_buffer = input(reference::encode(b, rank, round_up(static_cast<uint32_t>(rank), 8), type));
    const Buffer from = input(reference::encode(w, k, padded(k), weight_type));
    const Buffer gain = input(magnitude);
    execute([&](Recorder& recorder) {
        kernels_->lora.weight_norm(recorder,
                                   {from.address(), module.a_buffer.address(), b_buffer.address(), gain.address(),
                                    static_cast<uint32_t>(rank), static_cast<uint32_t>(type), 0.5f, n, padded(k), 0},
                                   scalar(weight_type));
    });
    const auto got = content<float>(gain, n + 1);
    const auto want = reference::gains(std::span(magnitude).first(n), w, k, {module.a, b, rank, 0.5});
    // Squares are all positive, so their sum loses little; B A cancels at most to its own size, far below the row's
    // norm.
    expect_near(want, got.data(), sum_tolerance(k + rank), 4.0, "gain");
    EXPECT_EQ(got[n - 1], 0.0f);
    EXPECT_EQ(got[n], magnitude[n]) << "behind the module";
}

INSTANTIATE_TEST_SUITE_P(Shapes, WeightNorm,
                         ::testing::Values(NormCase{96, 96, 4, Type::kF32, Type::kF32},
                                           NormCase{33, 350, 9, Type::kBf16, Type::kBf16},
                                           NormCase{8, 2050, 512, Type::kF16, Type::kF32},
                                           NormCase{1, 64, 1, Type::kBf16, Type::kF16},
                                           NormCase{130, 250, 70, Type::kF32, Type::kF16}));

}  // namespace
}  // namespace lorad::gpu::testing::merge_test
